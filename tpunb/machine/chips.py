"""The TPU chips of this machine: device files, and devices on the PCI bus.

The facts are from JAX (`jax/_src/hardware_utils.py`) and from XLA's
`tpu_initialize_util.cc`: drivers of v2 to v4 make `/dev/accel0` and so on, and later TPUs
are passed through as `/dev/vfio/0` and so on.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path("/")
"""The directory with `dev`, `sys`, `proc` and `tmp`."""

_GOOGLE = "0x1ae0"
# Google makes other PCI devices too, such as the network card gVNIC. Only these are TPUs.
_FAMILIES = {
    "0x0027": "v2 or v3",
    "0x0056": "TPU",  # no public name
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}
_ACCEL = re.compile(r"accel(\d+)")
_GROUP = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class Chips:
    """The TPU chips that device files and the PCI bus show.

    Attributes:
        files: Device files of TPUs.
        unknown: Device files of TPUs or of other devices.
        others: Device files of other devices.
        on_bus: The number of TPU chips on the PCI bus.
        family: The TPU family, from the PCI bus; empty if unknown.
    """

    files: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    on_bus: int = 0
    family: str = ""

    @property
    def there(self) -> bool:
        """True if a device file or the PCI bus shows a TPU, or a device that may be a TPU."""
        return bool(self.files or self.unknown or self.on_bus)

    @property
    def on_bus_in_words(self) -> str:
        """The chips on the PCI bus: `"8 TPU v5e chips on the PCI bus"`."""
        family = "TPU" if self.family in ("", "TPU") else f"TPU {self.family}"
        many = f"{self.on_bus} {family} chips" if self.on_bus > 1 else f"a {family} chip"
        return f"{many} on the PCI bus"


def find_chips() -> Chips:
    """Look for TPU chips in `/dev` and `/sys`."""
    kinds: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    pci = ROOT / "sys" / "bus" / "pci" / "devices"
    on_bus = [family for name in _names(pci) if (family := _family(pci / name))]
    for path, is_tpu in (*_accel_files(), *_vfio_files()):
        # If a group lists no devices, the bus shows whether the machine has a TPU at all.
        kinds[True if is_tpu is None and on_bus else is_tpu].append(path)
    families = Counter(on_bus)
    return Chips(
        tuple(kinds[True]),
        tuple(kinds[None]),
        tuple(kinds[False]),
        sum(families.values()),
        families.most_common(1)[0][0] if families else "",
    )


def _accel_files() -> Iterator[tuple[str, bool | None]]:
    """Yield the device files named like a TPU's, and whether each is a TPU's."""
    for number in _numbers(_names(ROOT / "dev"), _ACCEL):
        vendor = _word(ROOT / "sys" / "class" / "accel" / f"accel{number}" / "device" / "vendor")
        # A driver without a vendor file is the TPU's: others are in /dev/accel/.
        yield f"/dev/accel{number}", vendor in ("", _GOOGLE)


def _vfio_files() -> Iterator[tuple[str, bool | None]]:
    """Yield the files of devices that are passed through. Many of them are not TPUs."""
    for number in _numbers(_names(ROOT / "dev" / "vfio"), _GROUP):
        devices = ROOT / "sys" / "kernel" / "iommu_groups" / str(number) / "devices"
        members = [_family(devices / name) for name in _names(devices)]
        is_tpu = any(members) if members else None
        yield f"/dev/vfio/{number}", is_tpu


def _family(device: Path) -> str:
    """Return the TPU family of a PCI device, or an empty string for another device."""
    if _word(device / "vendor") != _GOOGLE:
        return ""
    return _FAMILIES.get(_word(device / "device"), "")


def _numbers(names: Iterable[str], pattern: re.Pattern[str]) -> list[int]:
    """Return the numbers in the names that match, sorted."""
    matches = (pattern.fullmatch(name) for name in names)
    return sorted(int(match[0].removeprefix("accel")) for match in matches if match)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError:  # it does not exist, or may not be read
        return []


def text_of(path: Path) -> str | None:
    """Return the text of a file; None if it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _word(path: Path) -> str:
    """Return the only word of a file in lower case, or an empty string if it cannot be read."""
    return (text_of(path) or "").strip().lower()
