"""`tpunb explain`: why a known error happens and what to do."""

from __future__ import annotations

import argparse
import sys
from typing import Any, TextIO

from tpunb.cli.outcome import Failed

__all__ = ["add_to"]

_EPILOG = """\
examples:
  tpunb explain < training.log
  tpunb explain "RuntimeError: TPU is already in use by process 123"
  tpunb explain --all > errors.md

exit codes: 0 explained; 1 it is not a known error
"""


def add_to(commands: Any) -> None:
    """Adds the command to those of the parser."""
    explain = commands.add_parser(
        "explain",
        help="explain an error that users of TPUs are known to meet",
        description="Say why an error happens and what to do about it. TensorFlow is not needed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explain.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="a message, a traceback or a log; - or nothing: what is piped or pasted in",
    )
    explain.add_argument(
        "--all", action="store_true", help="print the whole catalogue, as Markdown"
    )
    explain.set_defaults(command=_explain)


def _explain(args: argparse.Namespace) -> None:
    from tpunb.diagnosis import explain

    if args.all:
        from tpunb.draw.errors_page import errors_page

        print(errors_page(), end="")
        return
    text = " ".join(args.text)
    if text in ("", "-"):
        if sys.stdin.isatty():
            print("Paste the error, then press Ctrl-D on a line of its own.", file=sys.stderr)
        text = _pasted(sys.stdin)
    found = explain(text)
    if found is None:
        raise Failed("This is not an error that tpunb knows.")
    print(found)
    for address in found.links:
        print(f"  {address}")


def _pasted(stream: TextIO) -> str:
    """All of a stream; logs may hold bytes that are no text."""
    buffer = getattr(stream, "buffer", None)
    return stream.read() if buffer is None else buffer.read().decode("utf-8", errors="replace")
