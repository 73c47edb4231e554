"""Text for a terminal: control characters made visible, lines filled."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

# Escape sequences move the cursor, set the window's title or hide what was printed; C1 has
# one-character forms of them, and overrides of the direction show text in another order.
_KEPT = "\n\t"
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in _KEPT
}
_BOXES = dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+") | dict.fromkeys("─═━", "-") | dict.fromkeys("│║┃", "|")
_SIMPLER = _BOXES | {
    "·": "-", "•": "*", "–": "-", "—": "-", "−": "-", "×": "x", "→": "->",
    "‘": "'", "’": "'", "“": '"', "”": '"', "≤": "<=", "≥": ">=", "≠": "!=", "…": "...",
    "°": " deg", "µ": "u",
}  # fmt: skip


def plain(text: str) -> str:
    """A text whose control characters are spelled out, ESC as backslash, x, 1b.

    Line ends and tabs stay.
    """
    return text if text.isprintable() else text.translate(_CONTROLS)


def shortened(text: str, length: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shortened_between(text: str, length: int, *separators: str) -> str:
    """A text of at most so many characters, without a part that would lose some of its own.

    A number that is cut looks like another number.

    Args:
        text: The text.
        length: How many characters it may have.
        *separators: What stands between its parts, the best first; a text of one long part is
            cut anywhere.
    """
    if len(text) <= length:
        return text
    ends = (text.rfind(part, 0, length - 1) + len(part) for part in separators)
    end = next((end for end in ends if end > length // 2), 0)
    return f"{text[:end]}…" if end else shortened(text, length)


def aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Rows of cells as lines whose columns begin below each other."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [(indent + "  ".join(map(str.ljust, row, widths))).rstrip() for row in rows]


def hanging(head: str, text: str, width: int) -> str:
    """A text behind a head, in lines of at most a width that begin where the first does.

    Words stay whole, also at their hyphens: paths and commands can be copied.
    """
    return textwrap.fill(
        text,
        width=width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def drawable(text: str, encoding: str) -> str:
    """A text that an encoding has all characters of, with simpler ones in place of others.

    Args:
        text: The text.
        encoding: A name such as `"ascii"`.
    """

    def drawn(character: str) -> str:
        try:
            character.encode(encoding)
        except UnicodeEncodeError:
            escape = character.encode("ascii", "backslashreplace").decode()
            return _SIMPLER.get(character) or escape
        return character

    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(map(drawn, text))
    return text
