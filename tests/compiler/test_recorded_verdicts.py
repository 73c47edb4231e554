"""A folder of recorded verdicts answers only if the compiler is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support.answers import COMPILED
from support.jax_process import said_with_jax

import tpunb
from tpunb.compiler.ask import kept_verdicts, recorded_verdicts, verdict_files
from tpunb.compiler.ask.fingerprint import Fingerprint
from tpunb.compiler.fit.batch_sizes import LargestBatch
from tpunb.compiler.program import CompilerUnavailableError, NotRecordedError, TpuProgram
from tpunb.errors import TpuWarning

PROGRAM = Fingerprint("digest", ("scope/add",))
QUESTION = {"topology": "v5e:2x4", "effort": ""}
MADE = {
    "time": "2026-11-26T23:50:00Z",
    "compiler": {"libtpu": "0.0.52"},
    "software": {"tpunb": "0.1.0", "tensorflow": "1.15"},
}
ANSWER = {**COMPILED, "made": MADE}
MISSING = CompilerUnavailableError("There is no compiler.", fix="Install it.")
SPEC = tf.TensorSpec([64, 64])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recorded"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUNB_COMPILER_PYTHON", "/does/not/exist")


def answered(folder: Path, **question: Any) -> Any:
    complete = {**QUESTION, **question}
    return recorded_verdicts.recorded_answer(folder, PROGRAM, complete, "v5e-8", MISSING)


def test_an_answer_is_recorded_for_its_program_and_options_only(folder: Path) -> None:
    recorded_verdicts.record(folder, PROGRAM, QUESTION, ANSWER)
    assert answered(folder) == {**ANSWER, "recorded": True}
    for question in ({"topology": "v3:2x2"}, {"effort": "EFFORT_O0"}):
        with pytest.raises(NotRecordedError, match=r"for v5e-8 in .*, which has 1 verdict"):
            answered(folder, **question)
    (file,) = folder.iterdir()
    assert file.name.startswith("v5e-2x4-")


def test_a_missing_verdict_names_the_recorded_releases(folder: Path) -> None:
    recorded_verdicts.record(folder, PROGRAM, QUESTION, ANSWER)
    with pytest.raises(NotRecordedError) as raised:
        answered(folder, effort="other")
    releases = f"tensorflow 1.15, and here is {tf.__version__}. There is no compiler."
    assert f"They were recorded with {releases}" in raised.value.message
    assert "--recorded DIR" in raised.value.fix
    assert raised.value.fix.endswith("Install it.")
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(NotRecordedError):
        answered(folder)
    with pytest.raises(NotRecordedError):
        recorded_verdicts.recorded_answer(folder, None, QUESTION, "v5e-8", MISSING)


def test_an_answer_is_rewritten_only_if_it_has_changed(folder: Path) -> None:
    recorded_verdicts.record(folder, PROGRAM, QUESTION, ANSWER)
    (file,) = folder.iterdir()
    os.utime(file, (1, 1))
    later = {**ANSWER, "made": {**MADE, "time": "2030-01-01T00:00:00Z"}}
    recorded_verdicts.record(folder, PROGRAM, QUESTION, later)
    assert file.stat().st_mtime != 1 or answered(folder)["made"]["time"] == MADE["time"]
    assert answered(folder)["made"]["time"] == MADE["time"]
    newer = {**ANSWER, "made": {**MADE, "compiler": {"libtpu": "0.0.60"}}}
    recorded_verdicts.record(folder, PROGRAM, QUESTION, newer)
    assert answered(folder)["made"]["compiler"] == {"libtpu": "0.0.60"}
    recorded_verdicts.record(folder, PROGRAM, QUESTION, {"error": "DEADLINE_EXCEEDED"})
    assert answered(folder)["peak"] == 12, "only verdicts are recorded"


def test_flags_of_the_host_are_ignored() -> None:
    flags = ["", "--xla_force_host_platform_device_count=8 --xla_tpu_x=1 --xla_cpu_y=2"]
    assert recorded_verdicts.flags_for_tpus(flags) == ["", "--xla_tpu_x=1"]


def test_an_unwritable_folder_loses_no_verdict(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.warns(TpuWarning, match="A verdict is not recorded in .*recorded"):
        recorded_verdicts.record(folder, PROGRAM, QUESTION, ANSWER)


def test_processes_that_record_at_once_leave_complete_files(folder: Path) -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from tpunb.compiler.ask import recorded_verdicts as recorded\n"
        "from tpunb.compiler.ask.fingerprint import Fingerprint\n"
        "for number in range(60):\n"
        "    made = {'time': '', 'compiler': {'libtpu': sys.argv[1]}, 'software': {}}\n"
        f"    answer = {{**{COMPILED!r}, 'text': 'x' * 50_000, 'made': made}}\n"
        "    program = Fingerprint(str(number % 5), ())\n"
        f"    recorded.record(Path({str(folder)!r}), program, {QUESTION!r}, answer)\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, each]) for each in "ab"]
    assert [process.wait() for process in running] == [0, 0]
    files = list(folder.iterdir())
    assert len(files) == 5
    assert all(verdict_files.entry_in(path.read_bytes()) for path in files)


def test_without_recordings_the_message_explains_recording(
    folder: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CompilerUnavailableError, match="not an executable file"):
        tpunb.compile(lambda x: x, SPEC, tpu="v5e-8")
    with pytest.raises(NotRecordedError, match=r"recorded has no recorded verdicts\.") as raised:
        tpunb.compile(lambda x: x, SPEC, tpu="v5e-8", recorded=folder)
    assert "TPUNB_RECORDED=DIR" in raised.value.fix
    monkeypatch.setenv("TPUNB_RECORDED", str(folder))
    with pytest.raises(NotRecordedError, match="has no recorded verdicts"):
        tpunb.compile(lambda x: x, SPEC, tpu="v5e-8")


@pytest.fixture
def recordings(libtpu: None, folder: Path) -> Path:
    """Record the verdicts on a program that fits, for two types, and on a refused program."""

    def square(x: Any) -> Any:
        return tf.nn.relu(x @ x)

    tpunb.compile(square, SPEC, tpu=["v5e-8", "v3-8"], recorded=folder)
    tpunb.compile(refused, SPEC, tpu="v5e-8", recorded=folder)
    return folder


def refused(x: Any) -> Any:
    return tf.matmul(tf.cast(x, tf.int64), tf.cast(x, tf.int64))


def test_recorded_verdicts_answer_if_the_compiler_is_missing(
    recordings: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kept_verdicts.FOLDER, "off")

    def with_other_names(values: Any) -> Any:
        # A comment.
        product = values @ values
        return tf.nn.relu(product)

    programs = tpunb.compile(with_other_names, SPEC, tpu=["v3-8", "v5e-8"], recorded=recordings)
    assert programs.ok
    text = str(programs)
    assert "v3-8 (recorded)" in text
    program = programs["v5e-8"]
    assert "recorded" in repr(program)
    assert program.provenance is not None
    assert [each.name for each in program.provenance.compiler] == ["libtpu", "jax", "jaxlib"]
    assert str(program).startswith("TPU v5e-8 (recorded) · 8 replicas")
    assert "v5e-8 (recorded)" in program._repr_html_()
    largest = LargestBatch("v5e-8", 8, 64, program, ())
    assert str(largest).startswith("v5e-8 (recorded): 64 examples")
    assert "product = values @ values" in [line.text for line in program.lines], (
        "the program has its own lines"
    )
    assert program.memory is not None

    no = tpunb.compile(refused, SPEC, tpu="v5e-8", recorded=recordings)
    assert [error.code for error in no.errors] == ["x64-op"]
    assert "(recorded)" in no.headline
    with pytest.raises(NotRecordedError, match="for v6e-8 in "):
        tpunb.compile(with_other_names, SPEC, tpu="v6e-8", recorded=recordings)
    with pytest.raises(NotRecordedError, match="which has 3 verdicts"):
        tpunb.compile(lambda x: x @ x, SPEC, tpu="v5e-8", recorded=recordings)


def test_the_compiler_answers_if_it_is_installed(recordings: Path) -> None:
    program = tpunb.compile(lambda x: tf.nn.relu(x @ x), SPEC, tpu="v5e-8", recorded=recordings)
    assert program.provenance is not None
    assert not program.provenance.recorded
    assert "(recorded)" not in str(program)
    assert program.provenance.compiler[0].name == "libtpu"
    assert {each.name for each in program.provenance.software} >= {"tpunb", "tensorflow"}


def test_a_saved_recorded_program_shows_both(
    recordings: Path, no_compiler: None, tmp_path: Path
) -> None:
    tpunb.compile(refused, SPEC, tpu="v5e-8", recorded=recordings).save(tmp_path / "no.tpuprogram")
    loaded = tpunb.load_program(tmp_path / "no.tpuprogram")
    assert isinstance(loaded, TpuProgram)
    assert loaded.label == "v5e-8 (no.tpuprogram, recorded)"


JAX = """
said = {}
import os, jax, jax.numpy as jnp, tpunb
step = lambda w, x: jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)
auto = jax.sharding.AxisType.Auto
mesh = jax.sharding.AbstractMesh((8,), ("data",), axis_types=(auto,))
def spec(rows, *axes):
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    return jax.ShapeDtypeStruct((rows, 16), jnp.float32, sharding=sharding)
arguments = spec(16), spec(64, "data")
fresh = tpunb.compile(step, *arguments, tpu="v5e-8", recorded=FOLDER)
os.environ["TPUNB_COMPILER_PYTHON"] = "/does/not/exist"
from tpunb.compiler.ask import libtpu
[child.close() for child in libtpu._children.values()]
recorded = tpunb.compile(step, *arguments, tpu="v5e-8", recorded=FOLDER)
said["headlines"] = [fresh.headline, recorded.headline]
said["lines"] = [line.text for line in recorded.lines]
try:
    tpunb.compile(step, *arguments, tpu="v3-8", recorded=FOLDER)
except Exception as error:
    said["other"] = type(error).__name__
"""


def test_jax_uses_recorded_verdicts_if_the_compiler_is_missing(
    libtpu: None, tmp_path: Path
) -> None:
    program = f"FOLDER = {str(tmp_path / 'recorded')!r}\n{JAX}"
    said = said_with_jax(program, tmp_path)
    fresh, recorded = said["headlines"]
    assert recorded == fresh.replace("v5e-8:", "v5e-8 (recorded):")
    assert said["lines"] == ["step = lambda w, x: jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)"]
    assert said["other"] == "NotRecordedError"
