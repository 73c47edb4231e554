"""The pytest option `--tpu`, in separate runs of pytest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import WITHOUT_KERAS, python_path
from nbformat.v4 import new_code_cell, new_notebook, new_output
from support.patience import PATIENCE
from support.tiers import THOROUGH

from tpunb.compiler.ask.libtpu import why_unavailable
from tpunb.pytest_plugin import comparable

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
INSTALLED = any(
    point.value == "tpunb.pytest_plugin"
    for point in importlib.metadata.entry_points(group="pytest11")
)

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest in its own folder, with warnings as errors."""
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    monkeypatch.setenv("IPYTHONDIR", str(pytester.path / "ipython"))
    monkeypatch.delenv("TPUNB_TPU", raising=False)

    def run_pytest(*arguments: str) -> pytest.RunResult:
        plugin = [] if INSTALLED else ["-p", "tpunb.pytest_plugin"]
        return pytester.runpytest_subprocess("-W", "error", *plugin, *arguments, timeout=PATIENCE)

    return run_pytest


def stream(text: str, name: str = "stdout") -> Any:
    return new_output("stream", name=name, text=text)


def shown(text: str) -> Any:
    return new_output("execute_result", data={"text/plain": text}, execution_count=1)


def save(path: Path, *cells: tuple[str, Sequence[Any]]) -> Path:
    """Write a notebook of cells with saved outputs."""
    code_cells = [
        new_code_cell(source, outputs=list(outputs), execution_count=number)
        for number, (source, outputs) in enumerate(cells, 1)
    ]
    nbformat.write(new_notebook(cells=code_cells), path)
    return path


@pytest.mark.tensorflow
@THOROUGH
def test_a_notebook_as_found(run: Run) -> None:
    """A published notebook, written for a TPU, runs unmodified."""
    result = run("--nbval", "--tpu", "v3-8", str(ROOT / "notebooks" / "found"))
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] > 5


CONNECTING = """
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print('Running on TPU ', tpu.cluster_spec().as_dict()['worker'])
except ValueError:
    raise BaseException('Not connected to a TPU runtime')
tf.config.experimental_connect_to_cluster(tpu)
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.TPUStrategy(tpu)
print('REPLICAS: ', strategy.num_replicas_in_sync)
"""

STEP = """
@tf.function
def step():
    return strategy.run(lambda: tf.constant(3.0))
strategy.reduce('sum', step(), axis=None)
"""

# A notebook as saved on a TPU v3-8, with TensorFlow's log of that day.
GUIDE: tuple[tuple[str, Sequence[Any]], ...] = (
    (
        WITHOUT_KERAS + "import tensorflow as tf\nprint('imported')",
        [
            stream(
                "2021-05-06 12:00:00.123456: I tensorflow/stream_executor/dso_loader.cc:53] "
                "Successfully opened dynamic library libcudart.so.11.0\n",
                "stderr",
            ),
            stream("imported\n"),
        ],
    ),
    (
        CONNECTING,
        [
            stream("Running on TPU  ['10.88.103.74:8470']\n"),
            stream(
                "INFO:tensorflow:Initializing the TPU system: grpc://10.88.103.74:8470\n"
                "INFO:tensorflow:Finished initializing TPU system.\n"
                "INFO:tensorflow:*** Available Device: _DeviceAttributes(/job:worker/replica:0/"
                "task:0/device:TPU:0, TPU, 17179869184, -5235209320325)\n",
                "stderr",
            ),
            stream("REPLICAS:  8\n"),
        ],
    ),
    (
        "tf.config.list_logical_devices('TPU')[-1]",
        [
            shown(
                "LogicalDevice(name='/job:worker/replica:0/task:0/device:TPU:7', device_type='TPU')"
            )
        ],
    ),
    (STEP, [shown("<tf.Tensor: shape=(), dtype=float32, numpy=24.0>")]),
)


@pytest.mark.tensorflow
def test_a_notebook_saved_on_a_tpu(run: Run, pytester: pytest.Pytester) -> None:
    save(pytester.path / "guide.ipynb", *GUIDE)
    result = run("--nbval", "--tpu", "v3-8")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["tpunb: notebooks run on a virtual TPU, v3-8"])
    assert not list(pytester.path.glob("tpunb-*")), "the kernel's folder was left behind"


VARIABLE = "import os\nprint(os.environ['TPUNB_TPU'])"


def test_the_kernel_is_ours_even_if_the_notebook_names_another(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUNB_TPU", "v2-8")
    path = save(
        pytester.path / "one.ipynb",
        (VARIABLE, [stream("v3-8\n")]),
        ("print('other')", [stream("sanitized\n")]),
        ("print(1)", [stream("2\n")]),
    )
    read = nbformat.read(path, as_version=4)
    read.metadata.kernelspec = {"name": "no-such-kernel", "display_name": "None"}
    nbformat.write(read, path)
    (pytester.path / "rules").write_text("regex: other\nreplace: sanitized\n")
    result = run("--nbval", "--nbval-current-env", "--nbval-sanitize-with=rules", "--tpu=v3-8")
    result.assert_outcomes(passed=2, failed=1)


@THOROUGH
def test_keras_2(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("tf_keras")
    variable = "import os\nprint(os.environ['TF_USE_LEGACY_KERAS'])"
    save(pytester.path / "one.ipynb", (variable, [stream("1\n")]))
    result = run("--nbval", "--tpu=v3-8", "--tpu-keras=2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["tpunb: notebooks run on a virtual TPU, v3-8, and tf.keras is Keras 2"]
    )


@THOROUGH
def test_lax(run: Run, pytester: pytest.Pytester) -> None:
    save(
        pytester.path / "one.ipynb",
        (VARIABLE, [stream("something else\n")]),
        (f"# NBVAL_CHECK_OUTPUT\n{VARIABLE}", [stream("12\n")]),
        (f"# NBVAL_CHECK_OUTPUT\n{VARIABLE}", [stream("13\n")]),
    )
    run("--nbval-lax", "--tpu", "12").assert_outcomes(passed=2, failed=1)


@pytest.mark.skipif(
    importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed"
)
@THOROUGH
def test_xdist(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_plain.py").write_text("def test_a(): pass\n")
    for name in ("a", "b"):
        save(
            pytester.path / f"{name}.ipynb",
            ("x = 1", []),
            # A notebook's cells depend on each other, so they stay on one worker.
            *(("x += 1\nprint(x)", [stream(f"{x}\n")]) for x in range(2, 6)),
            (VARIABLE, [stream("v3-8\n")]),
        )
    run("--nbval", "--tpu", "v3-8", "-n", "2").assert_outcomes(passed=13)


TWO_DEVICES = """
import tensorflow as tf
cpu = tf.config.list_physical_devices('CPU')[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
"""
DETECTION = """
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except Exception:
    strategy = tf.distribute.get_strategy()
"""


@pytest.mark.tensorflow
@THOROUGH
def test_a_notebook_fails_without_a_virtual_tpu(run: Run, pytester: pytest.Pytester) -> None:
    save(
        pytester.path / "one.ipynb",
        (WITHOUT_KERAS + TWO_DEVICES, []),
        (DETECTION, []),
    )
    result = run("--nbval", "--tpu", "v3-8", "--color=no")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*VirtualDevicesError: *"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nbval", "--tpu", "v3-9"], "*--tpu: There is no TPU type v3-9*"),
        (["--tpu-keras", "2"], "*--tpu-keras is for virtual TPUs: add --tpu TYPE*"),
        (["--tpu-judge", "off"], "*--tpu-judge is for virtual TPUs: add --tpu TYPE*"),
        (["--tpu", "v3-8"], "*--tpu is for notebooks: add --nbval or --nbval-lax*"),
        (
            ["--nbval", "--tpu", "v3-8", "--nbval-kernel-name", "python3"],
            "*remove --nbval-kernel-name=python3*",
        ),
        (["-p", "no:nbval", "--tpu", "v3-8"], "*pip install nbval*"),
    ],
)
def test_usage(arguments: list[str], message: str, run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_never.py").write_text("raise Exception('collected')\n")
    result = run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*collected*")


def test_the_plugin_imports_nothing_unless_it_is_used(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_plain.py").write_text(
        "import sys\n"
        "def test_modules():\n"
        "    assert 'tpunb.pytest_plugin' in sys.modules\n"
        "    ours = {name for name in sys.modules if name.startswith('tpunb')}\n"
        "    assert ours == {'tpunb', 'tpunb.version', 'tpunb.pytest_plugin'}\n"
        "    heavy = {'tensorflow', 'numpy', 'IPython', 'jupyter_client', 'nbformat'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    # Other plugins import heavy modules too.
    other_plugins = ["nbval", "hypothesispytest", "xdist", "anyio", "typeguard", "jaxtyping"]
    without = [argument for name in other_plugins for argument in ("-p", f"no:{name}")]
    run(*without).assert_outcomes(passed=1)


def test_help(run: Run) -> None:
    run("--help").stdout.fnmatch_lines(["virtual TPUs (tpunb):", "*--tpu=TYPE*"])


# Outputs


DEPRECATION = (
    "WARNING:tensorflow:From <ipython-input-3>:4: f (from g) is deprecated and will be removed.\n"
    "Instructions for updating:\n"
    "Use h.\n"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nINFO:tensorflow:Finished.\nb\n", "a\nb\n"),
        (f"a\n{DEPRECATION}b", "a\nb"),
        ("WARNING:absl:x\na", "a"),
        ("I0000 00:00:1795238818.141775   16975 port.cc:153] oneDNN\na", "a"),
        ("I0506 12:34:56.789012 139 resolver.py:12] Found\na", "a"),
        ("E0000 00:00:1795238818.141775 9 cuda.cc:1] no factory\na", "a"),
        ("2021-05-06 12:00:00.123456: W tensorflow/core/x.cc:1] y\na", "a"),
        ("on grpc://10.0.0.2:8470 now", "on grpc://ADDRESS:8470 now"),
        # A program's own output is compared.
        ("Epoch 1/5\nINFO: mine\n", "Epoch 1/5\nINFO: mine\n"),
        ("x INFO:tensorflow:y", "x INFO:tensorflow:y"),
        ("10.0.0.2:8471 2021-05-06", "10.0.0.2:8471 2021-05-06"),
        ("\n", "\n"),
    ],
)
def test_logs_and_addresses_are_not_compared(before: str, after: str) -> None:
    output = stream(before)
    assert [compared.text for compared in comparable([output])] == [after]
    assert output.text == before


def test_a_stream_with_only_logs_is_dropped() -> None:
    assert comparable([stream("INFO:tensorflow:a\nINFO:tensorflow:b", "stderr")]) == []


def test_a_result_with_an_address() -> None:
    (compared,) = comparable([shown("'grpc://10.1.2.3:8470'")])
    assert compared.data["text/plain"] == "'grpc://ADDRESS:8470'"
    error = new_output("error", ename="ValueError", evalue="10.1.2.3:8470", traceback=[])
    assert comparable([error]) == [error]


WHAT_IS_SET = """
import os, sys
before = dict(os.environ)

def test_what_is_set():
    assert "tensorflow" not in sys.modules
    print("set:", [before.get(name) for name in ("TPU_LOAD_LIBRARY", "TPU_SKIP_MDS_QUERY")])
"""


@pytest.mark.parametrize(
    ("versions", "load_library", "expected"),
    [
        ({"tensorflow-tpu": "2.20.0", "libtpu": "0.0.31"}, None, "['0', '1']"),
        ({"tensorflow-tpu": "2.20.0", "libtpu": "0.0.52"}, "1", "libtpu 0.0.52: it ends the proc"),
        ({"libtpu": "0.0.52"}, None, "[None, None]"),
    ],
    ids=["no TPU", "a libtpu that does not fit", "no TensorFlow for TPUs"],
)
def test_a_tensorflow_for_tpus(
    versions: dict[str, str],
    load_library: str | None,
    expected: str,
    pytester: pytest.Pytester,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Importing TensorFlow in a test does not wait for a TPU or end the process silently."""
    for name in ("TPU_LOAD_LIBRARY", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
    if load_library is not None:
        monkeypatch.setenv("TPU_LOAD_LIBRARY", load_library)
    site = pytester.mkdir("site")
    for name, version in versions.items():
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", python_path(site, ROOT))
    pytester.makepyfile(WHAT_IS_SET)
    result = run("-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*{expected.replace('[', '[[]')}*"])


FITS = """
import pytest
from tpunb.compiler.program import DoesNotFitError

def test_it_fits(tpu_compiler):
    import tensorflow as tf
    program = tpu_compiler(lambda x: x + 1.0, tf.TensorSpec([8, 128]), tpu="v5e-8")
    program.raise_if_unfit(limit="1 GiB")
    with pytest.raises(DoesNotFitError):
        program.raise_if_unfit(limit=1000)

def test_without_the_fixture():
    import sys
    assert "tpunb.compiler.ask.libtpu" in sys.modules
"""


def test_the_compiler_fixture(run: Run, pytester: pytest.Pytester) -> None:
    if why_unavailable() is not None:
        pytest.skip("the TPU's compiler is not here")
    pytester.makepyfile(FITS)
    run("-rs").assert_outcomes(passed=2)


@THOROUGH
def test_without_the_compiler_the_fixture_skips_with_the_reason(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUNB_COMPILER_PYTHON", "/does/not/exist")
    pytester.makepyfile(FITS)
    outcome = run("-rs")
    outcome.assert_outcomes(passed=1, skipped=1)
    outcome.stdout.fnmatch_lines(
        ["SKIPPED*TPUNB_COMPILER_PYTHON names /does/not/exist, which is not an executable file.*"]
    )
    assert "tpu_compiler" in run("--fixtures", "-q").stdout.str()
