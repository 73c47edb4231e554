"""The parts of a machine that matter for TPUs: software, processes that use the TPU, memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from counterparts.machines import accel, lock_table, pci, process

from tpunb.machine import chips
from tpunb.machine import setup as machine
from tpunb.machine.processes_using_tpu import Holding, find_holders
from tpunb.machine.resources import Memory, measure

GIB = 2**30
linux = pytest.mark.skipif(
    not Path("/proc/locks").exists(), reason="the system does not list locks"
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine about which nothing is known."""
    monkeypatch.setattr(chips, "ROOT", tmp_path)
    return tmp_path


def test_only_known_variables_are_shown() -> None:
    environment = {
        "TPU_NAME": "mine",
        "API_TOKEN": "s3cret-word",
        "TPU_PASSWORD": "s3cret-word",
        "XLA_FLAGS": "--a=s3cret-word",
    }
    assert machine.look(environment).variables == {"TPU_NAME": "mine", "XLA_FLAGS": "--a=***"}
    assert len(machine.look({"XLA_FLAGS": "--x " * 200}).variables["XLA_FLAGS"]) < 210
    assert len(set(machine.SHOWN)) == len(machine.SHOWN)


def test_no_process_holds_the_tpu(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert find_holders((), {}) == Holding()
    assert list(find_holders(("/dev/accel0",), {}).problems()) == []


def test_a_process_with_the_device_open(tmp_path: Path) -> None:
    accel(tmp_path, 2)
    device = str(tmp_path / "dev/accel1")
    process(
        tmp_path, 4711, ["/usr/bin/python3", "train.py", "--token=s3cret"], ["/dev/null", device]
    )
    process(
        tmp_path, 4712, ["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "k.json"], [device]
    )
    process(tmp_path, 4713, ["/usr/bin/vim", "notes"], ["/dev/null"])
    process(tmp_path, os.getpid(), ["/usr/bin/python3"], [device])
    found = find_holders(("/dev/accel0", "/dev/accel1"), {})
    assert {holder.pid: holder.is_kernel for holder in found.holders} == {
        4711: False,
        4712: True,
        os.getpid(): False,
    }
    assert "s3cret" not in repr(found)
    program, kernel = found.problems()  # this process does not count
    assert program.message == "Process 4711 (python3) holds the TPU."
    assert program.command == "kill 4711"
    assert "a Jupyter kernel" in kernel.message
    assert kernel.fix.startswith("Shut down that kernel in Jupyter")
    assert program.stops


def test_a_lock_of_a_process(tmp_path: Path) -> None:
    lock = tmp_path / "tmp/libtpu_lockfile"
    lock.parent.mkdir()
    lock.touch()
    process(tmp_path, 4711, ["python3"], [str(lock)])
    lock_table(tmp_path, (4711, lock))
    found = find_holders((), {})
    assert (found.locks[0].pid, found.locks[0].stale) == (4711, False)
    assert [problem.command for problem in found.problems()] == ["kill 4711"]


def test_a_leftover_lock(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for lock in (tmp_path / "tmp/libtpu_lockfile", home / ".libtpu_lockfile"):
        lock.parent.mkdir(exist_ok=True)
        lock.touch()
    other = tmp_path / "tmp/other"
    other.touch()
    # This process only reads it.
    process(tmp_path, 4711, ["cat"], [str(tmp_path / "tmp/libtpu_lockfile")])
    lock_table(tmp_path, (4711, other))
    found = find_holders((), {"HOME": str(home)})
    assert [lock.stale for lock in found.locks] == [True, True]
    assert found.holders == ()
    first, _ = found.problems()
    assert first.command == f"rm {tmp_path}/tmp/libtpu_lockfile"
    assert not first.stops  # libtpu reuses a lock file of the same user


def test_a_lock_of_an_unknown_process(tmp_path: Path) -> None:
    """Some containers do not list locks."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/libtpu_lockfile").touch()
    process(tmp_path, 4711, ["python3"], [])
    found = find_holders((), {})
    assert not found.locks[0].stale
    assert list(found.problems()) == []


@pytest.mark.parametrize(
    "table",
    ["", "\n\n", "1: POSIX\n", "x" * 1000, "1: POSIX ADVISORY WRITE x 1:2:3 0 EOF\n", "\x00"],
    ids=range(6),
)
def test_invalid_lists_of_locks(tmp_path: Path, table: str) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/libtpu_lockfile").touch()
    process(tmp_path, 4711, ["python3"], [])
    (tmp_path / "proc/locks").write_text(table)
    assert find_holders((), {}).locks[0].stale


HOLD = """
import fcntl, sys, time
lock = open(sys.argv[1], "w"); fcntl.lockf(lock, fcntl.LOCK_EX)
device = open(sys.argv[2])
print("held", flush=True)
time.sleep(1000)
"""


@linux
def test_a_real_process(tmp_path: Path) -> None:
    """The system's own /proc shows another process's lock and device."""
    accel(tmp_path, 1)
    (tmp_path / "tmp").mkdir()
    lock = tmp_path / "tmp/libtpu_lockfile"
    (tmp_path / "proc").symlink_to("/proc")
    command = [sys.executable, "-c", HOLD, str(lock), str(tmp_path / "dev/accel0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            found = find_holders(("/dev/accel0",), {})
            (holder,) = found.holders
            assert (holder.pid, holder.is_self) == (other.pid, False)
            assert set(holder.files) == {"/dev/accel0", str(lock)}
            assert found.locks[0].pid == other.pid
        finally:
            other.kill()
            other.wait(10)
    (remaining,) = find_holders(("/dev/accel0",), {}).problems()
    assert "left over" in remaining.message


@linux
def test_looking_does_not_release_our_own_lock(tmp_path: Path) -> None:
    """A process that opens and closes a file loses its locks on the file."""
    import fcntl

    (tmp_path / "tmp").mkdir()
    (tmp_path / "proc").symlink_to("/proc")
    path = tmp_path / "tmp/libtpu_lockfile"
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        for _ in range(2):
            found = find_holders((), {})
            assert found.locks[0].pid == os.getpid()
            assert found.holders[0].is_self
            assert list(found.problems()) == []


@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="needs to give a file away"
)
def test_a_lock_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    lock = tmp_path / "tmp/libtpu_lockfile"
    lock.touch()
    os.chown(lock, 12345, 12345)
    process(tmp_path, 4711, ["python3"], [])
    lock_table(tmp_path)
    (found,) = find_holders((), {}).problems()
    assert found.command == f"sudo rm {lock}"
    assert found.stops  # libtpu may not be allowed to reuse it


def test_memory(tmp_path: Path) -> None:
    assert measure() == Memory()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\nHugePages:\nx\n"
    )
    (tmp_path / "dev/shm").mkdir(parents=True)
    found = measure()
    assert (found.total, found.available) == (8 * GIB, 4 * GIB)
    assert found.shared
    assert found.problems() == []
    # A container may have a lower limit.
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{GIB + GIB // 2}\n")
    found = measure()
    assert (found.total, found.available) == (2 * GIB, GIB // 2)
    assert "512 MiB" in found.problems()[0].message
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert measure().total == 8 * GIB


def test_problems_that_stop_come_first(tmp_path: Path) -> None:
    pci(tmp_path, "0x0063")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    found = machine.look({})
    stops = [problem.stops for problem in found.problems]
    assert stops == sorted(stops, reverse=True)
    assert found.problems[0].about == "device"


def test_colab_without_a_tpu() -> None:
    found = machine.look({"COLAB_RELEASE_TAG": "release"})
    assert any("Change runtime type" in problem.fix for problem in found.problems)


def test_a_variable_that_hides_the_tpu(tmp_path: Path) -> None:
    accel(tmp_path)
    found = machine.look({"TPU_LOAD_LIBRARY": "0"})
    assert any(problem.about == "TPU_LOAD_LIBRARY" for problem in found.problems)


def test_this_machine() -> None:
    found = machine.look()
    assert found.software.tensorflow
    assert "keras" in found.software.versions
