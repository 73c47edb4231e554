"""An entry of the catalogue: it explains one error or one performance trap."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tpunb._util.plain_text import hanging
from tpunb._util.tables import PLAIN, Markup, escaped, scrolled, table

_WIDTH = 88
_INDENT = "  "
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
class Explanation:
    """The explanation of a known error; displays itself in a notebook and a terminal.

    Attributes:
        code: Its code in the catalogue: `"1"` to `"72"` for an error, `"P1"` to `"P10"` for a
            performance trap.
        title: What it is, in a few words.
        clues: What it is known by; none where there is no message.
        cause: Why it happens.
        fix: What to do about it.
        sources: Issues as `"owner/name#number"`, web addresses, or the part of
            TensorFlow that says so.
        rank: Which one is meant where several match: 0 the error itself, 1 a
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

    @property
    def source(self) -> str:
        """The sources in a line."""
        return ", ".join(self.sources)

    @property
    def links(self) -> tuple[str, ...]:
        """The web addresses of those sources that have one."""
        return tuple(address for address in map(link, self.sources) if address)

    @property
    def headline(self) -> str:
        """The title, with the kind and the code."""
        kind = "Known error" if self.number is not None else "Performance trap"
        return f"{kind} {self.code}: {self.title}"

    def __str__(self) -> str:
        rows = [("Cause", self.cause), ("Fix", self.fix), ("Source", self.source)]
        lines = [hanging(f"{_INDENT}{name + ':':<8}", text, _WIDTH) for name, text in rows]
        return "\n".join([self.headline, *lines])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Explanation(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        rows = [("Cause", _code(self.cause)), ("Fix", _code(self.fix))]
        rows.append(("Source", Markup(", ".join(map(_anchor, self.sources)))))
        return (
            f'<div><div style="font-weight:600">{escaped(self.headline)}</div>'
            f"{scrolled(table(rows, named=True, style=PLAIN))}</div>"
        )


def page_of_xla(code: str) -> str:
    """The address of the page about an error code of XLA, such as `"1000"`."""
    return f"https://openxla.org/xla/errors/error_{code}"


def code_of_xla(code: str) -> str:
    """The pattern of a message with an error code of XLA.

    Its messages have the code before the error's name, `E1000: CompileTimeHbmOom:`, or the
    page's address behind the text. Linters have codes of the same form without such names.

    Args:
        code: A pattern of the code's four digits.
    """
    name = r"(?:Runtime|CompileTime)[A-Z]\w"
    return rf"\bE{code}: {name}|See https://openxla\.org/xla/errors/error_{code} for"


def link(source: str) -> str | None:
    """The web address of a source; None where it is a part of a program or a document."""
    issue = _ISSUE.fullmatch(source)
    if issue:
        return f"https://github.com/{issue[1]}/issues/{issue[2]}"
    return source if source.startswith("https://") else None


def _code(text: str) -> Markup:
    """Text with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped(text)))


def _anchor(source: str) -> str:
    address = link(source)
    text = escaped(source).replace("/", "/<wbr>")  # a narrow page breaks it there
    return f'<a href="{escaped(address)}">{text}</a>' if address else text
