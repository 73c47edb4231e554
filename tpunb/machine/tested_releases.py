"""The releases of TensorFlow that this package is tested with.

Its virtual TPU stands on private parts of TensorFlow, which any release may change. The
bounds in pyproject.toml, the doctor and the warning of connecting are all from here.
"""

from __future__ import annotations

import re
import warnings

TESTED = ((2, 18), (2, 19), (2, 20), (2, 21))
"""Oldest first; a patch release counts as its minor release."""

OLDEST = TESTED[0]
_NEWEST = TESTED[-1]


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


SPECIFIER = f">={_text(OLDEST)},<{_NEWEST[0]}.{_NEWEST[1] + 1}"
"""The tested releases as requirements name them."""

RANGE = f"{_text(OLDEST)} to {_text(_NEWEST)}"
"""The tested releases in a sentence."""

_warned: set[str] = set()


def release(version: str) -> tuple[int, ...]:
    """The numbers at a version's start; none if it does not start with one."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def is_newer(version: str) -> bool:
    """Returns whether a version of TensorFlow is newer than all that are tested."""
    return release(version)[:2] > _NEWEST


def newer_than_tested(version: str) -> str:
    """A sentence, without its full stop, for a version that is."""
    return f"TensorFlow {version} is newer than those that tpunb is tested with, {RANGE}"


def warn_if_newer(version: str | None) -> None:
    """Warns, once in a process, if a version of TensorFlow is newer than all that are tested.

    Args:
        version: The version; None where it is not known.
    """
    if version is None or not is_newer(version) or version in _warned:
        return
    _warned.add(version)
    warnings.warn(
        f"{newer_than_tested(version)}: a virtual TPU may fail or behave otherwise. If it does, "
        f'update tpunb, or install a tested release: pip install "tensorflow{SPECIFIER}"',
        stacklevel=3,
    )
