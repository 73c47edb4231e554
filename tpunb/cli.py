"""The command line: execute a notebook, look at a TPU's topology, explain an error."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from tpunb.errors import TpunbError

__all__ = ["main"]

_TIMEOUT = 600
_WIDTH = 60
_ERROR_LINES = 4
_EPILOG = (
    "exit codes: 0 done; 1 a cell failed, or the error is not a known one; 2 the command could "
    "not be carried out"
)


class NotebookError(TpunbError):
    """A notebook that cannot be read, or nothing to execute it with."""


class CellFailed(Exception):
    """A cell of the notebook failed; the message says which and how."""


class NotKnown(Exception):
    """An error is not in the catalogue."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: The arguments; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a cell failed or an error is not a known one,
        2 the command could not be carried out.
    """
    args = _parser().parse_args(argv)
    try:
        args.command(args)
    except (CellFailed, NotKnown) as error:
        print(error, file=sys.stderr)
        return 1
    except TpunbError as error:
        print(f"tpunb: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpunb", description="TPUs in a notebook, with or without a TPU.", epilog=_EPILOG
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    _add_run(commands)
    _add_topology(commands)
    _add_explain(commands)
    return parser


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
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
        type=_seconds,
        default=_TIMEOUT,
        help="the longest that one cell may take, in seconds; 0 for no limit (default: "
        "%(default)s)",
    )
    run.add_argument(
        "--kernel", metavar="NAME", help="the Jupyter kernel (default: the notebook's own)"
    )
    run.set_defaults(command=_run)


def _add_topology(commands: Any) -> None:
    topology = commands.add_parser(
        "topology",
        help="draw the topology of a TPU type",
        description="Draw the hosts, chips and cores of a TPU type; no TPU is needed.",
        epilog=_EPILOG,
    )
    topology.add_argument(
        "type",
        nargs="?",
        default="v5e-8",
        metavar="TYPE",
        help="a type such as v5e-8 or v3-32, or a number of cores (default: %(default)s)",
    )
    topology.set_defaults(command=_topology)


def _add_explain(commands: Any) -> None:
    explain = commands.add_parser(
        "explain",
        help="explain an error that users of TPUs are known to meet",
        description="Say why an error happens and what to do about it. TensorFlow is not needed.",
        epilog=_EPILOG,
    )
    explain.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="a message, a traceback or a log; - or nothing: what is piped or pasted in",
    )
    explain.add_argument(
        "--all", action="store_true", help="print the whole catalogue, as Markdown"
    )
    explain.set_defaults(command=_explain)


def _seconds(text: str) -> int:
    seconds = int(text)
    if seconds < 0:
        raise ValueError(text)
    return seconds


def _topology(args: argparse.Namespace) -> None:
    from tpunb.accelerators import accelerator
    from tpunb.describe import describe_accelerator
    from tpunb.show import topology_text

    print(topology_text(describe_accelerator(accelerator(args.type))))


def _explain(args: argparse.Namespace) -> None:
    from tpunb.doctor import explain

    if args.all:
        from tpunb.show.errors_page import errors_page

        print(errors_page(), end="")
        return
    text = " ".join(args.text)
    if text in ("", "-"):
        if sys.stdin.isatty():
            print("Paste the error, then press Ctrl-D on a line of its own.", file=sys.stderr)
        text = _pasted(sys.stdin)
    found = explain(text)
    if found is None:
        raise NotKnown("This is not an error that tpunb knows.")
    print(found)
    for address in found.links:
        print(f"  {address}")


def _pasted(stream: TextIO) -> str:
    """All of a stream; logs may hold bytes that are no text."""
    buffer = getattr(stream, "buffer", None)
    return stream.read() if buffer is None else buffer.read().decode("utf-8", errors="replace")


def _run(args: argparse.Namespace) -> None:
    path: Path = args.notebook
    output: Path = args.output or path.with_suffix(".executed.ipynb")
    notebook = _read(path)
    # Told now, not after an hour of training.
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotebookError(f"Cannot make the folder {output.parent}: {error.strerror}.") from error
    begin = time.monotonic()
    try:
        count = _execute(notebook, path, kernel=args.kernel, timeout=args.timeout)
    finally:
        _write(notebook, output)
    print(f"{count} cells in {time.monotonic() - begin:.1f} s, saved as {output}")


def _read(path: Path) -> Any:
    _require_packages()
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
    except OSError as error:
        raise NotebookError(f"Cannot read {path}: {error.strerror}.") from error
    except Exception as error:  # whatever JSON, Unicode and nbformat's versions raise
        raise NotebookError(
            f"{path} is not a Jupyter notebook ({type(error).__name__}).",
            mend="Give the path of an .ipynb file.",
        ) from error
    return notebook


def _write(notebook: Any, path: Path) -> None:
    import nbformat

    try:
        nbformat.write(notebook, path)
    except OSError as error:
        raise NotebookError(f"Cannot write {path}: {error.strerror}.") from error


def _require_packages() -> None:
    import importlib.util

    wanted = ("nbclient", "ipykernel", "nbformat")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise NotebookError(
            f"Executing a notebook needs {', '.join(missing)}.",
            mend='Install what it takes: pip install "tpunb[run]".',
        )


def _execute(notebook: Any, path: Path, *, kernel: str | None, timeout: int) -> int:
    """Executes a notebook in place and says how it goes; returns how many cells it has."""
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    progress = _Progress(notebook.cells, sys.stdout)
    client = NotebookClient(
        notebook,
        timeout=timeout or None,
        resources={"metadata": {"path": str(path.parent)}},
        # The same notebook twice is the same file: no dates.
        record_timing=False,
        # Errors only: how the kernel's sockets are made is nobody's concern here.
        extra_arguments=["--log-level=40"],
        on_cell_execute=progress.start,
        on_cell_executed=progress.finish,
    )
    if kernel:
        client.kernel_name = kernel
    try:
        client.execute()
    except NoSuchKernel as error:
        raise NotebookError(
            f"There is no Jupyter kernel named {error.name!r}.",
            mend="`jupyter kernelspec list` shows those that there are.",
        ) from error
    except CellExecutionError as error:
        raise CellFailed(progress.failure(_explained(error))) from error
    except CellTimeoutError as error:
        raise CellFailed(progress.failure(f"it took longer than {timeout} s")) from error
    except DeadKernelError as error:
        raise CellFailed(progress.failure("the kernel died, perhaps for lack of memory")) from error
    except (KeyboardInterrupt, AssertionError, AttributeError) as error:
        # nbclient answers Ctrl-C by ending the kernel, and then stumbles over its absence.
        if not isinstance(error, KeyboardInterrupt) and client.km is not None:
            raise
        raise CellFailed(progress.failure("interrupted")) from error
    return progress.total


class _Progress:
    """Says which cell runs, and what each took.

    A terminal sees a cell's line when it begins; a file, plain lines of those
    that are done.

    Attributes:
        total: How many cells there are to execute.
    """

    def __init__(self, cells: Sequence[Any], stream: TextIO) -> None:
        code = [i for i, cell in enumerate(cells) if cell.cell_type == "code"]
        to_run = [i for i in code if cells[i].source.strip()]
        self.total = len(to_run)
        self._numbers = {index: number for number, index in enumerate(to_run, 1)}
        self._stream = stream
        self._live = stream.isatty()
        self._label = ""
        self._number = 0
        self._begin = 0.0
        self._open = False

    def start(self, cell: Any, cell_index: int) -> None:
        """A cell begins."""
        self._number = self._numbers[cell_index]
        number = f"{self._number:{len(str(self.total))}}/{self.total}"
        self._label = f"[{number}] {_first_line(cell.source):{_WIDTH}}"
        self._begin = time.monotonic()
        if self._live:
            self._say(f"{self._label}     ...")
            self._open = True

    def finish(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        """A cell is done, whether well or not."""
        del cell, cell_index, execute_reply
        # The kernel may have written on the terminal meanwhile: the line is written anew.
        again = "\r\x1b[K" if self._live else ""
        self._say(f"{again}{self._label} {time.monotonic() - self._begin:6.1f} s\n")
        self._open = False

    def failure(self, why: str) -> str:
        """The message for the cell that ran last."""
        if self._open:
            self._say("\n")
        if not self._number:
            return f"The notebook failed before its first cell: {why}"
        return f"Cell {self._number} of {self.total} failed: {why}"

    def _say(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _first_line(source: str) -> str:
    line = source.strip().partition("\n")[0].rstrip()
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _explained(error: Any) -> str:
    """What a cell raised, and the cause and the mend if it is a known error."""
    from tpunb import errors
    from tpunb.doctor import explain

    said = _shortly(error.ename, error.evalue)
    if hasattr(errors, error.ename):  # it names its mend
        return said
    found = explain(f"{error.traceback}\n{error.ename}: {error.evalue}")
    return f"{said}\n{found}" if found else said


def _shortly(name: str, message: str) -> str:
    lines = f"{name}: {message}".rstrip(": \n").splitlines()
    if len(lines) > _ERROR_LINES:
        lines = [*lines[:_ERROR_LINES], "..."]
    return "\n".join(lines)
