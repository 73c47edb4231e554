"""Masking of secrets in texts, before the texts are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "***"
"""The text that replaces a secret."""

_SECRET_WORDS = (
    r"(?:token|secret|passw(?:or)?d|passwd|passphrase|pwd|(?:api|private|access)[_-]?key"
    r"|credentials?|signature|cookie|bearer|authorization)"
)
# Too short to search for inside other words.
_SHORT_WORDS = r"(?:key|auth|pass|pat|sig)"
_SECRET_NAME = re.compile(
    rf"{_SECRET_WORDS}|(?:^|_){_SHORT_WORDS}(?:_|$)",
    re.IGNORECASE,
)
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})  # a shell's folders
_SHORTEST = 6  # hiding shorter secrets would hide ordinary words

# The value after a name: a list or an object with all text after it, a string, or a word.
_VALUE = r"(?:(?:bearer|basic)\s)?(?:[\[{].*|\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"
_NAME = rf"(?:{_SECRET_WORDS}[\w.-]{{0,40}}|(?<![A-Za-z0-9.]){_SHORT_WORDS})"
_NAMED = re.compile(
    rf"({_NAME}[\"']?\s?[=:]\s?|\bbearer\s|(?<!\S)--?[\w.-]{{0,40}}{_NAME}\s){_VALUE}",
    re.IGNORECASE | re.DOTALL,
)
# Well-known keys and tokens whose parts are too short to look random.
_KNOWN = re.compile(
    r"AIza[\w-]+|ya29\.[\w.-]+|gh[opsru]_\w+|github_pat_\w+|hf_\w{8,}|sk-[\w-]{8,}|A[KS]IA\w{8,}"
    r"|xox[a-z]-[\w-]+|KGAT_\w+|eyJ[\w-]{5,500}(?:\.[\w-]+)+|glpat-[\w-]+|npm_\w{8,}"
    r"|pypi-[\w-]{12,}|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]{1,60}-----.*?(?:-----END [A-Z ]{1,60}-----|\Z)", re.DOTALL)
_OF_ADDRESS = re.compile(r"://[^/@:\s]{0,200}:([^\n]{1,500})@")
_OF_JSON = re.compile(r'"([\w.-]{1,60})"\s{0,9}:\s{0,9}"((?:[^"\\]|\\.){6,})"')
_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+][A-Za-z0-9+/]{31,}={0,2}")
_LONG = 32


def mask(text: str, secrets: Iterable[str] | None = None) -> str:
    """Return a text without anything that looks like a credential.

    It hides users and passwords in addresses, values with a name such as `token=`, keys of
    well-known forms, long random words, and known secrets.

    Args:
        text: The text to show.
        secrets: Known secrets, as `secrets_in` returns them. By default, the secrets in the
            process's own environment.

    Returns:
        The text, with `***` instead of each secret.
    """
    if secrets is None:
        secrets = secrets_in(os.environ)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _PEM.sub(HIDDEN, text)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    text = _KNOWN.sub(HIDDEN, text)
    if "@" in text:
        text = re.sub(r"\S+", lambda word: _without_user(word[0]), text)
    text = _BASE64.sub(lambda run: HIDDEN if _kinds(run[0]) == 3 else run[0], text)
    # A long run of letters and digits, or a run of several kinds, is probably a key.
    text = _RUN.sub(
        lambda run: HIDDEN if len(run[0]) >= _LONG or _kinds(run[0]) >= 2 else run[0], text
    )
    # An environment variable may hold any bytes, and invalid text cannot be printed or sent.
    return text.encode("utf-8", "replace").decode("utf-8")


def secrets_in(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the values of variables whose names mark them as secret.

    Passwords in the addresses and secrets in the JSON of other variables are included.
    """
    values = (secret.strip() for name in environment for secret in _of(name, environment[name]))
    return frozenset(secret for secret in values if len(secret) >= _SHORTEST)


def _of(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in a variable."""
    if _SECRET_NAME.search(name) and name.upper() not in _NO_SECRETS:
        yield value
        yield value.strip().strip("'\"")
    if "@" in value:
        yield from _OF_ADDRESS.findall(value)
    if '"' in value:
        parts = _OF_JSON.findall(value)
        yield from (part for named, part in parts if _SECRET_NAME.search(named))


def _without_user(word: str) -> str:
    """Return an address without the part before its host. A password may hold all but spaces."""
    before, at, host = word.rpartition("@")
    if not at:
        return word
    scheme, colon, _ = before.partition("://")
    return f"{scheme}{colon}{HIDDEN}@{host}" if colon else f"{HIDDEN}@{host}"


def _kinds(word: str) -> int:
    """Return the number of kinds of characters: lower case, upper case, digits."""
    kinds = (str.islower, str.isupper, str.isdigit)
    return sum(any(map(is_kind, word)) for is_kind in kinds)
