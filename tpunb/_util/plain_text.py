"""Text for a terminal: visible control characters, and lines of limited length."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

# Escape sequences can move the cursor, set the window's title or hide earlier output. C1 has
# one-character forms of them, and direction overrides show text in another order.
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
    """Return a text with its control characters escaped: ESC becomes backslash, x, 1b.

    Line ends and tabs are kept.
    """
    return text if text.isprintable() else text.translate(_CONTROLS)


def shortened(text: str, length: int) -> str:
    """Return a text shortened to a number of characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shortened_between(text: str, length: int, *separators: str) -> str:
    """Return a text shortened to a number of characters, between its parts.

    A part is not cut, because a number that is cut looks like another number.

    Args:
        text: The text.
        length: The greatest number of characters.
        *separators: The separators of its parts, the best first. A text of one long part is cut
            anywhere.
    """
    if len(text) <= length:
        return text
    ends = (text.rfind(part, 0, length - 1) + len(part) for part in separators)
    end = next((end for end in ends if end > length // 2), 0)
    return f"{text[:end]}…" if end else shortened(text, length)


def aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [(indent + "  ".join(map(str.ljust, row, widths))).rstrip() for row in rows]


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence: `"x, y and z"`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def hanging(head: str, text: str, width: int) -> str:
    """Return a text after a head, filled in lines that all begin where its first line does.

    Words are not broken, not even at hyphens, so that paths and commands can be copied.
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
    """Return a text that an encoding can represent, with simpler characters for missing ones.

    Args:
        text: The text.
        encoding: The name of the encoding, such as `"ascii"`.
    """

    def simplified(character: str) -> str:
        try:
            character.encode(encoding)
        except UnicodeEncodeError:
            escape = character.encode("ascii", "backslashreplace").decode()
            return _SIMPLER.get(character) or escape
        return character

    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(map(simplified, text))
    return text
