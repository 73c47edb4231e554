"""`tpunb compile`: whether a program fits on a TPU, as an exit code and as a report."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tpunb._util.atomic_files import check_writable
from tpunb._util.options import argument_of, options_of
from tpunb.cli.command import Failed, OutputError, ReaderGone, add_command, writing
from tpunb.cli.python_source import (
    SEPARATOR,
    SourceError,
    UserCodeError,
    arguments_for,
    function_in,
    refuse_other_than_file,
    refuse_wrong_arguments,
    user_frames,
)
from tpunb.compiler.compile_settings import CompileOptions
from tpunb.errors import TpunbError

if TYPE_CHECKING:
    from tpunb.compiler.program import TpuPrograms

USAGE, BAD_INPUT, NO_COMPILER, INTERNAL, NO_OUTPUT = 64, 65, 69, 70, 74
"""Exit codes beside the verdicts, as in sysexits.h: no shell, signal or argparse uses them."""

_EPILOG = """\
examples:
  tpunb compile train.py::train_step --for v5e-8,v6e-8 --json
  tpunb compile train.py::step --for v5e-8 --args "tf.zeros([256, 224, 224, 3]), training=True"
  tpunb compile model.keras --for v3-8 --batch 1024
  tpunb compile step.jaxexport --for v5e-8      a file of jax.export, for TPUs
  tpunb compile step.mlir --for v5e-8           StableHLO

the arguments of train_step: --args, or else the value of train_step_args in the same file, which
may be a function. Shapes are enough: tf.TensorSpec or jax.ShapeDtypeStruct.

exit codes: 0 it fits; 1 it does not fit; 2 the compiler refuses it; 3 not known;
64 the command is used wrongly; 65 the file has an error; 69 there is no compiler; 70 tpunb failed;
74 the output cannot be written; 130 interrupted; 141 the reader of the output has gone.
For several TPU types: 2 before 1 before 3 before 0
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "compile",
        _compile,
        help="ask the TPU's own compiler whether a function, a model or an export fits",
        description="Compile a program with the TPU's own compiler, and say whether it fits. "
        "Nothing is run, and no TPU is needed.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="FILE.py::FUNCTION, a .keras file, a jax.export file, or a StableHLO file",
    )
    for flag, settings in map(argument_of, options_of(CompileOptions)):
        parser.add_argument(flag, **settings)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--schema", action="store_true", help="print the report's JSON schema")
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

    def error(message: str) -> NoReturn:
        parser.print_usage(sys.stderr)
        parser.exit(USAGE, f"{parser.prog}: error: {message}\n")

    parser.error = error  # type: ignore[method-assign]  # 2, argparse's own code, means refused


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number, or several")
    return sizes


def _compile(args: argparse.Namespace) -> None:
    from tpunb.compiler import fit_report

    if args.schema:
        _print(json.dumps(fit_report.schema(), indent=2))
        return
    if args.source is None:
        args.parser.error("the following arguments are required: SOURCE")
    source = _source_of(args.source)
    process = os.getpid()
    try:
        with _standard_output_to_standard_error(), _quiet_tensorflow():
            if args.output:
                with writing(args.output):  # before compiling takes minutes
                    check_writable(args.output)
            programs = _programs(args, source)
            if args.output:
                programs.save(args.output)
        report = fit_report.fit_report(source, programs, args.limit)
    except (KeyboardInterrupt, OutputError):
        raise
    except BaseException as error:  # a verdict alone gives the exit code of a verdict
        code, message, details = _failure(error)
        if args.json:
            _print(json.dumps(fit_report.failure_report(source, code, **details), indent=2))
        raise Failed(f"tpunb: {message}", code) from None
    if os.getpid() != process:  # the user's file has forked, and its copy has come here too
        os._exit(0)
    _print(json.dumps(report, indent=2) if args.json else str(programs))
    if code := report["exit_code"]:
        raise Failed("\n".join(_reasons(programs, args.limit)), code)


def imports_a_file(argv: Sequence[str]) -> bool:
    """Return whether the arguments of `tpunb` compile a function of a user's file."""
    return argv[:1] == ["compile"] and any(SEPARATOR in argument for argument in argv[1:])


def ended_early(argv: Sequence[str], how: str) -> int:
    """Report that a user's file has ended the process before there was a verdict.

    Args:
        argv: The arguments of `tpunb`.
        how: A phrase that says how the process ended.

    Returns:
        The exit code.
    """
    from tpunb.compiler import fit_report

    source = _source_of(next(argument for argument in argv[1:] if SEPARATOR in argument))
    message = f"The process that imports {source['path']} {how}, before it had a verdict."
    if "--json" in argv:
        _print(json.dumps(fit_report.failure_report(source, BAD_INPUT, message=message), indent=2))
    print(f"tpunb: {message}", file=sys.stderr)
    return BAD_INPUT


def _source_of(text: str) -> dict[str, str]:
    return {"kind": "unknown", "path": text.partition(SEPARATOR)[0], "name": ""}


def _reasons(programs: Any, limit: str | None) -> Iterator[str]:
    """Yield why programs do not fit, are refused or are not known."""
    for program in programs:
        try:
            program.raise_if_unfit(limit)
        except TpunbError as error:
            yield error.message


def _print(text: str) -> None:
    """Print the result, and say it in an exit code of its own if that is not possible."""
    try:
        print(text)
        sys.stdout.flush()
    except ReaderGone:
        raise
    except OutputError as error:
        raise Failed(f"tpunb: {error}", NO_OUTPUT) from None


@contextlib.contextmanager
def _standard_output_to_standard_error() -> Iterator[None]:
    """Within a block, send what the user's code prints to standard error, also from C."""
    sys.stdout.flush()
    with contextlib.ExitStack() as undo:
        undo.enter_context(contextlib.redirect_stdout(sys.stderr))
        with contextlib.suppress(OSError):  # the process has no such streams
            before = os.dup(1)
            undo.callback(os.close, before)
            undo.callback(os.dup2, before, 1)
            os.dup2(2, 1)
        yield


@contextlib.contextmanager
def _quiet_tensorflow() -> Iterator[None]:
    """Within a block, keep TensorFlow's log from hiding the errors of the user's code."""
    from tpunb.virtual.import_tensorflow import QuietImport

    finder = QuietImport()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _failure(error: BaseException) -> tuple[int, str, dict[str, Any]]:
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


def _programs(args: argparse.Namespace, source: dict[str, str]) -> TpuPrograms:
    """Return the compiled programs. `source` gets the kind and the name of the program."""
    from tpunb.compiler.memory_limits import limit_in_bytes
    from tpunb.tpu.types import accelerator

    limit_in_bytes(args.limit, 1)  # raises at once if it is not a limit
    tpus = [accelerator(name).name for name in args.tpus]
    if not tpus:
        raise SourceError("No TPU type is named.", fix="Add --for v5e-8, or several: v5e-8,v6e-8.")
    options = CompileOptions(tpus, args.speed, args.timeout, args.recorded, _progress)
    path, separator, name = args.source.partition(SEPARATOR)
    if separator:
        source.update(kind="function", name=name)
        return _of_function(Path(path), name, args, options)
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
    path: Path, name: str, args: argparse.Namespace, options: CompileOptions
) -> TpuPrograms:
    from tpunb.compiler import libtpu, recorded_verdicts
    from tpunb.compiler.compile import compile_call

    if args.batch or args.input or args.step:
        raise SourceError(
            "--batch, --input and --step are for a .keras file.",
            fix="Give the sizes in the function's arguments.",
        )
    with recorded_verdicts.recorded_in(args.recorded):
        libtpu.start()  # it starts while the user's file is imported
    module, owner, function = function_in(path, name)
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
