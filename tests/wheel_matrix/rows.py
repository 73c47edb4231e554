"""The rows of the matrix: what is installed, and the commands that then have to work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

Command = tuple[str, ...]

PYTHONS = ("3.10", "3.11", "3.12", "3.13")

WITHOUT_WHEEL = {("3.10", extra): "libtpu" for extra in ("jax", "compiler", "cpu,compiler")}
"""The packages without a wheel for a Python, by Python and extra. An installation has to say so."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What is installed, and what is run.

    Attributes:
        extra: The extras of the wheel, with commas; may be empty.
        beside: Another requirement, installed in the same step; may be empty.
        commands: The commands that have to end with 0.
    """

    extra: str = ""
    beside: str = ""
    commands: tuple[Command, ...] = ()


_PUBLIC_NAMES = ("python", "-c", "import inspect, tpunb; inspect.getmembers(tpunb)")
EVERY: tuple[Command, ...] = (_PUBLIC_NAMES, ("tpunb", "topology", "v3-8"))
"""The commands that need no extra."""


def _compiled(source: str) -> Command:
    return ("tpunb", "compile", source, "--for", "v5e-1")


_DOCTOR = ("tpunb", "doctor", "--json")
_TENSORFLOW = ("python", "cell.py", "tensorflow")
_JAX = ("python", "cell.py", "jax")
_SVD_IN_TENSORFLOW = _compiled("tensorflow_program.py::factors")
_JAX_PROGRAMS = (_compiled("jax_program.py::factors"), _compiled("jax_program.py::kernel"))
_RUN = ("tpunb", "run", "plain.ipynb", "-o", "executed.ipynb")
_NBVAL = ("python", "-m", "pytest", "-q", "--nbval", "--nbval-current-env", "plain.ipynb")
_MYPY = ("mypy", "--strict", "-c", "import tpunb; tpunb.connect(simulate='v3-8').close()")
_INSTALL = ("tpunb", "compiler", "install")
_BESIDE_JAX = (_JAX, _INSTALL, *_JAX_PROGRAMS)

ROWS = (
    Row(),
    Row("cpu", commands=(_DOCTOR, _TENSORFLOW)),
    Row("cpu,demo", commands=(("tpunb", "demo"),)),
    Row("jax", commands=(("tpunb", "demo"),)),
    Row("compiler", commands=(_DOCTOR, _JAX, *_JAX_PROGRAMS)),
    Row("cpu,compiler", commands=(_TENSORFLOW, _SVD_IN_TENSORFLOW, *_JAX_PROGRAMS)),
    Row("", "jax==0.7.2", _BESIDE_JAX),
    Row("", "jax", _BESIDE_JAX),
    Row("tpu", commands=(_DOCTOR, _TENSORFLOW)),
    Row("run", commands=(_RUN,)),
    Row("demo", commands=(_RUN, ("python", "-c", "import sklearn.datasets"))),
    Row("lab", commands=(_RUN, ("jupyter", "lab", "--version"))),
    Row("test", commands=(_NBVAL,)),
    Row("browser", commands=(("python", "-c", "import axe_playwright_python, marimo, notebook"),)),
    Row("bench", commands=(("python", "-c", "import fastprogress, livelossplot"),)),
    Row("docs", commands=(("python", "-c", "import furo, myst_nb, sphinx, sphinx_copybutton"),)),
    Row("dev", commands=(_MYPY, ("ruff", "check", "--isolated"))),
)


def rows(python: str) -> Iterator[Row]:
    """Return the rows of a Python. Python 3.10 has no JAX that is new enough."""
    return (row for row in ROWS if not (python == "3.10" and row.beside))
