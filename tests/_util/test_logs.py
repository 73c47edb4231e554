"""`TPUNB_LOG` makes tpunb write a log on standard error; without it, no message is formatted."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from counterparts.children import WITHOUT_KERAS
from support.patience import PATIENCE
from support.tiers import THOROUGH

from tpunb._util import logs

CONNECTING = """
import tensorflow as tf, tpunb
scale = 1.0
cell = "y = tf.signal.fft(tf.cast(tf.range(4.0) * scale, tf.complex64))"
with tpunb.connect(simulate="v3-8") as connection:
    connection.run_cell(cell, globals())
    connection.run_cell(cell, globals())
    scale = "2.0"
    connection.run_cell(cell.replace("scale", "float(scale)"), globals())
"""


@pytest.fixture
def top() -> Iterator[logging.Logger]:
    """The logger `tpunb`, as before any configuration."""
    logger = logging.getLogger("tpunb")
    before = logger.level, logger.handlers, logger.propagate
    logger.level, logger.handlers, logger.propagate = logging.NOTSET, [], True
    yield logger
    logger.setLevel(before[0])  # clears the cache of enabled levels
    logger.handlers, logger.propagate = before[1:]


def run(code: str, **environment: str) -> str:
    """Run a program, and return its standard error."""
    settings = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    process = subprocess.run(
        [sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=PATIENCE
    )
    assert process.returncode == 0, process.stderr
    assert not process.stdout
    return process.stderr


@pytest.mark.tensorflow
@THOROUGH
def test_the_format_of_messages() -> None:
    lines = [
        line
        for line in run(WITHOUT_KERAS + CONNECTING, TPUNB_LOG="debug").splitlines()
        if " tpunb." in line
    ]
    text = "\n".join(lines)
    for words in (
        "tpunb.connection: asked for Request(tpu=None, simulate='v3-8'",
        "tpunb.connection: connect to virtual TPU v3-8",
        "<connection to virtual TPU v3-8, 8 replicas>: ",
        "tpunb.replicate: trace the replica function: ",
        "tpunb.replicate: write it out for all replicas: ",
        "tpunb.strict: lower the replica function to HLO: ",
        "tpunb.connection: close <connection",
    ):
        assert words in text
    reasons = [line for line in lines if "has to be traced" in line]
    assert len(reasons) == 2
    assert reasons[0].endswith("first run")
    assert sum(": traced in " in line for line in lines) == 2


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("debug", logging.DEBUG),
        (" INFO ", logging.INFO),
        ("1", logging.DEBUG),
        ("no such level", logging.DEBUG),
        ("", logging.NOTSET),
        ("0", logging.NOTSET),
        ("off", logging.NOTSET),
    ],
)
def test_levels(top: logging.Logger, value: str, level: int) -> None:
    logs.configure(value)
    logs.configure(value)
    assert top.level == level
    assert len(top.handlers) == (level != logging.NOTSET)


def test_secrets_are_hidden(top: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure("debug")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logs.logger("connection").debug("GET %s", "https://me:hunter2secret@host/")
    written = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "tpunb.connection: GET https://***@host/" in written
    monkeypatch.setattr(sys, "stderr", None)
    logs.logger("connection").debug("nobody reads this")


class CountsFormatting:
    """Counts how often it is formatted."""

    count = 0

    def __repr__(self) -> str:
        self.count += 1
        return "shown"


def test_messages_are_not_formatted_without_a_reader(top: logging.Logger) -> None:
    value = CountsFormatting()
    logs.logger("connection").debug("%r", value)
    assert value.count == 0


def test_a_program_may_configure_logging_itself(top: logging.Logger) -> None:
    """Without the variable, tpunb's loggers behave like those in any library."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    top.addHandler(handler)
    calls = []

    @logs.timed("connection", "count")
    def count(step: int) -> int:
        calls.append(step)
        return step + 1

    assert count(1) == 2
    assert records == []
    top.setLevel(logging.DEBUG)
    assert count(2) == 3
    assert [record.getMessage().split(":")[0] for record in records] == ["count"]
    assert calls == [1, 2]
    assert count.__name__ == "count"
