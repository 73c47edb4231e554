"""One entry of the catalogue: it explains an error or a performance trap."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tpunb._util.plain_text import hanging
from tpunb._util.tables import PLAIN, Markup, escaped, scrolled, table

_WIDTH = 88
_INDENT = "  "
_INDEX = "https://tpunb.github.io/tpunb/docs/errors.html"
_ISSUE = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Clue:
    """A pattern that identifies an error.

    Attributes:
        message: A regular expression that is searched for in
            `"TypeName: message"` or in a log. Its gaps are bounded, so that the
            search takes time in proportion to the length of the text.
        where: A regular expression that the traceback must match too, for a
            message that would also fit ordinary errors.
    """

    message: str
    where: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a known error, which displays itself in notebooks and terminals.

    Attributes:
        code: The entry's code in the catalogue: `"1"` to `"150"` for an error, `"P1"` to `"P11"`
            for a performance trap.
        title: The error in a few words.
        clues: The patterns of its messages; empty if it has none.
        cause: Why it happens.
        fix: The next step.
        sources: Issues as `"owner/name#number"`, web addresses, or the file of
            TensorFlow that raises it.
        rank: The precedence among several matches: 0 for the error itself, 1 for a
            general error that others make precise, 2 for a warning beside an error.
        rule: The rule of strictness by which a virtual TPU refuses the same code; None if there
            is none, or if several do.
    """

    code: str
    title: str
    clues: tuple[Clue | str, ...]
    cause: str
    fix: str
    sources: tuple[str, ...]
    rank: int = 0
    rule: str | None = None

    @property
    def number(self) -> int | None:
        """The number of an error; None for a performance trap."""
        return int(self.code) if self.code.isdigit() else None

    @property
    def source(self) -> str:
        """The sources on one line."""
        return ", ".join(self.sources)

    @property
    def links(self) -> tuple[str, ...]:
        """The web addresses of the sources that have one."""
        return tuple(address for address in map(link, self.sources) if address)

    @property
    def anchor(self) -> str:
        """The anchor of the entry on its page, which stays if its title changes."""
        return f"error-{self.code}" if self.number is not None else f"trap-{self.code.lower()}"

    @property
    def page(self) -> str:
        """The web address of the entry in the index of known errors."""
        return f"{_INDEX}#{self.anchor}"

    @property
    def headline(self) -> str:
        """The title with its kind and code."""
        kind = "Known error" if self.number is not None else "Performance trap"
        return f"{kind} {self.code}: {self.title}"

    def __str__(self) -> str:
        rows = [
            ("Cause", self.cause),
            ("Fix", self.fix),
            ("Source", self.source),
            ("More", self.page),
        ]
        lines = [hanging(f"{_INDENT}{name + ':':<8}", text, _WIDTH) for name, text in rows]
        return "\n".join([self.headline, *lines])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Explanation(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        rows = [
            ("Cause", _code(self.cause)),
            ("Fix", _code(self.fix)),
            ("Source", Markup(", ".join(map(_anchor, self.sources)))),
            ("More", Markup(_anchor(self.page))),
        ]
        return (
            f'<div><div style="font-weight:600">{escaped(self.headline)}</div>'
            f"{scrolled(table(rows, named=True, style=PLAIN))}</div>"
        )


def page_of_xla(code: str) -> str:
    """Return the address of the page about an error code of XLA, such as `"1000"`."""
    return f"https://openxla.org/xla/errors/error_{code}"


def code_of_xla(code: str) -> str:
    """Return the pattern of a message with an error code of XLA.

    XLA writes the code before the error's name, as in `E1000: CompileTimeHbmOom:`, or the
    page's address after the text. Linters use codes of the same form without such names.

    Args:
        code: A regular expression for the code's four digits.
    """
    name = r"(?:Runtime|CompileTime)[A-Z]\w"
    return rf"\bE{code}: {name}|See https://openxla\.org/xla/errors/error_{code} for"


def link(source: str) -> str | None:
    """Return the web address of a source, or None for a file or a document without one."""
    issue = _ISSUE.fullmatch(source)
    if issue:
        return f"https://github.com/{issue[1]}/issues/{issue[2]}"
    return source if source.startswith("https://") else None


def _code(text: str) -> Markup:
    """Return text with the parts between backticks marked as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped(text)))


def _anchor(source: str) -> str:
    address = link(source)
    text = escaped(source).replace("/", "/<wbr>")  # lets a narrow page break the line there
    return f'<a href="{escaped(address)}">{text}</a>' if address else text
