"""What of this machine matters for TPUs: versions, devices, and what connecting would do."""

from __future__ import annotations

import dataclasses
import glob
import os
import platform
from collections.abc import Mapping
from importlib import metadata

from tpunb.environment import Search, find_tpu

__all__ = ["Machine", "look"]

_PACKAGES = (
    "tpunb",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-tpu",
    "libtpu",
    "keras",
    "tf_keras",
    "ipython",
    "ipykernel",
)
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")
_LOCK_FILES = ("/tmp/libtpu_lockfile*",)
# What these say is no secret; of others not even the names are looked at.
_VARIABLES = (
    "TPUNB_TPU",
    "TPUNB_REQUIRE_TPU",
    "TPU_NAME",
    "COLAB_TPU_ADDR",
    "TPU_ACCELERATOR_TYPE",
    "TF_USE_LEGACY_KERAS",
    "TF_CPP_MIN_LOG_LEVEL",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What was found.

    Attributes:
        python: Python's version.
        versions: The versions of the packages that are installed, by name.
        search: What looking for a TPU found.
        locks: Lock files of the TPU's library.
        variables: Environment variables that are set, of those that matter.
    """

    python: str
    versions: Mapping[str, str]
    search: Search
    locks: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def has_tensorflow(self) -> bool:
        """Whether any TensorFlow is installed."""
        return any(name in self.versions for name in _TENSORFLOWS)

    @property
    def mend(self) -> str:
        """What is in the way, and what to do about it; empty if nothing is."""
        tpu = self.search.tpu is not None
        if not self.has_tensorflow:
            extra = "tpu" if tpu else "cpu"
            return f'TensorFlow is not installed: pip install "tpunb[{extra}]"'
        if tpu and "tensorflow-tpu" not in self.versions:
            return 'This TensorFlow has no support for TPUs: pip install "tpunb[tpu]"'
        found = {self.versions[name] for name in _TENSORFLOWS if name in self.versions}
        if len(found) > 1:
            return (
                f"Several TensorFlows are installed ({', '.join(sorted(found))}): keep one version."
            )
        return ""

    @property
    def next_step(self) -> str:
        """The one thing to do next."""
        if self.mend:
            return self.mend
        if self.search.tpu is not None:
            return f"In a notebook: %load_ext tpunb, then %tpu_connect {self.search.tpu}"
        return "In a notebook: %load_ext tpunb, then %tpu_connect --simulate v5e-8"


def look(environment: Mapping[str, str] | None = None) -> Machine:
    """Looks at this machine; TensorFlow is not imported.

    Args:
        environment: Environment variables; by default the process's own.
    """
    environment = os.environ if environment is None else environment
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    return Machine(
        python=platform.python_version(),
        versions=versions,
        search=find_tpu(environment),
        locks=tuple(sorted(path for pattern in _LOCK_FILES for path in glob.glob(pattern))),
        variables={name: environment[name] for name in _VARIABLES if name in environment},
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
