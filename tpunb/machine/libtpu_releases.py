"""The releases of libtpu that TensorFlow and JAX need, and the pairs that end the process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import metadata
from typing import Any

from tpunb._util.logs import logger
from tpunb.errors import ConnectError
from tpunb.machine.chips import find_chips
from tpunb.machine.detect import detect_platform
from tpunb.machine.setup_problem import SetupProblem
from tpunb.machine.tested_releases import FOR_TPU, dotted, release, version_of

_log = logger("machine")

LIBTPU: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {
    (2, 20): ((0, 0, 14), (0, 0, 32)),
}
"""The oldest libtpu and the first that is too new, by release of tensorflow-tpu.

With a libtpu that is too new, the process aborts when TensorFlow is imported. This was found by
importing tensorflow-tpu 2.20.0 with 12 releases of libtpu: 0.0.17 to 0.0.31 work, 0.0.32 to
0.0.52 abort. The metadata of tensorflow-tpu allow them all. Other releases of tensorflow-tpu pin
libtpu. pytorch/xla#3786 shows such an abort for an earlier pair. Remove this table when
tensorflow-tpu 2.20 is no longer supported.
"""


def fatal_pair(versions: Mapping[str, str]) -> SetupProblem | None:
    """Return the problem of a libtpu that ends the process when TensorFlow loads it, or None.

    Args:
        versions: Installed versions, by package.
    """
    tensorflow, libtpu = versions.get("tensorflow-tpu", ""), versions.get("libtpu", "")
    bounds = LIBTPU.get(release(tensorflow)[:2])
    if bounds is None or release(libtpu) < bounds[1]:
        return None
    oldest, too_new = map(dotted, bounds)
    return SetupProblem(
        "libtpu",
        f"tensorflow-tpu {tensorflow} cannot use libtpu {libtpu}: it ends the process when "
        "TensorFlow loads it.",
        "Install an older libtpu, then restart the kernel.",
        f'pip install "libtpu>={oldest},<{too_new}"',
    )


def unmet(name: str, versions: Mapping[str, str], extra: str = "") -> Iterator[str]:
    """Yield a package's unmet requirements of libtpu, as sentences without full stops.

    Args:
        name: The package. A package that is not installed has no unmet requirements.
        versions: Installed versions, by package.
        extra: The extra whose requirements apply.
    """
    for requirement in _required_libtpu(name, versions, extra):
        wanted = f"{name} {versions[name]} requires {requirement.name}{requirement.specifier}"
        installed = versions.get(requirement.name)
        if installed is None:
            yield f"{wanted}, which is not installed"
        elif not requirement.specifier.contains(installed, prereleases=True):
            yield f"{wanted}, but {installed} is installed"


def _required_libtpu(name: str, versions: Mapping[str, str], extra: str) -> list[Any]:
    """Return a package's requirements of libtpu, as packaging's objects."""
    if name not in versions:
        return []
    try:
        from packaging.requirements import Requirement  # if it is missing, rely on pip's check

        requires = [Requirement(text) for text in metadata.requires(name) or ()]
    except Exception:  # other packages' metadata may be malformed
        return []
    return [
        requirement
        for requirement in requires
        if requirement.name.startswith("libtpu")
        and (requirement.marker is None or requirement.marker.evaluate({"extra": extra}))
    ]


def is_newer_than_required(name: str, extra: str, plugin: str, versions: Mapping[str, str]) -> bool:
    """Return whether a plugin is newer than each release that a package's requirement names."""
    named = [
        release(each.version)
        for requirement in _required_libtpu(name, versions, extra)
        for each in requirement.specifier
        if requirement.name == plugin
    ]
    installed = release(versions.get(plugin, ""))
    return bool(named) and all(installed[: len(each)] > each for each in named)


def prepare_tpu_library(
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Keep tensorflow-tpu from loading libtpu on a machine without a TPU.

    There libtpu waits minutes for a metadata server, logs errors to standard error, and gives
    TensorFlow a device TPU_SYSTEM without a TPU. A `TPU_LOAD_LIBRARY` that the user has set
    does not change. jax-ml/jax#11668 (open) reports the wait, with `TPU_SKIP_MDS_QUERY=1` as the
    workaround. pytorch/xla#3786 recommends `TPU_LOAD_LIBRARY=0`.

    Args:
        environment: Environment variables, which this function completes. By default, the
            process's own.

    Raises:
        ConnectError: TensorFlow would load a libtpu that ends the process.
    """
    environment = os.environ if environment is None else environment
    versions = {name: version for name in (*FOR_TPU, "libtpu") if (version := version_of(name))}
    if not any(name in versions for name in FOR_TPU):
        return
    chips, platform = find_chips(), detect_platform(environment)
    if not (chips.there or platform.tpu_sign):
        missing = {"TPU_LOAD_LIBRARY": "0"}
        if not platform.on_cloud:
            missing["TPU_SKIP_MDS_QUERY"] = "1"
        for name, value in missing.items():
            if not environment.get(name, "").strip():
                environment[name] = value
                _log.debug("no TPU here: %s=%s", name, value)
    problem = fatal_pair(versions)
    if problem is not None and environment.get("TPU_LOAD_LIBRARY", "").strip() != "0":
        fix = problem.fix.removeprefix("Install an older libtpu, ")
        raise ConnectError(problem.message, fix=f"Run %{problem.command}, {fix}")
