"""Workers that answer, and ports that do not, each within its time limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from counterparts.ports import Proxy, dropping, mute, refusing, web
from counterparts.workers import Served, tensorflow_server, tpu_worker
from hypothesis import given
from hypothesis import strategies as st

from tpunb.reaching import Unreachable, Worker, ask, ask_all, host_and_port


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with tensorflow_server(3) as worker:
        yield worker


def test_a_worker(server: Served) -> None:
    found = ask(server.address, timeout=30)
    assert found.address == server.address
    assert found.devices[0] == "/job:worker/replica:0/task:0/device:CPU:0"
    assert len(found.devices) == 3
    assert ask(f"grpc://{server.address}", timeout=30).incarnation == found.incarnation


def test_a_worker_with_a_tpu() -> None:
    with tpu_worker(8) as worker:
        found = ask(worker.address, timeout=10)
    assert sum("device:TPU:" in device for device in found.devices) == 8


@pytest.mark.parametrize(
    ("port", "reason"),
    [(refusing, "refused"), (mute, "mute"), (dropping, "dropped"), (web, "foreign")],
    ids=["refused", "mute", "dropped", "foreign"],
)
def test_out_of_reach(port: object, reason: str) -> None:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(port())  # type: ignore[operator]
        begin = time.monotonic()
        with pytest.raises(Unreachable) as caught:
            ask(address, timeout=1)
        assert time.monotonic() - begin < 4
    assert caught.value.reason == reason
    assert caught.value.address == address
    assert "0.9" not in str(caught.value), "the limit is said as it was given"


def test_a_frozen_worker(server: Served) -> None:
    server.freeze()
    try:
        with pytest.raises(Unreachable) as caught:
            ask(server.address, timeout=1)
    finally:
        server.go_on()
    assert caught.value.reason == "mute"
    assert ask(server.address, timeout=20)


def test_a_late_worker(server: Served) -> None:
    with Proxy(server.address, delay=0.7) as proxy:
        assert ask(proxy.address, timeout=20).devices
        with pytest.raises(Unreachable):
            ask(proxy.address, timeout=0.5)


def test_a_worker_whose_operations_hang(server: Served) -> None:
    with Proxy(server.address, stop_at=b"eager.EagerService") as proxy:
        with pytest.raises(Unreachable) as caught:
            ask(proxy.address, timeout=1)
        assert proxy.silent.is_set()
    assert caught.value.reason == "mute"


def test_all_at_once(server: Served) -> None:
    with mute() as one, mute() as two, refusing() as three:
        begin = time.monotonic()
        found = ask_all([one, server.address, two, three], timeout=1.5)
        assert time.monotonic() - begin < 5
    kinds = [answer.reason if isinstance(answer, Unreachable) else "" for answer in found]
    assert kinds == ["mute", "", "mute", "refused"]
    assert isinstance(found[1], Worker)
    assert ask_all([], timeout=1) == []


def test_a_restarted_worker_is_another() -> None:
    with tensorflow_server(1) as worker:
        before = ask(worker.address, timeout=20)
        worker.restart()
        after = ask(worker.address, timeout=20)
    assert before.address == after.address
    assert before.incarnation != after.incarnation


@pytest.mark.parametrize(
    "address", ["", "a", ":1", "a:", "a:0", "a:65536", "a:-1", "a:x", "grpc://", "a:1/b", "[]:1"]
)
def test_no_addresses(address: str) -> None:
    with pytest.raises(Unreachable) as caught:
        host_and_port(address)
    assert caught.value.reason == "address"


def test_addresses() -> None:
    assert host_and_port("10.0.0.2:8470") == ("10.0.0.2", 8470)
    assert host_and_port(" grpc://host.internal:1 ") == ("host.internal", 1)
    assert host_and_port("[::1]:80") == ("::1", 80)


@given(st.text(max_size=20))
def test_any_address(text: str) -> None:
    with contextlib.suppress(Unreachable):
        _, port = host_and_port(text)
        assert 0 < port < 65536


def test_an_unknown_host() -> None:
    with pytest.raises(Unreachable) as caught:
        ask("no.such.host.invalid:8470", timeout=5)
    assert caught.value.reason == "name"
