"""Looking up a TPU by its name, at a Cloud TPU API on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from counterparts.cloud import PARENT, CloudAPI, node
from counterparts.metadata import TOKEN, MetadataServer, tpu_vm
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE

from tpunb.errors import ConnectError
from tpunb.errors.explain import explain
from tpunb.machine.metadata_server import forget
from tpunb.tensorflow.connection.hardware import cloud
from tpunb.tensorflow.connection.hardware.attempt import Attempt
from tpunb.tensorflow.connection.hardware.cloud import Asking

WHERE = {"zone": "us-central1-b", "project": "my-project"}
SHORT = "--zone=us-central1-b --project=my-project"


@pytest.fixture(autouse=True)
def forget_metadata_servers() -> Iterator[None]:
    """Forget what other tests know of metadata servers."""
    forget()
    yield
    forget()


def at(api: CloudAPI, **more: str) -> dict[str, str]:
    """Return an environment that names the API and a metadata server that refuses."""
    return {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": api.root,
        "GCE_METADATA_HOST": "127.0.0.1:1",
        **more,
    }


def look_up(
    api: CloudAPI, name: str = "my-tpu", timeout: float = PATIENCE, **more: Any
) -> cloud.Node:
    return cloud.look_up(Attempt(name, timeout), **{**WHERE, **more}, environment=at(api))


def refused(api: CloudAPI, name: str = "my-tpu", **more: Any) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        look_up(api, name, **more)
    assert caught.value.fix
    assert caught.value.tried
    return caught.value


def test_a_node_of_v2() -> None:
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
    with CloudAPI({"my-tpu": described}) as api:
        tpu = look_up(api)
    assert tpu == cloud.Node(
        "my-tpu",
        "us-central1-b",
        "my-project",
        "v2",
        "READY",
        "HEALTHY",
        version="tpu-vm-tf-2.18.0-pod",
        accelerator_type="v3-8",
        endpoints=("10.0.0.2:8471", "10.0.0.3:8470"),
        symptoms=("HBM_OUT_OF_MEMORY", "OUT_OF_MEMORY"),
    )
    assert str(tpu) == "TPU my-tpu is READY (v3-8, tpu-vm-tf-2.18.0-pod, healthy)"
    assert api.requests == [f"/v2/{PARENT}/my-tpu"]
    assert tpu.command("start") == f"gcloud compute tpus tpu-vm start my-tpu {SHORT}"


def test_a_node_of_v1_only() -> None:
    described = {"state": "READY", "ipAddress": "10.0.0.9", "port": "8470"}
    described |= {"tensorflowVersion": "2.18"}
    with CloudAPI({"my-tpu": described}, apis=("v1",)) as api:
        tpu = look_up(api)
    assert (tpu.api, tpu.version, tpu.endpoints) == ("v1", "2.18", ("10.0.0.9:8470",))
    assert tpu.command("stop") == f"gcloud compute tpus stop my-tpu {SHORT}"
    assert [path[:3] for path in api.requests] == ["/v2", "/v1"]


def test_a_full_name() -> None:
    with CloudAPI({"my-tpu": node()}) as api:
        assert look_up(api, f"{PARENT}/my-tpu", zone=None, project=None).zone == "us-central1-b"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (None, "/v1/"),
        ({"rootUrl": "{root}/", "servicePath": ""}, "/v1/"),
        ({"baseUrl": "{root}/"}, "/v1/"),
        ({"rootUrl": 3}, "/v1/"),
        ({"resources": []}, "/v1/"),
    ],
    ids=["none", "root", "base", "odd root", "odd resources"],
)
def test_a_discovery_url(document: dict[str, Any] | None, path: str) -> None:
    with CloudAPI({"my-tpu": node(api="v1")}, apis=("v1",)) as api:
        if document is not None:
            filled = {
                key: value.format(root=api.root) if isinstance(value, str) else value
                for key, value in document.items()
            }
            get = {"path": "v1/{+name}"}
            resources = {"locations": {"resources": {"nodes": {"methods": {"get": get}}}}}
            api.document = {"resources": {"projects": {"resources": resources}}} | filled
        url = f"{api.root}/discovery/{{api}}/{{apiVersion}}"
        environment = at(api, TPU_API_DISCOVERY_URL=url)
        tpu = cloud.look_up(Attempt("my-tpu", PATIENCE), **WHERE, environment=environment)
    assert tpu.state == "READY"
    assert api.requests[0] == "/discovery/tpu/v1"
    assert f"{path}{PARENT}/my-tpu" in api.requests


def test_zone_and_project() -> None:
    with CloudAPI({"my-tpu": node()}) as api, MetadataServer(tpu_vm()) as server:
        for more in (
            {"CLOUDSDK_COMPUTE_ZONE": "us-central1-b", "CLOUDSDK_CORE_PROJECT": "my-project"},
            {"CLOUDSDK_COMPUTE_ZONE": "us-central1-b", "GOOGLE_CLOUD_PROJECT": "my-project"},
            {"TPU_CONFIG": '{"zone": "us-central1-b", "project": "my-project"}'},
            {"TPU_CONFIG": "no json", "GCE_METADATA_HOST": server.host},
            {"TPU_CONFIG": "[1]", "GCE_METADATA_HOST": server.host},
        ):
            attempt = Attempt("my-tpu", PATIENCE)
            cloud.look_up(attempt, environment=at(api, **more))
            assert attempt.tried[0].startswith("zone us-central1-b, from ")
            assert attempt.tried[1].startswith("project my-project, from ")


def test_not_on_google_cloud() -> None:
    with CloudAPI() as api:
        error = refused(api, zone=None)
        assert "zone of the TPU is not known" in str(error)
        assert "projects/PROJECT/locations/ZONE/nodes/NAME" in error.fix
        known = explain(error)
        assert known is not None
        assert known.number == 7
        assert "project" in str(refused(api, project=None))
    assert api.requests == []


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
def test_invalid_names(name: str) -> None:
    with CloudAPI() as api:
        with pytest.raises(ConnectError, match="not the name of a TPU") as caught:
            look_up(api, name)
        if name.startswith(("10.", "localhost")):
            assert f"grpc://{name}." in caught.value.fix
        assert api.requests == []


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_name_and_zone(name: str, zone: str) -> None:
    with pytest.raises(ConnectError):
        cloud.look_up(
            Attempt(name, PATIENCE),
            zone=zone or None,
            project="p",
            environment={
                "GCE_METADATA_HOST": "127.0.0.1:1",
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:1",
            },
        )


def test_not_found() -> None:
    nodes = {name: node(name) for name in ("my-tpu-2", "other", "zz", "a", "b", "c")}
    with CloudAPI(nodes) as api:
        error = refused(api)
        assert "There is no TPU 'my-tpu' in the zone us-central1-b" in str(error)
        assert error.fix.startswith("Choose my-tpu-2, ")
        assert " and 1 more," in error.fix
        assert any("404" in line for line in error.tried)
        entry = explain(error)
        assert entry is not None
        assert entry.number == 7
        api.nodes.clear()
        assert "This zone has no TPU" in refused(api).fix


@pytest.mark.parametrize(
    ("error", "message", "fix"),
    [
        ((401, "UNAUTHENTICATED", "who?"), "requires credentials", "gcloud auth"),
        ((403, "PERMISSION_DENIED", "denied"), "may not look up", "roles/tpu.viewer"),
        ((403, "SERVICE_DISABLED", "off"), "not enabled", "gcloud services enable"),
        ((500, "INTERNAL", "oops"), "answered 500, INTERNAL: oops", "gcloud compute tpus"),
        ((429, "RESOURCE_EXHAUSTED", "quota"), "answered 429", "again in a while"),
    ],
    ids=["401", "403", "disabled", "500", "429"],
)
def test_refusals(error: tuple[int, str, str], message: str, fix: str) -> None:
    with CloudAPI(error=error) as api:
        refusal = refused(api)
        assert message in str(refusal)
        assert fix in refusal.fix
        assert len(api.requests) == 1


@pytest.mark.parametrize("mode", ["hangs", "trickles"])
def test_the_time_limit_holds(mode: Any) -> None:
    with CloudAPI(mode=mode) as api:
        error = refused(api, timeout=0.7)
    assert "no answer in time" in str(error)


@pytest.mark.parametrize("mode", ["no json", "redirects"])
def test_odd_answers(mode: Any) -> None:
    with CloudAPI(mode=mode) as api:
        error = refused(api)
        assert "instead of the Cloud TPU API" in str(error)
        assert "proxy or a login page" in error.fix


@pytest.mark.parametrize(
    "variable", ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "TPU_API_DISCOVERY_URL"]
)
@pytest.mark.parametrize("value", ["file:///etc/hostname", "hunter2"])
def test_an_invalid_api_address(variable: str, value: str) -> None:
    with pytest.raises(ConnectError, match=f"{variable} is not an address") as caught:
        cloud.look_up(Attempt("my-tpu", PATIENCE), **WHERE, environment={variable: value})
    assert value not in str(caught.value)


def test_an_api_that_refuses_connections() -> None:
    environment = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:1"}
    with pytest.raises(
        ConnectError, match=r"cannot be reached: 127\.0\.0\.1:1: Connection refused"
    ):
        cloud.look_up(Attempt("my-tpu", PATIENCE), **WHERE, environment=environment)


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
def test_states(described: dict[str, Any], message: str, fix: str) -> None:
    with CloudAPI({"my-tpu": {**node(), **described}}) as api:
        tpu = look_up(api)
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


def test_a_healthy_node_is_not_refused() -> None:
    with CloudAPI({"my-tpu": node(health="HEALTHY")}) as api:
        cloud.refuse_unusable(look_up(api), Attempt("my-tpu", PATIENCE))


def test_the_token_is_sent_only_to_google() -> None:
    with MetadataServer() as server:
        environment = {"GCE_METADATA_HOST": server.host}
        token = Asking(Attempt("my-tpu", PATIENCE), environment).token
        for url in (
            "http://tpu.googleapis.com/v2/x",
            "https://tpu.googleapis.com.evil.example/v2/x",
            "https://evil.example/googleapis.com/",
            "https://user@evil.example/",
            "https://evilgoogleapis.com/",
            "http://127.0.0.1:1/",
        ):
            assert token(url) is None, url
        assert server.requests == []
        for google in ("https://tpu.googleapis.com/v2/x", "https://x.p.googleapis.com:443/v1/"):
            assert token(google) == TOKEN
        assert len(server.requests) == 1


def test_no_token() -> None:
    attempt = Attempt("my-tpu", PATIENCE)
    asking = Asking(attempt, {"GCE_METADATA_HOST": "127.0.0.1:1"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        patch.setenv("GCE_METADATA_IP", "127.0.0.1:1")
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
        assert asking.token("https://tpu.googleapis.com/") is None
    assert attempt.tried[0].startswith("a token from the metadata server: ")
    assert attempt.tried[1].startswith("google.auth")
