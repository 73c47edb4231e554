"""Importing TensorFlow hides only its log, and shows it if the user asks."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from counterparts.children import WITHOUT_UNUSED, python_path
from support.patience import PATIENCE

from tpunb.errors import ConnectError
from tpunb.machine import import_tensorflow
from tpunb.machine.import_tensorflow import quiet_start, restore_log, silence_log
from tpunb.machine.tested_releases import release, tensorflow_version

ROOT = Path(__file__).parents[2]

NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
E0000 00:00:1700000000.123456    1234 cuda_dnn.cc:8310] Unable to register cuDNN factory
W0000 00:00:1700000000.123456    1234 computation_placer.cc:177] computation placer already registered
I0000 00:00:1700000000.123456    1234 cpu_feature_guard.cc:227] This TensorFlow binary is optimized
2024-11-05 10:11:12.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
2024-11-05 10:11:12.123456: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers
2024-11-05 10:11:12.123456: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT: Could not find TensorRT
To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow
"""
KEPT = """\
2024-11-05 10:11:12.123456: F tensorflow/core/platform/file.cc:1] disk full
F0000 00:00:1700000000.123456    1234 other.cc:1] the end
W0301 10:11:12.123456 140 a line from another program
a line about cuda from another program
Ünïcode and \x0b and no newline at the end"""


@pytest.mark.parametrize(
    ("written", "kept"),
    [((NOISE + KEPT).encode(), KEPT), (b"\xff\xfe\n", "\ufffd\ufffd\n")],
    ids=["noise", "not text"],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_noise_is_dropped(
    capfd: pytest.CaptureFixture[str], written: bytes, kept: str, depth: int
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(depth):
            stack.enter_context(quiet_start())
        os.write(2, written)
    assert capfd.readouterr().err == kept


def test_the_order_is_kept(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = open(2, "w", closefd=False)  # noqa: SIM115  capfd's stream writes elsewhere
    monkeypatch.setattr(sys, "stderr", stream)
    with quiet_start():
        sys.stderr.write("from Python\n")
        sys.stderr.flush()
        os.write(2, b"from C\n" + NOISE.encode())
        sys.stderr.write("from Python again\n")
    sys.stderr.write("after\n")
    stream.close()
    os.write(2, b"C after\n")
    err = capfd.readouterr().err
    assert err == "from Python\nfrom C\nfrom Python again\nafter\nC after\n"


def test_noise_is_dropped_if_the_block_raises(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with quiet_start():
            os.write(2, NOISE.encode() + b"the reason\n")
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        fail()
    assert capfd.readouterr().err == "the reason\n"


def test_a_stream_without_a_descriptor(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()  # like a kernel's stream, it has no fileno
    monkeypatch.setattr(sys, "stderr", stream)
    with quiet_start():
        os.write(2, NOISE.encode() + b"for the notebook\n")
        stream.write("Python's\n")
    assert stream.getvalue() == "Python's\nfor the notebook\n"
    assert capfd.readouterr().err == ""


def test_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    ran = False
    with quiet_start():
        ran = True
    assert ran


def test_descriptors_are_closed() -> None:
    before = os.dup(0)
    os.close(before)
    for _ in range(3):
        with quiet_start():
            pass
    after = os.dup(0)
    os.close(after)
    assert after == before


def test_a_log_level_of_the_user(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    silence_log()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"
    with quiet_start():
        os.write(2, NOISE.encode())
    restore_log()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert capfd.readouterr().err == NOISE


@pytest.mark.parametrize("since", [None, "1"])
def test_hidden_logs_come_back(since: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    silence_log()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
    if since is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", since)
    restore_log()
    assert os.environ.get("TF_CPP_MIN_LOG_LEVEL") == since


@pytest.mark.parametrize("inherited", [b"HOME=/x\0", b"HOME=/x\0TF_CPP_MIN_LOG_LEVEL=1\0"])
def test_a_level_set_by_importing_jax_is_ignored(
    inherited: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "environ").write_bytes(inherited)
    monkeypatch.setattr(import_tensorflow, "_INHERITED", tmp_path / "environ")
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    silence_log()
    is_users = b"TF_CPP" in inherited
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == ("1" if is_users else "3")
    restore_log()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "1"


PROGRAM = """
import tpunb
with tpunb.connect(simulate=2) as connection:
    import keras
    import tensorflow as tf
    ones = tf.function(lambda: tf.ones([]), jit_compile=XLA)
    # Whose kernels the strict rules look up, and for that start XLA.
    connection.strategy.run(tf.function(lambda: tf.linalg.qr(tf.eye(2))))
    connection.strategy.reduce("sum", connection.strategy.run(ones), axis=None)
    for element in tf.data.Dataset.range(9).take(2):
        pass
"""


@pytest.mark.tensorflow
def test_programs_print_no_log_in_any_environment() -> None:
    hidden = {"TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    # An older XLA logs the user's compilations through its own copy of Abseil, which is out of
    # tpunb's reach.
    quiet_xla = release(tensorflow_version() or "") >= (2, 20)
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_UNUSED + PROGRAM.replace("XLA", str(quiet_xla))],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**environment, "PYTHONPATH": python_path(ROOT), "TPUNB_TPU": ""},
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_the_garbage_collector_rests_during_the_import(enabled: bool, frozen: bool) -> None:
    def load(_: types.ModuleType) -> None:
        seen.append(gc.isenabled())
        raise ImportError("broken")

    seen: list[bool] = []
    if not enabled:
        gc.disable()
    if frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError, match="broken"):
            import_tensorflow.QuietImport().load(types.ModuleType("tensorflow"), load)
        assert gc.isenabled() is enabled
        assert (gc.get_freeze_count() > 0) is frozen
    finally:
        gc.unfreeze()
        gc.enable()
    assert seen == [False]
    assert (before > 0) is frozen


def test_tensorflow_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConnectError, match="not installed") as caught:
        import_tensorflow.import_tensorflow()
    assert "tpunb[cpu]" in caught.value.fix
