"""An untested TensorFlow causes a single warning, and never an error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
from counterparts.children import WITHOUT_KERAS, python_path
from support.patience import PATIENCE
from support.tiers import THOROUGH

from tpunb.connection.connect import make_connection
from tpunb.connection.options import Request
from tpunb.connection.plan import resolve
from tpunb.errors import ConnectError
from tpunb.machine import tested_releases
from tpunb.machine.software import Software
from tpunb.machine.tested_releases import (
    OLDEST,
    RANGE,
    SPECIFIER,
    TESTED,
    is_newer,
    warn_if_newer,
)

ROOT = Path(__file__).parents[2]
NEXT = f"{TESTED[-1][0]}.{TESTED[-1][1] + 1}"


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested_releases, "_warned", set())


def test_the_bounds_in_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"(tensorflow(?:-\w+)?)([^\s";]*)[";]', text)
    bounds = {(name, bound) for name, bound in named if bound not in ("", ".*")}  # bounds for mypy
    tested = {(name, SPECIFIER) for name in ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")}
    next_minor = int(NEXT.partition(".")[2])
    untested = f">={NEXT}.0rc0,<{TESTED[-1][0]}.{next_minor + 1}"  # for Python 3.14 only
    assert bounds == tested | {(name, untested) for name in ("tensorflow", "tensorflow-cpu")}
    assert text.count(f"{untested}; python_version >= '3.14'") == 2
    oldest = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8")
    assert f"tensorflow-cpu=={'.'.join(map(str, OLDEST))}.0;" in oldest
    assert list(TESTED) == sorted(TESTED)


@pytest.mark.parametrize(
    ("version", "newer"),
    [
        ("2.17.0", False),
        ("2.18.0", False),
        ("2.21", False),
        ("2.21.3", False),
        ("2.21.0rc1", False),
        (NEXT, True),
        (f"{NEXT}.0", True),
        (f"{NEXT}.0.dev20260101", True),
        (f"{NEXT}.0-rc0", True),
        ("3.0.0", True),
        ("unknown version", False),
        ("", False),
    ],
)
def test_newer_releases(version: str, newer: bool) -> None:
    assert is_newer(version) is newer
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_newer(version)
        warn_if_newer(version)
        warn_if_newer(None)
    assert len(caught) == newer
    for warning in caught:
        assert version in str(warning.message)
        assert RANGE in str(warning.message)
        assert SPECIFIER in str(warning.message)


def test_a_notebook_gets_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning would be an output of a cell, which strict nbval compares."""
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    with caplog.at_level("INFO", "tpunb.machine"):
        warn_if_newer(f"{NEXT}.0")  # any warning is an error here
    assert RANGE in caplog.text
    shell.kernel = None  # IPython in a terminal
    with pytest.warns(UserWarning, match=RANGE):
        warn_if_newer(f"{NEXT}.1")


@pytest.mark.parametrize("name", ["tensorflow_cpu", "tf_nightly"])
def test_the_doctor_reports_an_untested_tensorflow(name: str) -> None:
    software_found = Software("3.12.0", {name.replace("_", "-"): f"{NEXT}.0"})
    (problem,) = software_found.problems(local_tpu=False)
    assert not problem.stops
    assert f"{NEXT}.0" in problem.message
    assert RANGE in problem.message
    assert SPECIFIER in problem.command
    assert "nightly" not in problem.command
    (tested,) = [
        Software("3.12.0", {"tensorflow": f"{major}.{minor}.9"}) for major, minor in TESTED[-1:]
    ]
    assert list(tested.problems(local_tpu=False)) == []


def test_connecting_warns_before_anything_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"tensorflow-cpu": f"{NEXT}.0"}.get)

    def refuse(*arguments: object) -> None:
        raise ConnectError("stopped here")

    monkeypatch.setattr("tpunb.tensorflow.connection.connecting._virtual", refuse)
    with pytest.warns(UserWarning, match=RANGE), pytest.raises(ConnectError, match="stopped"):
        make_connection(resolve(Request(simulate="v3-8")))
    with pytest.raises(ConnectError, match="stopped"):  # without a warning, which would be an error
        make_connection(resolve(Request(simulate="v3-8")))


STRATEGY = f"""
import json, warnings
import tensorflow as tf
tf.__version__ = "{NEXT}.0"
from importlib import metadata
version = metadata.version
metadata.version = lambda name: "{NEXT}.0" if name.startswith("tensorflow") else version(name)
import tpunb
from tpunb.virtual import VirtualTPUStrategy
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with tpunb.connect(simulate=2) as connection:
        replicas = connection.strategy.num_replicas_in_sync
    VirtualTPUStrategy(2)
print(json.dumps([replicas, [str(w.message) for w in caught if "is tested with" in str(w.message)]]))
"""


@pytest.mark.tensorflow
@THOROUGH
def test_an_untested_tensorflow_works() -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT), "TPUNB_TPU": ""}
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS + STRATEGY],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    replicas, warnings_shown = json.loads(run.stdout.splitlines()[-1])
    assert replicas == 2
    assert len(warnings_shown) == 1
