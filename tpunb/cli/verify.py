"""`tpunb verify`: check a TPU against tpunb's claims about every TPU."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpunb._util.atomic_files import check_writable, own_stream, write_file
from tpunb._util.options import argument_of, options_of
from tpunb.cli.command import Failed, add_command, writing
from tpunb.connection.options import Request
from tpunb.connection.plan import Plan, resolve, type_meant
from tpunb.errors import ConnectError
from tpunb.machine.framework import FRAMEWORKS

if TYPE_CHECKING:
    from tpunb.verification.report import VerifyReport
    from tpunb.verification.suite import Outcome

_CONNECTING = ("require_tpu", "zone", "project", "timeout")
"""The options of connecting that this command offers."""
_BOTH = "both"
_EPILOG = """\
examples:
  tpunb verify                       the TPU found here, or else a virtual TPU
  tpunb verify local                 this machine's TPU: Colab, Kaggle, a TPU VM
  tpunb verify grpc://10.0.0.2:8470  a TPU at an address
  tpunb verify v3-8                  a virtual TPU
  tpunb verify local --framework both --json report.json --issue issue.md
                                     JAX and TensorFlow, and the text of an issue
  tpunb verify --json report.json    also write a file to attach to an issue

On Colab and Kaggle the notebook's kernel may hold the TPU. Run this command before the
kernel connects, or call tpunb.verify() in a cell.

exit codes: 0 no difference; 1 a claim differs; 2 cannot connect; 130 interrupted
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    verify = add_command(
        commands,
        "verify",
        _verify,
        help="check a TPU, real or virtual, against tpunb's claims about every TPU",
        description="Connect to a TPU and test tpunb's claims about every TPU on it, in a few "
        "minutes: devices, collectives, numbers, training, memory, refusals, known errors, the "
        "stop button, connecting again; with JAX also the times of steps. The report says where "
        "the TPU differs, and contains no secrets, addresses, paths or names.",
        epilog=_EPILOG,
    )
    verify.add_argument(
        "tpu",
        nargs="?",
        metavar="TPU",
        help="a type to simulate, such as v3-8; local; the name of a Cloud TPU; or "
        "grpc://host:port (default: the TPU found here, or else a virtual TPU)",
    )
    verify.add_argument(
        "--json", metavar="FILE", type=Path, help="also write the report as JSON to FILE"
    )
    verify.add_argument(
        "--issue",
        metavar="FILE",
        type=Path,
        help="also write the text of an issue on GitHub to FILE, as Markdown",
    )
    verify.add_argument(
        "--framework",
        choices=(*FRAMEWORKS, _BOTH),
        help="whose claims to test; both takes a process for each (default: the framework that "
        "is installed, and TensorFlow if both are)",
    )
    verify.add_argument(
        "--tensorflow-python",
        metavar="PYTHON",
        default="",
        help="with --framework both, the Python that has TensorFlow and tpunb, for machines on "
        "which JAX and TensorFlow need different releases of libtpu (default: this Python)",
    )
    verify.add_argument(
        "-q", "--quiet", action="store_true", help="print only the report, no progress"
    )
    for option in options_of(Request):
        if option.name in _CONNECTING:
            flag, settings = argument_of(option)
            verify.add_argument(flag, **settings)


def _verify(args: argparse.Namespace) -> None:
    if args.tensorflow_python:
        _check_python(args)
    for path in filter(None, (args.json, args.issue)):
        with writing(path):
            check_writable(path)

    # A report on standard output must be the only text there.
    def say(text: str) -> None:
        if not args.quiet:
            print(text, file=sys.stderr, flush=True)

    report = _of_both(args, say) if args.framework == _BOTH else _of_one(args, say)
    try:
        _write(args, report)
    finally:  # do not lose the result of minutes
        if args.json is None or own_stream(args.json) != 1:
            print(report)
    if args.issue is not None:
        say(_next_steps(args, report))
    code = 130 if report.interrupted else 0 if report.ok else 1
    if report.hangs:
        # When the process ends, TensorFlow would wait for ever for operations that still run.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        raise Failed(report.headline, code)


def _of_one(args: argparse.Namespace, say: Callable[[str], None]) -> VerifyReport:
    """Verify with one framework, in this process."""
    from tpunb.verification.run import verify_plan

    def progress(number: int, total: int, outcome: Outcome) -> None:
        place = f"[{number:{len(str(total))}}/{total}]"
        title = f"{outcome.group}: {outcome.name}"
        status = "" if outcome.status == "holds" else f"  {outcome.status}"
        say(f"{place} {title:64} {outcome.seconds:5.1f} s{status}")

    # The process may die within a claim, and its report must not die with it.
    is_file = args.json is not None and own_stream(args.json) is None
    so_far = (lambda report: _write(args, report)) if is_file else None
    return verify_plan(_plan(args, args.framework), say=say, progress=progress, so_far=so_far)


def _of_both(args: argparse.Namespace, say: Callable[[str], None]) -> VerifyReport:
    """Verify with both frameworks, in a process for each."""
    from tpunb.cli.verify_both import verify_both

    for framework in FRAMEWORKS:
        _plan(args, framework)  # an option that one of them refuses is an error now
    arguments = [args.tpu] if args.tpu else []
    for option in options_of(Request):
        if option.name in _CONNECTING and (value := getattr(args, option.name)) != option.default:
            flag, _ = argument_of(option)
            arguments += [flag] if value is True else [flag, str(value)]
    return verify_both(arguments, say, args.tensorflow_python)


def _plan(args: argparse.Namespace, framework: str | None) -> Plan:
    chosen: dict[str, Any] = {name: getattr(args, name) for name in _CONNECTING}
    chosen["framework"] = framework
    if args.tpu and type_meant(args.tpu) is not None:
        return resolve(Request(simulate=args.tpu, **chosen))
    return resolve(Request(args.tpu, **chosen))


def _check_python(args: argparse.Namespace) -> None:
    if args.framework != _BOTH:
        raise ConnectError(
            "--tensorflow-python names the second of two Pythons.",
            fix=f"Add --framework {_BOTH}, or run tpunb verify in that Python.",
        )
    if shutil.which(args.tensorflow_python) is None:
        raise ConnectError(
            f"{args.tensorflow_python} is not a Python that can run.",
            fix="Make one: virtualenv tf && tf/bin/pip install 'tpunb[tpu]'.",
        )


def _next_steps(args: argparse.Namespace, report: VerifyReport) -> str:
    """Return what a volunteer does with the files."""
    from tpunb.verification.issue_text import ADDRESS, issue_title

    address = f"{ADDRESS}?title={quote(issue_title(report))}"
    attached = f", and attach {args.json}" if args.json is not None else ""
    return (
        f"{report.headline}\nTo send it: open {address}, paste the text of {args.issue}{attached}."
    )


def _write(args: argparse.Namespace, report: VerifyReport) -> None:
    """Write the files that were asked for."""
    if args.json is not None:
        text = json.dumps(report.as_dict(), indent=2, ensure_ascii=False)
        with writing(args.json):
            write_file(args.json, f"{text}\n")
    if args.issue is not None:
        from tpunb.verification.issue_text import issue_text

        name = args.json.name if args.json is not None else "the report of --json FILE"
        with writing(args.issue):
            write_file(args.issue, issue_text(report, name))
