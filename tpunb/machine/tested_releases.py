"""The releases of TensorFlow that tpunb is tested with, and the release that is installed."""

from __future__ import annotations

import re
import sys
import warnings
from importlib import metadata

from tpunb._util.logs import logger

_log = logger("machine")

TESTED = ((2, 18), (2, 19), (2, 20), (2, 21))
"""The releases of TensorFlow that tpunb is tested with, oldest first.

The virtual TPU uses private parts of TensorFlow, which any release may change. A patch release
counts as its minor release. pyproject.toml, the doctor and the warning when connecting follow
this table.
"""

OLDEST = TESTED[0]
_NEWEST = TESTED[-1]


def dotted(version: tuple[int, ...]) -> str:
    """Return a version's numbers as text."""
    return ".".join(map(str, version))


SPECIFIER = f">={dotted(OLDEST)},<{_NEWEST[0]}.{_NEWEST[1] + 1}"
"""The tested releases as a requirement."""

RANGE = f"{dotted(OLDEST)} to {dotted(_NEWEST)}"
"""The tested releases in a sentence."""

_warned: set[str] = set()


def release(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version; none if it does not start with a number."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def is_newer(version: str) -> bool:
    """Return whether a version of TensorFlow is newer than all tested versions."""
    return release(version)[:2] > _NEWEST


def newer_than_tested(version: str) -> str:
    """Return the sentence, without a full stop, that a version is newer than the tested ones."""
    return f"TensorFlow {version} is newer than the releases that tpunb is tested with, {RANGE}"


def warn_if_newer(version: str | None) -> None:
    """Warn once in a process if a version of TensorFlow is newer than all tested versions.

    In a notebook the log has the sentence instead, and `%tpu_doctor` reports it. A warning would
    become part of a cell's outputs, which nbval compares.

    Args:
        version: The version; None if unknown.
    """
    if version is None or not is_newer(version) or version in _warned:
        return
    _warned.add(version)
    text = (
        f"{newer_than_tested(version)}. A virtual TPU may fail or behave differently. If it does, "
        f'update tpunb, or install a tested release: pip install "tensorflow{SPECIFIER}"'
    )
    if _is_kernel():
        _log.info("%s", text)
    else:
        warnings.warn(text, stacklevel=3)


def _is_kernel() -> bool:
    """Return whether a notebook's cells run in this process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


FOR_TPU = ("tensorflow-tpu", "tf-nightly-tpu")
"""Distributions of TensorFlow with TPU support."""

TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "tf-nightly-tpu")
"""Distributions that install the same files."""


def tensorflow_version() -> str | None:
    """Return the version of TensorFlow without importing it, or None if unknown."""
    return next(filter(None, map(version_of, TENSORFLOWS)), None)


def version_of(name: str) -> str | None:
    """Return the version of an installed package, or None if unknown."""
    try:
        version: str | None = metadata.version(name)
    except Exception:  # not installed, or its metadata is unreadable
        return None
    return (
        version if isinstance(version, str) and re.fullmatch(r"[\w.+!-]{1,60}", version) else None
    )


def minor_of(version: str | None) -> str:
    """Return the first two numbers of a version."""
    return dotted(release(version or "")[:2])
