"""Signs of a TPU: device files, the PCI bus, environment variables and metadata."""

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
# Kaggle's image is based on Colab's.
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
    """A machine about which nothing is known; each test asks the metadata server again."""
    monkeypatch.setattr(chips, "ROOT", tmp_path)
    metadata.forget()
    yield
    metadata.forget()


def attempts_of(search: Search) -> str:
    return "; ".join(search.tried)


def test_a_machine_without_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "slice_of_metadata", None)  # no server is asked
    signs = find_tpu({})
    assert signs.tpu is None
    assert signs.tried == (
        "no TPU device in /dev",
        "TPU_NAME is not set",
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_CONFIG and COLAB_TPU_ADDR are not set",
    )
    assert signs.platform.kind == "machine"
    assert not signs.notes


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
        ({"TPU_CONFIG": CONFIG}, "projects/p/locations/z/nodes/configured"),
        ({"TPU_CONFIG": '{"tpu_node_name": "alone"}'}, "alone"),
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
    signs = find_tpu(variables)
    assert signs.tpu == tpu
    assert signs.tried[0] == "no TPU device in /dev"
    if tpu is not None:
        assert "is set to" in attempts_of(signs) or "names" in attempts_of(signs)


def test_a_local_tpu_that_only_a_variable_names(tmp_path: Path) -> None:
    signs = find_tpu({"TPU_NAME": "local"})
    assert [problem.about for problem in signs.problems(local_tpu=True)] == ["TPU_NAME"]
    assert signs.tpu_only_from_env
    accel(tmp_path)
    assert not find_tpu({"TPU_NAME": "local"}).tpu_only_from_env


def test_the_repr_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "planted-secret")
    signs = find_tpu({"TPU_NAME": "planted-secret"})
    assert signs.tpu == "planted-secret"
    assert repr(signs).startswith("Search(tpu='***', tried=(")
    assert "planted" not in repr(signs)


def test_one_time_limit_for_all_metadata(tmp_path: Path) -> None:
    accel(tmp_path)
    with MetadataServer(tpu_vm(), "slow", delay=0.7) as server:
        signs = find_tpu({"GCE_METADATA_HOST": server.host})
        assert len(server.requests) <= 2
    assert "the metadata server: it does not answer within 1 s" in signs.tried


def test_the_address_in_tpu_config() -> None:
    signs = find_tpu({"TPU_CONFIG": CONFIG})
    assert (signs.slice.project, signs.slice.zone) == ("p", "z")


@pytest.mark.parametrize(
    "config", ["", "{", "[]", "5", "{}", '{"tpu_node_name": 5}', "[" * 5_000], ids=len
)
def test_unreadable_tpu_config(config: str) -> None:
    assert find_tpu({"TPU_CONFIG": config}).tpu is None


def test_a_user_in_an_address() -> None:
    """gRPC has no users: the user is neither shown nor passed on."""
    for value in ("grpc://user:s3cr3t-word@host:1", "user:s3cr3t-word@host:1"):
        signs = find_tpu({"TPU_NAME": value})
        assert signs.tpu == "grpc://host:1"
        assert "s3cr3t-word" not in repr(signs)


@pytest.mark.parametrize(
    ("device", "family"),
    [("0x0027", "v2 or v3"), ("0x005e", "v4"), ("0x0062", "v5p"), ("0x0063", "v5e"), ("0x006f", "v6e"), ("0x0076", "tpu7x")],
)  # fmt: skip
def test_vfio_of_a_tpu(tmp_path: Path, device: str, family: str) -> None:
    vfio(tmp_path, [2, 10], device)
    pci(tmp_path, device, count=2)
    signs = find_tpu({"TPU_NAME": "my-tpu"})
    assert signs.tpu == "local"
    assert signs.tried[0] == f"found /dev/vfio/2, /dev/vfio/10 ({family})"
    assert signs.chips.on_bus == 2


def test_accel_of_a_tpu(tmp_path: Path) -> None:
    accel(tmp_path, 12)
    (tmp_path / "dev" / "accel").mkdir()  # other drivers have their devices there
    signs = find_tpu({})
    assert signs.tpu == "local"
    assert signs.chips.files[-1] == "/dev/accel11"
    assert len(signs.chips.files) == 12


def test_accel_of_another_device(tmp_path: Path) -> None:
    accel(tmp_path, 1, vendor="0x1da3")
    signs = find_tpu({})
    assert signs.tpu is None
    assert "/dev/accel0 belongs to another device" in attempts_of(signs)


def test_vfio_of_another_device(tmp_path: Path) -> None:
    """A graphics card may be passed through on any machine, even if a TPU's variables are set."""
    vfio(tmp_path, [7, 8], "0x2204", vendor="0x10de")
    signs = find_tpu({"TPU_ACCELERATOR_TYPE": "v3-8"})
    assert signs.tpu is None
    assert signs.chips.others == ("/dev/vfio/7", "/dev/vfio/8")
    assert "belong to another device" in attempts_of(signs)


def test_vfio_of_another_google_device(tmp_path: Path) -> None:
    vfio(tmp_path, [7], "0x0042")  # a network card, gVNIC
    assert find_tpu({}).tpu is None


def test_an_unknown_vfio_device(tmp_path: Path) -> None:
    vfio(tmp_path, [0])
    signs = find_tpu({})
    assert signs.tpu is None
    assert "found /dev/vfio/0, which may be a TPU or another device" in attempts_of(signs)
    # In Colab, in Kaggle, and with a TPU on the bus, there are further signs.
    for environment in (COLAB_TPU, KAGGLE_TPU):
        assert find_tpu(environment).tpu == "local"
    pci(tmp_path, "0x0063")
    assert find_tpu({}).tpu == "local"


def test_a_tpu_without_a_device_file(tmp_path: Path) -> None:
    pci(tmp_path, "0x0063", count=8)
    signs = find_tpu({})
    assert signs.tpu is None
    assert signs.tried[0] == "8 TPU v5e chips on the PCI bus, but no device file in /dev"
    (problem,) = signs.problems(local_tpu=True)
    assert problem.message.startswith(
        "This machine has 8 TPU v5e chips on the PCI bus, but /dev has no"
    )
    assert "with its devices" in problem.fix


def test_other_google_devices_are_not_tpus(tmp_path: Path) -> None:
    pci(tmp_path, "0x0042")
    pci(tmp_path, "0x0063", vendor="0x8086")
    assert find_tpu({}).chips.on_bus == 0


@pytest.mark.parametrize("kind", ["v5e-1", "v6e-1", "v5litepod-1"])
def test_colab(tmp_path: Path, kind: str) -> None:
    vfio(tmp_path, [0])
    signs = find_tpu({**COLAB_TPU, "TPU_ACCELERATOR_TYPE": kind})
    assert (signs.tpu, signs.platform.kind) == ("local", "colab")
    assert signs.slice.accelerator_type == kind
    assert "one replica" in signs.notes[0]
    assert "--simulate" in signs.notes[0]
    assert "this is Google Colab: COLAB_TPU_1VM is 1" in attempts_of(signs)


def test_colab_without_a_device_file() -> None:
    """TensorFlow decides: if it sees no TPU, a virtual TPU is used instead."""
    signs = find_tpu(COLAB_TPU)
    assert signs.tpu == "local"
    assert "has no device file" in signs.notes[-1]


def test_colab_without_a_tpu() -> None:
    for environment in (COLAB, {**COLAB, "COLAB_TPU_1VM": ""}):
        signs = find_tpu(environment)
        assert (signs.tpu, signs.platform.kind) == (None, "colab")


def test_kaggle(tmp_path: Path) -> None:
    vfio(tmp_path, range(8))
    signs = find_tpu(KAGGLE_TPU)
    assert (signs.tpu, signs.platform.kind) == ("local", "kaggle")
    assert signs.slice.accelerator_type == "v5litepod-8"
    assert not signs.notes  # eight replicas, a single worker
    (tmp_path / "dev").rename(tmp_path / "gone")
    assert find_tpu(KAGGLE).tpu is None


def test_gke(tmp_path: Path) -> None:
    accel(tmp_path)
    worker = {**GKE, "TPU_WORKER_HOSTNAMES": "tpu-0.svc", "TPU_WORKER_ID": "0"}
    assert find_tpu(worker).tpu == "local"
    several = find_tpu(GKE)
    assert several.platform.kind == "kubernetes"
    assert several.tpu == ",".join(f"grpc://tpu-{n}.svc:8470" for n in range(4))
    assert several.slice.worker_id == 1
    assert "This is worker 1 of 4 of v5litepod-16" in several.notes[0]
    assert find_tpu({**GKE, "TPU_NAME": "named"}).tpu == "named"


def test_a_tpu_vm(tmp_path: Path) -> None:
    accel(tmp_path)
    with MetadataServer(tpu_vm("v3-8")) as server:
        signs = find_tpu({"GCE_METADATA_HOST": server.host})
    assert (signs.tpu, signs.platform.kind) == ("local", "tpu-vm")
    assert signs.slice.accelerator_type == "v3-8"
    assert (signs.slice.name, signs.slice.zone) == ("my-tpu", "us-central1-b")
    assert "the metadata server says: v3-8" in attempts_of(signs)
    assert not signs.notes


def test_a_container_on_a_tpu_vm_without_its_devices() -> None:
    with MetadataServer(tpu_vm("v3-8")) as server:
        signs = find_tpu({"GCE_METADATA_HOST": server.host})
    assert (signs.tpu, signs.platform.kind, signs.lacks_devices) == (None, "tpu-vm", True)
    (problem,) = signs.problems(local_tpu=True)
    assert problem.message.startswith("This is a Cloud TPU VM, but /dev has no device file")


def test_a_worker_of_a_slice(tmp_path: Path) -> None:
    accel(tmp_path)
    values = tpu_vm("v3-32", workers=("10.0.0.2", "10.0.0.3"), worker=1)
    with MetadataServer(values) as server:
        environment = {"GCE_METADATA_HOST": server.host}
        signs = find_tpu(environment)
        assert signs.tpu == "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470"
        assert "This is worker 1 of 2 of v3-32" in signs.notes[0]
        assert "TPU_LOAD_LIBRARY=0" in signs.notes[0]
        assert find_tpu({**environment, "TPU_NAME": "mine"}).tpu == "mine"
        # Without this newer attribute, the other attributes suffice.
        del server.values["instance/attributes/tpu-env"]
        second = find_tpu(environment)
        assert (second.tpu, second.slice.worker_id) == (signs.tpu, 1)


def test_a_client_of_a_pod_ignores_its_own_chips(tmp_path: Path) -> None:
    accel(tmp_path)
    environment = {"TPU_NAME": "my-pod", "TPU_LOAD_LIBRARY": "0"}
    assert find_tpu(environment).tpu == "my-pod"
    alone = find_tpu({"TPU_LOAD_LIBRARY": "0"})
    assert alone.tpu == "local"
    assert [problem.about for problem in alone.problems(local_tpu=True)] == ["TPU_LOAD_LIBRARY"]


def test_compute_engine_without_a_tpu(tmp_path: Path) -> None:
    board(tmp_path)
    with MetadataServer() as server:
        signs = find_tpu({"GCE_METADATA_IP": server.host})
    assert (signs.tpu, signs.platform.kind) == (None, "compute-engine")
    assert "the metadata server has no TPU for this machine" in attempts_of(signs)


def test_the_board_of_compute_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board(tmp_path)
    with MetadataServer(tpu_vm("v4-8")) as server:
        monkeypatch.setattr(metadata, "_HOST", server.host)
        assert find_tpu({}).slice.accelerator_type == "v4-8"
        requests = len(server.requests)
        board(tmp_path, "ThinkPad X1")
        assert find_tpu({}).slice.accelerator_type is None
        assert len(server.requests) == requests  # a laptop does not wait for a server


@pytest.mark.parametrize(
    "environment",
    [COLAB_TPU, KAGGLE_TPU, {"TPU_SKIP_MDS_QUERY": "1"}],
    ids=["colab", "kaggle", "skip"],
)
def test_platforms_without_a_metadata_request(tmp_path: Path, environment: dict[str, str]) -> None:
    board(tmp_path)
    with MetadataServer(tpu_vm()) as server:
        find_tpu({**environment, "GCE_METADATA_HOST": server.host})
        assert not server.requests


def test_a_metadata_server_that_does_not_answer(tmp_path: Path) -> None:
    board(tmp_path)
    with MetadataServer(tpu_vm(), "hangs") as server:
        signs = find_tpu({"GCE_METADATA_HOST": server.host})
        assert "does not answer within 1 s" in attempts_of(signs)
        second = find_tpu({"GCE_METADATA_HOST": server.host})
        assert "does not answer within 1 s" in attempts_of(second)
        wait_until(lambda: server.requests)
        assert len(server.requests) == 1  # it is not asked a second time


@pytest.mark.parametrize("worker", ["", "x", "-1", "1" * 400, "٣x"])
def test_invalid_metadata(worker: str) -> None:
    values = {
        "instance/attributes/accelerator-type": "<script>alert(1)</script>",
        "instance/attributes/agent-worker-number": worker,
        "instance/attributes/worker-network-endpoints": "a:b:<x>,,::: ,\x00",
        "instance/attributes/tpu-env": "ACCELERATOR_TYPE\nZONE: 'a b'\n: ''\n",
    }
    with MetadataServer(values) as server:
        signs = find_tpu({"GCE_METADATA_HOST": server.host})
    assert signs.slice.accelerator_type is None
    assert signs.slice.workers == ()
    assert signs.slice.zone is None


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
    signs = find_tpu(variables)
    assert signs.tried
    assert signs.tpu is None or signs.tpu


def test_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
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
