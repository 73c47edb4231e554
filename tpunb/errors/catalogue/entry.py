"""An entry of the catalogue: one error or one performance trap."""

from __future__ import annotations

import dataclasses
import re

_ISSUE = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Clue:
    """A pattern that an error is known by.

    Attributes:
        message: A regular expression that is searched for in
            `"TypeName: message"` or in a log. Gaps in it are bounded, so that
            the time grows with the length of the text only.
        where: A regular expression that the traceback matches as well, where
            the message alone would fit ordinary errors.
    """

    message: str
    where: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An error or a performance trap.

    Attributes:
        code: `"1"` to `"58"` for an error, `"P1"` to `"P10"` for a trap.
        title: What it is, in a few words.
        clues: What it is known by; none where there is no message.
        cause: Why it happens.
        fix: What to do about it.
        sources: Issues as `"owner/name#number"`, web addresses, or the part of
            TensorFlow that says so.
        rank: Which entry is meant where several match: 0 the error itself, 1 a
            general one that others make precise, 2 a warning beside an error.
    """

    code: str
    title: str
    clues: tuple[Clue | str, ...]
    cause: str
    fix: str
    sources: tuple[str, ...]
    rank: int = 0

    @property
    def number(self) -> int | None:
        """The number of an error; None for a performance trap."""
        return int(self.code) if self.code.isdigit() else None


def link(source: str) -> str | None:
    """The web address of a source; None where it is a part of a program or a document."""
    issue = _ISSUE.fullmatch(source)
    if issue:
        return f"https://github.com/{issue[1]}/issues/{issue[2]}"
    return source if source.startswith("https://") else None
