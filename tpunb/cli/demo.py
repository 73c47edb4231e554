"""`tpunb demo`: execute a framework's first notebook on a virtual TPU."""

from __future__ import annotations

import argparse
import dataclasses
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
from tpunb.machine.framework import FRAMEWORKS, JAX, TENSORFLOW, installed_frameworks
from tpunb.notebook.files import NotebookError, read_notebook


@dataclasses.dataclass(frozen=True, slots=True)
class _Demo:
    """A framework's first notebook.

    Attributes:
        example: The notebook, by its name in `tpunb.examples`.
        packages: The framework's packages, by their modules.
        extra: The extra of tpunb that has them.
        next_step: What to type next, for a program of one's own.
    """

    example: str
    packages: dict[str, str]
    extra: str
    next_step: str


_DEMOS = {
    JAX: _Demo(
        "jax_quickstart.ipynb",
        {"jax": "jax"},
        "jax",
        "Does your own script fit a TPU? tpunb run --tpu v5e-8 --dry train.py\n"
        "In your own notebook: %load_ext tpunb, then %tpu_connect --simulate v5e-8 --framework jax",
    ),
    TENSORFLOW: _Demo(
        "quickstart.ipynb",
        {"tensorflow": "tensorflow", "keras": "keras"},
        "cpu,demo",
        "In your own notebook: %load_ext tpunb, then %tpu_connect --simulate v5e-8",
    ),
}
_NAME = "tpunb-quickstart"
_NEEDED = {**EXECUTING, "sklearn": "scikit-learn"}
_EPILOG = """\
examples:
  tpunb demo
  tpunb demo --framework jax -o first.ipynb

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
        description="Execute the quickstart notebook of JAX or of TensorFlow on a virtual TPU, "
        "print its verdicts, and save it with its outputs. It needs no TPU and no network.",
        epilog=_EPILOG,
    )
    demo.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        help="whose quickstart (default: the framework that is installed; TensorFlow if both are)",
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
    demo = _DEMOS[args.framework or _installed_framework()]
    _require_packages(demo)
    from tpunb.notebook.kernels.specs import own_kernel

    output: Path = args.output or _unused_file(Path.cwd())
    streamed = is_stream(output)
    if output.is_file() and not streamed:
        raise NotebookError(f"{output} already exists.", fix="Choose another file with -o.")
    prepare(output)
    notebook = read_notebook(examples.path(demo.example))
    if reason := libtpu.why_unavailable():
        _leave_out_compiling(notebook, str(reason))
    # Not in the user's folder: a random.py there would hide the standard module.
    with tempfile.TemporaryDirectory(prefix="tpunb-", ignore_cleanup_errors=True) as folder:
        execution = Execution(Path(folder), show_displays=True)
        execute_and_save(notebook, output, execution, own_kernel())
    if not streamed:
        print(f"Open it in VS Code, or in JupyterLab: {_command_to_open(output)}")
        print(demo.next_step)


def _installed_framework() -> str:
    installed = installed_frameworks()
    if not installed:
        raise NotebookError(
            "The demo needs JAX or TensorFlow.",
            fix=" or ".join(f'pip install "tpunb[{demo.extra}]"' for demo in _DEMOS.values()),
        )
    return TENSORFLOW if TENSORFLOW in installed else JAX


def _require_packages(demo: _Demo) -> None:
    missing = missing_packages({**_NEEDED, **demo.packages})
    if not missing:
        return
    extra = demo.extra if {*demo.packages} & {*missing} else "demo"
    raise NotebookError(
        f"The demo needs {', '.join(missing)}.",
        fix=f'pip install "tpunb[{extra}]"',
    )


def _leave_out_compiling(notebook: Any, reason: str) -> None:
    """Make nbclient skip the cells that need the compiler, and give them the reason as output."""
    import nbformat

    text = f"The demo left this cell out. {reason}\n"
    for cell in notebook.cells:
        if "needs-compiler" in cell.metadata.get("tags", ()):
            cell.metadata.tags.append("skip-execution")
            cell.update(outputs=[nbformat.v4.new_output("stream", text=text)], execution_count=None)
    print(f"The demo leaves out the cells that need the TPU's compiler. {reason}", file=sys.stderr)


def _unused_file(folder: Path) -> Path:
    """Return the first default name that is unused in a folder."""
    names = (f"{_NAME}{'' if number == 1 else f'-{number}'}.ipynb" for number in itertools.count(1))
    return next(path for name in names if not os.path.lexists(path := folder / name))


def _command_to_open(notebook: Path) -> str:
    """Return the command that opens a notebook in JupyterLab, and how to install JupyterLab."""
    path = str(notebook.absolute())
    command = f'jupyter lab "{path}"' if " " in path else f"jupyter lab {path}"
    if missing_packages({"jupyterlab": "jupyterlab"}):
        return f"pip install jupyterlab, then {command}"
    return command
