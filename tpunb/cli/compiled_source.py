"""The program that a request to `tpunb compile` names: its arguments, and how it is compiled."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tpunb._util.atomic_files import check_writable
from tpunb._util.converted_files import removing_converted_files
from tpunb._util.options import argument_of, options_of
from tpunb.cli.command import OutputError, writing
from tpunb.cli.python_source import (
    SEPARATOR,
    SourceError,
    UserCodeError,
    arguments_for,
    import_file,
    member_of,
    refuse_other_than_file,
    refuse_wrong_arguments,
    user_frames,
)
from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.exit_codes import BAD_INPUT, INTERNAL, NO_COMPILER, USAGE
from tpunb.errors import TpunbError

if TYPE_CHECKING:
    from tpunb.compiler.program import TpuPrograms

ImportFile = Callable[[Path], ModuleType]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a request has: the program, its arguments and the options."""
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="FILE.py::FUNCTION, a .keras file, a jax.export file, or a StableHLO file",
    )
    options = [each for each in options_of(CompileOptions) if each.name != "live_arrays"]
    for flag, settings in map(argument_of, options):  # a new process has no arrays
        parser.add_argument(flag, **settings)
    parser.add_argument(
        "--args", metavar="CODE", help="the function's arguments, as Python code in a call"
    )
    parser.add_argument(
        "--batch", type=_sizes, metavar="N", help="the global batch of a .keras file"
    )
    parser.add_argument(
        "--input",
        type=_sizes,
        metavar="SIZES",
        default=[],
        help="the sizes of an example of a .keras file with open sizes, such as 224,224,3",
    )
    parser.add_argument(
        "--step",
        choices=("fit", "evaluate", "predict"),
        default="",
        help="the step of a .keras file (default: fit if it was saved with an optimizer and a "
        "loss, otherwise predict)",
    )
    parser.add_argument(
        "--limit",
        metavar="MEMORY",
        help="the memory that the program may take on a core, such as 90%% or '12 GiB'",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="save the program, for tpunb.load_program"
    )


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number, or several")
    return sizes


def source_of(text: str) -> dict[str, str]:
    """Return the source of a report before the program is read."""
    return {"kind": "unknown", "path": text.partition(SEPARATOR)[0], "name": ""}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a request: one report for programs, and two texts for people.

    Attributes:
        report: The report, which has the exit code.
        text: The programs; empty if there are none.
        complaint: Why the exit code is not 0; empty if it is.
    """

    report: dict[str, Any]
    text: str
    complaint: str


def outcome_of(args: argparse.Namespace, import_file: ImportFile = import_file) -> Outcome:
    """Compile the program of a request. Only a verdict gives the exit code of a verdict.

    Args:
        args: What `add_arguments` has parsed.
        import_file: Imports a user's file.

    Raises:
        KeyboardInterrupt: The user has stopped it.
        OutputError: Nothing can be written.
    """
    from tpunb.compiler import fit_report

    source = source_of(args.source)
    try:
        with removing_converted_files():
            programs = compiled(args, source, import_file)
        report = fit_report.fit_report(source, programs, args.limit)
    except (KeyboardInterrupt, OutputError):
        raise
    except BaseException as error:
        code, message, details = failure(error)
        report = fit_report.failure_report(source, code, **details)
        return Outcome(report, "", f"tpunb: {message}")
    return Outcome(report, str(programs), "\n".join(_reasons(programs, args.limit)))


def _reasons(programs: Any, limit: str | None) -> Iterator[str]:
    """Yield why programs do not fit, are refused or are not known."""
    for program in programs:
        try:
            program.raise_if_unfit(limit)
        except TpunbError as error:
            yield error.message


def compiled(
    args: argparse.Namespace, source: dict[str, str], import_file: ImportFile = import_file
) -> TpuPrograms:
    """Return the compiled programs, and save them if that is asked for.

    Args:
        args: What `add_arguments` has parsed.
        source: The source of the report. It gets the kind and the name of the program.
        import_file: Imports a user's file.
    """
    with _quiet_tensorflow():
        if args.output:
            with writing(args.output):  # before compiling takes minutes
                check_writable(args.output)
        programs = _programs(args, source, import_file)
        if args.output:
            programs.save(args.output)
        return programs


@contextlib.contextmanager
def _quiet_tensorflow() -> Iterator[None]:
    """Within a block, keep TensorFlow's log from hiding the errors of the user's code."""
    from tpunb.machine.import_tensorflow import QuietImport

    finder = QuietImport()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def failure(error: BaseException) -> tuple[int, str, dict[str, Any]]:
    """Return the exit code, the text and the details of an error that is not a verdict."""
    from tpunb.compiler.program import CompilerUnavailableError

    if isinstance(error, TpunbError):
        code = NO_COMPILER if isinstance(error, CompilerUnavailableError) else USAGE
        return code, str(error), {"message": error.message, "fix": error.fix}
    left = not isinstance(error, Exception)  # only the user's code calls sys.exit
    if not isinstance(error, UserCodeError) and (left or user_frames(error)):
        error = UserCodeError(error)
    if isinstance(error, UserCodeError):
        details = {"message": error.summary, "file": error.file, "line": error.line}
        return BAD_INPUT, f"the code raised an error.\n{error}", details
    if isinstance(error, OSError) and error.filename:
        message = f"cannot read {error.filename}: {error.strerror}."
        return USAGE, message, {"message": message, "file": str(error.filename)}
    text = "".join(traceback.format_exception(error)).rstrip()
    message = f"{type(error).__name__}: {error}"
    return INTERNAL, f"this is an error in tpunb. Report it.\n{text}", {"message": message}


def _programs(
    args: argparse.Namespace, source: dict[str, str], import_file: ImportFile
) -> TpuPrograms:
    """Return the compiled programs. `source` gets the kind and the name of the program."""
    from tpunb.compiler.fit.memory_limits import limit_in_bytes
    from tpunb.tpu.types import accelerator

    limit_in_bytes(args.limit, 1)  # raises at once if it is not a limit
    tpus = [accelerator(name).name for name in args.tpus]
    if not tpus:
        raise SourceError("No TPU type is named.", fix="Add --for v5e-8, or several: v5e-8,v6e-8.")
    options = CompileOptions(tpus, args.speed, args.timeout, args.recorded, _progress)
    path, separator, name = args.source.partition(SEPARATOR)
    if separator:
        source.update(kind="function", name=name)
        return _of_function(Path(path), name, args, options, import_file)
    if path.endswith(".py"):
        raise SourceError(
            f"{path} has no function's name.", fix=f"Name a function: {path}{SEPARATOR}train_step"
        )
    refuse_other_than_file(Path(path), "Name a file, or a function: train.py::step.")
    if args.args is not None:
        raise SourceError("--args is for a Python function.", fix="Leave --args out.")
    if path.endswith(".keras"):
        source["kind"] = "keras"
        return _of_model(path, args, options)
    if args.batch or args.input or args.step:
        raise SourceError(
            "--batch, --input and --step are for a .keras file.", fix="Leave them out."
        )
    from tpunb.compiler.exported_files import compile_exported, exported_file

    exported = exported_file(path)
    if exported is None:
        raise SourceError(
            f"{path} is neither a file of jax.export nor StableHLO.",
            fix="Name FILE.py::FUNCTION, a .keras file, or a file of these kinds.",
        )
    source.update(kind=exported.kind, name=exported.name)
    return compile_exported(exported, options)


def _of_function(
    path: Path,
    name: str,
    args: argparse.Namespace,
    options: CompileOptions,
    import_file: ImportFile,
) -> TpuPrograms:
    from tpunb.compiler.ask import libtpu, recorded_verdicts
    from tpunb.compiler.compile import compile_call

    if args.batch or args.input or args.step:
        raise SourceError(
            "--batch, --input and --step are for a .keras file.",
            fix="Give the sizes in the function's arguments.",
        )
    with recorded_verdicts.recorded_in(args.recorded):
        libtpu.start(speed=args.speed)  # it starts while the user's file is imported
    module = import_file(path)
    owner, function = member_of(module, path, name)
    values, named = arguments_for(module, owner, name, function, args.args)
    refuse_wrong_arguments(name, function, values, named)
    return compile_call(function, list(values), named, options)


def _of_model(path: str, args: argparse.Namespace, options: CompileOptions) -> TpuPrograms:
    from tpunb.compiler.compile import compile_call
    from tpunb.compiler.saved_models import saved_model_call

    if args.batch is None or len(args.batch) != 1:
        raise SourceError(f"{path} needs a batch.", fix="Add --batch 256, the global batch.")
    function, values = saved_model_call(path, args.batch[0], args.input, args.step)
    return compile_call(function, values, {}, options)


def _progress(text: str) -> None:
    """Show the next step to somebody who waits; a log does not need it."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(text, file=sys.stderr)
