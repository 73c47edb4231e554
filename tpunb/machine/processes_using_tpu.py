"""The processes that use the TPU, found by libtpu's lock file and open device files.

The path and the meaning of the lock file are from XLA
(`xla/stream_executor/tpu/tpu_initialize_util.cc`). The file is never opened here: a process that
opens and closes it releases its own lock. The kernel's list of locks is read instead. psutil
cannot replace this module, because it lists neither locks nor open device files.
jax-ml/jax#10192 shows libtpu's error for a lock file that is left over.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tpunb._util.secret_masking import mask, secrets_in
from tpunb.machine import chips
from tpunb.machine.chips import text_of
from tpunb.machine.setup_problem import SetupProblem

_LOCK = "libtpu_lockfile"
_KERNELS = ("ipykernel", "colab_kernel_launcher")


@dataclasses.dataclass(frozen=True, slots=True)
class Lock:
    """A lock file of libtpu.

    Attributes:
        path: The file's path.
        pid: The process that holds the lock; None if there is none or it is unknown.
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
        pid: The process id.
        program: The program's name, without arguments, which may hold secrets.
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
        """The process's name, for people."""
        program = "a Jupyter kernel" if self.is_kernel else self.program or "a program"
        return f"process {self.pid} ({program})"


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """The processes and lock files that hold a TPU.

    Attributes:
        locks: The lock files that exist.
        holders: The processes that hold a lock or a device.
        unseen: Whether some processes have open files that this user may not list.
        devices: The device files that were searched for.
    """

    locks: tuple[Lock, ...] = ()
    holders: tuple[Holder, ...] = ()
    unseen: bool = False
    devices: tuple[str, ...] = ()

    def problems(self) -> Iterator[SetupProblem]:
        """Yield the problems: processes and lock files that block the TPU."""
        others = [holder for holder in self.holders if not holder.is_self]
        for holder in others:
            kill = f"{'sudo ' if holder.foreign else ''}kill {holder.pid}"
            fix = f"End it, then connect again: {kill}"
            if holder.is_kernel:
                fix = f"Shut down that kernel in Jupyter's list of running kernels, or: {kill}"
            name = f"{holder.name[0].upper()}{holder.name[1:]}"
            yield SetupProblem("TPU in use", f"{name} holds the TPU.", fix, kill)
        for lock in self.locks if not others else ():
            if not lock.stale:
                continue
            fix = "Remove the file."
            if self.unseen:
                command = f"sudo lsof -w {' '.join((*self.devices, lock.path))}"
                fix = (
                    "Other users' processes are not visible. "
                    f"If `{command}` lists none, remove the file."
                )
            yield SetupProblem(
                "lock file",
                f"{lock.path} is left over: no visible process holds it.",
                fix,
                f"{'sudo ' if lock.foreign else ''}rm {lock.path}",
                stops=lock.foreign,  # libtpu can lock this user's own file again
            )


def find_holders(devices: Iterable[str], environment: Mapping[str, str]) -> Holding:
    """Find the processes that use the TPU.

    Args:
        devices: The TPU's device files.
        environment: Environment variables.
    """
    root, devices = chips.ROOT, tuple(devices)
    places = [root / "tmp" / _LOCK]
    if hasattr(os, "getuid"):  # since 2026 also in a directory of the user
        places.append(root / "tmp" / f"libtpu_lock_{os.getuid()}" / _LOCK)
    if environment.get("HOME"):
        places.append(Path(environment["HOME"]) / f".{_LOCK}")
    locks = [path for path in places if path.exists()]
    if not devices and not locks:
        return Holding()
    wanted = {str(root / path.lstrip("/")): path for path in devices}
    wanted |= {str(path): str(path) for path in locks}
    open_files, unseen = _open_files(root / "proc", wanted)
    # Without this list, as in some containers, the holder of a lock is not known.
    table = text_of(root / "proc" / "locks")
    locked = {path: _holder_of_lock(path, table or "", open_files) for path in locks}
    for path, pid in locked.items():
        if pid is not None:
            open_files.setdefault(pid, set()).add(str(path))
    secrets = secrets_in(environment)
    holders = (
        _holder(root / "proc" / str(pid), pid, files, secrets)
        for pid, files in sorted(open_files.items())
        # A process may have a lock file open without holding its lock.
        if any(file in devices for file in files) or pid in locked.values()
    )
    lock_files = (
        Lock(str(path), pid, table is not None and pid is None, _is_foreign(path))
        for path, pid in locked.items()
    )
    return Holding(tuple(lock_files), tuple(holders), unseen, devices)


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
    """Return the process that holds a file's lock in the kernel's list, or None."""
    try:
        status = path.stat()
    except OSError:
        return None
    for line in table.splitlines():
        # 1: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF; "->" marks a process that waits
        fields = line.split()
        if len(fields) < 6 or "->" in fields or not fields[4].isdecimal():
            continue
        pid, (device, _, inode) = int(fields[4]), fields[5].rpartition(":")
        # On an overlay, the list has the device below it, and stat has the overlay's own device.
        here = device == f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        if inode == str(status.st_ino) and (here or str(path) in open_files.get(pid, ())):
            return pid
    return None


def _open_files(proc: Path, wanted: Mapping[str, str]) -> tuple[dict[int, set[str]], bool]:
    """Return the processes that have the files open, and whether some processes are hidden."""
    holders: dict[int, set[str]] = {}
    unseen = False
    try:
        processes = [name for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return {}, True
    for name in processes:
        directory = f"{proc}/{name}/fd"
        try:
            numbers = os.listdir(directory)  # noqa: PTH208  there are hundreds of these
        except PermissionError:
            unseen = True
            continue
        except OSError:  # the process has ended
            continue
        for number in numbers:
            try:
                target = os.readlink(f"{directory}/{number}")  # noqa: PTH115
            except OSError:
                continue
            if target in wanted:
                holders.setdefault(int(name), set()).add(wanted[target])
    return holders, unseen


def _is_foreign(path: Path) -> bool:
    """Return whether a file or a process belongs to another user."""
    try:
        return hasattr(os, "getuid") and path.stat().st_uid != os.getuid()
    except OSError:
        return False
