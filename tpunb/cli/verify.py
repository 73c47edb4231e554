"""`tpunb verify`: does a TPU do what this package says of every TPU?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpunb._util.atomic_files import check_writable, own_stream, write_file
from tpunb.cli.outcome import Failed, Interrupted
from tpunb.connection.plan import type_meant
from tpunb.connection.request import Request
from tpunb.errors import TpunbError

if TYPE_CHECKING:
    from tpunb.connection.plan import Plan
    from tpunb.verification.report import Outcome, VerifyReport

__all__ = ["add_to"]

_EPILOG = """\
examples:
  tpunb verify                       the TPU that is found here, or else a virtual one
  tpunb verify local                 this machine's TPU: Colab, Kaggle, a TPU VM
  tpunb verify grpc://10.0.0.2:8470  a TPU by its address
  tpunb verify v3-8                  a virtual TPU
  tpunb verify v4-16 --local-workers a virtual Pod whose hosts are processes
  tpunb verify --json report.json    and a file to attach to an issue

On Colab and Kaggle, where the notebook's kernel may hold the TPU, run it before the
kernel connects; or tpunb.verify() in a cell.

exit codes: 0 no difference; 1 a claim differs; 2 it could not connect; 130 interrupted
"""


def add_to(commands: Any) -> None:
    """Adds the command to those of the parser."""
    verify = commands.add_parser(
        "verify",
        help="compare a TPU, real or virtual, with what tpunb says of every TPU",
        description="Connect to a TPU and try on it, in some minutes, what tpunb says of every "
        "TPU: topology, replica ids, collectives, numbers, training, what is refused, known "
        "errors, the stop button, connecting again. The report says where they differ, and "
        "holds no secrets, addresses, paths or names.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument(
        "tpu",
        nargs="?",
        metavar="TPU",
        help="a type to simulate, such as v3-8; local; the name of a Cloud TPU; or "
        "grpc://host:port (default: the TPU that is found, else a virtual one)",
    )
    verify.add_argument(
        "--json", metavar="FILE", type=Path, help="also write the report as JSON to FILE"
    )
    verify.add_argument(
        "-q", "--quiet", action="store_true", help="no lines while it runs, only the report"
    )
    _add_connecting(verify)
    verify.set_defaults(command=_verify)


def _add_connecting(verify: argparse.ArgumentParser) -> None:
    """Adds options of connecting, as `%tpu_connect` has them."""
    verify.add_argument("--zone", metavar="Z", help="the Cloud zone of a TPU given by name")
    verify.add_argument("--project", metavar="P", help="its Cloud project")
    verify.add_argument(
        "--require-tpu", action="store_true", help="fail rather than simulate if there is no TPU"
    )
    verify.add_argument(
        "--local-workers",
        nargs="?",
        const=True,
        default=False,
        type=int,
        metavar="N",
        help="a virtual Pod whose hosts are N processes, or one for each host",
    )
    verify.add_argument(
        "--workers", metavar="H:P,H:P", help="a virtual Pod whose hosts are these workers"
    )
    verify.add_argument(
        "--timeout",
        type=float,
        default=60,
        metavar="S",
        help="seconds to wait for a worker to answer (default: %(default)s)",
    )


def _verify(args: argparse.Namespace) -> None:
    from tpunb.verification.verify import verify_plan

    plan = _plan(args)
    if args.json is not None:
        _check(args.json)
    # Where the report goes to standard output, nothing else does.
    progress = _Lines(sys.stderr, quiet=args.quiet)
    report = verify_plan(plan, say=progress.say, progress=progress)
    if args.json is not None:
        _write(args.json, report)
    if args.json is None or own_stream(args.json) != 1:
        print(report)
    _end(report)


def _plan(args: argparse.Namespace) -> Plan:
    """What the command line asks to connect to."""
    from tpunb.connection.plan import resolve

    names = ("zone", "project", "require_tpu", "local_workers", "workers", "timeout")
    options = {name: getattr(args, name) for name in names}
    simulated = type_meant(args.tpu) if args.tpu else None
    if simulated is not None:
        return resolve(Request(simulate=args.tpu, **options))
    return resolve(Request(args.tpu, **options))


def _check(path: Path) -> None:
    try:
        check_writable(path)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write(path: Path, report: VerifyReport) -> None:
    try:
        write_file(path, json.dumps(report.as_dict(), indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        print(report)  # what took minutes is not lost
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> TpunbError:
    return TpunbError(f"Cannot write {path}: {error.strerror}.", fix="Choose another file.")


def _end(report: VerifyReport) -> None:
    """Ends the command as the report is."""
    code = 130 if report.interrupted else 0 if report.ok else 1
    if report.hangs:
        # TensorFlow waits without end for what has not ended, also when the process ends.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if report.interrupted:
        raise Interrupted(report.headline, code)
    if not report.ok:
        raise Failed(report.headline)


class _Lines:
    """Writes a line for each claim.

    Args:
        stream: Where to.
        quiet: Whether to write nothing.
    """

    def __init__(self, stream: Any, *, quiet: bool) -> None:
        self._stream, self._quiet = stream, quiet

    def say(self, text: str) -> None:
        """What is being done while it connects."""
        if not self._quiet:
            print(text, file=self._stream, flush=True)

    def __call__(self, number: int, total: int, outcome: Outcome) -> None:
        place = f"[{number:{len(str(total))}}/{total}]"
        status = "" if outcome.status == "holds" else f"  {outcome.status}"
        self.say(
            f"{place} {f'{outcome.group}: {outcome.name}':64} {outcome.seconds:5.1f} s{status}"
        )
