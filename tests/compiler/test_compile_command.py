"""`tpunb compile` on another project, with the TPU's own compiler."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tensorflow as tf
from support.jax_process import said_with_both
from support.tiers import THOROUGH

import tpunb
from tpunb import cli
from tpunb.compiler import fit_report
from tpunb.compiler.program import TpuPrograms

FILE = """
import tensorflow as tf
print("the user's own output")
w = tf.Variable(tf.zeros([128, 64]))

def step(x, training=False):
    loss = tf.reduce_mean(tf.nn.relu(x @ w))
    return loss

def step_args():
    return tf.TensorSpec([64, 128])

def large(x): return x @ x
large_args = [tf.TensorSpec([60000, 60000])]

def refused(x):
    return tf.matmul(x, x)
refused_args = (tf.TensorSpec([8, 8], tf.int64),)

def opened(x): return x * 2.0
opened_args = (tf.TensorSpec([None, 8]),)

def helper(x):
    return tf.reshape(x, [3, 7])

def broken(x):
    return helper(x + 1)

number = 5

def leaving(x):
    import sys
    sys.exit(3)

def slow(x):
    import time
    print("tracing", flush=True)
    time.sleep(600)
"""
STABLEHLO = """\
module @step {
  func.func public @main(%arg0: tensor<64x128xf32>) -> tensor<64x128xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<64x128xf32>
    return %0 : tensor<64x128xf32>
  }
}
"""

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the files of another project."""
    folder = tmp_path / "somebody else's project"
    folder.mkdir()
    (folder / "users_train.py").write_text(FILE)
    (folder / "step.mlir").write_text(STABLEHLO)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    sys.modules.pop("users_train", None)


@pytest.fixture
def run(project: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command, and return its exit code, its validated report and its standard error."""

    def run_command(*arguments: str) -> tuple[int, Any, str]:
        sys.modules.pop("users_train", None)
        code = cli.main(["compile", *arguments, "--json"])
        out, error = capfd.readouterr()
        report = json.loads(out)
        jsonschema.validate(report, fit_report.schema())
        assert report["exit_code"] == code
        return code, report, error

    return run_command


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize(
    ("name", "code", "verdict"),
    [
        ("step", 0, "fits"),
        ("large", 1, "does-not-fit"),
        ("refused", 2, "refused"),
        ("opened", 3, "not-known"),
    ],
)
def test_the_exit_code_is_the_verdict(name: str, code: int, verdict: str, run: Run) -> None:
    source = f"users_train.py::{name}"
    exit_code, report, error = run(source, "--for", "v5e-8")
    assert (exit_code, report["verdict"]) == (code, verdict)
    assert report["source"] == {"kind": "function", "path": "users_train.py", "name": name}
    assert report["versions"]["tensorflow"] == tf.__version__
    assert "the user's own output" in error
    (program,) = report["programs"]
    assert program["verdict"] == verdict
    assert program["compiler"].get("libtpu")
    for problem in program["errors"]:
        assert problem["file"] == str(Path("users_train.py").resolve())
        line = FILE.splitlines()[problem["line"] - 1]
        assert line.startswith((f"def {name}", "    return tf.matmul"))


@pytest.mark.usefixtures("libtpu")
def test_several_types_a_limit_and_a_file(run: Run, project: Path) -> None:
    options = ["--for", "v5e-8, v3-8", "--for", "v6e-8", "-o", "step.tpuprogram"]
    code, report, _ = run("users_train.py::step", *options, "--limit", "1 KiB")
    assert code == 1
    assert [each["tpu"] for each in report["programs"]] == ["v5e-8", "v3-8", "v6e-8"]
    assert {each["memory"]["limit"] for each in report["programs"]} == {1024}
    loaded = tpunb.load_program(project / "step.tpuprogram")
    assert isinstance(loaded, TpuPrograms)
    assert loaded.ok


@pytest.mark.usefixtures("libtpu")
def test_no_file_stays_in_the_folder_for_temporary_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert run("users_train.py::step", "--for", "v5e-1")[0] == 0
    assert [*temporary.glob("*.py")] == []


@pytest.mark.usefixtures("libtpu")
def test_arguments_of_the_command(run: Run) -> None:
    code, report, _ = run(
        "users_train.py::step", "--for", "v5e-1", "--args", "tf.zeros([8, 128]), training=True"
    )
    assert code == 0
    assert report["programs"][0]["examples"] == 8


@pytest.mark.usefixtures("libtpu")
def test_an_error_in_the_users_file_has_its_line_and_no_frame_of_ours(run: Run) -> None:
    arguments = ["users_train.py::broken", "--for", "v5e-8", "--args", "tf.zeros([8, 8])"]
    code, report, error = run(*arguments)
    assert code == 65
    assert report["error"]["message"].startswith("ValueError: Cannot reshape a tensor with 64")
    line = FILE.splitlines().index("    return tf.reshape(x, [3, 7])") + 1
    assert report["error"]["line"] == line
    places = [text.strip() for text in error.splitlines() if text.startswith("  File")]
    assert [place.rpartition(" ")[2] for place in places] == ["broken", "helper"]
    assert "site-packages" not in error


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["users_train.py::stp", "--for", "v5e-8"], "users_train.py has no stp."),
        (["users_train.py", "--for", "v5e-8"], "has no function's name."),
        (["other.py::step", "--for", "v5e-8"], "other.py does not exist."),
        (["users_train.py::broken", "--for", "v5e-8"], "broken takes x, and users_train.py does"),
        (["users_train.py::step"], "No TPU type is named."),
        (["users_train.py::step", "--for", "v5e-9"], "There is no TPU type v5e-9"),
        (["users_train.py::step", "--for", "v5e-8", "--limit", "x"], "'x' is not a limit"),
        (["users_train.py::step", "--for", "v5e-8", "--batch", "8"], "are for a .keras file"),
        (["step.mlir", "--for", "v5e-8", "--args", "1"], "--args is for a Python function"),
        (["step.mlir", "--for", "v5e-8", "--batch", "8"], "are for a .keras file"),
        (["model.keras", "--for", "v5e-8", "--batch", "8"], "model.keras does not exist."),
        ([".", "--for", "v5e-8"], ". is a folder."),
        (["users_train.py::number", "--for", "v5e-8"], "number is an int, not a function."),
        (["users_train.py::broken", "--for", "v5e-8", "--args", "1, 2"], "broken(x) does not take"),
        (["step.mlir", "--for", "v5e-8", "-o", "no/x"], "Cannot write no/x: No such file"),
    ],
)
def test_wrong_usage_gives_no_verdict(arguments: list[str], message: str, run: Run) -> None:
    code, report, error = run(*arguments)
    assert code == 64
    assert report["verdict"] == "failed"
    assert message in report["error"]["message"]
    assert f"tpunb: {report['error']['message']}" in error


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize(
    ("first_line", "name", "message"),
    [
        ("", "leaving", "SystemExit: 3"),
        ("raise BaseException('no')", "step", "BaseException: no"),
        ("import sys; sys.exit(0)", "step", "SystemExit: 0"),
        ("import pytest; pytest.skip('no', allow_module_level=True)", "step", "Skipped: no"),
    ],
)
def test_a_file_that_leaves_gives_no_verdict(
    first_line: str, name: str, message: str, run: Run, project: Path
) -> None:
    (project / "users_train.py").write_text(f"{first_line}\n{FILE}")
    code, report, _ = run(f"users_train.py::{name}", "--for", "v5e-8", "--args", "tf.zeros([8, 8])")
    assert code == 65
    assert report["verdict"] == "failed"
    assert report["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    "arguments", [["x", "--bogus"], ["x", "--timeout", "-1"], ["x", "--batch", "a"], []]
)
def test_usage_errors_do_not_look_like_verdicts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["compile", *arguments])
    assert raised.value.code == 64
    assert capsys.readouterr().err.startswith("usage: tpunb compile ")


def test_without_a_compiler_the_file_is_not_imported(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUNB_COMPILER_PYTHON", "/does/not/exist")
    code, report, error = run("users_train.py::step", "--for", "v5e-8")
    assert code == 69
    assert "the user's own output" not in error
    assert report["error"]["fix"]


def test_an_error_in_tpunb_gives_no_verdict(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # The traceback has no frame of a file that could be the user's.
    monkeypatch.setattr("tpunb.compiler.fit.memory_limits.limit_in_bytes", operator.truediv)
    code, report, error = run("users_train.py::step", "--for", "v5e-8")
    assert code == 70
    assert report["error"]["message"].startswith("TypeError: unsupported operand")
    assert "Traceback (most recent call last)" in error


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == fit_report.schema()


@pytest.mark.usefixtures("libtpu")
def test_stablehlo(run: Run, project: Path) -> None:
    code, report, _ = run("step.mlir", "--for", "v5e-8")
    assert (code, report["source"]["kind"]) == (0, "stablehlo")
    assert report["programs"][0]["cores"] == 1
    for name, text, message in (
        ("cut.mlir", STABLEHLO[:-40], "The StableHLO cannot be read"),
        ("other.mlir", STABLEHLO.replace("@main", "@forward"), "it has no function @main, but for"),
        ("open.mlir", STABLEHLO.replace("64x", "?x"), "The program has open sizes: tensor<?x128"),
        ("text.txt", "hello", "is neither a file of jax.export nor StableHLO"),
    ):
        (project / name).write_text(text)
        code, report, _ = run(name, "--for", "v5e-8")
        assert code == 64
        assert message in report["error"]["message"]


@pytest.mark.usefixtures("libtpu")
def test_recorded_verdicts_answer_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["step.mlir", "--for", "v5e-8", "--recorded", "recorded"]
    assert run(*options)[1]["programs"][0]["recorded"] is False
    monkeypatch.setenv("TPUNB_RECORDED", "recorded")
    assert run("users_train.py::step", "--for", "v5e-8")[0] == 0
    monkeypatch.setenv("TPUNB_COMPILER_PYTHON", "/does/not/exist")
    code, report, _ = run("users_train.py::step", "--for", "v5e-8")
    assert code == 0
    assert report["programs"][0]["recorded"] is True
    assert run("users_train.py::step", "--for", "v6e-8")[0] == 69


EXPORTS = """
said = {}
import jax, jax.export, jax.numpy as jnp, pathlib
folder = pathlib.Path(FOLDER)
auto = jax.sharding.AxisType.Auto
mesh = jax.sharding.AbstractMesh((8,), ("data",), axis_types=(auto,))
def spec(*shape, axes=()):
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
def step(w, x):
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)
for platforms in (["tpu"], ["cpu"], ["cpu", "tpu"]):
    exported = jax.export.export(jax.jit(step), platforms=platforms)(
        spec(64, 64), spec(512, 64, axes=["data"])
    )
    (folder / ("_".join(platforms) + ".bin")).write_bytes(exported.serialize())
(folder / "portable.mlirbc").write_bytes(exported.mlir_module_serialized)
"""


@pytest.mark.usefixtures("libtpu")
def test_a_file_of_jax_export_needs_no_jax(run: Run, project: Path) -> None:
    said_with_both(f"FOLDER = {str(project)!r}\n{EXPORTS}", project)
    code, report, _ = run("tpu.bin", "--for", "v5e-8")
    assert code == 0
    assert report["source"] == {"kind": "jax-export", "path": "tpu.bin", "name": "step"}
    assert report["programs"][0]["cores"] == 8
    code, report, _ = run("tpu.bin", "--for", "v5e-4")
    assert code == 64
    assert "for 8 devices, but a v5e-4 has 4 cores" in report["error"]["message"]
    for name in ("cpu.bin", "cpu_tpu.bin"):
        code, report, _ = run(name, "--for", "v5e-8")
        assert code == 64
        assert 'platforms=["tpu"]' in report["error"]["fix"]
    exported = (project / "tpu.bin").read_bytes()
    for length in range(0, len(exported), 97):
        (project / "cut.bin").write_bytes(exported[:length])
        assert run("cut.bin", "--for", "v5e-8")[0] == 64


@pytest.mark.usefixtures("libtpu")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_saved_keras_model(run: Run, project: Path) -> None:
    import keras

    inputs = keras.Input([None, None, 3])
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(inputs))
    model = keras.Model(inputs, outputs)
    model.save("plain.keras")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.save("compiled.keras")
    sized = ["--for", "v5e-8", "--batch", "64", "--input", "16,16,3"]
    for arguments, code in (
        (["compiled.keras", *sized], 0),
        (["compiled.keras", *sized, "--step", "evaluate"], 0),
        (["plain.keras", *sized], 0),
        (["plain.keras", *sized, "--step", "fit"], 64),
        (["plain.keras", *sized[:-2]], 64),
        (["plain.keras", "--for", "v5e-8"], 64),
    ):
        exit_code, report, error = run(*arguments)
        assert exit_code == code, error
        assert report["source"]["kind"] == "keras"
        assert not code or report["error"]["fix"]
        assert code or report["programs"][0]["examples"] == 64
    (project / "plain.keras").write_bytes(b"PK damaged")
    code, report, _ = run("plain.keras", *sized)
    assert code == 64
    assert "cannot load plain.keras" in report["error"]["message"]


@THOROUGH
@pytest.mark.usefixtures("libtpu")
def test_an_interrupt_gives_no_verdict(project: Path) -> None:
    command = [sys.executable, "-m", "tpunb", "compile", "users_train.py::slow", "--for", "v5e-8"]
    process = subprocess.Popen(
        [*command, "--args", "tf.zeros([8, 8])", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stderr is not None
    while "tracing" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, error = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert "Interrupted" in error
    assert "Traceback" not in error


ENDINGS = {
    "a thread that does not end": ("import threading, time\n", 0),
    "os._exit": ("import os; os._exit(0)\n", 65),
    "os.abort": ("import os; os.abort()\n", 65),
    "output at the end": ("import atexit; atexit.register(print, 'bye')\n", 0),
    "a fork": ("import os; os.fork()\n", 0),
}
THREAD = "threading.Thread(target=time.sleep, args=(3600,)).start()\n"


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("ending", ENDINGS)
def test_only_a_verdict_gives_the_exit_code_of_a_verdict(ending: str, project: Path) -> None:
    first_lines, code = ENDINGS[ending]
    if "thread" in ending:
        first_lines += THREAD
    small = "import numpy\ndef step(x):\n    return x\nstep_args = (numpy.zeros([8, 8]),)\n"
    (project / "users_train.py").write_text(f"{first_lines}import tensorflow as tf\n{small}")
    command = [sys.executable, "-m", "tpunb", "compile", "users_train.py::step", "--for", "v5e-1"]
    done = subprocess.run(
        [*command, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == code, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, fit_report.schema())
    assert report["exit_code"] == code


COMMAND = "import sys; sys.path.remove(''); from tpunb import cli; sys.exit(cli.main())"


@pytest.mark.usefixtures("libtpu")
def test_files_named_like_modules_of_python_and_frameworks_hide_none(project: Path) -> None:
    for name in ("calendar", "jax", "numpy", "queue", "runpy", "traceback"):
        (project / f"{name}.py").write_text("raise SystemExit('this is not for tpunb')\n")
    (project / "helper.py").write_text("def twice(x):\n    return x + x\n")
    (project / "types.py").write_text(
        "import calendar, queue\nimport tensorflow as tf\nfrom helper import twice\n"
        "def step(x):\n    return twice(x)\nstep_args = (tf.TensorSpec([8, 8]),)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "compile", "types.py::step", "--for", "v5e-1"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("libtpu")
def test_only_a_file_with_a_name_in_unicode_is_imported(run: Run, project: Path) -> None:
    os.mkfifo(project / "pipe.py")
    other = os.fsdecode(b"other\xff.py")
    (project / other).write_text(FILE)
    for source, message in (
        ("pipe.py::step", "pipe.py is not a file but a pipe or a device."),
        ("pipe.py.mlir", "pipe.py.mlir does not exist."),
        ("-", "A program cannot be read from standard input."),
        (f"{other}::step", "other\udcff.py is not UTF-8."),
        (f"no{other}::step", "noother\udcff.py does not exist."),
    ):
        code, report, _ = run(source, "--for", "v5e-1")
        assert code == 64
        assert report["error"]["message"].endswith(message)


@pytest.mark.parametrize(("option", "code"), [("--bogus", 64), ("--help", 0)])
def test_wrong_options_are_no_error_of_the_file(
    option: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tpunb", "compile", "train.py::step", option])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == code
