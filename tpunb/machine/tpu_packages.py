"""Which packages for TPUs fit each other, by their versions and metadata alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import metadata

from tpunb.machine.problems import Problem
from tpunb.machine.tested_releases import release

__all__ = [
    "FOR_TPU",
    "LIBTPU",
    "crashing_pair",
    "fatal_pair",
    "jax_pair",
    "overwritten_tensorflow",
    "unmet",
]

FOR_TPU = ("tensorflow-tpu", "tf-nightly-tpu")
"""Distributions of TensorFlow with TPU support."""

LIBTPU: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {
    (2, 20): ((0, 0, 14), (0, 0, 32)),
}
"""By release of tensorflow-tpu, its oldest libtpu and the first that is too new.

With a newer one the process aborts when TensorFlow is imported: found by importing 2.20.0 with
12 releases from 0.0.17 (works) over 0.0.31 (works) and 0.0.32 (aborts) to 0.0.52. Its metadata
allow them all. Other releases pin libtpu.
"""

# In every TensorFlow, and of a different size in each.
_FILE = "tensorflow/python/_pywrap_tensorflow_internal.so"


def fatal_pair(versions: Mapping[str, str]) -> Problem | None:
    """The problem of a libtpu that ends the process when TensorFlow loads it.

    Args:
        versions: Installed versions, by package.
    """
    tensorflow, libtpu = versions.get("tensorflow-tpu", ""), versions.get("libtpu", "")
    bounds = LIBTPU.get(release(tensorflow)[:2])
    if bounds is None or release(libtpu) < bounds[1]:
        return None
    oldest, too_new = (".".join(map(str, bound)) for bound in bounds)
    return Problem(
        "libtpu",
        f"tensorflow-tpu {tensorflow} cannot use libtpu {libtpu}: it ends the process when "
        "TensorFlow loads it.",
        "Install an older libtpu, then restart the kernel.",
        f'pip install "libtpu>={oldest},<{too_new}"',
    )


def crashing_pair(versions: Mapping[str, str]) -> Problem | None:
    """The problem of a JAX and a libtpu that crash when they compile without a TPU."""
    if (versions.get("jax"), versions.get("libtpu")) != ("0.7.2", "0.0.21.1"):  # Colab's, in 2026
        return None
    return Problem(
        "jax",
        "JAX 0.7.2 with libtpu 0.0.21.1 ends the process when it compiles for a TPU that is not "
        "there.",
        "Let tpunb.compile do it, with a compiler of its own that leaves both as they are.",
        "tpunb compiler install",
        stops=False,
    )


def jax_pair(versions: Mapping[str, str]) -> Problem | None:
    """The problem of a JAX and a libtpu that were not made for each other."""
    if "jax" not in versions or "libtpu" not in versions:
        return None
    needs = list(unmet("jax", versions, extra="tpu"))
    if not needs:
        return None
    return Problem(
        "jax",
        f"{needs[0]}: JAX may fail on a TPU.",
        "Use JAX and TensorFlow in environments of their own: each wants its own libtpu.",
        stops=False,
    )


def overwritten_tensorflow(versions: Mapping[str, str]) -> str:
    """The distribution whose files have taken the place of tensorflow-tpu's; empty if none."""
    name = next((name for name in FOR_TPU if name in versions), None)
    if name is None or _has_its_file(name) is not False:
        return ""
    others = ("tensorflow", "tensorflow-cpu", "tf-nightly")
    return next((other for other in others if other in versions and _has_its_file(other)), "")


def unmet(name: str, versions: Mapping[str, str], extra: str = "") -> Iterator[str]:
    """A package's requirements of libtpu that are not met, as sentences without full stops.

    Args:
        name: The package; nothing is unmet if it is not installed.
        versions: Installed versions, by package.
        extra: The extra of its requirements.
    """
    if name not in versions:
        return
    try:
        from packaging.requirements import Requirement  # without it, rely on pip's check

        requires = [Requirement(text) for text in metadata.requires(name) or ()]
    except Exception:  # other packages' metadata may be malformed
        return
    for requirement in requires:
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not (applies and requirement.name.startswith("libtpu")):
            continue
        wanted = f"{name} {versions[name]} wants {requirement.name}{requirement.specifier}"
        found = versions.get(requirement.name)
        if found is None:
            yield f"{wanted}, which is not installed"
        elif not requirement.specifier.contains(found, prereleases=True):
            yield f"{wanted}, and {found} is installed"


def _has_its_file(name: str) -> bool | None:
    """Whether a distribution's file is the one on disk, by its size; None if unknown."""
    try:
        distribution = metadata.distribution(name)
        record = distribution.read_text("RECORD") or ""
        size = re.search(rf"^{re.escape(_FILE)},[^,\n]*,(\d+)", record, re.MULTILINE)
        on_disk = distribution.locate_file(_FILE).stat().st_size  # type: ignore[attr-defined]
    except Exception:  # as above
        return None
    return None if size is None else int(size[1]) == on_disk
