"""`tpunb verify`: check a TPU against tpunb's claims about every TPU."""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpunb._util.atomic_files import check_writable, is_stream, own_stream, write_file
from tpunb._util.options import argument_of, options_of
from tpunb.cli.command import Failed, add_command, writing
from tpunb.connection.options import Request
from tpunb.connection.plan import Plan, resolve, type_meant
from tpunb.errors import ConnectError
from tpunb.machine.framework import FRAMEWORKS, JAX, NAMES, TENSORFLOW

if TYPE_CHECKING:
    from tpunb.verification.report import VerifyReport
    from tpunb.verification.suite import Outcome

_CONNECTING = ("require_tpu", "zone", "project", "timeout")
"""The options of connecting that this command offers."""
_BOTH = "both"
_REFUSED = 2
"""The exit code of a process that cannot connect."""
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
    verify.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    verify.add_argument(
        "-q", "--quiet", action="store_true", help="print only the report, no progress"
    )
    for option in options_of(Request):
        if option.name in _CONNECTING:
            flag, settings = argument_of(option)
            verify.add_argument(flag, **settings)


def _verify(args: argparse.Namespace) -> None:
    if args.here:
        _verify_here(args)
        return
    if args.tensorflow_python:
        _check_python(args)
    for path in filter(None, (args.json, args.issue)):
        with writing(path):
            check_writable(path)
    names = (JAX, TENSORFLOW) if args.framework == _BOTH else (args.framework,)
    # An option that a framework refuses is an error now, not after minutes.
    report, code = _verified(args, [_plan(args, name).framework for name in names])
    try:
        _write(args, report)
    finally:  # do not lose the result of minutes
        if args.json is None or own_stream(args.json) != 1:
            print(report)
    if args.issue is not None and not args.quiet:
        _say(_next_steps(args, report))
    if code > 128:
        raise Failed(report.headline, code)
    if report.interrupted or not report.ok:
        raise Failed(report.headline, 130 if report.interrupted else 1)


def _verified(args: argparse.Namespace, frameworks: Sequence[str]) -> tuple[VerifyReport, int]:
    """Verify with each framework in its own process, and return the report and an exit code."""
    from tpunb.cli.verify_process import verify_in_process
    from tpunb.verification.report import merged

    reports: list[VerifyReport] = []
    code = 0

    def so_far(report: VerifyReport) -> None:
        to_come = len(frameworks) - len(reports) - 1
        _write(args, merged([*reports, report], to_come=to_come), only_files=True)

    for framework in frameworks:
        lines: list[str] = []
        label = f"{NAMES[framework]:10} " if len(frameworks) > 1 else ""
        say = functools.partial(_note, lines, label=label, quiet=args.quiet)
        report, code = verify_in_process(_command(args, framework), framework, say, so_far)
        if code == _REFUSED and len(frameworks) == 1:
            raise Failed("\n".join(lines) if args.quiet else "Nothing was verified.", code)
        reports.append(report)
        if report.interrupted or code > 128:
            break
    return merged(reports, to_come=len(frameworks) - len(reports)), code


def _note(lines: list[str], line: str, *, label: str, quiet: bool) -> None:
    lines.append(line)
    if not quiet:
        _say(f"{label}{line}")


def _command(args: argparse.Namespace, framework: str) -> list[str]:
    """Return the command that verifies with one framework."""
    own = args.framework == _BOTH and framework == TENSORFLOW and args.tensorflow_python
    command = [own or sys.executable, "-m", "tpunb", "verify", "--here", "--framework", framework]
    for option in options_of(Request):
        if option.name in _CONNECTING and (value := getattr(args, option.name)) != option.default:
            flag, _ = argument_of(option)
            command += [flag] if value is True else [flag, str(value)]
    return [*command, args.tpu] if args.tpu else command


def _verify_here(args: argparse.Namespace) -> None:
    """Verify with one framework in this process, which reports to the process that started it."""
    from tpunb._util.child_side import end_with_parent
    from tpunb.verification.run import verify_plan

    def progress(number: int, total: int, outcome: Outcome) -> None:
        place = f"[{number:{len(str(total))}}/{total}]"
        title = f"{outcome.group}: {outcome.name}"
        status = "" if outcome.status == "holds" else f"  {outcome.status}"
        _say(f"{place} {title:64} {outcome.seconds:5.1f} s{status}")

    if os.name == "posix":
        end_with_parent(0)  # its standard input is a pipe from the process that started it
    plan = _plan(args, args.framework)
    report = verify_plan(
        plan, say=_say, progress=progress, so_far=lambda report: _write(args, report)
    )
    if report.hangs:
        # At its end, this process would wait for ever for operations that still run.
        os._exit(0)


def _say(text: str) -> None:
    """Print progress. A report on standard output must be the only text there."""
    print(text, file=sys.stderr, flush=True)


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


def _write(args: argparse.Namespace, report: VerifyReport, *, only_files: bool = False) -> None:
    """Write the files that were asked for, except streams if they will get another report."""
    from tpunb.verification.issue_text import issue_text

    texts: dict[Path | None, str] = {}
    texts[args.json] = json.dumps(report.as_dict(), indent=2, ensure_ascii=False) + "\n"
    attached = args.json.name if args.json is not None else "the report of --json FILE"
    texts[args.issue] = issue_text(report, attached)
    for path, text in texts.items():
        if path is not None and not (only_files and is_stream(path)):
            with writing(path):
                write_file(path, text)
