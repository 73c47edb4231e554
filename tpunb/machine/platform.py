"""Detects the platform: Colab, Kaggle, Kubernetes, Google Cloud or another machine.

It uses only environment variables and files. Kaggle's image is derived from Colab's, so Kaggle
is checked first; both run on Google Cloud, which is checked last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tpunb.machine import chips

__all__ = ["Platform", "PlatformKind", "detect_platform"]

PlatformKind = Literal["colab", "kaggle", "kubernetes", "tpu-vm", "compute-engine", "machine"]

_NAMES: dict[PlatformKind, str] = {
    "colab": "Google Colab",
    "kaggle": "Kaggle",
    "kubernetes": "Kubernetes",
    "tpu-vm": "a Cloud TPU VM",
    "compute-engine": "Google Compute Engine",
    "machine": "a machine of your own",
}
_SIGNS: tuple[tuple[PlatformKind, tuple[str, ...]], ...] = (
    ("kaggle", ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE")),
    ("colab", ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION", "COLAB_TPU_1VM")),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",)),
    ("compute-engine", ("GCE_METADATA_HOST", "GCE_METADATA_IP")),
)
_BOARD = Path("sys/class/dmi/id/product_name")
_BOARDS = ("Google Compute Engine", "Google")
# Set by the platforms themselves on machines with a TPU.
_TPU_SIGNS = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_TOPOLOGY")


@dataclasses.dataclass(frozen=True, slots=True)
class Platform:
    """The platform that this process runs on.

    Attributes:
        kind: The platform, for programs.
        sign: How it was detected; empty for an unknown machine.
        tpu_sign: What indicates a TPU; empty if nothing does.
        on_cloud: Whether to query Google Cloud's metadata server.
    """

    kind: PlatformKind = "machine"
    sign: str = ""
    tpu_sign: str = ""
    on_cloud: bool = False

    @property
    def name(self) -> str:
        """The platform, for people."""
        return _NAMES[self.kind]


def detect_platform(environment: Mapping[str, str], root: Path | None = None) -> Platform:
    """Detects the platform, without a request to any server.

    Args:
        environment: Environment variables.
        root: The directory with `sys`; by default `/`.
    """
    on_board = _is_google(chips.ROOT if root is None else root)
    for kind, variables in _SIGNS:
        found = next((name for name in variables if environment.get(name, "").strip()), None)
        if found is None:
            continue
        # Colab and Kaggle replace the metadata server by one without TPU data.
        on_cloud = kind == "compute-engine" or (kind == "kubernetes" and on_board)
        return Platform(kind, f"{found} is set", _tpu_sign(kind, environment), on_cloud)
    if on_board:
        return Platform("compute-engine", "its board says so", "", on_cloud=True)
    return Platform()


def _tpu_sign(kind: PlatformKind, environment: Mapping[str, str]) -> str:
    """What indicates a TPU on a platform; on others the variables may be left over."""
    if kind == "compute-engine":
        return ""
    if kind == "colab":
        return "COLAB_TPU_1VM is 1" if environment.get("COLAB_TPU_1VM", "").strip() == "1" else ""
    found = next((name for name in _TPU_SIGNS if environment.get(name, "").strip()), None)
    return f"{found} is set" if found else ""


def _is_google(root: Path) -> bool:
    try:
        board = (root / _BOARD).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return False
    return board in _BOARDS
