"""The catalogue of known errors as a page in Markdown, for the documentation."""

from __future__ import annotations

from tpunb.errors.catalogue import CHAPTERS, Clue, Entry, link

_HEAD = """\
# Known errors

What users of TPUs meet in notebooks, why, and what to do. In a notebook with tpunb loaded, the
cause and the fix stand under the error. `tpunb.explain(error)` finds the entry for an exception or
a pasted traceback, and `tpunb explain` does so on the command line.

This page is what `tpunb explain --all` prints.
"""


def errors_page() -> str:
    """The page: all entries by chapter, with the messages that identify them."""
    parts = [_HEAD]
    for chapter, entries in CHAPTERS.items():
        parts.append(f"## {chapter}\n")
        parts += map(_section, entries)
    return "\n".join(parts)


def _section(entry: Entry) -> str:
    lines = [f"### {entry.code}. {entry.title}", "", entry.cause, "", f"**Fix:** {entry.fix}", ""]
    if entry.clues:
        clues = "\n".join(_clue(clue) for clue in entry.clues)
        lines += ["Known by:", "", clues, ""]
    return "\n".join([*lines, f"Source: {', '.join(map(_source, entry.sources))}", ""])


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
