"""Takes out of a text what says where it was made: addresses, paths, names, secrets."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from tpunb._util.secret_masking import mask, secrets_in

__all__ = ["Scrubber"]

_ADDRESS = "<address>"
_PATH = "<path>"
_NAME = "<name>"
_MOST_CHARACTERS = 600
_SHORTEST_NAME = 2

_ADDRESSES = re.compile(
    # Not those of TensorFlow's own documentation; grpc://10.0.0.2:8470
    r"\b(?!https://(?:www\.)?(?:tensorflow\.org|github\.com)/)"
    r"[a-z][a-z0-9+]{1,9}://[^\s'\",;)>\]]+"
    r"|\b(?:ipv4|ipv6|dns|unix):[^\s'\",;)>]+"  # as gRPC writes peers
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b"
    r"|\[?(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}\b\]?(?::\d{1,5})?"
    r"|(?<!job:)\blocalhost(?::\d{1,5})?\b"
    r"|\b[\w-]+(?:\.[\w-]+)*:\d{4,5}\b",
    re.IGNORECASE,
)
# TensorFlow's names of devices look like paths, and are what a report is about.
_PATHS = re.compile(
    r"(?<![\w/.:])(?:~|[A-Za-z]:)?[/\\](?!(?:job|replica|task|device|cpu|tpu):)[\w.+@~-]+"
    r"(?:[/\\][\w.+@~ -]*[\w.+@~-])+",
    re.IGNORECASE,
)

# Of errors and operations: NotConnectedError, LookupTableFindV2. A mask takes long ones for keys.
_IDENTIFIERS = re.compile(
    r"(?<![\w=])(?<![=:]\s)(?<!bearer\s)((?:[A-Z][a-z]{2,}){2,}(?:V\d)?)(?!\w)"
)


class Scrubber:
    """Makes texts that can be shown to anybody.

    Args:
        names: What must not be in them: of TPUs, zones, projects.
    """

    def __init__(self, names: Iterable[str | None] = ()) -> None:
        self._secrets = secrets_in(os.environ)
        found = {name.strip() for name in (*names, *_own_names()) if name}
        longest_first = sorted(filter(_is_long, found), key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._names = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None

    def __call__(self, text: str) -> str:
        """A text of bounded length without any of it."""
        text = "".join(
            part if number % 2 else mask(part, self._secrets)
            for number, part in enumerate(_IDENTIFIERS.split(text))
        )
        text = _ADDRESSES.sub(_ADDRESS, text)
        text = _PATHS.sub(_PATH, text)
        if self._names is not None:
            text = self._names.sub(_NAME, text)
        if len(text) > _MOST_CHARACTERS:
            half = _MOST_CHARACTERS // 2
            # The message of an error in a tf.function is at its end, below the source lines.
            text = f"{text[:half]} […] {text[-half:]}"
        return text


def _is_long(name: str) -> bool:
    return len(name) >= _SHORTEST_NAME


def _own_names() -> list[str]:
    """The names of this machine and of the user."""
    names = [socket.gethostname(), Path.home().name]
    with contextlib.suppress(OSError, KeyError, ImportError):  # no entry for the user
        names.append(getpass.getuser())
    return names
