"""The compiler's process may crash, hang or be killed, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import environment
from support.patience import PATIENCE, wait_until

from tpunb._util import child_process
from tpunb._util.child_process import ChildLostError, ChildProcess
from tpunb._util.deadline import Deadline, Running
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.answers import Compiled, Refused
from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.ask.topologies import target
from tpunb.compiler.program import CompilerUnavailableError

pytestmark = pytest.mark.usefixtures("libtpu")

TINY = (Path(__file__).parent / "tiny.hlo.pb").read_bytes()
"""A program with x @ x of f32[64,64], as TensorFlow lowers it for a CPU.

`sorts.hlo.pb` has four sorts of a million numbers, which take the compiler a minute.
"""


def asked(
    tpu: str = "v5e-8", module: bytes = TINY, deadline: Deadline | None = None
) -> Compiled | Refused:
    nowhere: Any = None  # the source does not matter
    return libtpu.ask(
        Prepared(nowhere, module=module),
        target(tpu, None),
        deadline=deadline or Deadline(PATIENCE),
        low_effort=True,
        text=False,
    )


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcess]:
    """The compiler's process of a single test."""
    process_of_test = ChildProcess(libtpu._start, PATIENCE)
    monkeypatch.setattr(libtpu, "_child", lambda *_: process_of_test)
    yield process_of_test
    process_of_test.close()


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--xla_tpu_nosuch=true", "Unknown command line flag 'xla_tpu_nosuch'"),
        ("--xla_tpu_enable_async_collective_fusion_fuse_all_gather=bad", "Illegal value 'bad'"),
    ],
)
def test_a_flag_that_libtpu_refuses_is_named(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch, flag: str, said: str
) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", flag)
    monkeypatch.setenv("TPUNB_VERDICTS", "off")
    with pytest.raises(CompilerUnavailableError, match=said):
        asked()


@pytest.mark.parametrize(
    "tpu", ["v2-8", "v3-8", "v3-32", "v4-8", "v5e-1", "v5e-4", "v5e-256", "v5p-8", "v6e-8"]
)
def test_every_family_is_known(tpu: str) -> None:
    answer = asked(tpu)
    assert isinstance(answer, Compiled)
    assert answer.peak > 2 * 64 * 64 * 4


def test_an_invalid_program_is_refused_and_does_no_harm() -> None:
    assert isinstance(asked(module=b"no module"), Refused)
    assert isinstance(asked(), Compiled)


def killing(pid: int, number: int = signal.SIGKILL) -> Callable[..., Any]:
    """Return a stand-in for `Running` that first sends a signal to a process."""

    def kill_and_run(call: Callable[[], Any]) -> Running[Any]:
        os.kill(pid, number)
        return Running(call)

    return kill_and_run


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["killed", "crashed"])
def test_a_lost_process_is_replaced(
    child: ChildProcess, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = child._running()
    with monkeypatch.context() as patched:
        patched.setattr(child_process, "Running", killing(process.pid, number))
        patched.setattr(child_process, "_kills", lambda: [0])
        with pytest.raises(ChildLostError, match=number.name) as lost:
            asked()
    assert lost.value.crashed == (number == signal.SIGSEGV)
    if lost.value.crashed:  # the program may be the cause
        saved = Path(str(lost.value).rpartition(" in ")[2].rstrip("."))
        assert saved.read_bytes() == TINY
        saved.unlink()
    assert isinstance(asked(), Compiled)


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
def test_a_process_killed_for_lack_of_memory_is_explained(
    child: ChildProcess, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([[3, 0], [4, 0]] if counted else [[], []])
    monkeypatch.setattr(child_process, "_kills", lambda: next(counts))
    monkeypatch.setattr(child_process, "Running", killing(child._running().pid))
    likely = "" if counted else "most likely "
    with pytest.raises(ChildLostError) as lost:
        asked()
    assert not lost.value.crashed
    assert re.match(
        rf"the compiler was {likely}ended by the system for lack of memory, at [\d.]+ [KMG]iB of "
        r"this machine's [\d.]+ GiB\. Compile for one TPU type at a time, without `speed`",
        str(lost.value),
    )


def test_the_systems_count_of_killed_processes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 2\noom_kill 5\noom_group_kill 7\n", encoding="ascii")
    monkeypatch.setattr(child_process, "_COUNTS_OF_KILLS", (str(events), str(tmp_path / "none")))
    assert child_process._kills() == [5]


def test_a_process_that_takes_too_long_is_killed(child: ChildProcess) -> None:
    process = child._running()
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(ChildLostError, match="took longer than 0 seconds"):
        asked(deadline=Deadline(0.2))
    assert process.poll() == -signal.SIGKILL


COMPILING = """
import sys, time
from pathlib import Path
from tpunb._util.deadline import Deadline
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.topologies import target
for module in [Path(path).read_bytes() for path in sys.argv[1:]]:
    prepared, eight = libtpu.Prepared(None, module=module), target("v5e-8", None)
    found = libtpu.ask(prepared, eight, deadline=Deadline(600), low_effort=False, text=True)
    print(libtpu._child()._process.pid, type(found).__name__, flush=True)
time.sleep(600)
"""


def compiling(*modules: str, code: str = COMPILING, **variables: str) -> subprocess.Popen[str]:
    """Start a process that compiles modules one after another, reports each, and stays alive."""
    paths = [str(Path(__file__).parent / f"{module}.hlo.pb") for module in modules]
    return subprocess.Popen(
        [sys.executable, "-c", code, *paths],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), **variables},
    )


def compiled_by(process: subprocess.Popen[str]) -> int:
    """Wait for the next module, and return the id of the compiler's process."""
    assert process.stdout is not None
    pid, answer = process.stdout.readline().split()
    assert answer == "Compiled"
    return int(pid)


def test_two_processes_compile_at_once_and_leave_no_orphans() -> None:
    kernels = [compiling("tiny") for _ in range(2)]
    children = [compiled_by(process) for process in kernels]
    for process in kernels:
        process.kill()
        assert process.communicate(timeout=PATIENCE)[1] == ""
    wait_until(lambda: not any(map(_runs, children)))


def test_the_compiler_ends_with_a_kernel_killed_while_compiling() -> None:
    with compiling("tiny", "sorts") as kernel:
        child = compiled_by(kernel)
        begin = _processor_seconds(child)
        wait_until(lambda: _processor_seconds(child) > begin + 1)
        at_work = _processor_seconds(child)
        kernel.kill()
    last = at_work

    def ended() -> bool:
        nonlocal last
        last = max(last, _processor_seconds(child))
        return not _runs(child)

    wait_until(ended)
    # The whole compilation would take a minute of processor time.
    assert last - at_work < 20


TIMED = COMPILING.replace("text=True)", "text=True, schedule=True)").replace(
    "_child()", "_child(True)"
)


def test_schedules_leave_no_files_behind(tmp_path: Path) -> None:
    with compiling("tiny", "sorts", code=TIMED, TMPDIR=str(tmp_path)) as kernel:
        child = compiled_by(kernel)
        (folder,) = tmp_path.glob("tpunb-*")
        assert not list(folder.iterdir()), "a schedule is removed when it is read"
        wait_until(lambda: any(folder.iterdir()))  # the next program is compiled
        kernel.kill()
    wait_until(lambda: not _runs(child))
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_plain_verdict_starts_no_process_for_schedules(tmp_path: Path) -> None:
    with compiling("tiny", TMPDIR=str(tmp_path)) as kernel:
        compiled_by(kernel)
        assert not list(tmp_path.glob("tpunb-*"))
        kernel.kill()


def _stat(pid: int) -> list[str]:
    """Return the system's fields on a process, from its state on, or a zombie's if it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except FileNotFoundError:
        return ["Z", *["0"] * 12]


def _processor_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _runs(pid: int) -> bool:
    return _stat(pid)[0] != "Z"  # nothing in a container reaps orphans


def of_another_python(tmp_path: Path, start: str) -> Path:
    """Write a script that runs this Python as if it were another environment's."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\n{start} exec "{sys.executable}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def packages() -> list[str]:
    """Return the folders of the compiler's packages, in this environment or a separate one."""
    code = (
        "import sys; print(*(path for path in sys.path if path.endswith('-packages')), sep='\\n')"
    )
    python = os.environ.get(libtpu.PYTHON) or sys.executable
    process = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return process.stdout.splitlines()


def test_this_environment_has_the_compiler(
    child: ChildProcess, packages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(libtpu.PYTHON, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, *packages])
    libtpu.require()
    assert isinstance(asked(), Compiled)


def test_another_python_has_the_compiler(
    child: ChildProcess, packages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = of_another_python(tmp_path, f'PYTHONPATH="{os.pathsep.join(packages)}"')
    monkeypatch.setenv(libtpu.PYTHON, str(python))
    # This process's own path must not reach the other Python.
    (tmp_path / "jax.py").write_text("raise RuntimeError", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(libtpu, "_own", dict)
    libtpu.require()
    assert isinstance(asked(), Compiled)


def test_another_python_without_the_compiler_names_the_fix(
    child: ChildProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jax.py").write_text("raise ImportError('No module named jax')", encoding="utf-8")
    empty = of_another_python(tmp_path, f'PYTHONPATH="{tmp_path}"')
    monkeypatch.setenv(libtpu.PYTHON, str(empty))
    with pytest.raises(CompilerUnavailableError, match="No module named jax") as missing:
        asked()
    assert libtpu.PYTHON in missing.value.fix
    child.close()
    monkeypatch.setenv(libtpu.PYTHON, str(tmp_path / "nowhere"))
    with pytest.raises(ChildLostError, match=r"cannot be started \(.*\)\.$"):
        asked()


def test_an_incompatible_compiler_gives_no_refusal(
    child: ChildProcess, packages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libtpu or JAX may be of another release."""
    (tmp_path / "libtpu.py").write_text("", encoding="utf-8")
    monkeypatch.delenv(libtpu.PYTHON, raising=False)
    monkeypatch.setattr(libtpu.environment, "find", lambda: None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path, *packages])
    with pytest.raises(ChildLostError, match=r"process failed \(AttributeError"):
        asked()
