"""The compiler's process: it may crash, hang and be killed, and leaves nothing behind."""

from __future__ import annotations

import os
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
from tpunb._util.child_process import ChildProcess
from tpunb.compiler import libtpu
from tpunb.compiler.libtpu import LOW_EFFORT, Compiled, LostError, Refused
from tpunb.compiler.topologies import target

pytestmark = pytest.mark.usefixtures("libtpu")

TINY = (Path(__file__).parent / "tiny.hlo.pb").read_bytes()
"""x @ x of f32[64,64], as TensorFlow lowers it for a CPU."""


def asked(tpu: str = "v5e-8", **options: Any) -> Compiled | Refused:
    settings = {"effort": LOW_EFFORT, "seconds": PATIENCE, **options}
    return libtpu.ask(TINY, target(tpu, None), **settings)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcess]:
    """A process of the test's own."""
    made = ChildProcess(libtpu._start, PATIENCE)
    monkeypatch.setattr(libtpu, "_child", lambda: made)
    yield made
    made.close()


@pytest.mark.parametrize(
    "tpu", ["v2-8", "v3-8", "v3-32", "v4-8", "v5e-1", "v5e-4", "v5e-256", "v5p-8", "v6e-8"]
)
def test_every_family_is_known(tpu: str) -> None:
    found = asked(tpu, text=False)
    assert isinstance(found, Compiled)
    assert found.peak > 2 * 64 * 64 * 4


def test_what_is_no_program_is_refused_and_harms_nobody() -> None:
    with_garbage = libtpu.ask(b"no module", target("v5e-8", None), effort="", seconds=PATIENCE)
    assert isinstance(with_garbage, Refused)
    assert isinstance(asked(), Compiled)


def test_one_that_is_killed_in_the_midst_is_replaced(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = child._running()
    bounded = child_process.bounded

    def killing(call: Callable[[], Any], deadline: float) -> Any:
        os.kill(process.pid, signal.SIGKILL)
        return bounded(call, deadline)

    with monkeypatch.context() as patched:
        patched.setattr(child_process, "bounded", killing)
        with pytest.raises(LostError, match=r"crashed \(SIGKILL\); the program .* is in ") as lost:
            asked()
    saved = Path(str(lost.value).rpartition(" in ")[2].rstrip("."))
    assert saved.read_bytes() == TINY
    saved.unlink()
    assert isinstance(asked(), Compiled)


def test_one_that_takes_too_long_is_ended(child: ChildProcess) -> None:
    process = child._running()
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(LostError, match="took longer than 0 seconds"):
        asked(seconds=0.2)
    assert process.poll() == -signal.SIGKILL


HOLDING = """
import sys, time
from pathlib import Path
from tpunb._util.child_process import ChildProcess
from tpunb.compiler import libtpu
from tpunb.compiler.topologies import target
found = libtpu.ask(Path(sys.argv[1]).read_bytes(), target("v5e-8", None), effort="", seconds=600)
print(libtpu._child()._process.pid, type(found).__name__, flush=True)
time.sleep(600)
"""


def test_two_processes_compile_at_once_in_silence_and_leave_no_orphans() -> None:
    path = str(Path(__file__).parent / "tiny.hlo.pb")
    command = [sys.executable, "-c", HOLDING, path]
    both = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        for _ in range(2)
    ]
    children = []
    for process in both:
        assert process.stdout is not None
        pid, answer = process.stdout.readline().split()
        assert answer == "Compiled"
        children.append(int(pid))
    for process in both:
        process.kill()
        assert process.communicate(timeout=PATIENCE)[1] == ""
    wait_until(lambda: not any(map(_runs, children)))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody here reaps the orphans of others
