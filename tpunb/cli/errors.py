"""`tpunb explain`: why a known error happens and how to fix it."""

from __future__ import annotations

import argparse
import sys
from typing import Any, TextIO

from tpunb.cli.command import Failed, add_command

_EPILOG = """\
examples:
  tpunb explain < training.log
  tpunb explain 24
  tpunb explain "RuntimeError: TPU is already in use by process 123"
  tpunb explain --all > errors.md

exit codes: 0 explained; 1 the error is unknown
"""


def add_to(commands: Any) -> None:
    """Adds the command to those of the parser."""
    explain = add_command(
        commands,
        "explain",
        _explain,
        help="explain a common error of TPU users",
        description="Explain why an error happens and how to fix it, without TensorFlow.",
        epilog=_EPILOG,
    )
    explain.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="a message, a traceback, a log, or an entry's number; - or nothing to read what is "
        "piped or pasted in",
    )
    explain.add_argument(
        "--all", action="store_true", help="print the whole catalogue, as Markdown"
    )


def _explain(args: argparse.Namespace) -> None:
    from tpunb.errors.explain import explain

    if args.all:
        from tpunb.display.draw.errors_page import errors_page

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
    """Reads a stream; logs may contain bytes that are not text."""
    buffer = getattr(stream, "buffer", None)
    return stream.read() if buffer is None else buffer.read().decode("utf-8", errors="replace")
