"""Signs of a TPU: device files, the PCI bus, the environment and metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from counterparts.machines import accel, board, pci, vfio
from counterparts.metadata import MetadataServer, tpu_vm
from hypothesis import given
from hypothesis import strategies as st
from support.patience import wait_until

from tpunb.machine import chips, detect
from tpunb.machine import metadata_server as metadata
from tpunb.machine.detect import Search, default_tpu, find_tpu, requires_tpu

COLAB = {"COLAB_RELEASE_TAG": "release-colab_20250902-060114_RC00", "COLAB_BACKEND_VERSION": "next"}
COLAB_TPU = {
    **COLAB,
    "COLAB_TPU_1VM": "1",
    "TPU_ACCELERATOR_TYPE": "v5e-1",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",
}
# Kaggle's image is made from Colab's.
KAGGLE = {**COLAB, "KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_TPU_1VM": ""}
KAGGLE_TPU = {
    **KAGGLE,
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_PROCESS_ADDRESSES": "local",
}
GKE = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_TOPOLOGY": "4x4",
    "TPU_WORKER_ID": "1",
    "TPU_WORKER_HOSTNAMES": "tpu-0.svc,tpu-1.svc,tpu-2.svc,tpu-3.svc",
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of which nothing is known; each test asks metadata servers anew."""
    monkeypatch.setattr(chips, "ROOT", tmp_path)
    metadata.forget()
    yield
    metadata.forget()


def said(search: Search) -> str:
    return "; ".join(search.tried)


def test_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "slice_of_metadata", None)  # nobody is asked
    found = find_tpu({})
    assert found.tpu is None
    assert found.tried == (
        "no TPU device in /dev",
        "TPU_NAME is not set",
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_CONFIG and COLAB_TPU_ADDR are not set",
    )
    assert found.platform.kind == "machine"
    assert not found.notes


CONFIG = json.dumps({"tpu_node_name": "configured", "project": "p", "zone": "z"})


@pytest.mark.parametrize(
    ("variables", "tpu"),
    [
        ({"TPU_NAME": "my-tpu"}, "my-tpu"),
        ({"TPU_NAME": " local "}, "local"),
        ({"TPU_NAME": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"TPU_NAME": "grpc://10.0.0.2"}, "grpc://10.0.0.2:8470"),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"COLAB_TPU_ADDR": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"TPU_NAME": "a", "COLAB_TPU_ADDR": "b:1"}, "a"),
        ({"TPU_NAME": "a", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "b:1,c"}, "grpc://b:1,grpc://c:8470"),
        ({"TPU_CONFIG": CONFIG}, "configured"),
        ({"TPU_NAME": "a", "TPU_CONFIG": CONFIG}, "a"),
        ({"TPU_NAME": "  "}, None),
        ({"COLAB_TPU_ADDR": ""}, None),
        ({"TPU_ACCELERATOR_TYPE": "v3-8", "TPU_WORKER_ID": "0"}, None),
        ({"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "user@, grpc:///"}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_variables(variables: dict[str, str], tpu: str | None) -> None:
    found = find_tpu(variables)
    assert found.tpu == tpu
    assert found.tried[0] == "no TPU device in /dev"
    if tpu is not None:
        assert "is set to" in said(found) or "names" in said(found)


def test_a_local_tpu_that_is_only_named(tmp_path: Path) -> None:
    found = find_tpu({"TPU_NAME": "local"})
    assert [problem.about for problem in found.problems(local_tpu=True)] == ["TPU_NAME"]
    assert found.tpu_only_from_env
    accel(tmp_path)
    assert not find_tpu({"TPU_NAME": "local"}).tpu_only_from_env


def test_no_secret_is_in_the_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "planted-secret")
    found = find_tpu({"TPU_NAME": "planted-secret"})
    assert found.tpu == "planted-secret"
    assert repr(found).startswith("Search(tpu='***', tried=(")
    assert "planted" not in repr(found)


def test_one_time_limit_for_all_metadata(tmp_path: Path) -> None:
    accel(tmp_path)
    with MetadataServer(tpu_vm(), "slow", delay=0.7) as server:
        found = find_tpu({"GCE_METADATA_HOST": server.host})
        assert len(server.requests) <= 2
    assert "the metadata server: it does not answer within 1 s" in found.tried


def test_where_tpu_config_says_the_tpu_is() -> None:
    found = find_tpu({"TPU_CONFIG": CONFIG})
    assert (found.slice.project, found.slice.zone) == ("p", "z")


@pytest.mark.parametrize(
    "config", ["", "{", "[]", "5", "{}", '{"tpu_node_name": 5}', "[" * 5_000], ids=len
)
def test_tpu_config_that_cannot_be_read(config: str) -> None:
    assert find_tpu({"TPU_CONFIG": config}).tpu is None


def test_a_user_in_an_address() -> None:
    """gRPC has none; it is neither said nor passed on."""
    for value in ("grpc://user:s3cr3t-word@host:1", "user:s3cr3t-word@host:1"):
        found = find_tpu({"TPU_NAME": value})
        assert found.tpu == "grpc://host:1"
        assert "s3cr3t-word" not in repr(found)


@pytest.mark.parametrize(
    ("device", "family"),
    [("0x0027", "v2 or v3"), ("0x005e", "v4"), ("0x0062", "v5p"), ("0x0063", "v5e"), ("0x006f", "v6e"), ("0x0076", "tpu7x")],
)  # fmt: skip
def test_vfio_of_a_tpu(tmp_path: Path, device: str, family: str) -> None:
    vfio(tmp_path, [2, 10], device)
    pci(tmp_path, device, count=2)
    found = find_tpu({"TPU_NAME": "my-tpu"})
    assert found.tpu == "local"
    assert found.tried[0] == f"found /dev/vfio/2, /dev/vfio/10 ({family})"
    assert found.chips.on_bus == 2


def test_accel_of_a_tpu(tmp_path: Path) -> None:
    accel(tmp_path, 12)
    (tmp_path / "dev" / "accel").mkdir()  # where other drivers put theirs
    found = find_tpu({})
    assert found.tpu == "local"
    assert found.chips.files[-1] == "/dev/accel11"
    assert len(found.chips.files) == 12


def test_accel_of_another_device(tmp_path: Path) -> None:
    accel(tmp_path, 1, vendor="0x1da3")
    found = find_tpu({})
    assert found.tpu is None
    assert "/dev/accel0 belongs to another device" in said(found)


def test_vfio_of_another_device(tmp_path: Path) -> None:
    """A graphics card passed through, on any machine; even with a TPU's variables."""
    vfio(tmp_path, [7, 8], "0x2204", vendor="0x10de")
    found = find_tpu({"TPU_ACCELERATOR_TYPE": "v3-8"})
    assert found.tpu is None
    assert found.chips.others == ("/dev/vfio/7", "/dev/vfio/8")
    assert "belong to another device" in said(found)


def test_vfio_of_another_device_of_googles(tmp_path: Path) -> None:
    vfio(tmp_path, [7], "0x0042")  # gVNIC, a network card
    assert find_tpu({}).tpu is None


def test_vfio_of_which_nothing_is_known(tmp_path: Path) -> None:
    vfio(tmp_path, [0])
    found = find_tpu({})
    assert found.tpu is None
    assert "found /dev/vfio/0, which may be a TPU or another device" in said(found)
    # In Colab, Kaggle and with a TPU on the bus something does.
    for environment in (COLAB_TPU, KAGGLE_TPU):
        assert find_tpu(environment).tpu == "local"
    pci(tmp_path, "0x0063")
    assert find_tpu({}).tpu == "local"


def test_a_tpu_without_a_device_file(tmp_path: Path) -> None:
    pci(tmp_path, "0x0063", count=8)
    found = find_tpu({})
    assert found.tpu is None
    assert found.tried[0] == "8 TPU v5e chips on the PCI bus, but no device file in /dev"
    (problem,) = found.problems(local_tpu=True)
    assert problem.message.startswith(
        "This machine has 8 TPU v5e chips on the PCI bus, but /dev has no"
    )
    assert "with its devices" in problem.fix


def test_other_devices_of_googles_are_no_tpu(tmp_path: Path) -> None:
    pci(tmp_path, "0x0042")
    pci(tmp_path, "0x0063", vendor="0x8086")
    assert find_tpu({}).chips.on_bus == 0


@pytest.mark.parametrize("kind", ["v5e-1", "v6e-1", "v5litepod-1"])
def test_colab(tmp_path: Path, kind: str) -> None:
    vfio(tmp_path, [0])
    found = find_tpu({**COLAB_TPU, "TPU_ACCELERATOR_TYPE": kind})
    assert (found.tpu, found.platform.kind) == ("local", "colab")
    assert found.slice.accelerator_type == kind
    assert "one replica" in found.notes[0]
    assert "--simulate" in found.notes[0]
    assert "this is Google Colab: COLAB_TPU_1VM is 1" in said(found)


def test_colab_without_a_device_file() -> None:
    """TensorFlow has the last word: a virtual TPU stands in if it sees none."""
    found = find_tpu(COLAB_TPU)
    assert found.tpu == "local"
    assert "has no device file" in found.notes[-1]


def test_colab_without_a_tpu() -> None:
    for environment in (COLAB, {**COLAB, "COLAB_TPU_1VM": ""}):
        found = find_tpu(environment)
        assert (found.tpu, found.platform.kind) == (None, "colab")


def test_kaggle(tmp_path: Path) -> None:
    vfio(tmp_path, range(8))
    found = find_tpu(KAGGLE_TPU)
    assert (found.tpu, found.platform.kind) == ("local", "kaggle")
    assert found.slice.accelerator_type == "v5litepod-8"
    assert not found.notes  # eight replicas, one worker
    (tmp_path / "dev").rename(tmp_path / "gone")
    assert find_tpu(KAGGLE).tpu is None


def test_gke(tmp_path: Path) -> None:
    accel(tmp_path)
    one = {**GKE, "TPU_WORKER_HOSTNAMES": "tpu-0.svc", "TPU_WORKER_ID": "0"}
    assert find_tpu(one).tpu == "local"
    several = find_tpu(GKE)
    assert several.platform.kind == "kubernetes"
    assert several.tpu == ",".join(f"grpc://tpu-{n}.svc:8470" for n in range(4))
    assert several.slice.worker_id == 1
    assert "This is worker 1 of 4 of v5litepod-16" in several.notes[0]
    assert find_tpu({**GKE, "TPU_NAME": "named"}).tpu == "named"


def test_a_tpu_vm(tmp_path: Path) -> None:
    accel(tmp_path)
    with MetadataServer(tpu_vm("v3-8")) as server:
        found = find_tpu({"GCE_METADATA_HOST": server.host})
    assert (found.tpu, found.platform.kind) == ("local", "tpu-vm")
    assert found.slice.accelerator_type == "v3-8"
    assert (found.slice.name, found.slice.zone) == ("my-tpu", "us-central1-b")
    assert "the metadata server says: v3-8" in said(found)
    assert not found.notes


def test_a_container_on_a_tpu_vm_without_its_devices() -> None:
    with MetadataServer(tpu_vm("v3-8")) as server:
        found = find_tpu({"GCE_METADATA_HOST": server.host})
    assert (found.tpu, found.platform.kind, found.lacks_devices) == (None, "tpu-vm", True)
    (problem,) = found.problems(local_tpu=True)
    assert problem.message.startswith("This is a Cloud TPU VM, but /dev has no device file")


def test_a_worker_of_a_slice(tmp_path: Path) -> None:
    accel(tmp_path)
    values = tpu_vm("v3-32", workers=("10.0.0.2", "10.0.0.3"), worker=1)
    with MetadataServer(values) as server:
        environment = {"GCE_METADATA_HOST": server.host}
        found = find_tpu(environment)
        assert found.tpu == "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470"
        assert "This is worker 1 of 2 of v3-32" in found.notes[0]
        assert "TPU_LOAD_LIBRARY=0" in found.notes[0]
        assert find_tpu({**environment, "TPU_NAME": "mine"}).tpu == "mine"
        # Without the newer attribute the others say as much.
        del server.values["instance/attributes/tpu-env"]
        again = find_tpu(environment)
        assert (again.tpu, again.slice.worker_id) == (found.tpu, 1)


def test_the_client_of_a_pod_leaves_its_own_chips(tmp_path: Path) -> None:
    accel(tmp_path)
    environment = {"TPU_NAME": "my-pod", "TPU_LOAD_LIBRARY": "0"}
    assert find_tpu(environment).tpu == "my-pod"
    alone = find_tpu({"TPU_LOAD_LIBRARY": "0"})
    assert alone.tpu == "local"
    assert [problem.about for problem in alone.problems(local_tpu=True)] == ["TPU_LOAD_LIBRARY"]


def test_compute_engine_without_a_tpu(tmp_path: Path) -> None:
    board(tmp_path)
    with MetadataServer() as server:
        found = find_tpu({"GCE_METADATA_IP": server.host})
    assert (found.tpu, found.platform.kind) == (None, "compute-engine")
    assert "the metadata server has no TPU for this machine" in said(found)


def test_the_board_says_compute_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board(tmp_path)
    with MetadataServer(tpu_vm("v4-8")) as server:
        monkeypatch.setattr(metadata, "_HOST", server.host)
        assert find_tpu({}).slice.accelerator_type == "v4-8"
        asked = len(server.requests)
        board(tmp_path, "ThinkPad X1")
        assert find_tpu({}).slice.accelerator_type is None
        assert len(server.requests) == asked  # a laptop waits for nobody


@pytest.mark.parametrize(
    "environment",
    [COLAB_TPU, KAGGLE_TPU, {"TPU_SKIP_MDS_QUERY": "1"}],
    ids=["colab", "kaggle", "skip"],
)
def test_where_metadata_are_not_asked(tmp_path: Path, environment: dict[str, str]) -> None:
    board(tmp_path)
    with MetadataServer(tpu_vm()) as server:
        find_tpu({**environment, "GCE_METADATA_HOST": server.host})
        assert not server.requests


def test_a_metadata_server_that_does_not_answer(tmp_path: Path) -> None:
    board(tmp_path)
    with MetadataServer(tpu_vm(), "hangs") as server:
        found = find_tpu({"GCE_METADATA_HOST": server.host})
        assert "does not answer within 1 s" in said(found)
        again = find_tpu({"GCE_METADATA_HOST": server.host})
        assert "does not answer within 1 s" in said(again)
        wait_until(lambda: server.requests)
        assert len(server.requests) == 1  # it is asked no second time


@pytest.mark.parametrize("worker", ["", "x", "-1", "1" * 400, "٣x"])
def test_metadata_that_nobody_would_write(worker: str) -> None:
    values = {
        "instance/attributes/accelerator-type": "<script>alert(1)</script>",
        "instance/attributes/agent-worker-number": worker,
        "instance/attributes/worker-network-endpoints": "a:b:<x>,,::: ,\x00",
        "instance/attributes/tpu-env": "ACCELERATOR_TYPE\nZONE: 'a b'\n: ''\n",
    }
    with MetadataServer(values) as server:
        found = find_tpu({"GCE_METADATA_HOST": server.host})
    assert found.slice.accelerator_type is None
    assert found.slice.workers == ()
    assert found.slice.zone is None


TEXT = st.text(max_size=60)


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            (
                *COLAB_TPU,
                *GKE,
                "TPU_NAME",
                "TPU_CONFIG",
                "COLAB_TPU_ADDR",
                "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
            ),
            TEXT,
        ),
    )
)
def test_any_environment(variables: dict[str, str]) -> None:
    found = find_tpu(variables)
    assert found.tried
    assert found.tpu is None or found.tpu


def test_the_process_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    monkeypatch.setenv("TPUNB_TPU", " v3-8 ")
    monkeypatch.setenv("TPUNB_REQUIRE_TPU", "1")
    assert find_tpu().tpu == "my-tpu"
    assert default_tpu() == "v3-8"
    assert requires_tpu()


@pytest.mark.parametrize(
    ("value", "tpu"), [(None, None), ("", None), ("  ", None), ("v5e-8", "v5e-8")]
)
def test_default(value: str | None, tpu: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPUNB_TPU", raising=False)
    if value is not None:
        monkeypatch.setenv("TPUNB_TPU", value)
    assert default_tpu() == tpu


@pytest.mark.parametrize(
    ("value", "required"),
    [("1", True), ("true", True), (" YES ", True), ("on", True), ("ja", True), ("0", False), ("", False), (" No ", False), ("off", False), (None, False)],
)  # fmt: skip
def test_required(value: str | None, required: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPUNB_REQUIRE_TPU", raising=False)
    if value is not None:
        monkeypatch.setenv("TPUNB_REQUIRE_TPU", value)
    assert requires_tpu() is required
