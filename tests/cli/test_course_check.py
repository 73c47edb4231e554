"""`tpunb doctor --course`: what the lessons need, and what is missing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from tpunb import cli
from tpunb.cli import course_check
from tpunb.compiler.ask import libtpu
from tpunb.compiler.program import CompilerUnavailableError
from tpunb.machine.resources import Memory
from tpunb.machine.software import Software

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "notebooks" / "course"
PINNED = "3.15.1"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with everything; tests remove packages from the returned versions."""
    versions = {"tensorflow-cpu": "2.21.0", "keras": PINNED, "jax": "0.10.2"}

    def found(_: Any) -> Software:
        return Software(python="3.11.7", versions=versions)

    monkeypatch.setattr(course_check, "find_software", found)
    monkeypatch.setattr(course_check, "measure", lambda: Memory(8 * 2**30, None, None))
    monkeypatch.setattr(libtpu, "why_unavailable", lambda: None)
    monkeypatch.delenv(libtpu.PYTHON, raising=False)
    return versions


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    error = CompilerUnavailableError("libtpu has no package for macOS.", fix="Use Linux.")
    monkeypatch.setattr(libtpu, "why_unavailable", lambda: error)


def report(folder: Path = COURSE) -> course_check.CourseReport:
    return course_check.course_report(folder, test=False)


def test_a_machine_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    ready = report()
    assert (ready.ok, ready.ready, ready.problems) == (True, (1, 2, 3, 4, 5), ())
    assert ready.headline == "Course: this machine is ready for all lessons"
    assert "  compiler           installed\n" in str(ready)


def test_without_jax(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    del machine["jax"]
    (problem,) = report().problems
    assert (problem.lessons, problem.fix) == ((3,), "Run pip install jax.")
    assert report().headline == "Course: this machine is ready for lessons 1, 2, 4 and 5 only"
    assert "  lesson 3: JAX is not installed" in str(report())
    monkeypatch.setenv(libtpu.PYTHON, sys.executable)
    assert report().ok


def test_recorded_answers_replace_the_compiler(no_compiler: None) -> None:
    ready = report()
    assert ready.ok
    assert re.search(r"compiler +\d+ recorded answers", str(ready))
    assert course_check.course_report(ROOT, test=False) == ready


def test_recorded_answers_are_for_one_release(no_compiler: None, machine: dict[str, str]) -> None:
    machine["keras"] = "3.99"
    (problem,) = report().problems
    assert problem.problem == (
        f"The recorded answers are for Keras {PINNED}, and this is Keras 3.99."
    )
    assert problem.fix == f'Run pip install "keras=={PINNED}".'
    assert report().ready == (1, 2, 3)


def test_neither_compiler_nor_recorded_answers(no_compiler: None, tmp_path: Path) -> None:
    (problem,) = report(tmp_path).problems
    assert "The folder `recorded` is not beside the lessons either." in problem.problem
    assert problem.lessons == (4, 5)


def test_without_tensorflow(machine: dict[str, str]) -> None:
    del machine["tensorflow-cpu"]
    found = report()
    assert found.headline == "Course: this machine is not ready"
    assert "all lessons: TensorFlow or Keras is not installed" in str(found)


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course_check, "measure", lambda: Memory(2 * 2**30, None, None))
    assert "take up to 3 GiB of memory" in str(report())


def test_a_kernel_of_another_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Spec:
        argv = (str(tmp_path / "python"), "-m", "ipykernel")

    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", lambda *_: Spec)
    (problem,) = report().problems
    assert problem.problem == f"The kernel python3 runs another Python, {tmp_path / 'python'}."
    assert f"{sys.executable} -m ipykernel install" in problem.fix


def test_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise NoSuchKernel("python3")

    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", missing)
    assert "There is no Jupyter kernel named python3." in str(report())


def test_a_test_cell_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course_check, "TEST_CELL", "raise ValueError('no such core')")
    need = course_check.tested_cell()
    assert need.problem == "A cell of lesson 1 fails: ValueError: no such core"


@pytest.mark.tensorflow
def test_the_command(
    capsys: pytest.CaptureFixture[str], machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["doctor", "--course", str(COURSE)]) == 0
    assert re.search(r"test cell +passed in", capsys.readouterr().out)
    del machine["jax"]
    monkeypatch.setattr(course_check, "tested_cell", lambda: course_check.Need("test cell", "x"))
    assert cli.main(["doctor", "--course", str(COURSE), "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert read["ready"] == [1, 2, 4, 5]
    assert read["needs"][-1]["about"] == "test cell"


def test_one_list_of_requirements() -> None:
    """The course's file, Binder's and the page's agree, but for tpunb's own place."""

    def lines(text: str) -> list[str]:
        named = [line.partition("#")[0].strip() for line in text.splitlines()]
        return [line for line in named if line and "[cpu,lab]" not in line]

    course = (COURSE / "requirements.txt").read_text(encoding="utf-8")
    binder = (ROOT / "binder" / "requirements.txt").read_text(encoding="utf-8")
    assert lines(course) == lines(binder) == [f"keras=={PINNED}", "jax==0.10.2"]
