"""Looking up a TPU by its name, with a gcloud of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counterparts.cloud import PARENT, Gcloud, node
from counterparts.metadata import MetadataServer, tpu_vm
from support.patience import PATIENCE

from tpunb.errors import ConnectError
from tpunb.errors.explain import explain
from tpunb.machine.metadata_server import forget
from tpunb.tensorflow.connection.hardware import cloud
from tpunb.tensorflow.connection.hardware.attempt import Attempt

WHERE = {"zone": "us-central1-b", "project": "my-project"}
SHORT = "--zone=us-central1-b --project=my-project"
DESCRIBE = ["compute", "tpus", "tpu-vm", "describe", "my-tpu"]


@pytest.fixture(autouse=True)
def not_on_google_cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Name a metadata server that refuses, and forget what other tests know of such servers."""
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.delenv("CLOUDSDK_COMPUTE_ZONE", raising=False)
    forget()
    yield
    forget()


def look_up(name: str = "my-tpu", timeout: float = PATIENCE, **more: Any) -> cloud.Node:
    return cloud.look_up(Attempt(name, timeout), **{**WHERE, **more})


def refused(name: str = "my-tpu", **more: Any) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        look_up(name, **more)
    assert caught.value.fix
    return caught.value


def test_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    symptoms = [
        {"createTime": "2026-02-01T00:00:00Z", "symptomType": "OUT_OF_MEMORY"},
        {"createTime": "2026-01-01T00:00:00Z", "symptomType": "HBM_OUT_OF_MEMORY"},
    ]
    described = node(
        workers=("10.0.0.2:8471", "10.0.0.3"),
        version="tpu-vm-tf-2.18.0-pod",
        health="HEALTHY",
        symptoms=symptoms,
    )
    gcloud = Gcloud(tmp_path, {"my-tpu": described}).use(monkeypatch)
    tpu = look_up()
    assert tpu == cloud.Node(
        "my-tpu",
        "us-central1-b",
        "my-project",
        "READY",
        "HEALTHY",
        version="tpu-vm-tf-2.18.0-pod",
        accelerator_type="v3-8",
        endpoints=("10.0.0.2:8471", "10.0.0.3:8470"),
        symptoms=("HBM_OUT_OF_MEMORY", "OUT_OF_MEMORY"),
    )
    assert str(tpu) == "TPU my-tpu is READY (v3-8, tpu-vm-tf-2.18.0-pod, healthy)"
    assert gcloud.calls == [[*DESCRIBE, *SHORT.split(), "--format=json", "--quiet"]]
    assert tpu.command("start") == f"gcloud compute tpus tpu-vm start my-tpu {SHORT}"
    cloud.refuse_unusable(tpu, Attempt("my-tpu", PATIENCE))


def test_zone_and_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gcloud = Gcloud(tmp_path, {"my-tpu": node()}).use(monkeypatch)
    assert look_up(f"{PARENT}/my-tpu", zone=None, project=None).zone == "us-central1-b"
    look_up(zone=None, project=None)
    with MetadataServer(tpu_vm()) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        look_up(zone=None, project=None)
        monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-east1-a")
        look_up(zone=None, project=None)
    given = [" ".join(call[len(DESCRIBE) : -2]) for call in gcloud.calls]
    assert given == [SHORT, "", "--zone=us-central1-b", ""]


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a/b",
        "../x",
        "10.0.0.2:8470",
        "10.0.0.2",
        "localhost",
        "http://a",
        "a\0b",
        "\ud800",
        "x" * 500,
    ],
    ids=[
        "empty",
        "blank",
        "space",
        "slash",
        "dots",
        "address",
        "ip",
        "localhost",
        "url",
        "nul",
        "lone",
        "long",
    ],
)
def test_invalid_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gcloud = Gcloud(tmp_path).use(monkeypatch)
    error = refused(name)
    assert "not the name of a TPU" in str(error)
    if name.startswith(("10.", "localhost")):
        assert f"grpc://{name}." in error.fix
    assert "is not a zone" in str(refused(zone="--format=text"))
    assert gcloud.calls == []


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("NOT_FOUND: Resource 'my-tpu' was not found", f"tpu-vm list {SHORT}"),
        ("PERMISSION_DENIED: Permission 'tpu.nodes.get' denied", "roles/tpu.viewer"),
        (
            "PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before",
            "gcloud services enable",
        ),
        (
            "You do not currently have an active account. Run: gcloud auth login",
            "gcloud auth login",
        ),
        ("Failed to find attribute [zone]", "projects/PROJECT/locations/ZONE/nodes/NAME"),
        ("something new", f"gcloud compute tpus tpu-vm describe my-tpu {SHORT}"),
    ],
)
def test_refusals(error: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Gcloud(tmp_path, error=error).use(monkeypatch)
    refusal = refused()
    assert error in str(refusal)
    assert fix in refusal.fix
    assert "grpc://HOST:8470" in refusal.fix
    entry = explain(refusal)
    assert entry is not None
    assert entry.number == 7


@pytest.mark.parametrize("text", ["<html>Please log in</html>", "[]", "3"])
def test_odd_answers(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Gcloud(tmp_path, {"my-tpu": node()}, text=text).use(monkeypatch)
    assert "no JSON" in str(refused())


def test_the_time_limit_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Gcloud(tmp_path, {"my-tpu": node()}, seconds=2 * PATIENCE).use(monkeypatch)
    assert "in 0.7 s" in str(refused(timeout=0.7))


def test_a_machine_without_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refused()
    assert "gcloud is not installed" in str(error)
    assert "cloud.google.com/sdk" in error.fix


@pytest.mark.parametrize(
    ("described", "message", "fix"),
    [
        ({"state": "CREATING"}, "CREATING: it is not ready for a connection", "Wait until"),
        ({"state": "RESTARTING"}, "RESTARTING: it is not", "Wait until"),
        ({"state": "STOPPED"}, "is STOPPED", "tpu-vm start my-tpu"),
        ({"state": "STOPPING"}, "is STOPPING", "Wait until"),
        ({"state": "PREEMPTED"}, "took it back", "tpu-vm delete my-tpu"),
        ({"state": "TERMINATED"}, "it has gone", "queued-resources"),
        ({"state": "DELETING"}, "it has gone", "that it has gone, then create"),
        ({"state": "REPAIRING"}, "is repairing it", "Wait until"),
        ({"state": "SOMETHING_NEW"}, "is SOMETHING_NEW", "describe my-tpu"),
        ({"state": None}, "is UNKNOWN", "describe my-tpu"),
        ({"health": "TIMEOUT"}, "not healthy: TIMEOUT", "tpu-vm stop my-tpu"),
        ({"health": "UNHEALTHY_TENSORFLOW"}, "UNHEALTHY_TENSORFLOW", "tpu-vm start my-tpu"),
        ({"health": "UNHEALTHY_MAINTENANCE"}, "MAINTENANCE", "end of the maintenance"),
        (
            {
                "health": "UNHEALTHY_TENSORFLOW",
                "healthDescription": "it died",
                "symptoms": [{"createTime": "1", "symptomType": "OUT_OF_MEMORY"}],
            },
            "it died. Its last symptom is OUT_OF_MEMORY",
            "dataset.cache()",
        ),
        ({"networkEndpoints": []}, "no network address", "describe my-tpu"),
        ({"networkEndpoints": [{}]}, "no network address", "describe my-tpu"),
        (
            {
                "networkEndpoints": [
                    {"ipAddress": 5},
                    {"ipAddress": "a/b"},
                    {"ipAddress": "a", "port": "x"},
                ]
            },
            "no network address",
            "describe my-tpu",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(map(str, value.values()))[:40],
)
def test_states(
    described: dict[str, Any],
    message: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Gcloud(tmp_path, {"my-tpu": {**node(), **described}}).use(monkeypatch)
    tpu = look_up()
    attempt = Attempt("my-tpu", PATIENCE)
    attempt.note("asked")
    with pytest.raises(ConnectError) as caught:
        cloud.refuse_unusable(tpu, attempt)
    assert message in str(caught.value)
    assert fix in caught.value.fix
    assert SHORT in caught.value.fix
    assert caught.value.tried == ("asked",)
    entry = explain(caught.value)
    if "no network" not in message:
        assert entry is not None
        assert entry.number == 8
