"""Files of plain values with a kind, a format version and a checksum. Reading them runs no code.

The first line names them: `tpunb program 1 <checksum>`. Compressed JSON follows.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from typing import Any

from tpunb._util.plain_text import plain

_MOST_BYTES = 2**27
"""The most bytes to unpack. A small file could unpack to more than the memory."""

_MOST_VALUES = 10**6
"""The most values to read. An empty list of two bytes takes 64 in memory."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BEFORE_A_VALUE = (b",", b"[", b"{")

_HEAD = re.compile(rb"tpunb ([a-z]{1,20}) (\d{1,6}) ([0-9a-f]{64})\n")


class WrongFileError(Exception):
    """A file of another kind. The message is a phrase about the file."""


class NewerFileError(Exception):
    """A file whose format is newer than this release."""


class DamagedFileError(Exception):
    """A file that is cut off or changed. The message is a phrase about the file."""


def packed(kind: str, version: int, value: Any) -> bytes:
    """Return the content of a file.

    Args:
        kind: A lowercase word for the kind of file.
        version: The version of the value's format.
        value: Dicts with text keys, lists, tuples, numbers, texts, booleans and None. Tuples become
            lists.
    """
    data = zlib.compress(json.dumps(value, separators=(",", ":")).encode("ascii"), level=6)
    return f"tpunb {kind} {version} {hashlib.sha256(data).hexdigest()}\n".encode() + data


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number in JSON")


def _escaped(value: Any) -> Any:
    """Return a value whose texts have no escape sequences of a terminal."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_escaped(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): _escaped(each) for key, each in value.items()}
    return value


def unpacked(kind: str, version: int, content: bytes) -> Any:
    """Return the value in a file that may come from anybody. Control characters are escaped.

    Args:
        kind: The kind of file.
        version: The newest version that this release reads.
        content: The file's content.

    Raises:
        WrongFileError: The file is of another kind.
        NewerFileError: The file has a newer format.
        DamagedFileError: The file is damaged.
    """
    head = _HEAD.match(content)
    if head is None:
        if content and content.startswith(f"tpunb {kind} ".encode()[: len(content)]):
            raise DamagedFileError("its first line is incomplete")
        raise WrongFileError(f"it is not a tpunb {kind}" if content else "it is empty")
    if head[1].decode() != kind:
        raise WrongFileError(f"it is a tpunb {head[1].decode()}, not a tpunb {kind}")
    if int(head[2]) > version:
        raise NewerFileError(f"its format is {int(head[2])}, this release reads up to {version}")
    data = content[head.end() :]
    if hashlib.sha256(data).hexdigest().encode() != head[3]:
        raise DamagedFileError("its checksum does not match its content")
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(data, _MOST_BYTES)
        if reader.unconsumed_tail:
            raise DamagedFileError("it unpacks to more than 128 MiB")
        if not reader.eof:
            raise DamagedFileError("it is cut off")
        outside = _STRING.sub(b"", text)
        if sum(map(outside.count, _BEFORE_A_VALUE)) > _MOST_VALUES:
            raise DamagedFileError("it has more than a million values")
        return _escaped(json.loads(text, parse_constant=_refused))
    except (zlib.error, ValueError, RecursionError) as error:
        raise DamagedFileError("its content cannot be read") from error
