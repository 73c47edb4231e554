"""`tpunb explain`: the cause of a known error and its fix."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tpunb.cli.command import Failed, add_command, for_a_terminal
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
    """Add the command to the parser."""
    explain = add_command(
        commands,
        "explain",
        _explain,
        help="explain a common error of TPU users",
        description="Explain why an error happens and how to fix it. TensorFlow is not needed.",
        epilog=_EPILOG,
    )
    explain.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="a message, a traceback, a log, or an entry's number; - or nothing to read text "
        "that is piped or pasted in",
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
    entry = explain(text)
    if entry is None:
        raise Failed("tpunb does not know this error. `tpunb explain --all` lists those it knows.")
    print(for_a_terminal(entry))
    for address in entry.links:
        print(f"  {address}")


_HEAD = """\
# Known errors

This page lists the errors that users of TPUs meet in notebooks, with their causes and fixes. In a
notebook with tpunb loaded, the cause and the fix appear below the error. `tpunb.explain(error)`
finds the entry for an exception or a pasted traceback, and so does `tpunb explain` on the command
line.

`tpunb explain --all` prints this page.
"""


def errors_page() -> str:
    """Return the page of all entries by chapter, with the messages that identify them."""
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
    return f"- {_literal(clue.message)}, if the traceback has {_literal(clue.where)}"


def _literal(pattern: str) -> str:
    """Return a regular expression as Markdown code. The expression may contain backticks."""
    return f"`` {pattern} ``" if "`" in pattern else f"`{pattern}`"


def _source(source: str) -> str:
    address = link(source)
    if address is None:
        return source
    return f"<{address}>" if source == address else f"[{source}]({address})"
