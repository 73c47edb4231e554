"""The client of the metadata server: its requests, and its time limit."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from counterparts.metadata import MetadataServer, Mode
from counterparts.ports import dropping, mute, refusing
from support.patience import PATIENCE, wait_until

from tpunb.errors import ConnectError
from tpunb.machine import metadata_server as module
from tpunb.machine.metadata_server import MetadataError, metadata

PATH = "instance/attributes/accelerator-type"
SHORT = 0.4
"""The time limit in seconds for servers that never answer."""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget earlier answers before and after each test."""
    module.forget()
    yield
    module.forget()


def at(server: MetadataServer, variable: str = "GCE_METADATA_HOST") -> dict[str, str]:
    return {variable: server.host}


def failed(
    environment: dict[str, str], timeout: float = PATIENCE, path: str = PATH
) -> MetadataError:
    """Return the error of a request that must fail; only the time limit ends a silent request."""
    with pytest.raises(MetadataError) as raised:
        metadata(path, timeout=timeout, environment=environment)
    assert isinstance(raised.value, ConnectError)
    assert raised.value.fix
    assert raised.value.tried
    return raised.value


@pytest.mark.parametrize("variable", ["GCE_METADATA_HOST", "GCE_METADATA_IP"])
def test_a_value(variable: str) -> None:
    with MetadataServer({PATH: "v3-8\n"}) as server:
        assert metadata(PATH, environment=at(server, variable)) == "v3-8"
        assert metadata(f"/{PATH}", environment=at(server, variable)) == "v3-8"
        assert server.requests == [PATH, PATH]


def test_the_host_comes_before_the_ip() -> None:
    with MetadataServer({PATH: "host"}) as host, MetadataServer({PATH: "ip"}) as ip:
        variables = {"GCE_METADATA_HOST": host.host, "GCE_METADATA_IP": ip.host}
        assert metadata(PATH, environment=variables) == "host"
        assert metadata(PATH, environment={**variables, "GCE_METADATA_HOST": " "}) == "ip"


def test_no_such_value() -> None:
    with MetadataServer() as server:
        assert metadata(PATH, environment=at(server)) is None
        # A missing value is an answer: the server is asked again.
        assert metadata("instance/zone", environment=at(server)) is None
        assert len(server.requests) == 2


def test_a_path_cannot_add_a_second_request() -> None:
    with MetadataServer({"a b": "x"}) as server:
        assert metadata("a\r\nHost: elsewhere\r\n\r\nGET /b", environment=at(server)) is None
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("hangs", "does not answer within 0.4 s"),
        ("slow", "does not answer within 0.4 s"),
        ("trickles", "does not answer within 0.4 s"),
        ("portal", "not a metadata server"),
        ("redirects", "answers 302"),
        ("broken", "answers 500"),
    ],
)
def test_ill_behaved(mode: Mode, words: str) -> None:
    before = threading.active_count()
    with MetadataServer({PATH: "v3-8"}, mode) as server:
        assert words in failed(at(server), SHORT if "does not" in words else PATIENCE).reason
    wait_until(lambda: threading.active_count() <= before)


def test_an_abandoned_thread_ends() -> None:
    """The thread ends even while the server still sends."""
    with MetadataServer(mode="trickles") as server:
        failed(at(server), SHORT)
        wait_until(lambda: not [t for t in threading.enumerate() if t.name == "tpunb"])


def test_a_slow_answer_within_the_time_limit() -> None:
    with MetadataServer({PATH: "v3-8"}, "slow", delay=0.1) as server:
        assert metadata(PATH, timeout=PATIENCE, environment=at(server)) == "v3-8"


def test_a_closed_port() -> None:
    with refusing() as address:
        error = failed({"GCE_METADATA_HOST": address})
    assert "refused" in error.reason.lower()


@pytest.mark.parametrize("port", [mute, dropping])
def test_a_port_that_does_not_answer(
    port: Callable[[], contextlib.AbstractContextManager[str]],
) -> None:
    with port() as address:
        assert "does not answer" in failed({"GCE_METADATA_HOST": address}, SHORT).reason


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver does not know our time limit."""
    released = threading.Event()

    def lookup(*args: Any, **kwargs: Any) -> Any:
        released.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    try:
        assert "metadata.google.internal does not answer" in failed({}, SHORT).reason
    finally:
        released.set()


def test_a_server_without_http() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def greet() -> None:
            client, _ = other.accept()
            with client:
                client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                client.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        failed({"GCE_METADATA_HOST": f"127.0.0.1:{other.getsockname()[1]}"})
        thread.join()


@pytest.mark.parametrize(
    "host",
    [
        "user:s3cr3tword@127.0.0.1",
        "http://127.0.0.1",
        "a b",
        "127.0.0.1:port",
        "h\r\nX: y",
        "a/b",
        "::",
    ],
)
def test_an_invalid_host(host: str) -> None:
    error = failed({"GCE_METADATA_HOST": host})
    assert "GCE_METADATA_HOST is not a host" in error.reason
    assert "s3cr3tword" not in str(error)


def test_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with MetadataServer({PATH: "v3-8"}) as server:
        assert metadata(PATH, environment=at(server)) == "v3-8"


def test_many_requests_share_a_time_limit() -> None:
    with MetadataServer({PATH: "v3-8"}, "hangs") as server:
        for _ in range(5):
            failed(at(server), SHORT)
        wait_until(lambda: server.requests)
        assert len(server.requests) == 1
        # With a longer time limit it is asked again, and so is another server.
        server.mode = "answers"
        assert metadata(PATH, timeout=PATIENCE, environment=at(server)) == "v3-8"
    with MetadataServer({PATH: "v4-8"}) as other:
        assert metadata(PATH, timeout=PATIENCE, environment=at(other)) == "v4-8"


def test_silence_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEMORY", 0.0)
    with MetadataServer({PATH: "v3-8"}, "portal") as server:
        failed(at(server))
        server.mode = "answers"
        assert metadata(PATH, timeout=PATIENCE, environment=at(server)) == "v3-8"


def test_a_temporary_fault_is_forgotten() -> None:
    with MetadataServer({PATH: "v3-8"}, "broken") as server:
        failed(at(server))
        server.mode = "answers"
        assert metadata(PATH, environment=at(server)) == "v3-8"


def test_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with MetadataServer({PATH: "v3-8"}) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        assert metadata(PATH) == "v3-8"
