"""Who holds the TPU: the lock file of libtpu, and processes with its devices open.

Where the lock file is, and what the lock means, is from XLA
(`xla/stream_executor/tpu/tpu_initialize_util.cc`). It is not tried here: a process that
opens the file and closes it again lets go of its own lock, so the kernel's list of locks
is read.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tpunb import chips
from tpunb.machine.findings import Finding
from tpunb.masking import mask, secrets_in

__all__ = ["Holder", "Holding", "Lock", "find_holders"]

_LOCK = "libtpu_lockfile"
_KERNELS = ("ipykernel", "colab_kernel_launcher", "tpunb.kernels", "kernel_launcher")


@dataclasses.dataclass(frozen=True, slots=True)
class Lock:
    """A lock file of libtpu.

    Attributes:
        path: Where it is.
        pid: The process that holds the lock; None if none does, or none is known.
        stale: Whether no process that can be seen holds it.
        foreign: Whether it is another user's, so that libtpu cannot take it.
    """

    path: str
    pid: int | None
    stale: bool
    foreign: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds the TPU.

    Attributes:
        pid: Its id.
        program: Its program's name; its arguments may hold secrets and are left out.
        is_kernel: Whether it is a Jupyter kernel.
        is_self: Whether it is this process.
        foreign: Whether it is another user's.
        files: What it holds: device files and lock files.
    """

    pid: int
    program: str
    is_kernel: bool
    is_self: bool
    foreign: bool
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """The process, as one says it."""
        what = "a Jupyter kernel" if self.is_kernel else self.program or "a program"
        return f"process {self.pid} ({what})"


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """Who holds the TPU.

    Attributes:
        locks: The lock files that exist.
        holders: The processes that hold a lock or a device.
        unseen: Whether there are processes whose files this user may not see.
        devices: The device files that were looked for.
    """

    locks: tuple[Lock, ...] = ()
    holders: tuple[Holder, ...] = ()
    unseen: bool = False
    devices: tuple[str, ...] = ()

    def findings(self) -> Iterator[Finding]:
        """Processes and lock files that are in the way."""
        others = [holder for holder in self.holders if not holder.is_self]
        for holder in others:
            yield _of_holder(holder)
        for lock in self.locks:
            if lock.stale and not others:
                yield self._of_stale(lock)

    def _of_stale(self, lock: Lock) -> Finding:
        """A lock file that no process holds; libtpu takes it again unless it may not."""
        sudo = "sudo " if lock.foreign else ""
        looked = f"sudo lsof -w {' '.join((*self.devices, lock.path))}"
        first = "Remove it."
        if self.unseen:
            first = f"Others' processes cannot be seen: if `{looked}` lists none, remove it."
        return Finding(
            "lock file",
            f"No process that can be seen holds {lock.path}: it is left over.",
            first,
            f"{sudo}rm {lock.path}",
            stops=lock.foreign,
        )


def _of_holder(holder: Holder) -> Finding:
    sudo = "sudo " if holder.foreign else ""
    kill = f"{sudo}kill {holder.pid}"
    mend = f"End it, then connect again: {kill}"
    if holder.is_kernel:
        mend = f"Shut that kernel down in Jupyter's list of running kernels, or: {kill}"
    return Finding(
        "TPU in use", f"{holder.name[0].upper()}{holder.name[1:]} holds the TPU.", mend, kill
    )


def find_holders(
    devices: Iterable[str],
    environment: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> Holding:
    """Finds out who holds the TPU.

    Args:
        devices: The TPU's device files.
        environment: Environment variables; by default the process's own.
        root: Below which `proc`, `dev` and `tmp` are looked for; by default the machine's own.
    """
    environment = os.environ if environment is None else environment
    root = chips.ROOT if root is None else root
    devices = tuple(devices)
    locks = [path for path in _lock_files(environment, root) if path.exists()]
    if not devices and not locks:
        return Holding()
    wanted = {str(root / path.lstrip("/")): path for path in devices}
    wanted |= {str(path): str(path) for path in locks}
    open_files, unseen = _open_files(root / "proc", wanted)
    # Where there is no such list, as in some containers, a lock is held by nobody known.
    table = _text(root / "proc" / "locks")
    locked = {path: _holder_of_lock(path, table or "", open_files) for path in locks}
    for path, pid in locked.items():
        if pid is not None:
            open_files.setdefault(pid, set()).add(str(path))
    secrets = secrets_in(environment)
    holders = (
        _holder(root / "proc", pid, files, secrets)
        for pid, files in sorted(open_files.items())
        # An open lock file is no lock: one that waits for it, or reads it, holds nothing.
        if any(file in devices for file in files) or pid in locked.values()
    )
    return Holding(
        tuple(_lock(path, pid, known=table is not None) for path, pid in locked.items()),
        tuple(holders),
        unseen,
        devices,
    )


def _lock_files(environment: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Where libtpu has its lock file; in a user's own places since 2026."""
    yield root / "tmp" / _LOCK
    if hasattr(os, "getuid"):
        yield root / "tmp" / f"libtpu_lock_{os.getuid()}" / _LOCK
    if environment.get("HOME"):
        yield Path(environment["HOME"]) / f".{_LOCK}"


def _lock(path: Path, pid: int | None, *, known: bool) -> Lock:
    return Lock(str(path), pid, known and pid is None, _is_foreign(path))


def _holder_of_lock(path: Path, table: str, open_files: Mapping[int, set[str]]) -> int | None:
    """The process that has locked a file, by the kernel's list of locks; None if none has."""
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
        # The list has the device below an overlay, stat the overlay's.
        here = device == f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        if inode == str(found.st_ino) and (here or str(path) in open_files.get(pid, ())):
            return pid
    return None


def _open_files(proc: Path, wanted: Mapping[str, str]) -> tuple[dict[int, set[str]], bool]:
    """Which processes have which of the files open, and whether some could not be seen."""
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
        except OSError:  # it has ended meanwhile
            continue
        for number in numbers:
            try:
                target = os.readlink(f"{directory}/{number}")  # noqa: PTH115
            except OSError:
                continue
            if target in wanted:
                found.setdefault(int(name), set()).add(wanted[target])
    return found, unseen


def _holder(proc: Path, pid: int, files: set[str], secrets: frozenset[str]) -> Holder:
    words = (_text(proc / str(pid) / "cmdline") or "").split("\0")
    program = Path(words[0]).name or (_text(proc / str(pid) / "comm") or "").strip()
    is_kernel = any(kernel in word for word in words[1:4] for kernel in _KERNELS)
    return Holder(
        pid,
        mask(program, secrets)[:60],
        is_kernel,
        pid == os.getpid(),
        _is_foreign(proc / str(pid)),
        tuple(sorted(files)),
    )


def _is_foreign(path: Path) -> bool:
    """Whether a file, or a process, is another user's."""
    try:
        return hasattr(os, "getuid") and path.stat().st_uid != os.getuid()
    except OSError:
        return False


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
