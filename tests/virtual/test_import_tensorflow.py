"""TensorFlow's noise is dropped at its start, and nothing else is."""

from __future__ import annotations

import io
import os
import sys

import pytest

from tpunb.errors import ConnectError
from tpunb.virtual.import_tensorflow import import_tensorflow, quiet_start

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
2024-11-05 10:11:12.123456: E tensorflow/core/platform/file.cc:1] disk full
W0000 00:00:1700000000.123456    1234 other.cc:1] something else
a line about cuda by somebody else
Ünïcode and \x0b and no newline at the end"""


def test_noise_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_start():
        os.write(2, (NOISE + KEPT).encode())
    assert capfd.readouterr().err == KEPT


def test_the_order_is_kept(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = open(2, "w", closefd=False)  # noqa: SIM115  capfd's writes elsewhere
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


def test_also_when_the_block_raises(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with quiet_start():
            os.write(2, NOISE.encode() + b"the reason\n")
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        fail()
    assert capfd.readouterr().err == "the reason\n"


def test_bytes_that_are_no_text(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_start():
        os.write(2, b"\xff\xfe\n")
    assert capfd.readouterr().err == "\ufffd\ufffd\n"


def test_a_stream_without_a_descriptor(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()  # as a kernel's: fileno raises
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


def test_nested(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_start(), quiet_start():
        os.write(2, (NOISE + KEPT).encode())
    assert capfd.readouterr().err == KEPT


def test_descriptors_are_given_back() -> None:
    before = os.dup(0)
    os.close(before)
    for _ in range(3):
        with quiet_start():
            pass
    after = os.dup(0)
    os.close(after)
    assert after == before


def test_tensorflow_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConnectError, match="not installed") as caught:
        import_tensorflow()
    assert "tpunb[cpu]" in caught.value.fix
