"""The command `tpunb`: notebooks, kernels, topologies and errors."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Sequence

from tpunb.cli import compile as compile_command
from tpunb.cli import compiler, demo, doctor, explain, kernel, run, topology, verify
from tpunb.cli.command import Failed, OutputError, ReaderGone, for_a_terminal, safe_streams
from tpunb.cli.only_verdicts import in_a_process
from tpunb.errors import TpunbError
from tpunb.version import __version__

_READER_GONE = 141  # 128 + SIGPIPE, as in shells
_COMMANDS = (
    demo,
    run,
    kernel,
    topology,
    compile_command,
    compiler,
    doctor,
    verify,
    explain,
)
_EPILOG = """\
examples:
  tpunb demo                             execute the quickstart notebook on a virtual TPU
  tpunb run notebook.ipynb --tpu v3-8    execute a notebook on a virtual TPU
  tpunb kernel install v5e-8             add a virtual TPU to Jupyter's kernel picker
  tpunb topology v4-32                   draw the chips and cores of a TPU type
  tpunb compile train.py::step --for v5e-8   ask whether a step fits on a TPU
  tpunb compiler install                 install the TPU's own compiler, apart from your packages
  tpunb doctor                           check this machine's TPU setup
  tpunb verify local                     check that this TPU does what tpunb says it does
  tpunb explain < training.log           explain why a run failed and how to fix it

exit codes: 0 success; 1 a cell failed, a claim differs, or the error is unknown;
2 the command failed; 130 interrupted; 141 the reader of the output has gone.
tpunb compile has codes of its own: tpunb compile --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments. By default, the process's own.

    Returns:
        The exit code: 0 for success; 1 if a cell failed, a claim differs or an error is unknown;
        2 if the command failed; 130 if it was interrupted; 141 if its output lost its reader.
        `tpunb compile` has other codes.
    """
    own = sys.argv[1:]
    if argv is None and compile_command.imports_a_file(own):
        if code := _run(own, lambda args: None):  # a wrong use, or --help, ends here
            return code
        return in_a_process(lambda: _run(own), functools.partial(compile_command.ended_early, own))
    return _run(argv)


def _execute(args: argparse.Namespace) -> None:
    args.command(args)


def parser_of_commands() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="tpunb",
        description="TPUs in a notebook, with or without a TPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tpunb {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for each in _COMMANDS:
        each.add_to(commands)
    return parser


def _run(
    argv: Sequence[str] | None, command: Callable[[argparse.Namespace], None] = _execute
) -> int:
    """Parse the arguments, run their command in this process, and return its exit code."""
    parser = parser_of_commands()
    with safe_streams():
        try:
            return _carry_out(parser, argv, command)
        except ReaderGone:
            return _READER_GONE
        except OutputError as error:
            with contextlib.suppress(OutputError):
                print(f"tpunb: {error}", file=sys.stderr)
            return 2


def _carry_out(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    command: Callable[[argparse.Namespace], None],
) -> int:
    try:
        args, unknown = parser.parse_known_args(
            run.separated(sys.argv[1:] if argv is None else argv)
        )
        if unknown:  # the command's own parser shows its usage, and knows its exit code
            args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        command(args)
    except OutputError:
        raise
    except Failed as failure:
        if said := str(failure):
            print(said, file=sys.stderr)
        return failure.code
    except TpunbError as error:
        print(f"tpunb: {for_a_terminal(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Interrupted", file=sys.stderr)
        return getattr(interrupt, "code", 130)
    finally:  # --help ends the process here
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # a process without a console has None
                stream.flush()
    return 0
