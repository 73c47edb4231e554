"""`tpunb doctor --course`: whether this machine is ready for the course."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpunb._util.plain_text import hanging, plain
from tpunb._util.units import byte_count, duration
from tpunb.cli.execution import EXECUTING, missing_packages
from tpunb.compiler.ask import libtpu
from tpunb.errors.base import hint
from tpunb.machine.resources import measure
from tpunb.machine.software import find_software
from tpunb.machine.tested_releases import version_of

ALL = (1, 2, 3, 4, 5)
_WITH_COMPILER = (4, 5)
_ON_JAX = (3,)
_KERNEL = "python3"
_WIDTH = 96
_LEAST_MEMORY = 3 * 2**30
_SECONDS = 300
_FRONT_ENDS = ("jupyterlab", "notebook", "marimo")
_PINNED_KERAS = re.compile(r"^keras==([\w.]+)", re.MULTILINE)

TEST_CELL = """\
%load_ext tpunb
%tpu_connect --simulate v3-8
total = get_ipython().run_cell_magic("tpu_run", "", "ctx.all_reduce('sum', replica_id)")
assert int(total.values[0]) == 28, total
"""
"""A cell of lesson 1: eight replicas add up their numbers, 0 to 7."""

_INSTALL = 'pip install "tpunb[cpu,lab]"'


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """Something that lessons need, and whether this machine has it.

    Attributes:
        about: The subject, such as `"JAX"`.
        found: What is here; empty if it is missing.
        lessons: The lessons that need it.
        problem: Why the lessons cannot run here; empty if they can.
        fix: What to do about the problem.
    """

    about: str
    found: str
    lessons: Sequence[int] = ALL
    problem: str = ""
    fix: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CourseReport:
    """Whether a machine is ready for each lesson.

    Attributes:
        needs: What the lessons need.
    """

    needs: Sequence[Need]

    @property
    def ready(self) -> tuple[int, ...]:
        """The lessons that can run here."""
        blocked = {lesson for need in self.problems for lesson in need.lessons}
        return tuple(lesson for lesson in ALL if lesson not in blocked)

    @property
    def problems(self) -> tuple[Need, ...]:
        """The needs that this machine does not meet."""
        return tuple(need for need in self.needs if need.problem)

    @property
    def ok(self) -> bool:
        """True if all lessons can run here."""
        return self.ready == ALL

    @property
    def headline(self) -> str:
        """The result on one line."""
        if self.ok:
            return "Course: this machine is ready for all lessons"
        if not self.ready:
            return "Course: this machine is not ready"
        return f"Course: this machine is ready for {_lessons(self.ready)} only"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as dicts, lists, strings and numbers for JSON."""
        needs = [dataclasses.asdict(need) for need in self.needs]
        return {"ok": self.ok, "headline": self.headline, "ready": self.ready, "needs": needs}

    def __str__(self) -> str:
        width = max(len(need.about) for need in self.needs)
        lines = [self.headline, ""]
        lines += [f"  {need.about:<{width}}  {need.found or 'missing'}" for need in self.needs]
        for need in self.problems:
            head = f"  {_lessons(need.lessons)}: "
            text = f"{need.problem} {hint(need.fix)}".strip()
            lines += ["", hanging(head, text, _WIDTH)]
        return plain("\n".join(lines))


def course_report(folder: Path, *, test: bool = True) -> CourseReport:
    """Check what the lessons need.

    Args:
        folder: The folder of the lessons, or the folder of the repository.
        test: Whether to run a cell in a new kernel, which takes some seconds.
    """
    needs = [*_needs(_lessons_in(folder))]
    if test and not any(need.problem and 1 in need.lessons for need in needs):
        needs.append(tested_cell())
    return CourseReport(needs)


def _needs(folder: Path) -> Iterator[Need]:
    software = find_software(os.environ)
    versions = software.versions
    yield Need("Python", software.python)
    yield _tensorflow(software.tensorflow, versions.get("keras", ""))
    yield _package("scikit-learn", "sklearn")
    yield _front_end()
    yield _kernel()
    yield _jax(versions)
    yield _compiler(folder, versions.get("keras", ""))
    yield _memory()


def _tensorflow(tensorflow: str | None, keras: str) -> Need:
    about = "TensorFlow, Keras"
    if tensorflow and keras:
        return Need(about, f"{tensorflow}, {keras}")
    problem = "TensorFlow or Keras is not installed in this Python."
    return Need(about, "", ALL, problem, f"Run {_INSTALL}, with Python 3.11 to 3.13.")


def _package(name: str, module: str) -> Need:
    if importlib.util.find_spec(module) is not None:
        return Need(name, _version(name))
    return Need(name, "", ALL, f"{name} has the lessons' data, and is not installed.", _run(name))


def _front_end() -> Need:
    """Return the editor of notebooks. A notebook can also be opened in an editor elsewhere."""
    found = [f"{name} {_version(name)}" for name in _FRONT_ENDS if importlib.util.find_spec(name)]
    if found:
        return Need("editor", ", ".join(found))
    return Need("editor", "none in this Python: use VS Code, or pip install jupyterlab")


def _kernel() -> Need:
    if missing := missing_packages(EXECUTING):
        return Need("kernel", "", ALL, "No notebook can run here.", _run(*missing))
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        command = KernelSpecManager().get_kernel_spec(_KERNEL).argv[0]
    except NoSuchKernel:
        fix = f"Run {sys.executable} -m ipykernel install --user."
        return Need("kernel", "", ALL, f"There is no Jupyter kernel named {_KERNEL}.", fix)
    python = shutil.which(command) or command
    if Path(command).is_absolute() and not _is_this_python(Path(python)):
        problem = f"The kernel {_KERNEL} runs another Python, {python}."
        fix = f"Run {sys.executable} -m ipykernel install --sys-prefix."
        return Need("kernel", python, ALL, problem, fix)
    return Need("kernel", f"{_KERNEL}, this Python")


def _is_this_python(python: Path) -> bool:
    return python.parent == Path(sys.executable).parent


def _jax(versions: Mapping[str, str]) -> Need:
    if found := versions.get("jax"):
        return Need("JAX", found, _ON_JAX)
    if libtpu.PYTHON in os.environ:
        return Need("JAX", f"that of {libtpu.PYTHON}", _ON_JAX)
    return Need("JAX", "", _ON_JAX, "JAX is not installed in this Python.", _run("jax"))


def _compiler(folder: Path, keras: str) -> Need:
    about = "compiler"
    missing = libtpu.why_unavailable()
    if missing is None:
        return Need(about, "installed", _WITH_COMPILER)
    recorded = sorted((folder / "recorded").glob("*.verdict"))
    if not recorded:
        return Need(about, "", _WITH_COMPILER, _without_answers(missing.message), missing.fix)
    pinned = _pinned_keras(folder)
    if pinned and keras != pinned:
        problem = f"The recorded answers are for Keras {pinned}, and this is Keras {keras}."
        return Need(about, "recorded answers", _WITH_COMPILER, problem, _run(f"keras=={pinned}"))
    found = (
        f"{len(recorded)} recorded answers; questions with programs of your own need the compiler"
    )
    return Need(about, found, _WITH_COMPILER)


def _without_answers(why: str) -> str:
    return f"{why} The folder `recorded` is not beside the lessons either."


def _pinned_keras(folder: Path) -> str:
    """Return the release of Keras that the course's requirements name; empty without any."""
    try:
        text = (folder / "requirements.txt").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = _PINNED_KERAS.search(text)
    return match[1] if match else ""


def _memory() -> Need:
    total = measure().total
    if total is None:
        return Need("memory", "not known")
    if total >= _LEAST_MEMORY:
        return Need("memory", byte_count(total))
    problem = f"A lesson and a browser take up to {byte_count(_LEAST_MEMORY)} of memory."
    return Need("memory", byte_count(total), ALL, problem, "Use a browser: Binder or Colab.")


def tested_cell() -> Need:
    """Run a cell of lesson 1 in a new kernel, as JupyterLab would."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(TEST_CELL)])
    quiet = ["--log-level=50"]  # hides the kernel's log of its sockets
    client = NotebookClient(notebook, timeout=_SECONDS, kernel_name=_KERNEL, extra_arguments=quiet)
    begin = time.monotonic()
    try:
        client.execute(env={"TPUNB_WIDGETS": "never", **os.environ})
    except Exception as error:  # the cell's, the kernel's or Jupyter's
        problem = f"A cell of lesson 1 fails: {_words(error)}"
        return Need("test cell", "failed", ALL, problem, "Run tpunb doctor for the reasons.")
    return Need("test cell", f"passed in {duration(time.monotonic() - begin)}")


def _words(error: Exception) -> str:
    """Return an error in one line, a cell's as in the cell."""
    if hasattr(error, "ename") and hasattr(error, "evalue"):
        return f"{error.ename}: {error.evalue}".strip().partition("\n")[0]
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


def _lessons_in(folder: Path) -> Path:
    """Return the folder of the lessons, which may be inside of a folder."""
    inside = folder / "notebooks" / "course"
    return inside if inside.is_dir() else folder


def _version(package: str) -> str:
    return version_of(package) or "of unknown release"


def _run(*packages: str) -> str:
    quoted = [f'"{name}"' if "=" in name else name for name in packages]
    return f"Run pip install {' '.join(quoted)}."


def _lessons(numbers: Sequence[int]) -> str:
    """Return lessons in words: `"lesson 3"`, `"lessons 1, 2 and 5"`."""
    if tuple(numbers) == ALL:
        return "all lessons"
    *first, last = map(str, numbers)
    return f"lessons {', '.join(first)} and {last}" if first else f"lesson {last}"
