"""What of a machine matters for TPUs: software that fits, who holds the TPU, memory."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counterparts.machines import accel, lock_table, pci, process

from tpunb import machine
from tpunb.machine.problems import Problem
from tpunb.machine.processes_using_tpu import Holding, find_holders
from tpunb.machine.resources import Memory, measure
from tpunb.machine.software import Software, find_software
from tpunb.machine.variables import SHOWN, shown_variables

GIB = 2**30
linux = pytest.mark.skipif(
    not Path("/proc/locks").exists(), reason="the system has no list of locks"
)


def of(python: str = "3.12.1", **versions: str) -> dict[str, Any]:
    """A Software's arguments; `_` stands for `-` in TensorFlow's names."""
    named = {(n.replace("_", "-") if n.startswith("tensor") else n): v for n, v in versions.items()}
    return {"python": python, "versions": named}


def problems(local_tpu: bool = False, **software: Any) -> list[Problem]:
    return list(Software(**software).problems(local_tpu=local_tpu))


GOOD: list[tuple[dict[str, Any], bool]] = [
    (of(tensorflow_cpu="2.21.0", keras="3.15.1", tf_keras="2.21.0"), False),
    (of(tensorflow_tpu="2.20.0", keras="3.12.0"), True),
    (of(tensorflow="2.20.0", tensorflow_tpu="2.20.0"), True),
    (of(tensorflow="2.18.1", keras="3.10.0"), False),
    ({**of(tensorflow="2.21.0", keras="3.15.0"), "pythons": ("3.10", "3.13")}, False),
    ({**of(tensorflow="2.21.0"), "imported": "2.21.0", "jax": True}, False),
    ({**of(tensorflow="2.21.0", keras="3.5.0", tf_keras="2.21.0"), "keras": "tf_keras"}, False),
    ({**of(tensorflow="unknown version"), "imported": "2.19.0"}, False),
]
GOOD[4][0]["pythons"] = ("3.10", "3.11", "3.12", "3.13")

BAD: list[tuple[dict[str, Any], bool, bool, str, str]] = [
    (of(), False, True, "not installed", 'pip install "tpunb[cpu]"'),
    (of(), True, True, "not installed", 'pip install "tpunb[tpu]"'),
    (of("3.14.0"), False, True, "no wheel for Python 3.14.0", "python3.13 -m venv .venv"),
    (
        of(tensorflow="2.20.0", tensorflow_tpu="2.19.0"),
        True,
        True,
        "Several TensorFlows",
        "tensorflow-tpu==2.19.0",
    ),
    (
        of(tensorflow="2.20.0", tensorflow_cpu="2.21.0"),
        False,
        True,
        "Several TensorFlows",
        "uninstall -y tensorflow-cpu",
    ),
    (
        of(tensorflow_cpu="2.21.0"),
        True,
        True,
        "no support for TPUs",
        'pip uninstall -y tensorflow-cpu && pip install "tpunb[tpu]"',
    ),
    (
        {**of(tensorflow="2.18.0"), "libtpu": "/lib/libtpu.so"},
        True,
        False,
        "unless it came with this machine",
        "tpunb[tpu]",
    ),
    (
        {**of(tensorflow_tpu="2.20.0"), "needs": ("it wants libtpu",)},
        True,
        True,
        "it wants libtpu.",
        "tensorflow-tpu==2.20.0",
    ),
    (
        of(tensorflow_cpu="2.17.1"),
        False,
        True,
        "too old",
        'pip install "tensorflow-cpu>=2.18,<2.22"',
    ),
    (
        {**of("3.14.0", tensorflow="2.21.0"), "pythons": ("3.10", "3.13")},
        False,
        False,
        "Python 3.10 to 3.13",
        "",
    ),
    (
        of(tensorflow="2.21.0", keras="3.9.2"),
        False,
        False,
        "wrong loss",
        'pip install "keras>=3.10"',
    ),
    (
        of(tensorflow="2.21.0", tf_keras="2.19.0"),
        False,
        False,
        "made for TensorFlow 2.19",
        'pip install --no-deps "tf_keras==2.21.*"',
    ),
    (
        {**of(tensorflow="2.21.0", tf_keras="2.19.0"), "keras": "tf_keras"},
        False,
        True,
        "made for TensorFlow 2.19",
        "2.21",
    ),
    (
        {**of(tensorflow="2.21.0"), "keras": "tf_keras"},
        False,
        True,
        "tf_keras is not installed",
        'pip install --no-deps "tf_keras==2.21.*"',
    ),
    (
        {**of(tensorflow="2.21.0", keras="3.15.0"), "backend": "jax"},
        False,
        False,
        "KERAS_BACKEND=jax",
        "",
    ),
    (
        {**of(tensorflow="2.20.0"), "imported": "2.19.0"},
        False,
        True,
        "has imported TensorFlow 2.19.0",
        "",
    ),
    ({**of(tensorflow_tpu="2.20.0"), "jax": True}, True, False, "used JAX", ""),
]


@pytest.mark.parametrize(("software", "local_tpu"), GOOD, ids=range(len(GOOD)))
def test_software_that_fits(software: dict[str, Any], local_tpu: bool) -> None:
    assert problems(local_tpu, **software) == []


@pytest.mark.parametrize(
    ("software", "local_tpu", "stops", "message", "command"), BAD, ids=[row[3] for row in BAD]
)
def test_software_that_does_not_fit(
    software: dict[str, Any], local_tpu: bool, stops: bool, message: str, command: str
) -> None:
    (found,) = problems(local_tpu, **software)
    assert message in found.message
    assert found.message.endswith(".")
    assert found.fix
    assert command in found.command
    assert found.stops is stops


def test_a_remote_tpu_needs_no_tensorflow_for_tpus() -> None:
    assert problems(local_tpu=False, **of(tensorflow_cpu="2.21.0")) == []


@pytest.mark.parametrize("version", ["", "unknown version", "nightly", "2", "3.x", "9" * 50])
def test_versions_that_nobody_would_write(version: str) -> None:
    for name in ("tensorflow", "keras", "tf_keras"):
        for local_tpu in (False, True):
            problems(local_tpu, **of(**{"tensorflow": "2.21.0", name: version}))


def install(site: Path, name: str, version: str, *lines: str) -> None:
    """Puts the metadata of a package where Python looks for them."""
    at = site / f"{name.replace('-', '_')}-{version}.dist-info"
    at.mkdir(parents=True)
    text = "\n".join(
        ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, "", ""]
    )
    (at / "METADATA").write_text(text)
    importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An environment with nothing in it but what a test installs, and packaging."""
    import packaging.requirements  # noqa: F401  before it is hidden

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    importlib.invalidate_caches()
    yield tmp_path
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("libtpu", "message"),
    [
        (None, "tensorflow-tpu 2.20.0 wants libtpu~=0.0.14, which is not installed"),
        ("0.0.13", "tensorflow-tpu 2.20.0 wants libtpu~=0.0.14, and 0.0.13 is installed"),
        ("0.1.0", "and 0.1.0 is installed"),
        ("0.0.17", None),
    ],
)
def test_the_libtpu_that_is_wanted(site: Path, libtpu: str | None, message: str | None) -> None:
    install(
        site,
        "tensorflow-tpu",
        "2.20.0",
        "Requires-Dist: libtpu~=0.0.14",
        'Requires-Dist: libtpu-nightly==5; extra == "nightly"',
        "Requires-Dist: numpy>=1.26",
        "Classifier: Programming Language :: Python :: 3.9",
        "Classifier: Programming Language :: Python :: 3.13",
        "Classifier: Programming Language :: Python :: 3",
    )
    if libtpu is not None:
        install(site, "libtpu", libtpu)
    found = find_software({})
    assert found.tensorflow == "2.20.0"
    assert found.pythons == ("3.9", "3.13")
    assert [need for need in found.needs if message is None or message not in need] == []
    assert bool(found.needs) is (message is not None)


def test_metadata_that_cannot_be_read(site: Path) -> None:
    install(site, "tensorflow-tpu", "2.20.0", "Requires-Dist: ???", "Classifier: \x00")
    (site / "libtpu-1.dist-info").mkdir()
    install(site, "keras", "<script>")
    found = find_software({})
    assert found.tensorflow == "2.20.0"
    assert found.needs == ()
    assert "keras" not in found.versions


def test_nothing_installed(site: Path) -> None:
    found = find_software({})
    assert found.tensorflow is None
    (site / "tensorflow").mkdir()
    (site / "tensorflow" / "__init__.py").write_text("raise SystemExit('it is imported')")
    importlib.invalidate_caches()
    assert find_software({}).tensorflow == "unknown version"


def test_the_environment_chooses_keras() -> None:
    assert find_software({"TF_USE_LEGACY_KERAS": "1"}).keras == "tf_keras"
    assert find_software({"KERAS_BACKEND": " JAX "}).backend == "jax"


@pytest.mark.parametrize(("backends", "used"), [({}, False), ({"cpu": object()}, True)])
def test_jax_counts_once_it_is_used(
    backends: dict[str, object], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge._backends = backends  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    assert find_software({}).jax is used


def test_only_known_variables_are_shown() -> None:
    environment = {
        "TPU_NAME": "mine",
        "API_TOKEN": "s3cret-word",
        "TPU_PASSWORD": "s3cret-word",
        "XLA_FLAGS": "--a=s3cret-word",
    }
    assert shown_variables(environment) == {"TPU_NAME": "mine", "XLA_FLAGS": "--a=***"}
    assert len(shown_variables({"XLA_FLAGS": "--x " * 200})["XLA_FLAGS"]) < 210
    assert len(set(SHOWN)) == len(SHOWN)


def test_nobody_holds_anything(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert find_holders((), {}, tmp_path) == Holding()
    assert list(find_holders(("/dev/accel0",), {}, tmp_path).problems()) == []


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
    found = find_holders(("/dev/accel0", "/dev/accel1"), {}, tmp_path)
    assert {holder.pid: holder.is_kernel for holder in found.holders} == {
        4711: False,
        4712: True,
        os.getpid(): False,
    }
    assert "s3cret" not in repr(found)
    program, kernel = found.problems()  # this process itself is in nobody's way
    assert program.message == "Process 4711 (python3) holds the TPU."
    assert program.command == "kill 4711"
    assert "a Jupyter kernel" in kernel.message
    assert kernel.fix.startswith("Shut that kernel down in Jupyter")
    assert program.stops


def test_a_lock_of_a_process(tmp_path: Path) -> None:
    lock = tmp_path / "tmp/libtpu_lockfile"
    lock.parent.mkdir()
    lock.touch()
    process(tmp_path, 4711, ["python3"], [str(lock)])
    lock_table(tmp_path, (4711, lock))
    found = find_holders((), {}, tmp_path)
    assert (found.locks[0].pid, found.locks[0].stale) == (4711, False)
    assert [problem.command for problem in found.problems()] == ["kill 4711"]


def test_a_lock_that_is_left_over(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for lock in (tmp_path / "tmp/libtpu_lockfile", home / ".libtpu_lockfile"):
        lock.parent.mkdir(exist_ok=True)
        lock.touch()
    other = tmp_path / "tmp/other"
    other.touch()
    process(tmp_path, 4711, ["cat"], [str(tmp_path / "tmp/libtpu_lockfile")])  # reads it, no more
    lock_table(tmp_path, (4711, other))
    found = find_holders((), {"HOME": str(home)}, tmp_path)
    assert [lock.stale for lock in found.locks] == [True, True]
    assert found.holders == ()
    first, _ = found.problems()
    assert first.command == f"rm {tmp_path}/tmp/libtpu_lockfile"
    assert not first.stops  # libtpu takes one's own lock file again


def test_a_lock_of_which_nothing_is_known(tmp_path: Path) -> None:
    """Some containers have no list of locks."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/libtpu_lockfile").touch()
    process(tmp_path, 4711, ["python3"], [])
    found = find_holders((), {}, tmp_path)
    assert not found.locks[0].stale
    assert list(found.problems()) == []


@pytest.mark.parametrize(
    "table",
    ["", "\n\n", "1: POSIX\n", "x" * 1000, "1: POSIX ADVISORY WRITE x 1:2:3 0 EOF\n", "\x00"],
    ids=range(6),
)
def test_a_list_of_locks_that_nobody_would_write(tmp_path: Path, table: str) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/libtpu_lockfile").touch()
    process(tmp_path, 4711, ["python3"], [])
    (tmp_path / "proc/locks").write_text(table)
    assert find_holders((), {}, tmp_path).locks[0].stale


HOLD = """
import fcntl, sys, time
lock = open(sys.argv[1], "w"); fcntl.lockf(lock, fcntl.LOCK_EX)
device = open(sys.argv[2])
print("held", flush=True)
time.sleep(1000)
"""


@linux
def test_a_real_process(tmp_path: Path) -> None:
    """A lock and a device held by another process, seen by the system's own /proc."""
    accel(tmp_path, 1)
    (tmp_path / "tmp").mkdir()
    lock = tmp_path / "tmp/libtpu_lockfile"
    (tmp_path / "proc").symlink_to("/proc")
    command = [sys.executable, "-c", HOLD, str(lock), str(tmp_path / "dev/accel0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            found = find_holders(("/dev/accel0",), {}, tmp_path)
            (holder,) = found.holders
            assert (holder.pid, holder.is_self) == (other.pid, False)
            assert set(holder.files) == {"/dev/accel0", str(lock)}
            assert found.locks[0].pid == other.pid
        finally:
            other.kill()
            other.wait(10)
    (left,) = find_holders(("/dev/accel0",), {}, tmp_path).problems()
    assert "left over" in left.message


@linux
def test_looking_does_not_let_go_of_the_own_lock(tmp_path: Path) -> None:
    """A process that opens and closes a file loses its locks on it."""
    import fcntl

    (tmp_path / "tmp").mkdir()
    (tmp_path / "proc").symlink_to("/proc")
    path = tmp_path / "tmp/libtpu_lockfile"
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        for _ in range(2):
            found = find_holders((), {}, tmp_path)
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
    (found,) = find_holders((), {}, tmp_path).problems()
    assert found.command == f"sudo rm {lock}"
    assert found.stops  # libtpu may not take it


def test_memory(tmp_path: Path) -> None:
    assert measure(tmp_path) == Memory()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\nHugePages:\nx\n"
    )
    (tmp_path / "dev/shm").mkdir(parents=True)
    found = measure(tmp_path)
    assert (found.total, found.available) == (8 * GIB, 4 * GIB)
    assert found.shared
    assert found.problems() == []
    # A container may take less.
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{GIB + GIB // 2}\n")
    found = measure(tmp_path)
    assert (found.total, found.available) == (2 * GIB, GIB // 2)
    assert "512 MiB" in found.problems()[0].message
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert measure(tmp_path).total == 8 * GIB


def test_what_stops_comes_first(tmp_path: Path) -> None:
    pci(tmp_path, "0x0063")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    found = machine.look({}, tmp_path)
    stops = [problem.stops for problem in found.problems]
    assert stops == sorted(stops, reverse=True)
    assert found.problems[0].about == "device"


def test_colab_without_a_tpu(tmp_path: Path) -> None:
    found = machine.look({"COLAB_RELEASE_TAG": "release"}, tmp_path)
    assert any("Change runtime type" in problem.fix for problem in found.problems)


def test_a_variable_that_keeps_the_tpu_away(tmp_path: Path) -> None:
    accel(tmp_path)
    found = machine.look({"TPU_LOAD_LIBRARY": "0"}, tmp_path)
    assert any(problem.about == "TPU_LOAD_LIBRARY" for problem in found.problems)


def test_this_machine() -> None:
    found = machine.look()
    assert found.software.tensorflow
    assert "keras" in found.software.versions
