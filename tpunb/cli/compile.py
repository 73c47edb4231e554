"""`tpunb compile`: whether a program fits on a TPU, as an exit code and as a report."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from tpunb.cli.command import Failed, OutputError, ReaderGone, add_command
from tpunb.cli.compiled_source import add_arguments, outcome_of, source_of
from tpunb.cli.python_source import SEPARATOR
from tpunb.compiler.exit_codes import BAD_INPUT, NO_OUTPUT, USAGE

_EPILOG = """\
examples:
  tpunb compile train.py::train_step --for v5e-8,v6e-8 --json
  tpunb compile train.py::step --for v5e-8 --args "tf.zeros([256, 224, 224, 3]), training=True"
  tpunb compile model.keras --for v3-8 --batch 1024
  tpunb compile step.jaxexport --for v5e-8      a file of jax.export, for TPUs
  tpunb compile step.mlir --for v5e-8           StableHLO

  tpunb compile --serve < requests.jsonl        one JSON object a line in, one out

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
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--schema", action="store_true", help="print the report's JSON schema")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="answer requests until standard input ends: one JSON object a line in, one out",
    )

    def error(message: str) -> NoReturn:
        parser.print_usage(sys.stderr)
        parser.exit(USAGE, f"{parser.prog}: error: {message}\n")

    parser.error = error  # type: ignore[method-assign]  # 2, argparse's own code, means refused


def _compile(args: argparse.Namespace) -> None:
    from tpunb.compiler import fit_report

    if args.serve:
        _serve(args)
        return
    if args.schema:
        _print(json.dumps(fit_report.schema(), indent=2))
        return
    if args.source is None:
        args.parser.error("the following arguments are required: SOURCE")
    process = os.getpid()
    with _standard_output_to_standard_error():
        outcome = outcome_of(args)
    if os.getpid() != process:  # the user's file has forked, and its copy has come here too
        os._exit(0)
    if text := json.dumps(outcome.report, indent=2) if args.json else outcome.text:
        _print(text)
    if code := outcome.report["exit_code"]:
        raise Failed(outcome.complaint, code)


def _serve(args: argparse.Namespace) -> None:
    from tpunb.cli import compile_requests, compile_server

    if args.source is not None:
        args.parser.error("--serve reads the SOURCE from each request")
    if args.schema:
        _print(json.dumps(compile_requests.schema(), indent=2))
        return
    compile_server.serve(sys.stdin.buffer, _print)


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

    source = source_of(next(argument for argument in argv[1:] if SEPARATOR in argument))
    message = f"The process that imports {source['path']} {how}, before it had a verdict."
    if "--json" in argv:
        _print(json.dumps(fit_report.failure_report(source, BAD_INPUT, message=message), indent=2))
    print(f"tpunb: {message}", file=sys.stderr)
    return BAD_INPUT


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
