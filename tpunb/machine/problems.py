"""Problems of a machine's TPU setup."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tpunb.machine.detect import Search


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Something that blocks using a TPU, or that is worth knowing.

    Attributes:
        about: The subject, as `"tensorflow"` or `"lock file"`.
        message: What is wrong, in a sentence.
        fix: How to fix it, in a sentence.
        command: The command to type for it; or empty.
        stops: Whether it blocks using a TPU, real or virtual.
    """

    about: str
    message: str
    fix: str
    command: str = ""
    stops: bool = True


_OTHER_RUNTIME = {
    "colab": "For one, choose Runtime, Change runtime type, v5e-1 TPU; it has one core.",
    "kaggle": "For one, choose Settings, Accelerator, TPU v5e-8.",
}


def platform_problems(search: Search) -> Iterator[Problem]:
    """Problems that a search for a TPU has found."""
    kind = search.platform.kind
    if search.lacks_devices:
        yield Problem(
            "device",
            "This machine has a TPU, but /dev has no device file for it.",
            "Start the container with its devices (docker run --privileged), or load the driver.",
        )
    elif search.tpu is None and kind in _OTHER_RUNTIME:
        yield Problem(
            "device",
            f"This runtime of {search.platform.name} has no TPU.",
            _OTHER_RUNTIME[kind],
            stops=False,
        )
    if search.tpu_only_from_env:
        yield Problem(
            "TPU_NAME",
            "TPU_NAME is local, but nothing else says that this machine has a TPU.",
            "Unset TPU_NAME to simulate a TPU, or run this on the TPU's own machine.",
        )
    for note in search.notes:
        if note.startswith("TPU_LOAD_LIBRARY"):
            yield Problem("TPU_LOAD_LIBRARY", note, "Unset it, then restart the kernel.")
