"""`tpunb demo`: execute the quickstart notebook on a virtual TPU."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tpunb import examples
from tpunb._util.atomic_files import is_stream
from tpunb.cli.command import add_command
from tpunb.cli.execution import (
    EXECUTING,
    Execution,
    execute_and_save,
    missing_packages,
    prepare,
)
from tpunb.compiler.ask import libtpu
from tpunb.notebook.files import NotebookError, read_notebook

_NAME = "tpunb-quickstart"
_NEEDED = {**EXECUTING, "tensorflow": "tensorflow", "keras": "keras", "sklearn": "scikit-learn"}
_EPILOG = """\
examples:
  tpunb demo
  tpunb demo -o first.ipynb

exit codes: 0 all cells passed; 1 a cell failed; 2 a package is missing, or the notebook
could not be executed or saved; 130 interrupted, 143 terminated (SIGTERM)
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    demo = add_command(
        commands,
        "demo",
        _demo,
        help="execute the quickstart notebook on a virtual TPU",
        description="Execute the quickstart notebook on a virtual TPU v3-8 and save it with its "
        "outputs. It needs no TPU and no network.",
        epilog=_EPILOG,
    )
    demo.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        help=f"where to save the executed notebook; existing files are kept (default: "
        f"{_NAME}.ipynb in this folder, or {_NAME}-2.ipynb and so on)",
    )


def _demo(args: argparse.Namespace) -> None:
    _require_packages()
    from tpunb.notebook.kernels.specs import own_kernel

    output: Path = args.output or _unused_file(Path.cwd())
    streamed = is_stream(output)
    if output.is_file() and not streamed:
        raise NotebookError(f"{output} already exists.", fix="Choose another file with -o.")
    prepare(output)
    notebook = read_notebook(_quickstart())
    if reason := libtpu.why_unavailable():
        _leave_out_compiling(notebook, str(reason))
    # Not in the user's folder: a random.py there would hide the standard module.
    with tempfile.TemporaryDirectory(prefix="tpunb-", ignore_cleanup_errors=True) as folder:
        execute_and_save(notebook, output, Execution(Path(folder)), own_kernel())
    if not streamed:
        print(f"Open it in VS Code, or in JupyterLab: {_command_to_open(output)}")


def _require_packages() -> None:
    missing = missing_packages(_NEEDED)
    if not missing:
        return
    extras = "cpu,demo" if {"tensorflow", "keras"} & set(missing) else "demo"
    raise NotebookError(
        f"The demo needs {', '.join(missing)}.",
        fix=f'pip install "tpunb[{extras}]"',
    )


def _leave_out_compiling(notebook: Any, reason: str) -> None:
    """Make nbclient skip the cells that need the compiler, and give them the reason as output."""
    import nbformat

    for cell in notebook.cells:
        if cell.source.startswith("%%tpu_compile"):
            cell.metadata.setdefault("tags", []).append("skip-execution")
            text = f"The demo left this cell out. {reason}\n"
            cell.update(outputs=[nbformat.v4.new_output("stream", text=text)], execution_count=None)
            print(text, end="", file=sys.stderr)


def _unused_file(folder: Path) -> Path:
    """Return the first default name that is unused in a folder."""
    names = (f"{_NAME}{'' if number == 1 else f'-{number}'}.ipynb" for number in itertools.count(1))
    return next(path for name in names if not os.path.lexists(path := folder / name))


def _quickstart() -> Path:
    return examples.path("quickstart.ipynb")


def _command_to_open(notebook: Path) -> str:
    """Return the command that opens a notebook in JupyterLab, and how to install JupyterLab."""
    path = str(notebook.absolute())
    command = f'jupyter lab "{path}"' if " " in path else f"jupyter lab {path}"
    if missing_packages({"jupyterlab": "jupyterlab"}):
        return f"pip install jupyterlab, then {command}"
    return command
