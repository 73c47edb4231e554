"""`tpunb run`: execute a notebook or a script, on a virtual TPU if one is named."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpunb._util.atomic_files import write_file
from tpunb._util.patching import variable
from tpunb.cli.command import (
    Failed,
    add_command,
    add_framework,
    add_keras,
    whole_number,
    writing,
)
from tpunb.cli.execution import (
    EXECUTING,
    TIMEOUT,
    Execution,
    execute_and_save,
    missing_packages,
    prepare,
)
from tpunb.cli.graded_notebooks import without_grades
from tpunb.cli.script import run_script
from tpunb.compiler.exit_codes import BAD_INPUT, EXIT_CODES
from tpunb.connection.options import JUDGE_TIMES
from tpunb.machine.framework import FRAMEWORK_VARIABLE, TENSORFLOW
from tpunb.notebook.files import NotebookError, code_cells, read_notebook
from tpunb.notebook.kernels.specs import DRY_REPORT_VARIABLE

if TYPE_CHECKING:
    from tpunb.notebook.kernels.specs import KernelOptions

_EPILOG = """\
examples:
  tpunb run notebook.ipynb                          in the notebook's own kernel
  tpunb run notebook.ipynb --tpu v3-8 -o out.ipynb  unmodified, on a virtual TPU
  tpunb run notebook.ipynb --tpu v3-8 --keep-going  all cells, even after a failure
  tpunb run notebook.ipynb --tpu v3-8 --keras 2     a notebook written for Keras 2
  tpunb run notebook.ipynb --tpu v5e-8 --judge off  a JAX notebook, without the compiler
  tpunb run notebook.ipynb --tpu v5e-8 --dry        without computing: does it fit?
  tpunb run --tpu v5e-8 --dry train.py --steps 100  the same for a script and its options
  tpunb run notebook.ipynb --kernel tpunb-v5e-8     in an installed kernel
  tpunb run solution.ipynb --student ada.ipynb      grade a student's notebook

exit codes: 0 all cells passed; 1 a cell failed; 2 the notebook could not be read,
executed or written; 130 interrupted, 143 terminated (SIGTERM). The notebook is
always saved with the cells executed so far; if saving fails, OUT does not change. A
script's exit code is its own. A dry run has those of tpunb compile: 0 all programs
fit, 1 one does not fit, 2 one is refused, 3 a verdict is not known; 65 it failed for
another reason.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    run = add_command(
        commands,
        "run",
        _run,
        help="execute a notebook and save it with its outputs, or run a script",
        description="Execute a notebook cell by cell and save it with its outputs. If a cell "
        "fails, execution stops, and the error is saved in the notebook too. A Python script runs "
        "unmodified, with the arguments after its name.",
        epilog=_EPILOG,
    )
    run.add_argument("notebook", metavar="FILE", type=Path, help="a notebook, or a script (.py)")
    run.add_argument(
        "arguments", metavar="ARGUMENT", nargs="*", help="what follows a script: its arguments"
    )
    _add_dry_run(run)
    _add_execution(run)
    add_keras(run)
    add_framework(run)
    run.add_argument("-q", "--quiet", action="store_true", help="print only failures")
    _add_student(run)
    _add_kernel(run)


def _add_dry_run(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--dry",
        action="store_true",
        help="with --tpu, for JAX: the TPU's own compiler judges every program, and only small "
        "ones are computed. The report says what takes a core's memory, line by line",
    )
    run.add_argument(
        "--json", metavar="OUT", type=Path, help="write the report of a dry run to a file"
    )


def _add_execution(run: argparse.ArgumentParser) -> None:
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
        default=TIMEOUT,
        help="the longest that one cell may take, in seconds; 0 for no limit (default: "
        "%(default)s)",
    )
    run.add_argument(
        "-k",
        "--keep-going",
        action="store_true",
        help="execute all cells, even after a failure, and count the failures",
    )


def _add_student(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--student",
        metavar="NOTEBOOK",
        type=Path,
        help="grade this notebook by the checks of the first notebook, its solution, which run in "
        "another kernel than the student's cells. OUT is this notebook with the checks' outputs",
    )


def _add_kernel(run: argparse.ArgumentParser) -> None:
    kernel = run.add_mutually_exclusive_group()
    kernel.add_argument(
        "--tpu",
        metavar="TYPE",
        help="a virtual TPU that the own names of TensorFlow or JAX address: a type such as v5e-8 "
        "or v3-32, or a number of cores",
    )
    kernel.add_argument(
        "--kernel", metavar="NAME", help="the Jupyter kernel (default: the notebook's own)"
    )


def separated(argv: Sequence[str]) -> list[str]:
    """Return the command's arguments with `--` after a script, whose options are its own."""
    scripts = [place for place, word in enumerate(argv) if place and word.endswith(".py")]
    if list(argv[:1]) != ["run"] or not scripts or "--" in argv:
        return list(argv)
    end = scripts[0] + 1
    return [*argv[:end], "--", *argv[end:]]


def _run(args: argparse.Namespace) -> None:
    path: Path = args.notebook
    if args.tpu is None and (args.framework or args.dry or args.judge != JUDGE_TIMES[0]):
        raise NotebookError(
            "--framework, --judge and --dry are options of a virtual TPU.", fix="Add --tpu v5e-8."
        )
    if args.json is not None and not args.dry:
        raise NotebookError("--json is for dry runs.", fix="Add --dry.")
    with _reporting(args) if args.dry else contextlib.nullcontext():
        (_run_script if path.suffix == ".py" else _run_notebook)(args, path)


def _run_script(args: argparse.Namespace, path: Path) -> None:
    if not path.is_file():
        raise NotebookError(f"There is no file {path}.")
    if args.tpu is None:
        raise NotebookError(
            "A script needs a virtual TPU.", fix=f"Name one before it: --tpu v5e-8 {path.name}"
        )
    framework = args.framework or os.environ.get(FRAMEWORK_VARIABLE)
    options = {"tpu": args.tpu, "framework": framework, "judge": args.judge, "dry": args.dry}
    if code := run_script(path, args.arguments, options):
        raise Failed("", code)


def _run_notebook(args: argparse.Namespace, path: Path) -> None:
    if args.arguments:
        raise NotebookError(
            f"A notebook takes no arguments: {' '.join(args.arguments)}.",
            fix="Write tpunb's options before the notebook. papermill sets parameters.",
        )
    output: Path = args.output or (args.student or path).with_suffix(".executed.ipynb")
    if missing := missing_packages(EXECUTING):
        raise NotebookError(
            f"Executing a notebook needs {', '.join(missing)}.",
            fix='Install them: pip install "tpunb[run]".',
        )
    from tpunb.notebook.kernels.specs import temporary_kernel

    notebook = read_notebook(path)
    if args.student is not None:
        read_notebook(args.student)  # an error comes before the execution
        without_grades(notebook)
    prepare(output)
    execution = Execution(
        folder=path.parent,
        timeout=args.timeout,
        keep_going=args.keep_going or args.student is not None,
        keras=args.keras,
        quiet=args.quiet,
        student=args.student,
    )
    kernel: contextlib.AbstractContextManager[str | None] = contextlib.nullcontext(args.kernel)
    if args.tpu is not None:
        kernel = temporary_kernel(args.tpu, _options(args, notebook))
    execute_and_save(notebook, output, execution, kernel)


def _options(args: argparse.Namespace, notebook: Any) -> KernelOptions:
    """Return the options of the kernel, whose framework is the notebook's by default."""
    from tpunb.notebook.kernels.specs import KernelOptions
    from tpunb.notebook.used_framework import framework_of

    framework = args.framework or os.environ.get(FRAMEWORK_VARIABLE)
    if not framework:
        framework = TENSORFLOW if args.keras else framework_of(code_cells(notebook))
    return KernelOptions(args.keras, framework, args.judge, args.dry)


@contextlib.contextmanager
def _reporting(args: argparse.Namespace) -> Iterator[None]:
    """Print the report of a dry run after a block, and end with its exit code.

    Raises:
        Failed: A program does not fit, is refused or is not judged, or the run failed.
    """
    failed: Failed | None = None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        with variable(DRY_REPORT_VARIABLE, str(file)):
            try:
                yield
            except Failed as error:
                failed = error
        report = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if report is not None:
        text = report.pop("text")
        print(text)
        if args.json is not None:
            with writing(args.json):
                write_file(args.json, json.dumps(report, indent=1))
    code = BAD_INPUT if report is None else EXIT_CODES[report["verdict"]]
    if failed is not None and (code == 0 or failed.code > _SIGNALS):
        code = failed.code if failed.code > _SIGNALS else BAD_INPUT
    if failed is not None or code:
        raise Failed("" if failed is None else str(failed), code)


_SIGNALS = 128
"""The exit codes of signals are greater."""
