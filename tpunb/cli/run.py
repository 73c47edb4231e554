"""`tpunb run`: execute a notebook and save it with its outputs."""

from __future__ import annotations

import argparse
import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from tpunb._util.atomic_files import check_writable, is_stream, own_stream
from tpunb._util.units import counted, duration
from tpunb.cli.command import (
    Failed,
    Interrupted,
    OutputError,
    ReaderGone,
    Stopped,
    StopSignals,
    add_command,
    whole_number,
)
from tpunb.machine.software import choose_keras_2
from tpunb.notebook.files import NotebookError, read_notebook, write_notebook

_TIMEOUT = 600
_EPILOG = """\
examples:
  tpunb run notebook.ipynb                          in the notebook's own kernel
  tpunb run notebook.ipynb --tpu v3-8 -o out.ipynb  unmodified, on a virtual TPU
  tpunb run notebook.ipynb --tpu v3-8 --keep-going  all cells, and which of them failed
  tpunb run notebook.ipynb --tpu v3-8 --keras 2     written for Keras 2, unmodified
  tpunb run notebook.ipynb --kernel tpunb-v5e-8     in a kernel that is installed

exit codes: 0 all cells passed; 1 a cell failed; 2 the notebook could not be read,
executed or written; 130 interrupted, 143 terminated (SIGTERM). The notebook is
saved in any case, with what was executed; if that fails, OUT stays as it was.
"""


def add_to(commands: Any) -> None:
    """Adds the command to those of the parser."""
    run = add_command(
        commands,
        "run",
        _run,
        help="execute a notebook and save it with its outputs",
        description="Execute a notebook cell by cell and save it with its outputs, also when a "
        "cell fails: execution ends there, and the error is in the saved notebook.",
        epilog=_EPILOG,
    )
    run.add_argument("notebook", metavar="NOTEBOOK", type=Path, help="the notebook to execute")
    run.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        help="where to save the executed notebook (default: NOTEBOOK with the suffix "
        ".executed.ipynb)",
    )
    run.add_argument(
        "--timeout",
        metavar="S",
        type=whole_number("a number of seconds", 0),
        default=_TIMEOUT,
        help="the longest that one cell may take, in seconds; 0 for no limit (default: "
        "%(default)s)",
    )
    run.add_argument(
        "-k",
        "--keep-going",
        action="store_true",
        help="run every cell, even after one has failed, and count the failures",
    )
    run.add_argument(
        "--keras",
        type=int,
        choices=(2,),
        metavar="2",
        help="make tf.keras Keras 2 (tf_keras), for a notebook that was written for it",
    )
    run.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print no lines about cells that pass, only failures",
    )
    kernel = run.add_mutually_exclusive_group()
    kernel.add_argument(
        "--tpu",
        metavar="TYPE",
        help="a virtual TPU: TensorFlow's own names answer for it; a type such as v5e-8 or v3-32, "
        "or a number of cores",
    )
    kernel.add_argument(
        "--kernel", metavar="NAME", help="the Jupyter kernel (default: the notebook's own)"
    )


def _run(args: argparse.Namespace) -> None:
    path: Path = args.notebook
    output: Path = args.output or path.with_suffix(".executed.ipynb")
    _require_packages()
    from tpunb.notebook.kernels.specs import temporary_kernel

    notebook = read_notebook(path)
    _prepare(output)
    # Where the notebook goes to standard output, nothing else does.
    stream = sys.stderr if own_stream(output) == 1 else sys.stdout
    if args.keras is not None and not args.quiet:
        print("tf.keras is Keras 2.", file=stream)
    progress = Progress(notebook.cells, None if args.quiet else stream, args.timeout)
    starting: contextlib.AbstractContextManager[str | None] = contextlib.nullcontext(args.kernel)
    if args.tpu is not None:
        starting = temporary_kernel(args.tpu, keras=args.keras)
    begin = time.monotonic()
    with StopSignals() as signals, starting as kernel:
        try:
            _execute(notebook, path, progress, kernel=kernel, args=args)
        finally:
            with signals.held():
                write_notebook(notebook, output)
    if progress.failed:
        progress.end(f"{progress.summary()}; saved as {output}", stream)
        raise Failed(progress.failures())
    seconds = time.monotonic() - begin
    progress.end(f"{progress.summary()} in {duration(seconds)}, saved as {output}")


def _prepare(output: Path) -> None:
    """Makes the folder to write to: an error now, not after an hour of training."""
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


def _require_packages() -> None:
    import importlib.util

    wanted = ("nbclient", "ipykernel", "nbformat")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise NotebookError(
            f"Executing a notebook needs {', '.join(missing)}.",
            fix='Install what it takes: pip install "tpunb[run]".',
        )


def _client(
    notebook: Any, path: Path, progress: Progress, kernel: str | None, args: argparse.Namespace
) -> Any:
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=args.timeout or None,
        resources={"metadata": {"path": str(path.parent)}},
        # The same notebook twice is the same file: no dates.
        record_timing=False,
        # Not the kernel's log of its sockets and of being interrupted.
        extra_arguments=["--log-level=50"],
        allow_errors=args.keep_going,
        interrupt_on_timeout=args.keep_going,
        on_cell_execute=progress.start,
        on_cell_executed=progress.finish,
    )
    if kernel:
        client.kernel_name = kernel
    return client


def _execute(
    notebook: Any,
    path: Path,
    progress: Progress,
    *,
    kernel: str | None,
    args: argparse.Namespace,
) -> None:
    """Executes a notebook in place; `progress` knows the cells that failed."""
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = _client(notebook, path, progress, kernel, args)
    environment = {
        # A widget cannot be saved; and the command may itself be run in a notebook.
        "TPUNB_WIDGETS": "never",
        **os.environ,
        # debugpy's warning about modules that CPython has frozen is of no use here.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    if args.keras is not None:
        choose_keras_2(environment)
    try:
        _run_in_thread(client, environment)
    except KeyboardInterrupt as stop:
        word, code = (str(stop), stop.code) if isinstance(stop, Stopped) else ("Interrupted", 130)
        raise Interrupted(f"{word} in {progress.where()}", code) from None
    except NoSuchKernel as error:
        raise NotebookError(
            f"There is no Jupyter kernel named {error.name!r}.",
            fix="See the installed ones with `jupyter kernelspec list`.",
        ) from error
    except CellExecutionError as error:
        progress.stop(explained(error.ename, error.evalue, error.traceback))
    except CellTimeoutError:
        progress.stop(f"it took longer than {args.timeout} s")
    except DeadKernelError:
        progress.stop("the kernel died, perhaps for lack of memory")
    except RuntimeError as error:
        if progress.begun:
            raise
        raise NotebookError(
            f"The kernel does not start: {error}.", fix="See its own message above."
        ) from error


def _run_in_thread(client: Any, environment: dict[str, str]) -> None:
    """Executes a notebook so that Ctrl-C ends the kernel, and then this.

    In the main thread nbclient handles Ctrl-C itself: it ends the kernel while a cell
    runs, and then raises any error, or none.

    Args:
        client: nbclient's, with the notebook.
        environment: The kernel's environment variables.
    """
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    stopped = threading.Event()

    async def execute() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        if stopped.is_set():
            return
        manager = client.create_kernel_manager()
        try:
            await client.async_execute(env=environment)
        finally:
            if stopped.is_set():
                await _end(manager)

    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        done = pool.submit(asyncio.run, execute())
        try:
            # In short waits: where another thread gets the signal, none of them is interrupted.
            while not done.done():
                concurrent.futures.wait([done], timeout=0.5)
            done.result()
        except KeyboardInterrupt:
            stopped.set()
            for loop, task in running:
                loop.call_soon_threadsafe(task.cancel)
            raise
        finally:
            # Where the kernel did not start, nbclient's clean-up at exit would fail.
            done.add_done_callback(lambda _: atexit.unregister(client._cleanup_kernel))


async def _end(manager: Any) -> None:
    """Ends a kernel, which may still be starting, and its child processes."""
    group = getattr(manager.provisioner, "pgid", None)
    if manager.has_kernel:
        await manager.shutdown_kernel(now=True)
    if group and hasattr(os, "killpg"):
        # The kernel has a session of its own, so what is left of the group are its children.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


_WIDTH = 60
_ERROR_LINES = 4
_AGAIN = "\r\x1b[K"  # to the line's start, and clear it


class Progress:
    """Shows which cell runs and how long each took, and keeps those that failed.

    On a terminal a cell's line appears when it begins; a file gets plain lines of
    those that are done.

    Args:
        cells: The notebook's cells.
        stream: Where to write, such as `sys.stdout`; None to be silent.
        timeout: Seconds that a cell may take, 0 for any time.

    Attributes:
        total: How many cells there are to execute.
        failed: Why those failed that failed so far, by their numbers from 1 among the cells with
            code; 0 is what came before the first.
        lost: Why nothing is written any more; None while lines can be written.
    """

    def __init__(self, cells: Sequence[Any], stream: TextIO | None, timeout: int = 0) -> None:
        code = [i for i, cell in enumerate(cells) if cell.cell_type == "code"]
        to_run = [i for i in code if cells[i].source.strip()]
        self.total = len(to_run)
        self.failed: dict[int, str] = {}
        self.lost: OutputError | None = None
        self._numbers = {index: number for number, index in enumerate(to_run, 1)}
        self._stream = stream
        self._timeout = timeout
        self._live = stream is not None and stream.isatty()
        self._label = ""
        self._number = 0
        self._begin = 0.0
        self._open = False

    def start(self, cell: Any, cell_index: int) -> None:
        """A cell begins."""
        self._number = self._numbers[cell_index]
        number = f"{self._number:{len(str(self.total))}}/{self.total}"
        line = cell.source.strip().partition("\n")[0].rstrip()
        line = line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
        self._label = f"[{number}] {line:{_WIDTH}}"
        self._begin = time.monotonic()
        if self._live:
            self._write(f"{self._label}     ...")
            self._open = True

    def finish(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        """A cell has ended, with or without an error."""
        del cell_index
        seconds = time.monotonic() - self._begin
        content = (execute_reply or {}).get("content", {})
        may_fail = "raises-exception" in cell.metadata.get("tags", [])
        failed = content.get("status") == "error" and not may_fail
        if failed:
            why = f"it took longer than {self._timeout} s"
            interrupted = content["ename"] in ("KeyboardInterrupt", "CancelledError")
            if not (interrupted and self._timeout and seconds >= self._timeout):
                why = explained(content["ename"], content["evalue"], content.get("traceback", ()))
            self.failed[self._number] = why
        # The kernel may have written to the terminal meanwhile: the line is written again.
        mark = f"  {content['ename']}" if failed else ""
        if self._live:
            self._write(_AGAIN, control=True)
        self._write(f"{self._label} {seconds:6.1f} s{mark}\n")
        self._open = False

    @property
    def begun(self) -> bool:
        """True if a cell has begun, and so the kernel has started."""
        return self._number > 0

    def where(self) -> str:
        """Return where an interrupted execution stopped."""
        self._end_line()
        return f"cell {self._number} of {self.total}" if self.begun else "the kernel's start"

    def stop(self, why: str) -> None:
        """Execution ends within the cell that runs."""
        self._end_line()
        self.failed.setdefault(self._number, why)

    def failures(self) -> str:
        """The cells that failed and why, a paragraph each."""
        return "\n\n".join(
            f"Cell {number} of {self.total} failed: {why}"
            if number
            else f"The notebook failed before its first cell: {why}"
            for number, why in self.failed.items()
        )

    def end(self, text: str, stream: TextIO | None = None) -> None:
        """Writes the result.

        Args:
            text: The sentence.
            stream: Where to write it if there is no other stream.

        Raises:
            OutputError: This, or a line before, could not be written. A reader that has
                gone is no error: the notebook is saved.
        """
        self._stream = self._stream or stream
        self._write(f"{text}\n")
        if self.lost is not None and not isinstance(self.lost, ReaderGone):
            raise self.lost

    def summary(self) -> str:
        """The number of cells that were executed, and those that failed."""
        cells = counted(self.total, "cell")
        if self._number < self.total:
            cells = f"{self._number} of {cells}"
        if not self.failed:
            return cells
        return f"{cells}, {len(self.failed)} failed: {', '.join(map(str, self.failed))}"

    def _end_line(self) -> None:
        if self._open:
            self._write("\n")
        self._open = False

    def _write(self, text: str, *, control: bool = False) -> None:
        stream = self._stream
        if stream is None or self.lost is not None:
            return
        write = getattr(stream, "write_control", stream.write) if control else stream.write
        try:
            write(text)
            stream.flush()
        except OutputError as error:
            self.lost = error


def explained(name: str, message: str, traceback: Sequence[str] | str) -> str:
    """Describes what a cell raised, and the cause and the fix if it is a known error.

    Args:
        name: The exception's class.
        message: Its text.
        traceback: Its traceback, which may hold the codes of colours.

    Returns:
        Some lines of text.
    """
    from tpunb.errors import base as errors
    from tpunb.errors.explain import explain

    shown = [line for line in f"{name}: {message}".rstrip(": \n").splitlines() if line.strip()]
    if len(shown) > _ERROR_LINES + 1:
        # The message of an error in a tf.function is at its end, below the source lines.
        half = _ERROR_LINES // 2
        shown = [*shown[:half], "...", *shown[-half:]]
    text = "\n".join(shown)
    if hasattr(errors, name):  # it names its fix
        return text
    lines = traceback if isinstance(traceback, str) else "\n".join(traceback)
    found = explain(f"{lines}\n{name}: {message}")
    return f"{text}\n{found}" if found else text
