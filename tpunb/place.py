"""What kind of machine is this: Colab, Kaggle, a pod of Kubernetes, Google Cloud, or another?

By environment variables and files alone. Kaggle's image is made from Colab's, so Kaggle
is looked for first; both run on Google Cloud, which comes last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tpunb import chips

__all__ = ["Kind", "Place", "find_place"]

Kind = Literal["colab", "kaggle", "kubernetes", "tpu-vm", "compute-engine", "machine"]

_NAMES: dict[Kind, str] = {
    "colab": "Google Colab",
    "kaggle": "Kaggle",
    "kubernetes": "Kubernetes",
    "tpu-vm": "a Cloud TPU VM",
    "compute-engine": "Google Compute Engine",
    "machine": "a machine of your own",
}
_SIGNS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("kaggle", ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE")),
    ("colab", ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION", "COLAB_TPU_1VM")),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",)),
    ("compute-engine", ("GCE_METADATA_HOST", "GCE_METADATA_IP")),
)
_BOARD = Path("sys/class/dmi/id/product_name")
_BOARDS = ("Google Compute Engine", "Google")
# What the places themselves set where there is a TPU.
_TPU_SIGNS = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_TOPOLOGY")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where this process runs.

    Attributes:
        kind: The same in a word, for programs.
        sign: How it is known; empty for a machine of which nothing is known.
        tpu_sign: What says that there is a TPU here; empty if nothing does.
        on_cloud: Whether a metadata server of Google Cloud may be asked.
    """

    kind: Kind = "machine"
    sign: str = ""
    tpu_sign: str = ""
    on_cloud: bool = False

    @property
    def name(self) -> str:
        """The place, as one says it."""
        return _NAMES[self.kind]


def find_place(environment: Mapping[str, str], root: Path | None = None) -> Place:
    """Finds out where this is; asks nobody, and takes no time.

    Args:
        environment: Environment variables.
        root: Below which `sys` is looked for; by default the machine's own.
    """
    on_board = _is_google(chips.ROOT if root is None else root)
    for kind, variables in _SIGNS:
        found = next((name for name in variables if environment.get(name, "").strip()), None)
        if found is None:
            continue
        # The servers that Colab and Kaggle have in its place know of no TPU.
        on_cloud = kind == "compute-engine" or (kind == "kubernetes" and on_board)
        return Place(kind, f"{found} is set", _tpu_sign(kind, environment), on_cloud)
    if on_board:
        return Place("compute-engine", "its board says so", "", on_cloud=True)
    return Place()


def _tpu_sign(kind: Kind, environment: Mapping[str, str]) -> str:
    """What a place says of its TPU; elsewhere such a variable may be left over."""
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
