"""Whether TensorFlow should load libtpu, decided before it is imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from tpunb._util.logs import logger
from tpunb.errors import ConnectError
from tpunb.machine.chips import find_chips
from tpunb.machine.platform import detect_platform
from tpunb.machine.software import find_software
from tpunb.machine.tpu_packages import FOR_TPU, fatal_pair

__all__ = ["prepare_tpu_library"]

_LOAD = "TPU_LOAD_LIBRARY"
_SKIP = "TPU_SKIP_MDS_QUERY"

_log = logger("machine")


def prepare_tpu_library(
    environment: MutableMapping[str, str] | None = None, root: Path | None = None
) -> None:
    """Keeps a tensorflow-tpu from loading libtpu where there is no TPU.

    There libtpu waits minutes for a metadata server, complains on standard error, and gives
    TensorFlow a device TPU_SYSTEM without a TPU. Where the user has set `TPU_LOAD_LIBRARY`, it
    stays.

    Args:
        environment: Environment variables, which are completed; by default the process's own.
        root: The directory with `dev` and `sys`; by default `/`.

    Raises:
        ConnectError: TensorFlow would load a libtpu that ends the process.
    """
    environment = os.environ if environment is None else environment
    versions = find_software(environment).versions
    if not any(name in versions for name in FOR_TPU):
        return
    if not _may_have_tpu(environment, root):
        _set(environment, _LOAD, "0")
        if not detect_platform(environment, root).on_cloud:
            _set(environment, _SKIP, "1")
    problem = fatal_pair(versions)
    if problem is not None and environment.get(_LOAD, "").strip() != "0":
        fix = problem.fix.removeprefix("Install an older libtpu, ")
        raise ConnectError(problem.message, fix=f"Run %{problem.command}, {fix}")


def _may_have_tpu(environment: MutableMapping[str, str], root: Path | None) -> bool:
    chips = find_chips(root)
    sign = detect_platform(environment, root).tpu_sign
    return bool(chips.files or chips.unknown or chips.on_bus or sign)


def _set(environment: MutableMapping[str, str], name: str, value: str) -> None:
    if environment.get(name, "").strip():
        return
    environment[name] = value
    _log.debug("no TPU here: %s=%s", name, value)
