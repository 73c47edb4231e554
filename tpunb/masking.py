"""Hides what looks like a secret in a text that is about to be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["HIDDEN", "mask", "secrets_in"]

HIDDEN = "***"
"""What stands where a secret was."""

_SECRET_WORDS = (
    r"(?:token|secret|passw(?:or)?d|passwd|passphrase|pwd|api_?key|private_?key|access_?key"
    r"|credentials?|signature|cookie|bearer|authorization)"
)
_SECRET_NAME = re.compile(_SECRET_WORDS + r"|(?:^|_)(?:key|auth|pass|pat)(?:_|$)", re.IGNORECASE)
_SHORTEST = 6  # a secret of fewer characters would blank ordinary words

_NAMED = re.compile(
    rf"({_SECRET_WORDS}[\w.-]{{0,40}}[\"']?\s?[=:]\s?|\bbearer\s)"
    r"(?:(?:bearer|basic)\s)?(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.IGNORECASE,
)
# The forms of keys and tokens whose parts are too short to be told by their look.
_KNOWN = re.compile(
    r"AIza[\w-]+|ya29\.[\w.-]+|gh[opsru]_\w+|github_pat_\w+|hf_\w{8,}|sk-[\w-]{8,}|A[KS]IA\w{8,}"
    r"|xox[a-z]-[\w-]+|KGAT_\w+|eyJ[\w-]{5,500}(?:\.[\w-]+)+"
)
_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+][A-Za-z0-9+/]{31,}={0,2}")
_LONG = 32


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without what looks like a credential.

    Hidden are users and passwords in addresses, values with a name such as `token=`, keys
    of well-known forms, long random words, and what is known to be secret.

    Args:
        text: What is to be shown.
        secrets: What must not be in it, as `secrets_in` finds it.

    Returns:
        The text, with `***` for each of these.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    text = _KNOWN.sub(HIDDEN, text)
    if "@" in text:
        text = re.sub(r"\S+", lambda word: _without_user(word[0]), text)
    text = _BASE64.sub(lambda run: HIDDEN if _kinds(run[0]) == 3 else run[0], text)
    return _RUN.sub(lambda run: HIDDEN if _looks_random(run[0]) else run[0], text)


def secrets_in(environment: Mapping[str, str]) -> frozenset[str]:
    """The values of variables whose names say that they are secret."""
    values = (value for name, value in environment.items() if _SECRET_NAME.search(name))
    return frozenset(value.strip() for value in values if len(value.strip()) >= _SHORTEST)


def _without_user(word: str) -> str:
    """An address without what is before its host; a password may hold anything but a space."""
    before, at, host = word.rpartition("@")
    if not at:
        return word
    scheme, colon, _ = before.partition("://")
    return f"{scheme}{colon}{HIDDEN}@{host}" if colon else f"{HIDDEN}@{host}"


def _looks_random(word: str) -> bool:
    """Whether a run of letters and digits is more likely a key than a word."""
    return len(word) >= _LONG or _kinds(word) >= 2


def _kinds(word: str) -> int:
    """How many there are of small letters, capitals and digits."""
    kinds = (str.islower, str.isupper, str.isdigit)
    return sum(any(map(is_kind, word)) for is_kind in kinds)
