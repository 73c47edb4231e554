"""`tpunb.connect` from Python, without a notebook."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE

import tpunb
from tpunb.connection import plan
from tpunb.connection.options import Request
from tpunb.connection.plan import Plan
from tpunb.errors import (
    AcceleratorTypeError,
    ComputationShapeError,
    ConnectError,
    NotConnectedError,
    TpunbError,
    VirtualDevicesError,
)
from tpunb.machine import chips
from tpunb.tpu.default_tpu import DEFAULT_TPU

pytestmark = pytest.mark.usefixtures("tf")


@pytest.fixture(autouse=True, scope="module")
def no_tpu() -> Iterator[None]:
    """A machine without a TPU, whose metadata server refuses at once."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("TPUNB_TPU", "TPUNB_REQUIRE_TPU", "TPU_NAME", "COLAB_TPU_ADDR"):
            patch.delenv(variable, raising=False)
        patch.setattr(chips, "ROOT", Path("/nowhere"))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        patch.setenv("no_proxy", "*")
        yield


def test_a_context_manager() -> None:
    with tpunb.connect(simulate="v3-8") as connection:
        assert connection.strategy.num_replicas_in_sync == 8
        assert not connection.closed
    assert connection.closed
    with pytest.raises(NotConnectedError), connection:
        raise AssertionError("a closed connection is not entered")
    with pytest.raises(KeyError), tpunb.connect(simulate=2) as connection:
        raise KeyError("x")
    assert connection.closed


def test_closing() -> None:
    connection = tpunb.connect(simulate=2)
    connection.run_cell("1", {})
    connection.close()
    connection.close()
    for use in (lambda: connection.cells, lambda: connection.run_cell("1", {})):
        with pytest.raises(NotConnectedError, match="closed"):
            use()
    assert repr(connection) == "<closed connection to virtual TPU 2 cores, 2 replicas>"
    assert connection._repr_mimebundle_() == {"text/plain": repr(connection)}


def test_repr_and_bundle() -> None:
    with tpunb.connect(simulate=1) as connection:
        assert repr(connection) == "<connection to virtual TPU 1 core, 1 replica>"
        bundle = connection._repr_mimebundle_(include=None, exclude=None)
    assert bundle.keys() == {"text/plain", "text/html"}
    assert "(simulated on CPU)" in bundle["text/plain"]


def test_describe() -> None:
    shape = np.array([1, 1, 1, 2])
    with tpunb.connect(simulate="v3-8", computation_shape=shape, replicas=3) as connection:  # type: ignore[arg-type]
        described = connection.describe()
    assert (described.replicas, described.logical_devices, described.cores) == (3, 2, 8)
    assert (described.kind, described.tpu, described.accelerator) == ("virtual", "", "v3-8")


def resolve(*args: Any, **wishes: Any) -> Plan:
    return plan.resolve(Request(*args, **wishes))


def test_defaults() -> None:
    plan = resolve()
    assert (plan.kind, plan.tpu, plan.fallback) == ("virtual", DEFAULT_TPU, False)
    assert resolve(simulate=True).tpu == DEFAULT_TPU
    assert resolve(simulate=False).notes == plan.notes
    assert resolve(" ").tpu == DEFAULT_TPU
    assert resolve(" grpc://a:1 ").tpu == "grpc://a:1"
    assert resolve(" Local ").tpu == "local"
    assert resolve("my-v4-9").tpu == "my-v4-9"
    assert resolve(" ", simulate=2).tpu == "2 cores"


def test_equal_plans() -> None:
    assert resolve(timeout=3) == resolve(simulate="v5e-8")
    assert resolve("a", timeout=3) == resolve("a")
    assert resolve("a") != resolve("b")
    assert resolve(simulate=2, spmd=True) != resolve(simulate=2)
    assert resolve(simulate=2, computation_shape=[1, 1, 1, 1]) == resolve(
        simulate=2, computation_shape=(1, 1, 1, 1)
    )
    assert resolve(simulate=2, strict={"scope": False}) != resolve(simulate=2)
    assert resolve(simulate=2, strict={"scope": True}) == resolve(simulate=2)


def test_connect_has_the_fields_of_a_request() -> None:
    """`connect` has the fields of `Request`, and documents each."""
    signature = inspect.signature(tpunb.connect)
    assert signature.parameters == inspect.signature(Request).parameters
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    assert kinds.pop("tpu") == inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert set(kinds.values()) == {inspect.Parameter.KEYWORD_ONLY}
    assert signature.parameters["timeout"].default == 60
    text = inspect.getdoc(tpunb.connect) or ""
    arguments = text[text.index("Args:") : text.index("Returns:")]
    assert re.findall(r"^    (\w+): [A-Z]", arguments, re.MULTILINE) == list(signature.parameters)
    assert max(map(len, text.splitlines())) < 96


@pytest.mark.parametrize(
    ("slip", "suggestion"),
    [
        ("simulat", "simulate"),
        ("zon", "zone"),
        ("shape", "computation_shape"),
        ("lenient", "strict"),
        ("nothing", "tpu, simulate, "),
    ],
)
def test_a_slip_in_an_option(slip: str, suggestion: str) -> None:
    with pytest.raises(TypeError, match=f"connect.. has no option '{slip}': .*{suggestion}"):
        tpunb.connect(**{slip: 1})
    with pytest.raises(TypeError, match=r"connect\(\) takes from 0 to 1 positional"):
        tpunb.connect("a", "b")  # type: ignore[call-arg]


def test_a_virtual_tpu_may_replace_unusable_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    assert (resolve().tpu, resolve().fallback) == ("my-tpu", True)
    assert not resolve(require_tpu=True).fallback
    assert not resolve("local").fallback
    with pytest.warns(UserWarning, match="cannot be used .* this is a virtual v5e-8") as warned:
        connection = tpunb.connect(timeout=PATIENCE)
    assert [warning.filename for warning in warned] == [__file__]
    assert connection.tpu == DEFAULT_TPU
    assert connection.kind == "virtual"
    because, fix = connection.plan.notes
    assert "cannot be used (" in because
    assert "my-tpu" in because
    assert "grpc://HOST:8470" in fix
    assert "simulate" not in because + fix
    with pytest.warns(UserWarning, match="cannot be used") as warned:
        tpunb.TPUStrategy()
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.raises(ConnectError):
        tpunb.connect(require_tpu=True)


@pytest.mark.parametrize(
    ("wishes", "kind"),
    [
        ({"simulate": "v5e-9"}, AcceleratorTypeError),
        ({"simulate": 2.0}, AcceleratorTypeError),
        ({"simulate": 0}, AcceleratorTypeError),
        ({"simulate": 1025}, AcceleratorTypeError),
        ({"simulate": 1000}, VirtualDevicesError),
        ({"simulate": 2, "replicas": 0}, ComputationShapeError),
        ({"simulate": 2, "replicas": True}, ComputationShapeError),
        ({"simulate": 2, "replicas": 1.0}, ComputationShapeError),
        ({"simulate": 2, "replicas": "1"}, ComputationShapeError),
        ({"simulate": 2, "computation_shape": ()}, ComputationShapeError),
        ({"simulate": 2, "computation_shape": 1}, ComputationShapeError),
        ({"simulate": 2, "computation_shape": "1,1,1,1"}, ComputationShapeError),
        ({"simulate": 2, "computation_shape": [1, 1, 1, "1"]}, ComputationShapeError),
        ({"simulate": 2, "computation_shape": [True] * 4}, ComputationShapeError),
        ({"simulate": 2, "computation_shape": {"x": 1}}, ComputationShapeError),
        ({"simulate": 2, "timeout": 0}, ConnectError),
        ({"simulate": 2, "timeout": None}, ConnectError),
        ({"simulate": 2, "timeout": float("inf")}, ConnectError),
        ({"tpu": "v3-8"}, ConnectError),
        ({"tpu": "v4-9"}, AcceleratorTypeError),
        ({"tpu": "v9-8"}, AcceleratorTypeError),
        ({"tpu": "LOCAL"}, ConnectError),
        ({"tpu": 8}, TypeError),
        ({"tpu": b"local"}, TypeError),
        ({"nothing": 1}, TypeError),
        ({"tpu": "a", "simulate": 2}, ConnectError),
        ({"require_tpu": True, "simulate": 2}, ConnectError),
        ({"require_tpu": True}, ConnectError),
        ({"tpu": "local"}, ConnectError),
        ({"tpu": "my-tpu", "zone": "z", "project": "p"}, ConnectError),
    ],
)
def test_impossible_requests(wishes: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        tpunb.connect(**wishes)
    assert len(str(caught.value)) < 400
    if isinstance(caught.value, TpunbError):
        assert caught.value.fix
        assert "\n" in str(caught.value)


def test_numpy_numbers_are_numbers() -> None:
    shape = (np.int64(1), np.int32(1), np.int64(1), np.int8(1))
    with tpunb.connect(simulate=2, computation_shape=shape, replicas=np.int64(1)) as connection:  # type: ignore[arg-type]
        assert connection.strategy.num_replicas_in_sync == 1


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["v3-8", "v5e-4", "v3", "v3-", "-8", "8 cores", "v2-8 ", "grpc://", "local"]),
    st.binary(max_size=3), st.lists(st.integers(-1, 3), max_size=5),
)  # fmt: skip


def attempt(**wishes: Any) -> None:
    """Connect, or fail with an error that names a fix."""
    failed: Exception | None = None
    try:
        tpunb.connect(**wishes).close()
    except (TpunbError, TypeError) as error:
        failed = error
    assert not isinstance(failed, TypeError) or "tpu is the name" in str(failed)
    assert not isinstance(failed, TpunbError) or failed.fix


@settings(max_examples=60)
@given(ANYTHING, st.one_of(st.none(), ANYTHING), st.one_of(st.none(), ANYTHING))
@example("v3-8", [1, 1, 1, 2], 3)
@example("v3-8", [2, 2, 1, 2], 1)
def test_any_request(simulate: Any, shape: Any, replicas: Any) -> None:
    attempt(simulate=simulate, computation_shape=shape, replicas=replicas)


@settings(max_examples=60)
@given(
    st.sampled_from(["v3-8", "v5e-8", "6"]),
    st.lists(st.integers(0, 4), max_size=5),
    st.integers(0, 9),
)
def test_any_shape(simulate: str, shape: list[int], replicas: int) -> None:
    attempt(simulate=simulate, computation_shape=shape, replicas=replicas)


@settings(max_examples=60)
@given(st.one_of(ANYTHING, st.text(max_size=30)))
@example("a\0b")
@example("\ud800")
@example("http://a")
@example("uptc://a:1")
def test_any_tpu(tpu: Any) -> None:
    attempt(tpu=tpu, timeout=PATIENCE)


@settings(max_examples=60)
@given(st.one_of(st.integers().map(str), st.text(max_size=10)))
@example("65536")
@example("-1")
@example("1/path")
@example("1,127.0.0.1:2")
def test_any_port(port: str) -> None:
    attempt(tpu=f"grpc://127.0.0.1:{port}", timeout=PATIENCE)


def test_a_wrong_type_in_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown type in the variable is not looked up as the name of a TPU."""
    monkeypatch.setenv("TPUNB_TPU", "v4-9")
    with pytest.raises(AcceleratorTypeError, match="v4-8 or v4-16"):
        tpunb.connect(timeout=PATIENCE)


@pytest.mark.parametrize("value", ["v3-8", "abc", "grpc://127.0.0.1:1", "0", "", "local"])
@pytest.mark.parametrize("required", ["", "1", "no"])
def test_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, required: str) -> None:
    monkeypatch.setenv("TPUNB_TPU", value)
    monkeypatch.setenv("TPUNB_REQUIRE_TPU", required)
    with contextlib.ExitStack() as stack:
        if value not in ("v3-8", "") or required == "1":
            stack.enter_context(pytest.raises(ConnectError))
        assert tpunb.connect(timeout=PATIENCE).kind == "virtual"
    with pytest.raises(ConnectError) as caught:
        tpunb.connect(require_tpu=True, timeout=PATIENCE)
    assert caught.value.fix
