"""Connecting to a TPU that cannot be used: every cause is recognised in time, and has a fix."""

from __future__ import annotations

import contextlib
import socket
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counterparts.cloud import PARENT, Gcloud, node
from counterparts.machines import accel, pci
from counterparts.ports import Proxy, dropping, mute, refusing, web
from counterparts.workers import Served, tensorflow_server, tpu_worker
from support.patience import PATIENCE, at_last

import tpunb
from tpunb.connection.options import Request
from tpunb.connection.plan import resolve
from tpunb.errors import ConnectError
from tpunb.errors.explain import explain
from tpunb.machine import chips, software
from tpunb.machine.metadata_server import forget
from tpunb.tensorflow.connection import hardware
from tpunb.tensorflow.connection.hardware.worker_versions import version_in

pytestmark = pytest.mark.usefixtures("tf")

VARIABLES = (
    "TPUNB_TPU",
    "TPUNB_REQUIRE_TPU",
    "TPU_NAME",
    "TPU_CONFIG",
    "COLAB_TPU_ADDR",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
    "CLOUDSDK_COMPUTE_ZONE",
    "CLOUDSDK_CORE_PROJECT",
    "GOOGLE_CLOUD_PROJECT",
)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Make the machine one without a TPU, where nothing names a TPU."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(chips, "ROOT", tmp_path)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "*")
    forget()
    yield tmp_path
    forget()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Start a TensorFlow server without a TPU."""
    with tensorflow_server() as worker:
        yield worker


@pytest.fixture(scope="module")
def tpu() -> Iterator[Served]:
    """Start a worker that has a TPU's devices."""
    with tpu_worker() as worker:
        yield worker


SHORT = 1.5
"""The time limit in seconds for workers that never answer."""


def refused(
    tpu: str, number: int | None, *, timeout: float = PATIENCE, **more: Any
) -> ConnectError:
    """Return the error of connecting; it must name a fix and the attempts."""
    with pytest.raises(ConnectError) as caught:
        tpunb.connect(tpu, timeout=timeout, **more)
    error = caught.value
    assert error.fix
    assert error.tried
    entry = explain(error)
    assert (entry.number if entry is not None else None) == number, str(error)
    return error


@pytest.mark.parametrize(
    ("port", "limit", "message", "fix"),
    [
        (refusing, PATIENCE, "nothing listens", "gcloud compute tpus tpu-vm list"),
        (mute, SHORT, "accepts connections but did not answer in 1.", "--timeout 3"),
        (dropping, SHORT, "a firewall may drop", "gcloud compute firewall-rules create"),
        (web, PATIENCE, "does not speak gRPC", "listen on 8470"),
    ],
    ids=["dead", "timeout", "firewalled", "not_tensorflow"],
)
def test_ports(
    port: Callable[[], contextlib.AbstractContextManager[str]], limit: float, message: str, fix: str
) -> None:
    with port() as address:
        error = refused(f"grpc://{address}", 6, timeout=limit)
    assert message in str(error)
    assert fix in error.fix
    assert any(line.startswith(address) for line in error.tried)
    with tpunb.connect(simulate=2) as connection:
        assert connection.kind == "virtual"


def test_all_workers_are_tried_and_reported(server: Served) -> None:
    with refusing() as dead, mute() as silent:
        workers = f"grpc://{server.address},grpc://{dead},{silent}"
        error = at_last(
            lambda limit: refused(workers, 6, timeout=limit),
            lambda error: f"at {dead} (and 1 more)" in str(error),
        )
    assert f"The TPU worker at {dead} (and 1 more) does not answer" in str(error)
    assert [line.split()[0].rstrip(":") for line in error.tried[1:]] == [
        server.address,
        dead,
        silent,
    ]


@pytest.mark.parametrize(
    ("tpu", "message"),
    [
        ("grpc://", "not an address"),
        ("grpc://127.0.0.1:x", "not an address"),
        ("grpc://127.0.0.1:70000", "not an address"),
        ("grpc://127.0.0.1:1,", "not an address"),
        ("grpc://127.0.0.1:1,127.0.0.1:1", "occurs twice"),
        ("grpc://[::1]:8470", "IPv6"),
        ("127.0.0.1:8470", "not the name of a TPU"),
    ],
)
def test_invalid_addresses(tpu: str, message: str) -> None:
    assert message in str(refused(tpu, None))


def test_an_unknown_host() -> None:
    error = refused("grpc://no.such.host.invalid:8470", 6)
    assert "cannot be found" in str(error)
    assert "10.0.0.2:8470" in error.fix


def test_the_default_port() -> None:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.23", 8470), timeout=PATIENCE),
    ):
        pytest.skip("something listens on 8470 here")
    error = refused("grpc://127.0.0.23", 6)
    assert "127.0.0.23:8470" in str(error)
    assert "no port given" in error.tried[1]


def test_a_password_in_an_address_is_not_shown() -> None:
    for address in ("grpc://user:hunter2secret@127.0.0.1:1", "grpc://user:hunter2secret@h"):
        with pytest.raises(ConnectError) as caught:
            tpunb.connect(address, timeout=PATIENCE)
        assert "hunter2secret" not in f"{caught.value} {caught.value.tried}"


def test_a_server_without_a_tpu(server: Served) -> None:
    error = refused(f"grpc://{server.address}", 3)
    assert "without a TPU" in str(error)
    assert f"{server.address} answers with 2 devices" in error.tried


def test_a_late_worker_is_waited_for(server: Served) -> None:
    with Proxy(server.address, delay=0.5) as late, mute() as never:
        refused(f"grpc://{late.address}", 3)
        refused(f"grpc://{never}", 6, timeout=0.5)


@pytest.fixture
def knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Gcloud]:
    """Put a gcloud that knows a TPU first in PATH."""
    return lambda **of: Gcloud(tmp_path, {"my-tpu": node(**of)}).use(monkeypatch)


NAME = f"{PARENT}/my-tpu"


@pytest.mark.parametrize("state", ["CREATING", "PREEMPTED", "STOPPED", "REPAIRING"])
def test_names_of_tpus_that_are_not_ready(state: str, knows: Callable[..., Gcloud]) -> None:
    knows(state=state)
    error = refused(NAME, 8)
    assert state in str(error)
    assert "--zone=us-central1-b --project=my-project" in error.fix
    assert any("gcloud describes" in line for line in error.tried)


def test_a_name_whose_worker_is_dead(knows: Callable[..., Gcloud]) -> None:
    with refusing() as dead:
        knows(workers=(dead,))
        error = refused(NAME, 6)
    assert "tpu-vm ssh" in error.fix
    assert "TPU my-tpu is READY (v3-8)" in error.tried


def test_progress_messages(server: Served, knows: Callable[..., Gcloud]) -> None:
    messages: list[str] = []
    knows(workers=(server.address,))
    with pytest.raises(ConnectError):
        hardware.connect(resolve(Request(NAME)), messages.append)
    assert messages == [
        f"looking up the TPU {NAME}",
        "TPU my-tpu is READY (v3-8)",
        f"checking the worker {server.address}",
        f"{server.address} answers with 2 devices",
    ]


def test_different_versions(tpu: Served, knows: Callable[..., Gcloud]) -> None:
    version = "tpu-vm-tf-2.11.0-pod"
    knows(workers=(tpu.address,), version=version)
    error = refused(NAME, 10)
    assert version in str(error)
    assert 'pip install "tensorflow==2.11.*"' in error.fix
    assert "tpu-vm-tf-2." in error.fix


def test_a_worker_reports_its_version(tpu: Served) -> None:
    """TensorFlow's own client asks at port 8475 of the worker's host."""
    host = "127.0.0.9"
    try:
        answers = web('{"currentVersion": "2.11.1"}', host, 8475)
        address = answers.__enter__()
    except OSError:
        pytest.skip("something listens on 8475 here")
    try:
        with Proxy(tpu.address, host=host) as proxy:
            error = refused(f"grpc://{proxy.address}", 10)
    finally:
        answers.__exit__(None, None, None)
    assert address == "127.0.0.9:8475"
    assert "the TPU runs 2.11.1" in str(error)
    assert "127.0.0.9 runs TensorFlow 2.11.1" in error.tried


@pytest.mark.parametrize(
    ("runtime", "version"),
    [
        ("2.18", (2, 18)),
        ("2.18.0", (2, 18)),
        ("v2.18.0-rc1", (2, 18)),
        ("tpu-vm-tf-2.18.0", (2, 18)),
        ("tpu-vm-tf-2.18.0-pod", (2, 18)),
        ("tpu-vm-tf-2.18.0-pjrt", (2, 18)),
        ("tpu-vm-tf-2.9.1-pod-pjrt", (2, 9)),
        ("tpu-vm-tf-2.20.0-se", (2, 20)),
        ("v2-alpha-tpuv5-lite", None),
        ("v2-alpha-tpuv6e", None),
        ("v2-tpuv5-litepod", None),
        ("tpu-ubuntu2204-base", None),
        ("tpu-vm-base", None),
        ("tpu-vm-pt-2.0", None),
        ("nightly", None),
        ("", None),
    ],
)
def test_versions_in_names(runtime: str, version: tuple[int, int] | None) -> None:
    assert version_in(runtime) == version


def test_no_tpu_here() -> None:
    error = refused("local", None)
    assert "nothing else indicates one" in str(error)
    assert error.tried[-1] == "TensorFlow lists 0 TPU devices"


@pytest.fixture
def chip(nowhere: Path) -> None:
    """Add a TPU chip with its device file."""
    accel(nowhere, 1)
    pci(nowhere, "0x0063")


@pytest.mark.usefixtures("chip")
def test_a_tpu_that_tensorflow_cannot_use() -> None:
    error = refused("local", None)
    assert "sees no TPU here" in str(error)
    assert "tensorflow-tpu" in error.fix or "tpunb[tpu]" in error.fix
    assert any("accel0" in line for line in error.tried)


@pytest.mark.usefixtures("chip")
def test_the_fix_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"tensorflow-cpu": "2.21.0"}.get)
    monkeypatch.setattr(software, "_imported", lambda module: None)
    error = refused("local", None)
    command = 'pip uninstall -y tensorflow-cpu && pip install "tpunb[tpu]"'
    assert error.fix.endswith(f"then restart the kernel: {command}")


@pytest.mark.usefixtures("chip")
def test_a_client_of_a_remote_tpu_requests_its_own_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"tensorflow-tpu": "2.20.0"}.get)
    monkeypatch.setattr(software, "unmet", lambda *_, **__: ())
    monkeypatch.setattr(software, "_imported", lambda module: None)
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    monkeypatch.setenv("TPU_LOAD_LIBRARY", "0")
    error = refused("local", None)
    assert "TPU_LOAD_LIBRARY=0 keeps TensorFlow from this machine's TPU" in str(error)
    assert "%tpu_connect NAME" in error.fix


@pytest.mark.usefixtures("chip")
def test_a_tpu_that_jax_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge._backends = {"tpu": object()}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    assert "JAX, which takes the TPU for itself" in str(refused("local", None))


REAL = [
    ({"TPU_NAME": "my-tpu"}, {}),
    ({"TPU_NAME": "grpc://{dead}"}, {}),
    ({"TPUNB_TPU": "grpc://{dead}"}, {}),
    ({"TPUNB_TPU": "v5e-8"}, {}),
    ({"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://{dead}"}, {}),
    ({}, {}),
    ({}, {"tpu": "grpc://{dead}"}),
    ({}, {"tpu": "local"}),
    ({}, {"simulate": "v5e-8"}),
    ({}, {"simulate": True}),
]


@pytest.mark.parametrize("by_variable", [True, False], ids=["variable", "argument"])
@pytest.mark.parametrize(("environment", "wishes"), REAL)
def test_a_required_tpu_is_never_replaced(
    environment: dict[str, str],
    wishes: dict[str, Any],
    by_variable: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with refusing() as dead:

        def filled(value: Any) -> Any:
            return value.format(dead=dead) if isinstance(value, str) else value

        for name, value in environment.items():
            monkeypatch.setenv(name, filled(value))
        if by_variable:
            monkeypatch.setenv("TPUNB_REQUIRE_TPU", "1")
        more = {name: filled(value) for name, value in wishes.items()}
        with pytest.raises(ConnectError):
            tpunb.connect(**more, timeout=PATIENCE, require_tpu=not by_variable)
