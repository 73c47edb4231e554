"""The public names raise the same error without TensorFlow: in a process that cannot import it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from counterparts.children import run_code

import tpunb
from tpunb import virtual
from tpunb.errors import ConnectError, TensorFlowMissingError
from tpunb.errors.jax_in_cells import FOR_JAX
from tpunb.machine.import_tensorflow import require_tensorflow

PROGRAM = """
import importlib.abc, json, sys, warnings

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if sys.argv[1] == "finder":
    sys.meta_path.insert(0, Missing())
else:
    sys.modules.update(tensorflow=None, keras=None, tf_keras=None)

import tpunb
import tpunb.virtual

said = {}

def attempt(name, call):
    try:
        call()
        said[name] = ""
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"

def installed():
    with tpunb.virtual.installed(2):
        raise AssertionError

for name in tpunb.__all__:
    attempt(name, lambda: getattr(tpunb, name))
for name in tpunb.virtual.__all__:
    attempt(f"virtual.{name}", lambda: getattr(tpunb.virtual, name))
attempt("check()", lambda: tpunb.check(print))
attempt("compare()", lambda: tpunb.compare(print))
attempt("connect()", lambda: tpunb.connect(simulate=2))
attempt("TPUStrategy()", lambda: tpunb.TPUStrategy())
attempt("virtual.install()", lambda: tpunb.virtual.install(2))
attempt("virtual.installed()", installed)
attempt("virtual.VirtualTPUStrategy()", lambda: tpunb.virtual.VirtualTPUStrategy(2))
attempt("virtual.uninstall()", lambda: tpunb.virtual.uninstall())
attempt("show()", lambda: tpunb.show("v3-8"))
attempt("doctor()", lambda: str(tpunb.doctor()))
attempt("explain()", lambda: tpunb.explain("TPU is already in use"))
attempt("History()", lambda: tpunb.History().plot())
attempt("LiveCurves()", lambda: tpunb.LiveCurves())
if sys.argv[1] == "finder":
    attempt("virtual.install_when_imported()", lambda: tpunb.virtual.install_when_imported(2))
    try:
        import tensorflow
    except ModuleNotFoundError:
        said["import tensorflow"] = ""
assert not {"tensorflow", "keras"} & {name for name, module in sys.modules.items() if module}
print("said:" + json.dumps(said))
"""

NEED_IT = {
    "check",
    "compare()",
    "check()",
    "input_speed",
    "profile",
    "connect()",
    "TPUStrategy()",
    "virtual.TPUStrategy",
    "virtual.TPUStrategyV2",
    "virtual.VirtualTPUClusterResolver",
    "virtual.VirtualTPUStrategy",
    "virtual.VirtualTPUStrategy()",
    "virtual.install()",
    "virtual.installed()",
}


@pytest.mark.parametrize("missing", ["finder", "modules"])
def test_all_names_raise_the_same_error(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_code(PROGRAM, missing, TPUNB_TPU="")
    assert run.returncode == 0, run.stderr
    said: dict[str, Any] = json.loads(run.stdout.rpartition("said:")[2])
    assert {*tpunb.__all__, *(f"virtual.{name}" for name in virtual.__all__)} <= said.keys()
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    expected = {name: _error(name) for name in NEED_IT}
    assert {name: text for name, text in said.items() if text} == expected


def _error(name: str) -> str:
    """Return the error of a name, or of a call of a name that can be looked up."""
    looked_up = name.removesuffix("()")
    door = f"tpunb.{looked_up}"
    kind = TensorFlowMissingError if looked_up in NEED_IT else ConnectError
    with pytest.raises(tpunb.TpunbError) as raised:
        require_tensorflow(door if door in FOR_JAX else "", kind)
    return f"{type(raised.value).__name__}: {raised.value}"


LOOKUPS = """
import inspect, pydoc, sys

sys.modules.update(tensorflow=None, keras=None, tf_keras=None, pytest=None)
import tpunb
import tpunb.virtual

assert not hasattr(tpunb, "pytest_plugin")
for module, name in ((tpunb, "check"), (tpunb.virtual, "VirtualTPUStrategy")):
    assert not hasattr(module, name)
    assert getattr(module, name, None) is None
    assert inspect.getmembers(module)
    assert pydoc.render_doc(module)
assert "connect" in dict(inspect.getmembers(tpunb))
try:
    from tpunb import check
except tpunb.TpunbError as error:
    assert not isinstance(error, AttributeError)
    print(error.message)
try:
    tpunb.check
except AttributeError as error:
    print(error.message)
try:
    from tpunb import no_such_name
except ImportError as error:
    print("an ordinary ImportError")
"""


def test_what_cells_of_jax_share_needs_no_tensorflow() -> None:
    code = (
        "import sys\nsys.modules['tensorflow'] = None\nimport tpunb.cells.reading.undefined_names"
    )
    run = run_code(code, TPUNB_TPU="")
    assert run.returncode == 0, run.stderr


def test_python_itself_can_look_names_up() -> None:
    run = run_code(LOOKUPS, TPUNB_TPU="")
    assert run.returncode == 0, run.stderr
    sentence = "tpunb.check needs TensorFlow, which is not installed here."
    assert run.stdout.splitlines() == [sentence, sentence, "an ordinary ImportError"]
