"""Finds the processes that use the TPU: by libtpu's lock file and open device files.

The path and meaning of the lock file are from XLA
(`xla/stream_executor/tpu/tpu_initialize_util.cc`). It is never opened here, since a process
that opens and closes it releases its own lock; the kernel's list of locks is read instead.
psutil would not do: it lists neither locks nor open device files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tpunb._util.secret_masking import mask, secrets_in
from tpunb.machine import chips
from tpunb.machine.chips import text_of
from tpunb.machine.problems import Problem

_LOCK = "libtpu_lockfile"
_KERNELS = ("ipykernel", "colab_kernel_launcher", "tpunb.notebook.kernels", "kernel_launcher")


@dataclasses.dataclass(frozen=True, slots=True)
class Lock:
    """A lock file of libtpu.

    Attributes:
        path: Its path.
        pid: The process that holds the lock; None if no process holds it or it is unknown.
        stale: Whether no visible process holds it.
        foreign: Whether it belongs to another user, so that libtpu cannot lock it.
    """

    path: str
    pid: int | None
    stale: bool
    foreign: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses the TPU.

    Attributes:
        pid: Its id.
        program: Its program's name, without arguments, which may hold secrets.
        is_kernel: Whether it is a Jupyter kernel.
        is_self: Whether it is this process.
        foreign: Whether it belongs to another user.
        files: The device files and lock files that it holds.
    """

    pid: int
    program: str
    is_kernel: bool
    is_self: bool
    foreign: bool
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """The process, for people."""
        what = "a Jupyter kernel" if self.is_kernel else self.program or "a program"
        return f"process {self.pid} ({what})"


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """The processes and lock files of a TPU.

    Attributes:
        locks: The lock files that exist.
        holders: The processes that hold a lock or a device.
        unseen: Whether there are processes whose open files this user may not list.
        devices: The device files that were looked for.
    """

    locks: tuple[Lock, ...] = ()
    holders: tuple[Holder, ...] = ()
    unseen: bool = False
    devices: tuple[str, ...] = ()

    def problems(self) -> Iterator[Problem]:
        """Problems: processes and lock files that block the TPU."""
        others = [holder for holder in self.holders if not holder.is_self]
        for holder in others:
            kill = f"{'sudo ' if holder.foreign else ''}kill {holder.pid}"
            fix = f"End it, then connect again: {kill}"
            if holder.is_kernel:
                fix = f"Shut that kernel down in Jupyter's list of running kernels, or: {kill}"
            name = f"{holder.name[0].upper()}{holder.name[1:]}"
            yield Problem("TPU in use", f"{name} holds the TPU.", fix, kill)
        for lock in self.locks if not others else ():
            if not lock.stale:
                continue
            fix = "Remove it."
            if self.unseen:
                looked = f"sudo lsof -w {' '.join((*self.devices, lock.path))}"
                fix = (
                    f"Other users' processes are not visible: if `{looked}` lists none, remove it."
                )
            yield Problem(
                "lock file",
                f"No visible process holds {lock.path}: it is left over.",
                fix,
                f"{'sudo ' if lock.foreign else ''}rm {lock.path}",
                stops=lock.foreign,  # libtpu locks one's own file again
            )


def find_holders(devices: Iterable[str], environment: Mapping[str, str]) -> Holding:
    """Finds the processes that use the TPU.

    Args:
        devices: The TPU's device files.
        environment: Environment variables.
    """
    root, devices = chips.ROOT, tuple(devices)
    places = [root / "tmp" / _LOCK]
    if hasattr(os, "getuid"):  # since 2026 also below the user's own
        places.append(root / "tmp" / f"libtpu_lock_{os.getuid()}" / _LOCK)
    if environment.get("HOME"):
        places.append(Path(environment["HOME"]) / f".{_LOCK}")
    locks = [path for path in places if path.exists()]
    if not devices and not locks:
        return Holding()
    wanted = {str(root / path.lstrip("/")): path for path in devices}
    wanted |= {str(path): str(path) for path in locks}
    open_files, unseen = _open_files(root / "proc", wanted)
    # Without this list, as in some containers, the holder of a lock is unknown.
    table = text_of(root / "proc" / "locks")
    locked = {path: _holder_of_lock(path, table or "", open_files) for path in locks}
    for path, pid in locked.items():
        if pid is not None:
            open_files.setdefault(pid, set()).add(str(path))
    secrets = secrets_in(environment)
    holders = (
        _holder(root / "proc" / str(pid), pid, files, secrets)
        for pid, files in sorted(open_files.items())
        # A process may have a lock file open without holding the lock.
        if any(file in devices for file in files) or pid in locked.values()
    )
    found = (
        Lock(str(path), pid, table is not None and pid is None, _is_foreign(path))
        for path, pid in locked.items()
    )
    return Holding(tuple(found), tuple(holders), unseen, devices)


def _holder(process: Path, pid: int, files: set[str], secrets: frozenset[str]) -> Holder:
    words = (text_of(process / "cmdline") or "").split("\0")
    program = Path(words[0]).name or (text_of(process / "comm") or "").strip()
    return Holder(
        pid,
        mask(program, secrets)[:60],
        any(kernel in word for word in words[1:4] for kernel in _KERNELS),
        pid == os.getpid(),
        _is_foreign(process),
        tuple(sorted(files)),
    )


def _holder_of_lock(path: Path, table: str, open_files: Mapping[int, set[str]]) -> int | None:
    """The process that holds the lock of a file, from the kernel's list; None if none does."""
    try:
        found = path.stat()
    except OSError:
        return None
    for line in table.splitlines():
        # 1: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF; "->" for one that waits
        fields = line.split()
        if len(fields) < 6 or "->" in fields or not fields[4].isdecimal():
            continue
        pid, (device, _, inode) = int(fields[4]), fields[5].rpartition(":")
        # For an overlay, the list has the device below it and stat the overlay's own.
        here = device == f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        if inode == str(found.st_ino) and (here or str(path) in open_files.get(pid, ())):
            return pid
    return None


def _open_files(proc: Path, wanted: Mapping[str, str]) -> tuple[dict[int, set[str]], bool]:
    """The processes that have the files open, and whether some were not visible."""
    found: dict[int, set[str]] = {}
    unseen = False
    try:
        processes = [name for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return {}, True
    for name in processes:
        directory = f"{proc}/{name}/fd"
        try:
            numbers = os.listdir(directory)  # noqa: PTH208  hundreds of these
        except PermissionError:
            unseen = True
            continue
        except OSError:  # it has ended
            continue
        for number in numbers:
            try:
                target = os.readlink(f"{directory}/{number}")  # noqa: PTH115
            except OSError:
                continue
            if target in wanted:
                found.setdefault(int(name), set()).add(wanted[target])
    return found, unseen


def _is_foreign(path: Path) -> bool:
    """Returns whether a file or a process belongs to another user."""
    try:
        return hasattr(os, "getuid") and path.stat().st_uid != os.getuid()
    except OSError:
        return False
