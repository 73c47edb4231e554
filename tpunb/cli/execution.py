"""Executing a notebook in its own kernel, and saving it whether it passes or fails."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpunb._util.atomic_files import check_writable, is_stream, own_stream
from tpunb._util.units import duration
from tpunb.cli.command import Failed, SignalArrived, StopSignals
from tpunb.cli.graded_notebooks import with_grades
from tpunb.cli.progress import Progress, explained
from tpunb.machine.keras_2 import choose_keras_2
from tpunb.notebook.files import STUDENT, NotebookError, read_notebook, write_notebook

TIMEOUT = 600
"""Seconds that one cell may take by default."""

_ANSWER_TIME = 10.0
"""Seconds that an interrupted cell may take to end, before its kernel is ended."""

EXECUTING = {name: name for name in ("nbclient", "ipykernel", "nbformat")}
"""The packages that execute a notebook (`tpunb[run]`), by their modules."""


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """How to execute a notebook.

    Attributes:
        folder: The kernel's working folder.
        timeout: Seconds that one cell may take; 0 for no limit.
        keep_going: Whether to execute the cells after a failed cell.
        keras: 2 to make `tf.keras` Keras 2.
        quiet: Whether to print only failures.
        show_displays: Whether to print the beginning of what a cell displays.
        student: A student's notebook, which the executed notebook's checks grade.
    """

    folder: Path
    timeout: int = TIMEOUT
    keep_going: bool = False
    keras: int | None = None
    quiet: bool = False
    show_displays: bool = False
    student: Path | None = None


def execute_and_save(
    notebook: Any,
    output: Path,
    execution: Execution,
    kernel: contextlib.AbstractContextManager[str | None],
) -> None:
    """Execute a notebook, save it even if a cell fails, and print the result.

    Args:
        notebook: The notebook, which gets the outputs.
        output: The file to save it in; see `prepare`.
        execution: How to execute it.
        kernel: A context manager that provides a Jupyter kernel and yields its name, or yields
            None for the notebook's own kernel.

    Raises:
        Failed: A cell failed, or the user interrupted the execution.
        NotebookError: The kernel does not exist or start, or `output` cannot be written.
    """
    # A notebook on standard output must be the only text there.
    stream = sys.stderr if own_stream(output) == 1 else sys.stdout
    if execution.keras is not None and not execution.quiet:
        print("tf.keras is Keras 2.", file=stream)
    line_stream = None if execution.quiet else stream
    shown = execution.show_displays
    progress = Progress(notebook.cells, line_stream, execution.timeout, show_displays=shown)
    begin = time.monotonic()
    with StopSignals() as signals, kernel as name:
        try:
            _execute(notebook, progress, kernel=name, execution=execution)
        finally:
            with signals.held():
                write_notebook(_result(notebook, execution.student), output)
    if progress.failed:
        progress.end(f"{progress.summary()}; saved as {output}", stream)
        raise Failed(progress.failures())
    seconds = time.monotonic() - begin
    progress.end(f"{progress.summary()} in {duration(seconds)}, saved as {output}")


def _result(executed: Any, student: Path | None) -> Any:
    return executed if student is None else with_grades(read_notebook(student), executed)


def prepare(output: Path) -> None:
    """Make the output folder, so that an error comes now and not after an hour of training.

    Raises:
        NotebookError: The file cannot be written.
    """
    if is_stream(output):
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotebookError(f"Cannot make the folder {output.parent}: {error.strerror}.") from error
    try:
        check_writable(output)
    except OSError as error:
        raise NotebookError(
            f"Cannot write {output}: {error.strerror}.", fix="Choose another file with -o."
        ) from error


def missing_packages(modules: Mapping[str, str]) -> list[str]:
    """Return the packages that are not installed.

    Args:
        modules: The package names, by a module of each package.
    """
    return [
        package for module, package in modules.items() if importlib.util.find_spec(module) is None
    ]


def _client(notebook: Any, progress: Progress, kernel: str | None, execution: Execution) -> Any:
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=execution.timeout or None,
        resources={"metadata": {"path": str(execution.folder)}},
        # Executing a notebook twice must give the same file: no dates.
        record_timing=False,
        coalesce_streams=True,  # as Jupyter does: how a cell's text is sent says nothing
        # Hide the kernel's log of its sockets and interrupts.
        extra_arguments=["--log-level=50"],
        allow_errors=execution.keep_going,
        interrupt_on_timeout=execution.keep_going,
        on_cell_execute=progress.start,
        on_cell_executed=progress.finish,
    )
    if kernel:
        client.kernel_name = kernel
    return client


def _execute(
    notebook: Any, progress: Progress, *, kernel: str | None, execution: Execution
) -> None:
    """Execute a notebook in place. `progress` records the cells that fail."""
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = _client(notebook, progress, kernel, execution)
    environment = {
        # A widget cannot be saved, and this command may itself run in a notebook.
        "TPUNB_WIDGETS": "never",
        **os.environ,
        # debugpy warns that CPython (3.11 or later) froze some modules, which does not matter here
        # (ipython/ipykernel#1198).
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    if execution.keras is not None:
        choose_keras_2(environment)
    if execution.student is not None:
        environment[STUDENT] = str(execution.student.resolve())
    try:
        _run_in_thread(client, environment)
    except KeyboardInterrupt as stop:
        code = stop.code if isinstance(stop, SignalArrived) else 130
        raise Failed(f"{str(stop) or 'Interrupted'} in {progress.where()}", code) from None
    except NoSuchKernel as error:
        raise NotebookError(
            f"There is no Jupyter kernel named {error.name!r}.",
            fix="List the installed kernels with `jupyter kernelspec list`.",
        ) from error
    except CellExecutionError as error:
        progress.stop(explained(error.ename, error.evalue, error.traceback))
    except CellTimeoutError:
        progress.stop(f"it took longer than {execution.timeout} s")
    except DeadKernelError:
        progress.stop("the kernel died, perhaps because memory ran out")
    except RuntimeError as error:
        if progress.begun:
            raise
        raise NotebookError(
            f"The kernel does not start: {error}.", fix="Read the kernel's own message above."
        ) from error


def _run_in_thread(client: Any, environment: dict[str, str]) -> None:
    """Execute a notebook in a thread, so that Ctrl-C ends the cell, the kernel and this command.

    In the main thread, nbclient (0.10) handles Ctrl-C itself: it ends the kernel while a cell
    runs, and then raises an arbitrary error or none.

    Args:
        client: nbclient's client, with the notebook.
        environment: The kernel's environment variables.
    """
    is_stopped = threading.Event()
    start_cell = client.on_cell_execute

    def start_unless_stopped(**cell: Any) -> None:
        if is_stopped.is_set():
            raise asyncio.CancelledError
        start_cell(**cell)

    client.on_cell_execute = start_unless_stopped
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        execution = pool.submit(lambda: asyncio.run(client.async_execute(env=environment)))
        try:
            _wait(execution)
            execution.result()
        except KeyboardInterrupt:
            is_stopped.set()
            _stop(client, execution)
            raise
        finally:
            # If the kernel did not start, nbclient's own clean-up at exit would fail.
            execution.add_done_callback(lambda _: atexit.unregister(client._cleanup_kernel))


def _stop(client: Any, execution: concurrent.futures.Future[None]) -> None:
    """Interrupt the running cell, whose outputs are saved, and end the kernel.

    A kernel that is starting or does not answer is killed, and so is any kernel at a second Ctrl-C.
    """
    client.shutdown_kernel = "immediate"
    group = getattr(getattr(client.km, "provisioner", None), "pgid", None)
    try:
        if client.code_cells_executed:
            with contextlib.suppress(Exception):  # the kernel has died
                asyncio.run(client.km.interrupt_kernel())
            _wait(execution, _ANSWER_TIME)
    except KeyboardInterrupt:
        pass
    # The kernel has its own session, so the rest of the group are its children.
    if group and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    _wait(execution)


def _wait(execution: concurrent.futures.Future[None], seconds: float = math.inf) -> None:
    # Wait in short steps: if another thread gets the signal, a wait is not interrupted.
    end = time.monotonic() + seconds
    while not execution.done() and time.monotonic() < end:
        concurrent.futures.wait([execution], timeout=0.5)
