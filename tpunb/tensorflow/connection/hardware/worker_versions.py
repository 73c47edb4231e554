"""The version of TensorFlow on a TPU's workers, which has to equal this machine's."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from tpunb._util.deadline import Deadline, Running
from tpunb.tensorflow.connection.hardware.attempt import Attempt
from tpunb.tensorflow.connection.hardware.cloud import Node

_PORT = 8475  # the port on which TensorFlow's own client asks a worker for its version
_PATIENCE = 1.0
_MOST_BYTES = 1 << 20
_VERSION = re.compile(r"(?:^|(?:^|-)tf-|^tensorflow-)v?(\d{1,2})\.(\d{1,3})(?!\d)")


def version_in(runtime: str) -> tuple[int, int] | None:
    """Return the version of TensorFlow in the name of a TPU's software.

    Args:
        runtime: For example `"2.18.0"`, `"tpu-vm-tf-2.18.0-pod-pjrt"` or `"v2-alpha-tpuv5-lite"`.

    Returns:
        The major and the minor number; None if the name contains no version.
    """
    match = _VERSION.search(runtime.strip())
    return (int(match[1]), int(match[2])) if match else None


def require_same_version(here: str, address: str, attempt: Attempt, node: Node | None) -> None:
    """Raise an error if the TPU runs another version of TensorFlow.

    An unknown version of the TPU raises no error.

    Args:
        here: The version of this TensorFlow.
        address: The address of the TPU's first worker.
        attempt: The attempt, which records the steps.
        node: The TPU's description from gcloud, if the TPU was given by name.

    Raises:
        ConnectError: The versions differ.
    """
    runtime = (node.version if node is not None else "") or _reported(address, attempt)
    own, theirs = version_in(here), version_in(runtime)
    if own is None or theirs is None or own == theirs:
        return
    recreate = f"create the TPU with a runtime version tpu-vm-tf-{own[0]}.{own[1]}.x"
    if node is not None:
        recreate += f" ({node.command('delete')}, then create)"
    raise attempt.error(
        f"This is TensorFlow {here}, and the TPU runs {runtime}: the versions have to be equal.",
        f'Install the TPU\'s version, %pip install "tensorflow=={theirs[0]}.{theirs[1]}.*", and '
        f"restart the kernel. Or {recreate}.",
    )


def _reported(address: str, attempt: Attempt) -> str:
    """Return the version that a worker reports, or an empty string. Most report none."""
    host = address.rpartition(":")[0]
    url = f"http://{host}:{_PORT}/requestversion"
    version = None
    with contextlib.suppress(Exception):  # urllib, http, JSON and sockets each have their own
        limit = Deadline(min(_PATIENCE, attempt.deadline.left))
        version = Running(lambda: _json_at(url, limit)).result(limit.end)["currentVersion"]
    if not (isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,80}", version)):
        attempt.note(f"{host}:{_PORT} reports no version")
        return ""
    attempt.note(f"{host} runs TensorFlow {version}")
    return version


def _json_at(url: str, limit: Deadline) -> Any:
    """Return the JSON that a server on the TPU's network answers with, without a proxy."""
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=limit.left) as answer:
        return json.loads(answer.read(_MOST_BYTES))
