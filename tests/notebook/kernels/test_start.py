"""A kernel with a virtual TPU: how it starts, and how it fails without a TPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipykernel
import nbformat
import pytest
from counterparts.children import WITHOUT_KERAS, output_of, python_path
from nbclient import NotebookClient
from support.patience import PATIENCE

from tpunb.errors import ConnectError, KernelError, VirtualDevicesError
from tpunb.notebook.kernels import extension
from tpunb.notebook.kernels.specs import install_kernel

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own Jupyter folders, and let kernels find the package."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    monkeypatch.delenv("TPUNB_TPU", raising=False)


def executed(name: str, *sources: str, **options: Any) -> list[Any]:
    """Run cells in a kernel, and return the outputs of each."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        notebook,
        kernel_name=name,
        allow_errors=True,
        timeout=PATIENCE,
        startup_timeout=PATIENCE,
        extra_arguments=["--log-level=40"],
        **options,
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def result(outputs: Any) -> str:
    (output,) = outputs
    assert output.output_type == "execute_result", output
    text: str = output.data["text/plain"]
    return text


# Before TensorFlow is imported


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Record calls that would prepare the import of TensorFlow, instead of preparing it."""
    from tpunb import virtual

    calls: list[tuple[Any, ...]] = []

    def record(tpu: str, **options: Any) -> None:
        calls.append((tpu, options))

    monkeypatch.setattr(virtual, "install_when_imported", record, raising=False)
    before = list(sys.meta_path)
    yield calls
    sys.meta_path[:] = before


def started(
    framework: str | None = None, judge: str = "wait", **environment: str
) -> dict[str, str]:
    """Return the environment in which Jupyter starts a kernel of v5e-8."""
    chosen = {"tpu": "v5e-8", "framework": framework, "judge": judge}
    return {"TPUNB_KERNEL": json.dumps(chosen), **environment}


@pytest.mark.parametrize(
    ("variable", "expected"), [(None, "v5e-8"), ("", "v5e-8"), (" v3-8 ", "v3-8"), ("12", "12")]
)
def test_the_type(variable: str | None, expected: str, hooked: list[tuple[Any, ...]]) -> None:
    environment = started() if variable is None else started(TPUNB_TPU=variable)
    extension.prepare(environment)
    options = {
        "environment": True,
        "required": True,
        "framework": None,
        "judge": "wait",
        "dry": False,
    }
    assert hooked == [(expected, options)]
    assert environment["TPUNB_TPU"] == expected
    assert "TPUNB_KERNEL" not in environment, "processes that a cell starts have no use for it"
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "3"


@pytest.mark.parametrize(
    ("chosen", "variable", "expected"),
    [
        (("jax", "off"), "", ("jax", "off")),
        (("jax",), "tensorflow", ("tensorflow", "wait")),
        ((None, "later"), "jax", ("jax", "later")),
    ],
)
def test_the_framework(
    chosen: tuple[Any, ...],
    variable: str,
    expected: tuple[str, str],
    hooked: list[tuple[Any, ...]],
) -> None:
    extension.prepare(started(*chosen, TPUNB_FRAMEWORK=variable))
    ((_, options),) = hooked
    assert (options["framework"], options["judge"]) == expected


def test_the_users_log_level_is_kept(hooked: list[tuple[Any, ...]]) -> None:
    environment = started(TF_CPP_MIN_LOG_LEVEL="0")
    extension.prepare(environment)
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert hooked


@pytest.mark.parametrize("variable", ["v3-9", "local", "grpc://10.0.0.2:8470"])
def test_a_variable_with_an_invalid_type_blocks_both_frameworks(
    variable: str, hooked: list[tuple[Any, ...]]
) -> None:
    extension.prepare(started(TPUNB_TPU=variable))
    gate = sys.meta_path[0]
    assert isinstance(gate, extension.Gate)
    for framework in ("tensorflow", "jax") * 2:  # a second import must fail, too
        with pytest.raises(KernelError, match=f"TPUNB_TPU is '{variable}'"):
            gate.find_spec(framework, None)
    assert gate.find_spec("json", None) is None
    assert not hooked


def test_missing_keras_2_blocks_tensorflow(
    hooked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: None)
    extension.prepare(started(TF_USE_LEGACY_KERAS="1"))
    with pytest.raises(ConnectError, match="tf_keras, which is not installed"):
        sys.meta_path[0].find_spec("tensorflow", None)
    assert hooked


IMPORTING = """
import sys, types
from tpunb.errors import VirtualDevicesError
from tpunb.notebook.kernels.extension import Gate
sys.path.insert(0, {folder!r})
class Between:
    def find_spec(self, name, path, target=None):
        if name != "tensorflow":
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, None)):
                return spec
sys.meta_path.insert(0, Between())
gate = Gate()
sys.meta_path.insert(0, gate)
for attempt in range(2):
    try:
        import tensorflow
        print("imported", tensorflow.name)
    except VirtualDevicesError as error:
        print("refused", error)
"""


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("name = 'fake'", ["imported fake"] * 2),
        (
            "from tpunb.errors import VirtualDevicesError\nraise VirtualDevicesError('too few')",
            ["refused too few"] * 2,
        ),
    ],
)
def test_importing_through_the_gate(module: str, expected: list[str], tmp_path: Path) -> None:
    noise = "import os\nos.write(2, b'2026-01-01 00:00:00.1: I x.cc:1] no cuda drivers\\n')\n"
    (tmp_path / "tensorflow.py").write_text(noise + module)
    code = IMPORTING.format(folder=str(tmp_path))
    assert output_of(code).splitlines() == expected


class Shell:
    """The part of an IPython shell that the kernel uses after a cell."""

    def __init__(self) -> None:
        self.events = self
        self.after: Callable[[Any], None] = lambda result: None
        self.shown: list[Any] = []

    def register(self, event: str, function: Callable[[Any], None]) -> None:
        assert event == "post_run_cell"
        self.after = function

    def showtraceback(self, exc_tuple: Any) -> None:
        self.shown.append(exc_tuple[1])


class Result:
    success = True
    error_in_exec: BaseException | None = None


def test_an_error_that_a_cell_swallows_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    failure: list[BaseException | None] = [None]
    state = SimpleNamespace(failure=lambda: failure[0])
    monkeypatch.setitem(sys.modules, "tpunb.virtual.installation", state)
    shell: Any = Shell()
    extension.watch(shell)
    first, second, third = Result(), Result(), Result()
    shell.after(first)
    assert first.error_in_exec is None
    failure[0] = VirtualDevicesError("too few")
    shell.after(second)
    assert second.error_in_exec is failure[0]
    assert shell.shown == [failure[0]]
    shell.after(third)  # each error is shown once
    assert third.error_in_exec is None


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = """
import os, sys
from tpunb.notebook.kernels.extension import prepare
os.environ["TPUNB_KERNEL"] = '{"tpu": "v5e-8", "framework": null, "judge": "wait"}'
prepare(os.environ)
heavy = {"IPython", "PIL", "jupyter_client", "matplotlib", "numpy", "tensorflow"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    assert output_of(code) == ""


# Running kernels


DETECTION = f"""
{WITHOUT_KERAS}import tensorflow as tf
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()
strategy.num_replicas_in_sync
"""


@pytest.mark.tensorflow
def test_a_notebook_finds_its_tpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A module beside the notebook has the name of a standard module. Every kernel of an ipykernel
    # before 7 imports it and dies: its launcher leaves out the folder only where Python calls it "".
    if ipykernel.version_info >= (7,):
        (tmp_path / "random.py").write_text("raise ImportError('not this one')")
    monkeypatch.setenv("TPUNB_TPU", "4")
    name = install_kernel("v5e-8").name
    outputs = executed(
        name,
        "import os, sys; (os.environ['TPUNB_TPU'], 'tensorflow' in sys.modules)",
        DETECTION,
        "raise RuntimeError('TPU is already in use by process with pid 1234')",
        "%load_ext tpunb\n_ = %tpu_connect\n(_.strategy.num_replicas_in_sync, _.kind)",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    assert result(outputs[0]) == "('4', False)"
    # TensorFlow logs nothing about GPUs.
    assert not [output for output in outputs[1] if output.get("name") == "stderr"]
    assert result(outputs[1][-1:]) == "4"
    (error,) = outputs[2]
    assert "Only one process can hold a TPU" in "".join(error.traceback)
    assert result(outputs[3][-1:]) == "(4, 'virtual')"


def test_without_a_tpu_tensorflow_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUNB_TPU", "v3-9")
    name = install_kernel("v5e-8").name
    outputs = executed(name, "import tensorflow", "import tensorflow", "1 + 1")
    for failed in outputs[:2]:
        assert failed[0].ename == "KernelError"
        assert "TPUNB_TPU is 'v3-9'" in failed[0].evalue
    assert result(outputs[2]) == "2"
