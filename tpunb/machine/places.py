"""What the place of a machine, and its search for a TPU, leave to be done."""

from __future__ import annotations

from collections.abc import Iterator

from tpunb.environment import Search
from tpunb.machine.findings import Finding

__all__ = ["of_search"]

_OTHER_RUNTIME = {
    "colab": "For one, choose Runtime, Change runtime type, v5e-1 TPU; it has one core.",
    "kaggle": "For one, choose Settings, Accelerator, TPU v5e-8.",
}


def of_search(search: Search) -> Iterator[Finding]:
    """What a search for a TPU has found that is in the way, or worth knowing."""
    kind = search.place.kind
    if search.lacks_devices:
        yield Finding(
            "device",
            "This machine has a TPU, but there is no device file for it in /dev.",
            "Start the container with its devices (docker run --privileged), or load the driver.",
        )
    elif search.tpu is None and kind in _OTHER_RUNTIME:
        yield Finding(
            "device",
            f"This runtime of {search.place.name} has no TPU.",
            _OTHER_RUNTIME[kind],
            stops=False,
        )
    if search.is_only_said:
        yield Finding(
            "TPU_NAME",
            "TPU_NAME is local, but nothing else says that this machine has a TPU.",
            "Unset TPU_NAME to simulate a TPU, or run this on the TPU's own machine.",
        )
    for note in search.notes:
        if note.startswith("TPU_LOAD_LIBRARY"):
            yield Finding("TPU_LOAD_LIBRARY", note, "Unset it, then restart the kernel.")
