"""Files of plain values: they are read back unchanged, and other files are refused by kind."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import pytest

from tpunb._util import checked_files
from tpunb._util.checked_files import (
    DamagedFileError,
    NewerFileError,
    WrongFileError,
    packed,
    unpacked,
)

VALUE = {"a": [1, 2.5, "tex\u0444t", None, True], "b": {"c": "\udc80"}}
WHOLE = packed("program", 1, VALUE)


def with_content(data: bytes) -> bytes:
    """Return a file with this content and the right checksum."""
    return f"tpunb program 1 {hashlib.sha256(data).hexdigest()}\n".encode() + data


def test_values_are_read_back_unchanged() -> None:
    assert unpacked("program", 1, WHOLE) == VALUE
    assert unpacked("program", 7, WHOLE) == VALUE


@pytest.mark.parametrize("length", range(0, len(WHOLE), 7))
def test_a_truncated_file_is_refused(length: int) -> None:
    with pytest.raises((DamagedFileError, WrongFileError)) as raised:
        unpacked("program", 1, WHOLE[:length])
    assert isinstance(raised.value, DamagedFileError) or length < len(b"tpunb program ")


@pytest.mark.parametrize("place", range(0, len(WHOLE), 5))
def test_a_changed_byte_is_noticed(place: int) -> None:
    changed = WHOLE[:place] + bytes([WHOLE[place] ^ 64]) + WHOLE[place + 1 :]
    with pytest.raises((DamagedFileError, WrongFileError, NewerFileError)):
        unpacked("program", 1, changed)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", WrongFileError, "it is empty"),
        (b"\x80\x04]\x94.", WrongFileError, "it is not a tpunb program"),
        (b"PK\x03\x04", WrongFileError, "it is not a tpunb program"),
        (packed("verdict", 1, {}), WrongFileError, "it is a tpunb verdict, not a tpunb program"),
        (packed("program", 2, {}), NewerFileError, "its format is 2, this release reads up to 1"),
        (with_content(b"no zlib"), DamagedFileError, "cannot be read"),
        (with_content(zlib.compress(b"no json")), DamagedFileError, "cannot be read"),
        (with_content(zlib.compress(b"[" * 100_000)), DamagedFileError, "cannot be read"),
        (with_content(zlib.compress(b"\xff")), DamagedFileError, "cannot be read"),
        (with_content(zlib.compress(b"[1]")[:-3]), DamagedFileError, "cut off"),
    ],
)
def test_other_files_are_refused_by_their_kind(
    content: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        unpacked("program", 1, content)


def test_a_small_file_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_files, "_MOST_BYTES", 1000)
    bomb: Any = json.dumps(["x" * 1000])
    with pytest.raises(DamagedFileError, match="unpacks to more"):
        unpacked("program", 1, with_content(zlib.compress(bomb.encode())))


def test_a_text_has_no_escape_sequence() -> None:
    content = packed("program", 1, {"\x1b[2J": ["a\x1b]0;title\x07\n", {"b": "\x9b1m\u202e é"}]})
    value = unpacked("program", 1, content)
    assert value == {"\\x1b[2J": ["a\\x1b]0;title\\x07\n", {"b": "\\x9b1m\\u202e é"}]}
