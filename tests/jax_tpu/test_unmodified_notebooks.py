"""JAX notebooks that know nothing of tpunb: kernels, `tpunb run --tpu`, `pytest --nbval --tpu`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import environment
from support.patience import PATIENCE

from tpunb.compiler.ask.libtpu import why_unavailable

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None, reason="nbclient is not installed"
)

COMPILED = pytest.mark.skipif(why_unavailable() is not None, reason="the compiler is not here")

DEVICES = "print(len(jax.devices()), jax.devices()[0], jax.default_backend())"
ON_A_V5E = "8 TPU_0(process=0,(0,0,0,0)) tpu\n"


def save(path: Path, *sources: str) -> Path:
    """Write a notebook of code cells."""
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": 1}
        for source in sources
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps(notebook))
    return path


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module of this Python, with Jupyter folders of its own."""
    variables = {
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**environment(), **variables},
        cwd=folder,
        check=False,
    )


def outputs(path: Path) -> list[Any]:
    """Return a saved notebook's outputs, by cell: texts, and the names and texts of errors."""

    def content(output: dict[str, Any]) -> Any:
        if output["output_type"] == "error":
            return output["ename"], output["evalue"]
        return "".join(output["text"] if "text" in output else output["data"]["text/plain"])

    notebook = json.loads(path.read_text())
    return [[content(output) for output in cell["outputs"]] for cell in notebook["cells"]]


STEP = """
@jax.jit
def step(x):
    return x @ x.T
print(step(jnp.ones((64, 64))).sum())
"""
TOO_LARGE = """
@jax.jit
def outer(x):
    return jnp.sort(x[:, None] * x[None, :])
outer(jnp.ones(90_000))
"""


@COMPILED
def test_run(tmp_path: Path) -> None:
    """Its outputs are its own, and a program that does not fit fails its cell as on a TPU."""
    path = save(
        tmp_path / "one.ipynb",
        "import jax, jax.numpy as jnp\njax.config.update('jax_num_cpu_devices', 2)",
        DEVICES,
        STEP,
        TOO_LARGE,
        f"import sys; {DEVICES}; print('tensorflow' in sys.modules)",
    )
    run = python(tmp_path, "tpunb", "run", "--tpu", "v5e-8", "-k", "-o", "out.ipynb", str(path))
    assert run.returncode == 1, run.stderr
    *others, refused, last = outputs(tmp_path / "out.ipynb")
    assert others == [[], [ON_A_V5E], ["262144.0\n"]]
    ((name, text),) = refused
    assert name in {"JaxRuntimeError", "XlaRuntimeError"}
    assert text.startswith("RESOURCE_EXHAUSTED")
    assert last == [f"{ON_A_V5E}False\n"]


def test_run_without_a_judge(tmp_path: Path) -> None:
    path = save(tmp_path / "one.ipynb", "%%time\nimport jax, jax.numpy as jnp", DEVICES, STEP)
    arguments = ("--tpu", "v4-8", "--judge", "off", "--framework", "jax", "-o", "out.ipynb")
    run = python(tmp_path, "tpunb", "run", *arguments, str(path))
    assert run.returncode == 0, run.stderr
    assert outputs(tmp_path / "out.ipynb")[1:] == [
        ["4 TPU_0(process=0,(0,0,0,0)) tpu\n"],
        ["262144.0\n"],
    ]


SWALLOWED = """
try:
    device = jax.devices("tpu")[0]
except Exception:
    device = None
"""


def test_a_cell_fails_without_its_tpu_even_if_it_catches_the_error(tmp_path: Path) -> None:
    path = save(tmp_path / "one.ipynb", "import jax", SWALLOWED, "jax.devices()")
    arguments = ("--tpu", "v5e-8", "-k", "-o", "out.ipynb")
    run = python(tmp_path, "tpunb", "run", *arguments, str(path), JAX_PLATFORMS="cpu")
    assert run.returncode == 1
    imported, *failed = outputs(tmp_path / "out.ipynb")
    assert imported == []
    for ((name, text),) in failed:
        assert name == "ConnectError"
        assert "told to use only cpu" in text


def test_an_installed_kernel(tmp_path: Path) -> None:
    """A kernel without a notebook at hand finds the framework when a cell imports it."""
    installed = python(tmp_path, "tpunb", "kernel", "install", "v5e-8", "--judge", "off")
    assert installed.returncode == 0, installed.stderr
    spec = json.loads((tmp_path / "data/kernels/tpunb-v5e-8/kernel.json").read_text())
    assert json.loads(spec["env"]["TPUNB_KERNEL"])["judge"] == "off"
    loading = "%load_ext tpunb\n_ = %tpu_connect --judge off\n_.close()"
    path = save(tmp_path / "one.ipynb", "import jax", DEVICES, loading, DEVICES)
    arguments = ("--kernel", "tpunb-v5e-8", "-o", "out.ipynb")
    run = python(tmp_path, "tpunb", "run", *arguments, str(path))
    assert run.returncode == 0, run.stderr
    first, second = (outputs(tmp_path / "out.ipynb")[cell] for cell in (1, 3))
    assert first == second == [ON_A_V5E]


def test_a_kernel_for_jax(tmp_path: Path) -> None:
    python(tmp_path, "tpunb", "kernel", "install", "v5e-8", "--framework", "jax")
    spec = json.loads((tmp_path / "data/kernels/tpunb-v5e-8-jax/kernel.json").read_text())
    assert spec["display_name"] == "Python 3 (virtual TPU v5e-8, JAX)"
    assert json.loads(spec["env"]["TPUNB_KERNEL"])["framework"] == "jax"


@pytest.mark.skipif(importlib.util.find_spec("nbval") is None, reason="nbval is not installed")
def test_nbval(tmp_path: Path) -> None:
    path = save(tmp_path / "one.ipynb", "import jax, jax.numpy as jnp", DEVICES, STEP)
    executed = tmp_path / "executed.ipynb"
    python(tmp_path, "tpunb", "run", "--tpu", "v5e-8", "-o", str(executed), str(path))
    plugin = () if _is_installed() else ("-p", "tpunb.pytest_plugin")
    arguments = ("--nbval", "--tpu", "v5e-8", "--tpu-judge", "off", "-p", "no:cacheprovider")
    run = python(tmp_path, "pytest", *plugin, *arguments, executed.name)
    assert "3 passed" in run.stdout, run.stdout


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "tpunb.pytest_plugin" for point in entry_points(group="pytest11"))
