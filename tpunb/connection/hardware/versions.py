"""Compares the versions of TensorFlow here and on the TPU, which have to be equal."""

from __future__ import annotations

import re
import time

from tpunb.connection.hardware.attempt import Attempt
from tpunb.connection.hardware.cloud import Node, ask

__all__ = ["require_same_version", "version_in"]

_PORT = 8475  # where TensorFlow's own client asks a worker for its version
_PATIENCE = 1.0
_VERSION = re.compile(r"(?:^|(?:^|-)tf-|^tensorflow-)v?(\d{1,2})\.(\d{1,3})(?!\d)")


def version_in(runtime: str) -> tuple[int, int] | None:
    """Parses TensorFlow's version from the name of a TPU's software.

    Args:
        runtime: As `"2.18.0"`, `"tpu-vm-tf-2.18.0-pod-pjrt"` or `"v2-alpha-tpuv5-lite"`.

    Returns:
        The major and the minor number; None if the name has none.
    """
    found = _VERSION.search(runtime.strip())
    return (int(found[1]), int(found[2])) if found else None


def require_same_version(
    here: str, addresses: tuple[str, ...], attempt: Attempt, node: Node | None
) -> None:
    """Raises if the TPU runs another version of TensorFlow.

    It does not raise if the TPU's version is unknown.

    Args:
        here: The version of this TensorFlow.
        addresses: The TPU's workers.
        attempt: Records what was tried.
        node: The TPU's description from the Cloud TPU API, if it was requested.

    Raises:
        ConnectError: The versions differ.
    """
    runtime = (node.version if node is not None else "") or _reported(addresses[0], attempt)
    mine, theirs = version_in(here), version_in(runtime)
    if mine is None or theirs is None or mine == theirs:
        return
    wanted = ".".join(map(str, theirs))
    mine_in_short = ".".join(map(str, mine))
    remake = f"create the TPU with a runtime version tpu-vm-tf-{mine_in_short}.x"
    if node is not None:
        remake += f" ({node.command('delete')}, then create)"
    raise attempt.error(
        f"This is TensorFlow {here}, and the TPU runs {runtime}: the versions have to be equal.",
        f'Install the TPU\'s version, %pip install "tensorflow=={wanted}.*", and restart the '
        f"kernel; "
        f"or {remake}.",
    )


def _reported(address: str, attempt: Attempt) -> str:
    """The version that a worker reports; empty for most, which report none."""
    host = address.rpartition(":")[0]
    url = f"http://{host}:{_PORT}/requestversion"
    answer = ask(url, lambda _: None, time.monotonic() + min(_PATIENCE, attempt.left))
    version = (answer.json or {}).get("currentVersion")
    if not (isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,80}", version)):
        attempt.note(f"{host}:{_PORT} reports no version ({answer})")
        return ""
    attempt.note(f"{host} runs TensorFlow {version}")
    return version
