"""`tpunb explain`: why a known error happens and how to fix it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tpunb.cli.command import Failed, add_command
from tpunb.errors.catalogue import CHAPTERS, Clue, link

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
        print(errors_page(), end="")
        return
    text = " ".join(args.text)
    if text in ("", "-"):
        if sys.stdin.isatty():
            print("Paste the error, then press Ctrl-D on a line of its own.", file=sys.stderr)
        # Logs may contain bytes that are not text.
        buffer = getattr(sys.stdin, "buffer", None)
        text = sys.stdin.read() if buffer is None else buffer.read().decode(errors="replace")
    found = explain(text)
    if found is None:
        raise Failed("This is not an error that tpunb knows.")
    print(found)
    for address in found.links:
        print(f"  {address}")


_HEAD = """\
# Known errors

What users of TPUs meet in notebooks, why, and what to do. In a notebook with tpunb loaded, the
cause and the fix stand under the error. `tpunb.explain(error)` finds the entry for an exception or
a pasted traceback, and `tpunb explain` does so on the command line.

This page is what `tpunb explain --all` prints.
"""


def errors_page() -> str:
    """The page: all entries by chapter, with the messages that identify them."""
    lines = [_HEAD]
    for chapter, entries in CHAPTERS.items():
        lines += [f"## {chapter}", ""]
        for entry in entries:
            lines += [f"### {entry.code}. {entry.title}", "", entry.cause, ""]
            lines += [f"**Fix:** {entry.fix}", ""]
            if entry.clues:
                lines += ["Known by:", "", *map(_clue, entry.clues), ""]
            lines += [f"Source: {', '.join(map(_source, entry.sources))}", ""]
    return "\n".join(lines)


def _clue(clue: Clue | str) -> str:
    if isinstance(clue, str):
        return f"- {_literal(clue)}"
    return f"- {_literal(clue.message)}, where the traceback has {_literal(clue.where)}"


def _literal(pattern: str) -> str:
    """A regular expression as Markdown's code, which may hold backticks itself."""
    return f"`` {pattern} ``" if "`" in pattern else f"`{pattern}`"


def _source(source: str) -> str:
    address = link(source)
    if address is None:
        return source
    return f"<{address}>" if source == address else f"[{source}]({address})"
