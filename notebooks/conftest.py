"""Choose the notebooks and cells that `pytest --nbval notebooks` runs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from tpunb.compiler.ask import libtpu

WITH_COMPILER = (
    "07_will_it_fit.ipynb",
    "4_memory_and_padding.ipynb",
    "5_input_time_and_hardware.ipynb",
    "jax_puzzles.ipynb",
    "tensorflow_puzzles.ipynb",
)
ON_JAX = (
    "09_jax_on_a_virtual_tpu.ipynb",
    "11_dry_run.ipynb",
    "12_search.ipynb",
    "jax_puzzles.ipynb",
)
"""They run where JAX is installed in the notebook's own Python: `make test-jax`."""

WITH_JAX = ("08_from_tpustrategy_to_jax.ipynb", "3_to_jax_meshes.ipynb")
LONG: tuple[str, ...] = (
    "tensorflow_puzzles.ipynb",
    "2_data_parallel_training.ipynb",
    "3_to_jax_meshes.ipynb",
    "4_memory_and_padding.ipynb",
    "5_input_time_and_hardware.ipynb",
    "10_verify_a_real_tpu.ipynb",
)
"""Notebooks that only `make test-thorough` runs, since other notebooks call the same functions."""

EXERCISES = tuple(map(Path(__file__).with_name, ("course", "puzzles")))
"""The folders of the notebooks that lack their answers."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out notebooks that need a TPU, or a compiler or JAX that is not installed.

    Notebooks in `found` were written for a TPU, and are tested only with `--tpu`. Exercises lack
    their answers: `tests/test_notebooks_alone.py` and `tests/puzzles` run them.
    """
    found = collection_path.parent.name == "found"
    if found and not config.getoption("--tpu", default=None):
        return True
    if collection_path.parent in EXERCISES and collection_path.suffix == ".ipynb":
        return True
    return True if collection_path.name in _left_out() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the cells that use the compiler, in notebooks that run without it."""
    reason = _left_out().get(WITH_COMPILER[0])
    for item in items:
        if item.path.name in LONG:
            item.add_marker("thorough")
        if reason and getattr(item, "cell", None) and item.cell.source.startswith("%%tpu_compile"):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report the notebooks that were left out, since they are not tested."""
    for name, reason in _left_out().items():
        terminalreporter.write_line(f"LEFT OUT: {name}. {reason}", yellow=True)


def _left_out() -> dict[str, str]:
    """Return the notebooks that cannot run here, with the reason."""
    left_out = _without_compiler()
    if importlib.util.find_spec("jax") is None:
        left_out |= dict.fromkeys(ON_JAX, "This Python has no JAX: make test-jax runs it.")
    return left_out


def _without_compiler() -> dict[str, str]:
    if reason := libtpu.why_unavailable():
        return dict.fromkeys((*WITH_COMPILER, *WITH_JAX), str(reason).splitlines()[0])
    if libtpu.PYTHON not in os.environ and importlib.util.find_spec("jax") is None:
        return dict.fromkeys(WITH_JAX, "JAX is not installed.")
    return {}
