"""Write trees of files that look like those of a machine with TPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["GOOGLE", "accel", "board", "lock_table", "pci", "process", "vfio"]

GOOGLE = "0x1ae0"


def accel(root: Path, count: int = 4, vendor: str = "") -> None:
    """Write the device files of the TPU driver on a TPU VM of v2 to v4."""
    for number in range(count):
        _write(root / f"dev/accel{number}")
        if vendor:
            _write(root / f"sys/class/accel/accel{number}/device/vendor", vendor)


def pci(root: Path, device: str, count: int = 1, vendor: str = GOOGLE) -> None:
    """Write devices on the PCI bus."""
    for number in range(count):
        at = root / f"sys/bus/pci/devices/0000:{device[2:]}:0{number}.0"
        _write(at / "vendor", f"{vendor}\n")
        _write(at / "device", f"{device}\n")


def vfio(root: Path, groups: Sequence[int], device: str = "", vendor: str = GOOGLE) -> None:
    """Write devices that are passed through, with their PCI devices if a device is given."""
    _write(root / "dev/vfio/vfio")
    for group in groups:
        _write(root / f"dev/vfio/{group}")
        if device:
            at = root / f"sys/kernel/iommu_groups/{group}/devices/0000:00:0{group}.0"
            _write(at / "vendor", f"{vendor}\n")
            _write(at / "device", f"{device}\n")


def board(root: Path, name: str = "Google Compute Engine") -> None:
    """Write the name of the machine's board."""
    _write(root / "sys/class/dmi/id/product_name", f"{name}\n")


def process(root: Path, pid: int, words: Sequence[str], files: Sequence[str]) -> None:
    """Write a process with a command line and its open files."""
    at = root / "proc" / str(pid)
    _write(at / "cmdline", "".join(f"{word}\0" for word in words))
    _write(at / "comm", "comm\n")
    (at / "fd").mkdir(parents=True)
    for number, file in enumerate(files):
        (at / "fd" / str(number)).symlink_to(file)


def lock_table(root: Path, *locks: tuple[int, Path]) -> None:
    """Write the kernel's table of the locks that processes hold on files."""
    lines = []
    for number, (pid, path) in enumerate(locks, start=1):
        status = path.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        lines.append(f"{number}: POSIX  ADVISORY  WRITE {pid} {place} 0 EOF\n")
    _write(root / "proc" / "locks", "".join(lines))


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
