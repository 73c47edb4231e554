"""Without TensorFlow, every magic shows one clear sentence and no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import run_code
from support.jax_process import said_with_jax

CELLS = """
import pathlib, tempfile
from support.shell import Notebook

said = {}
book = Notebook(pathlib.Path(tempfile.mkdtemp()))
book.good("%load_ext tpunb")
book.good("import numpy as np\\nx = np.ones((8, 8))\\nplain = lambda x: x @ x")
cells = [
    "%tpu_connect",
    "%tpu_connect --framework tensorflow --simulate v3-8",
    "%%tpu_run\\nx + 1",
    "%%tpu_run -d x -n 3 --check\\nbatch",
    "%%tpu_check\\nx + 1",
    "%%tpu_compile\\n1 + 1",
    "%%tpu_compile --for v5e-8\\n1 + 1",
    "%%tpu_compile --for v5e-8 -d x\\nx + 1",
    "%%tpu_compile\\nplain(x)",
    "%%tpu_compile --for v5e-1\\nplain(x)",
    "%tpu_profile x + 1",
    "%%tpu_profile --keep here\\nx + 1",
    "%tpu_status",
    "%tpu_topology",
    "%tpu_topology v5e-8",
    "%tpu_doctor",
    "%tpu_disconnect",
    "tpunb.check(plain, x)",
    "tpunb.profile()",
    "tpunb.verify()",
]
for cell in cells:
    ran = book.run(cell)
    texts = [str(bundle.get("text/plain", "")) for bundle in ran.shown]
    said[cell] = [type(ran.error).__name__, "\\n".join([*texts, ran.text]).strip()]
"""

BLOCKED = """
import importlib.abc, json, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "tf_keras", "jax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

NEED_IT = {
    "%tpu_connect --framework tensorflow --simulate v3-8": "TensorFlow is not installed here.",
    "%%tpu_check\nx + 1": "%%tpu_check needs TensorFlow, which is not installed here.",
    "%tpu_profile x + 1": "%tpu_profile needs TensorFlow, which is not installed here.",
    "%%tpu_profile --keep here\nx + 1": "%tpu_profile needs TensorFlow, which is not",
    "tpunb.check(plain, x)": "tpunb.check needs TensorFlow, which is not installed here.",
    "tpunb.profile()": "tpunb.profile needs TensorFlow, which is not installed",
    "tpunb.verify()": "TensorFlow is not installed here.",
}
RUNS = {
    "%%tpu_run\nx + 1": "%%tpu_run needs TensorFlow, which is not installed here.",
    "%%tpu_run -d x -n 3 --check\nbatch": "%%tpu_run needs TensorFlow, which is not",
}
"""Cells that run on JAX as well."""

OTHERS = {
    "%%tpu_compile\n1 + 1": "The cell does not end with a call",
    "%%tpu_compile --for v5e-8\n1 + 1": "The cell does not end with a call",
    "%%tpu_compile --for v5e-8 -d x\nx + 1": "not from -d",
    "%tpu_topology": "%tpu_topology v5e-8",
}


@pytest.fixture(scope="module", params=["with JAX", "without JAX"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run the cells in a process without TensorFlow, and return what each shows."""
    if request.param == "with JAX":
        return said_with_jax("import jax\n" + CELLS, tmp_path_factory.mktemp("cells"))
    tests = Path(__file__).parents[1]
    path = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n"
    print_it = "import json\nprint('said:' + json.dumps(said))"
    run = run_code(path + BLOCKED + CELLS + print_it, TPUNB_TPU="", TPUNB_WIDGETS="never")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.rpartition("said:")[2])


def test_no_magic_shows_a_traceback(said: dict[str, Any]) -> None:
    assert not [cell for cell, (_, text) in said.items() if "Traceback" in text]


def test_connecting_without_a_framework(said: dict[str, Any], request: Any) -> None:
    """JAX, which the test's process keeps on the CPU, would do."""
    with_jax = "with JAX" in request.node.name
    expected = "JAX is told to use only cpu" if with_jax else "TensorFlow is not installed here."
    assert said["%tpu_connect"][0] == "ConnectError"
    assert expected in said["%tpu_connect"][1]


def test_each_magic_names_the_missing_package(said: dict[str, Any], request: Any) -> None:
    runs = RUNS
    if "with JAX" in request.node.name:
        runs = dict.fromkeys(RUNS, "There is no connection to a TPU.")
        runs["tpunb.verify()"] = "JAX is told to use only cpu"
    for cell, sentence in {**NEED_IT, **runs, **OTHERS}.items():
        kind, text = said[cell]
        assert sentence in text, cell
        missing = {"ConnectError", "TensorFlowMissingError"}
        assert kind in {*missing, "CompileError", "NotConnectedError"}, cell
        assert "Try: " in text, cell


def test_magics_that_work_without_tensorflow(said: dict[str, Any]) -> None:
    for cell in ("%tpu_status", "%tpu_topology v5e-8", "%tpu_doctor", "%tpu_disconnect"):
        assert said[cell][0] == "NoneType", cell
    assert said["%tpu_status"][1].startswith("Not connected: ")
