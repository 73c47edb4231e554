"""Workers that cannot be a Pod's hosts: the error names the reason, within the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from counterparts.ports import dropping, mute, refusing, web
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE, at_last

import tpunb
from tpunb.connection.cluster import pod as pods
from tpunb.connection.cluster.local_workers import LocalWorkers
from tpunb.connection.cluster.probe import check_all
from tpunb.connection.options import Request, workers_of
from tpunb.connection.plan import resolve
from tpunb.errors import ConnectError, TpunbError

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    """Yield the address of a worker with two cores."""
    workers = LocalWorkers(1, 2, timeout=PATIENCE)
    yield workers.addresses[0]
    workers.close()


def refused(**wishes: Any) -> ConnectError:
    """Return the error of a connection that fails; it must name a fix."""
    with pytest.raises(ConnectError) as raised:
        tpunb.connect(**wishes)
    assert raised.value.fix
    return raised.value


def refused_beside(worker: str, *others: str) -> ConnectError:
    """Return the error of connecting to a worker that answers and others that do not."""
    return at_last(
        lambda limit: refused(workers=[worker, *others], timeout=limit),
        lambda error: any(f"{worker} answers" in line for line in error.tried),
    )


@pytest.mark.parametrize(
    ("port", "message"),
    [
        (refusing, "nothing listens"),
        (dropping, "firewall"),
        (mute, "did not answer"),
        (web, "does not speak gRPC"),
    ],
)
def test_a_port_without_a_worker(
    port: Callable[[], AbstractContextManager[str]], message: str, worker: str, tf: Any
) -> None:
    with port() as address:
        error = refused_beside(worker, address)
    assert address in str(error)
    assert message in str(error)
    assert any(worker in line and "answers with 2 cores" in line for line in error.tried)
    assert tpunb.connect(simulate=2).kind == "virtual"  # the process is unharmed


def test_several_ports_without_a_worker(worker: str) -> None:
    with refusing() as closed, mute() as silent:
        error = refused_beside(worker, closed, silent)
    message = str(error)
    assert f"2 of 3 workers cannot be reached ({closed}: nothing listens" in message
    assert f"{silent}: it accepts connections" in message
    assert f"For {closed}: Start the worker there" in error.fix


def test_one_time_limit_for_all(worker: str, tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpunb.connection.cluster.hanging_calls import StillWaitingError

    limits: list[float] = []

    def late(addresses: Any, *, timeout: float) -> Any:
        time.sleep(0.1)
        return check_all(addresses, timeout=timeout)

    def silent(workers: Any, timeout: float) -> Any:
        limits.append(timeout)
        raise StillWaitingError(left_behind=False)

    monkeypatch.setattr(pods, "check_all", late)
    monkeypatch.setattr("tpunb.connection.cluster.join.join", silent)
    error = refused(workers=[worker], timeout=2 * PATIENCE)
    assert 0 < limits[0] <= 2 * PATIENCE - 0.1
    assert "the rest of the time limit" in str(error)
    assert "longer --timeout" in error.fix
    assert len(error.tried) == 2


def test_the_number_of_workers_must_match_the_hosts(worker: str, tf: Any) -> None:
    error = refused(simulate="v3-32", workers=[worker])
    assert "v3-32 has 4 hosts, but there is 1 worker" in str(error)


def test_the_number_of_cores_must_match_a_host(worker: str, tf: Any) -> None:
    error = refused(simulate="v5e-8", workers=[worker])
    assert "has 2 cores, but a host of a v5e-8 has 8" in str(error)
    assert "--cores 8" in error.fix


def test_another_version(worker: str, tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "version_of", lambda device: "2_1_3")
    error = refused(workers=[worker])
    assert "runs TensorFlow 2.1.3" in str(error)


@pytest.mark.parametrize(
    "wishes",
    [
        {"workers": ["nowhere"]},
        {"workers": ["a:0"]},
        {"workers": ["a:8470", "grpc://a:8470"]},
        {"workers": [1]},
        {"workers": 5},
        {"workers": ["a:1"], "local_workers": True},
        {"workers": ["a:1"], "patch": True},
        {"workers": ["a:1"], "tpu": "local"},
        {"workers": ["a:1"], "require_tpu": True},
        {"local_workers": 0},
        {"local_workers": 65},
        {"local_workers": 1.5},
        {"local_workers": 2, "require_tpu": True},
    ],
    ids=str,
)
def test_impossible_requests(wishes: dict[str, Any]) -> None:
    with pytest.raises(ConnectError) as raised:
        resolve(Request(**wishes))
    assert raised.value.fix


def test_normalized_requests() -> None:
    assert Request(workers="a:1, grpc://b:2/").addresses == ("a:1", "b:2")
    assert resolve(Request(workers=["a:1"])).tpu == ""
    assert resolve(Request(workers=["a:1"], simulate="v5litepod-8")).tpu == "v5e-8"
    assert resolve(Request(local_workers=True)).tpu == "v5e-8"
    assert Request(local_workers=2).started == 2
    assert not Request(simulate=2).is_pod


@given(st.one_of(st.text(), st.lists(st.text()), st.integers(), st.none(), st.binary()))
def test_any_workers(workers: Any) -> None:
    try:
        addresses = workers_of(workers)
    except TpunbError:
        return
    assert all(":" in address for address in addresses)
