"""Workers that answer, and ports that do not, each within its time limit."""

from __future__ import annotations

import concurrent.futures
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from counterparts.children import environment
from counterparts.ports import Proxy, dropping, mute, refusing, web
from counterparts.workers import Served, tensorflow_server, tpu_worker
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE, at_last
from support.tiers import THOROUGH

from tpunb.tensorflow.connection.cluster.probe import (
    Unreachable,
    Worker,
    check,
    check_all,
    host_and_port,
)

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with tensorflow_server(3) as worker:
        yield worker


def refused(address: str, limit: float = PATIENCE) -> Unreachable:
    """Return the reason why an address is not a worker's."""
    with pytest.raises(Unreachable) as caught:
        check(address, timeout=limit)
    return caught.value


def test_a_worker(server: Served) -> None:
    worker = check(server.address, timeout=PATIENCE)
    assert worker.address == server.address
    assert worker.devices[0] == "/job:worker/replica:0/task:0/device:CPU:0"
    assert len(worker.devices) == 3
    assert check(f"grpc://{server.address}", timeout=PATIENCE).incarnation == worker.incarnation


def test_a_worker_with_a_tpu() -> None:
    with tpu_worker(8) as worker:
        answer = check(worker.address, timeout=PATIENCE)
    assert sum("device:TPU:" in device for device in answer.devices) == 8


@pytest.mark.parametrize(
    ("port", "limit", "reason"),
    [
        (refusing, PATIENCE, "refused"),
        (mute, 1, "timeout"),
        (dropping, 1, "filtered"),
        (web, PATIENCE, "not_tensorflow"),
    ],
    ids=["refused", "timeout", "filtered", "not_tensorflow"],
)
def test_out_of_reach(port: object, limit: float, reason: str) -> None:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(port())  # type: ignore[operator]
        error = refused(address, limit)
    assert (error.reason, error.address) == (reason, address)
    assert "0.9" not in str(error), "the message repeats the limit"


def test_a_frozen_worker(server: Served) -> None:
    server.freeze()
    try:
        assert refused(server.address, 1).reason == "timeout"
    finally:
        server.go_on()
    assert check(server.address, timeout=PATIENCE)


def test_a_late_worker(server: Served) -> None:
    with Proxy(server.address, delay=0.7) as proxy:
        assert check(proxy.address, timeout=PATIENCE).devices


def test_a_worker_with_hanging_operations(server: Served) -> None:
    with Proxy(server.address, stop_at=b"eager.EagerService") as proxy:
        error = at_last(
            lambda limit: refused(proxy.address, limit), lambda _: proxy.silent.is_set()
        )
        assert proxy.silent.is_set()
    assert error.reason == "timeout"


def test_all_at_once(server: Served) -> None:
    with mute() as first, mute() as second, refusing() as third:
        workers = [first, server.address, second, third]
        answers = at_last(
            lambda limit: check_all(workers, timeout=limit),
            lambda answers: isinstance(answers[1], Worker) and answers[3].reason == "refused",
        )
    kinds = [answer.reason if isinstance(answer, Unreachable) else "" for answer in answers]
    assert kinds == ["timeout", "", "timeout", "refused"]
    assert isinstance(answers[1], Worker)
    assert check_all([], timeout=1) == []


_INTERRUPTED = """
import _thread, sys, threading
from tpunb.tensorflow.connection.cluster.probe import check_all
try:
    threading.Timer(0.5, _thread.interrupt_main).start()
    check_all([sys.argv[1], sys.argv[2]], timeout=6000)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_leaves_no_threads() -> None:
    with mute() as first, dropping() as second:
        process = subprocess.run(
            [sys.executable, "-c", _INTERRUPTED, first, second],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert (process.stdout, process.returncode) == ("interrupted\n", 0), process.stderr


def test_probing_does_not_import_tensorflow(server: Served) -> None:
    """The import takes longer than `timeout` may be, and a refusal does not need it."""
    asks = "import sys, tpunb.tensorflow.connection.cluster.probe as r; r.check(sys.argv[1], timeout=600)"
    subprocess.run(
        [sys.executable, "-c", f"{asks}; assert 'tensorflow' not in sys.modules", server.address],
        env=environment(),
        timeout=PATIENCE,
        check=True,
    )


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Serve one answer to every gRPC request, or refuse with a secret if the answer is empty."""
    import grpc

    def handle(request: bytes, context: Any) -> bytes:
        if not answer:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no, token=abcdefgh12345678")
        return answer

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize(
    "answer",
    [b"\xff\xfe", b"\x10\x01", b"\x0a\x02\x0a", b"\x0a\x02\x10\x01", bytes(range(200, 240))],
)
def test_answers_of_other_servers(answer: bytes) -> None:
    with answering(answer) as address:
        assert refused(address).reason == "not_tensorflow"


def test_a_proxy_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC, and so TensorFlow, uses the environment's proxy, which the message must mention."""
    with answering(b"\x0a") as address, refusing() as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:secret@{proxy}")
        for name in ("grpc_proxy", "https_proxy", "no_grpc_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        message = str(refused(address))
    assert "http_proxy" in message
    assert "no_proxy" in message
    assert "secret" not in message


def test_secrets_in_a_servers_message_are_hidden() -> None:
    with answering(b"") as address:
        error = refused(address)
    assert error.reason == "broken"
    assert "PERMISSION_DENIED" in str(error)
    assert "abcdefgh" not in str(error)


@THOROUGH
def test_a_restarted_worker_is_recognised() -> None:
    with tensorflow_server(1) as worker:
        before = check(worker.address, timeout=PATIENCE)
        worker.restart()
        after = check(worker.address, timeout=PATIENCE)
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
    assert refused("no.such.host.invalid:8470").reason == "name"
