"""Detection of this machine's platform and TPU.

It runs when connecting, never at import. It checks device files, the PCI bus, the environment
and, on Google Cloud only, the metadata server, with a timeout of a second. Kaggle's image is
derived from Colab's, so Kaggle is checked first. Both run on Google Cloud, which is checked last.

A slice of several hosts has a worker on each host. GKE documents the environment variables; the
metadata keys are from JAX (`cloud_tpu_cluster.py`) and PyTorch/XLA (`tpu.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from tpunb._util.logs import logger
from tpunb._util.secret_masking import mask, secrets_in
from tpunb.errors import ConnectError
from tpunb.machine import chips as device_files
from tpunb.machine.chips import Chips, find_chips, text_of
from tpunb.machine.metadata_server import MetadataError, metadata
from tpunb.machine.setup_problem import SetupProblem
from tpunb.tpu.default_tpu import DEFAULT_TPU, WORKER_PORT

PlatformKind = Literal["colab", "kaggle", "kubernetes", "tpu-vm", "compute-engine", "machine"]

_NAMES: dict[PlatformKind, str] = {
    "colab": "Google Colab",
    "kaggle": "Kaggle",
    "kubernetes": "Kubernetes",
    "tpu-vm": "a Cloud TPU VM",
    "compute-engine": "Google Compute Engine",
    "machine": "a machine of your own",
}
_SIGNS: tuple[tuple[PlatformKind, tuple[str, ...]], ...] = (
    ("kaggle", ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE")),
    ("colab", ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION", "COLAB_TPU_1VM")),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",)),
    ("compute-engine", ("GCE_METADATA_HOST", "GCE_METADATA_IP")),
)
_BOARD = Path("sys/class/dmi/id/product_name")
_BOARDS = ("Google Compute Engine", "Google")
# The platforms set these on machines with a TPU.
_TPU_SIGNS = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_TOPOLOGY")
# In TensorFlow's order. The last one is for Colab's former TPU Nodes.
_NAMING = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG", "COLAB_TPU_ADDR")
_ADDRESSES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR")
_OTHER_RUNTIME = {
    "colab": "For one, choose Runtime, Change runtime type, v5e-1 TPU; it has one core.",
    # A pinned image of a CPU notebook replaces the TPU's machine: Kaggle/kaggle-cli#1197.
    "kaggle": "For one, choose Settings, Accelerator, TPU v5e-8. If kaggle kernels push has asked "
    'for a TPU, its files pin an image without one: remove "docker_image" from '
    'kernel-metadata.json, and "dockerImageVersionId" and "accelerator" from the notebook\'s '
    'metadata under "kaggle". Then push again.',
}
_NO = frozenset({"", "0", "false", "no", "off"})
_SKIPS = frozenset({"1", "true"})
_PATIENCE = 1.0  # seconds to wait for the metadata server

_TYPE = re.compile(r"[A-Za-z0-9_-]{2,40}")
_ONE_CORE = re.compile(r"v(?:5e|5litepod|6e)-1")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_NAME = re.compile(r"[a-z0-9:._-]{1,128}")
_ATTRIBUTE = re.compile(r"^\s*([A-Z_]+)\s*:\s*'?([^'\n]*)'?\s*$", re.MULTILINE)

_log = logger("machine")


@dataclasses.dataclass(frozen=True, slots=True)
class Platform:
    """The platform that this process runs on.

    Attributes:
        kind: The platform, for programs.
        sign: How it was detected; empty for an unknown machine.
        tpu_sign: The evidence of a TPU; empty if there is none.
        on_cloud: Whether to query Google Cloud's metadata server.
    """

    kind: PlatformKind = "machine"
    sign: str = ""
    tpu_sign: str = ""
    on_cloud: bool = False

    @property
    def name(self) -> str:
        """The platform's name, for people."""
        return _NAMES[self.kind]


def detect_platform(environment: Mapping[str, str]) -> Platform:
    """Detect the platform without a request to a server.

    Args:
        environment: Environment variables.
    """
    board = text_of(device_files.ROOT / _BOARD)
    on_board = (board or "").strip() in _BOARDS
    for kind, variables in _SIGNS:
        variable = next((name for name in variables if environment.get(name, "").strip()), None)
        if variable is None:
            continue
        # Colab and Kaggle replace the metadata server with a server that has no TPU data.
        on_cloud = kind == "compute-engine" or (kind == "kubernetes" and on_board)
        # On other platforms, a TPU's variables may be left over.
        signs = _TPU_SIGNS if kind in ("kaggle", "kubernetes") else ()
        name = next((name for name in signs if environment.get(name, "").strip()), None)
        tpu_sign = f"{name} is set" if name else ""
        if kind == "colab" and environment.get("COLAB_TPU_1VM", "").strip() == "1":
            tpu_sign = "COLAB_TPU_1VM is 1"
        return Platform(kind, f"{variable} is set", tpu_sign, on_cloud)
    if on_board:
        return Platform("compute-engine", "its board is Google's", "", on_cloud=True)
    return Platform()


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """The TPU that this machine is part of.

    Attributes:
        accelerator_type: The TPU's type, such as `"v5litepod-8"`; None if unknown.
        workers: The addresses of the workers' hosts.
        worker_id: The number of this worker; None if unknown.
        name: The TPU's name in Google Cloud; None if unknown.
        project: The TPU's project; None if unknown.
        zone: The TPU's zone; None if unknown.
    """

    accelerator_type: str | None = None
    workers: tuple[str, ...] = ()
    worker_id: int | None = None
    name: str | None = None
    project: str | None = None
    zone: str | None = None

    def filled_from(self, other: Slice) -> Slice:
        """Return this slice with its unknown fields filled from another slice."""
        fields = dataclasses.asdict(self).items()
        known = {name: value for name, value in fields if value not in (None, ())}
        return dataclasses.replace(other, **known)

    def __str__(self) -> str:
        words = [self.accelerator_type or "a TPU"]
        if len(self.workers) > 1:
            which = "one" if self.worker_id is None else f"number {self.worker_id}"
            words.append(f"{which} of {len(self.workers)} workers")
        return ", ".join(words)


def slice_of_metadata(environment: Mapping[str, str], timeout: float) -> Slice | None:
    """Return the slice according to Google Cloud's metadata server.

    Args:
        environment: Environment variables, which may name the server's address.
        timeout: Seconds for all requests together.

    Returns:
        The slice, or None if the server has no TPU for this machine.

    Raises:
        MetadataError: The server does not answer.
    """
    end = time.monotonic() + timeout

    def attribute(name: str) -> str | None:
        late = MetadataError(f"it does not answer within {round(timeout, 1):g} s")
        left = end - time.monotonic()
        if left <= 0:
            raise late
        try:
            return metadata(f"instance/attributes/{name}", timeout=left, environment=environment)
        except MetadataError as error:
            # Report the timeout of all requests, not the rest that this request had.
            raise (late if time.monotonic() >= end else error) from None

    known = dict(_ATTRIBUTE.findall(attribute("tpu-env") or ""))
    accelerator_type = known.get("ACCELERATOR_TYPE") or attribute("accelerator-type")
    if not accelerator_type:
        return None
    endpoints = attribute("worker-network-endpoints") or ""
    return Slice(
        accelerator_type=_fitting(_TYPE, accelerator_type),
        # For example unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3
        workers=_hosts(name.rpartition(":")[2] for name in endpoints.split(",")),
        worker_id=_number(known.get("WORKER_ID") or attribute("agent-worker-number")),
        name=_fitting(_NAME, known.get("NODE_ID")),
        project=_fitting(_NAME, known.get("CONSUMER_PROJECT_ID")),
        zone=_fitting(_NAME, known.get("ZONE")),
    )


def _hosts(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(host for name in names if (host := _fitting(_HOST, name)))


def _fitting(pattern: re.Pattern[str], value: str | None) -> str | None:
    """Return a value if it matches the pattern, else None."""
    value = (value or "").strip()
    return value if pattern.fullmatch(value) else None


def _number(value: str | None) -> int | None:
    value = (value or "").strip()
    return int(value) if value.isdecimal() and len(value) < 6 else None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Search:
    """The result of the search for a TPU.

    Attributes:
        tpu: The TPU to connect to: `"local"`, a name or addresses; None if no usable TPU was
            found.
        tried: The checks and their results, in order; without secrets.
        platform: The platform.
        chips: The chips in /dev and on the PCI bus.
        slice: The TPU's type, its workers and the number of this worker.
        without_library: Whether `TPU_LOAD_LIBRARY` keeps TensorFlow from this machine's TPU.
    """

    tpu: str | None
    tried: tuple[str, ...]
    platform: Platform = dataclasses.field(default_factory=Platform)
    chips: Chips = dataclasses.field(default_factory=Chips)
    slice: Slice = dataclasses.field(default_factory=Slice)
    without_library: bool = False

    @property
    def lacks_devices(self) -> bool:
        """True if the machine has a TPU but no device file for it."""
        there = self.chips.on_bus or self.platform.kind == "tpu-vm"
        return bool(there and not (self.chips.files or self.chips.unknown))

    @property
    def tpu_only_from_env(self) -> bool:
        """True if the only evidence of a TPU is an environment variable, which may be left over."""
        there = self.chips.there or self.platform.tpu_sign or self.platform.kind == "tpu-vm"
        return self.tpu == "local" and not there

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the TPU to show to the user beside its problems."""
        if self.tpu is None:
            return ()
        notes = []
        kind, workers = self.slice.accelerator_type or "", len(self.slice.workers)
        if _ONE_CORE.fullmatch(kind.lower()) and self.tpu == "local":
            notes.append(
                f"{kind} has one core and so one replica. To learn about several replicas, "
                f"simulate them: %tpu_connect --simulate {DEFAULT_TPU}."
            )
        if workers > 1:
            number = self.slice.worker_id
            note = (
                f"This is {'a worker' if number is None else f'worker {number}'} of {workers} of "
                f"{kind or 'a TPU slice'}. TensorFlow needs one client, which connects to the "
                f"workers of all hosts on port {WORKER_PORT}. Set TPU_LOAD_LIBRARY=0 in the client "
                "before TensorFlow is imported."
            )
            if self.platform.kind == "kubernetes":
                note += " Kubernetes starts no such workers: choose a node pool with one host."
            notes.append(note)
        if self.tpu == "local" and self.platform.tpu_sign and not self.chips.there:
            notes.append(f"{self.platform.tpu_sign}, but /dev has no device file for it.")
        return tuple(notes)

    def problems(self, *, local_tpu: bool) -> Iterator[SetupProblem]:
        """Yield the problems: missing devices, and variables that name no TPU.

        Args:
            local_tpu: Whether to use this machine's TPU.
        """
        kind = self.platform.kind
        if self.lacks_devices:
            there = f"This machine has {self.chips.on_bus_in_words}"
            yield SetupProblem(
                "device",
                f"{there if self.chips.on_bus else f'This is {self.platform.name}'}, but /dev has "
                "no device file for a TPU.",
                "Start the container with its devices (docker run --privileged), or load the "
                "TPU's driver.",
            )
        elif self.tpu is None and kind in _OTHER_RUNTIME:
            yield SetupProblem(
                "device",
                f"This runtime of {self.platform.name} has no TPU.",
                _OTHER_RUNTIME[kind],
                stops=False,
            )
        if self.tpu_only_from_env:
            yield SetupProblem(
                "TPU_NAME",
                "TPU_NAME is local, but nothing else on this machine indicates a TPU.",
                "Unset TPU_NAME to simulate a TPU, or run this on the TPU's own machine.",
            )
        if self.without_library and local_tpu and not self.lacks_devices:
            yield SetupProblem(
                "TPU_LOAD_LIBRARY",
                "TPU_LOAD_LIBRARY=0 keeps TensorFlow from this machine's TPU.",
                "Unset it, then restart the kernel. On a slice of several hosts, connect to the "
                "TPU by its name instead: %tpu_connect NAME.",
            )

    def __repr__(self) -> str:
        """Return the dataclass's repr, with secrets in addresses and names masked."""
        names = [field.name for field in dataclasses.fields(self)]
        return mask(f"Search({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})")


def find_tpu(environment: Mapping[str, str] | None = None) -> Search:
    """Search for a TPU in /dev, in the environment and in metadata.

    Args:
        environment: Environment variables; by default the process's own.

    Returns:
        The TPU to connect to and the checks that were made. The search takes milliseconds, and
        at most a second on Google Cloud.
    """
    environment = os.environ if environment is None else environment
    platform = detect_platform(environment)
    chips = find_chips()
    name, part, naming = _named(environment)
    known, queried = _slice(environment, platform)
    part = part.filled_from(known)
    if platform.kind == "compute-engine" and (chips.files or known.accelerator_type):
        platform = dataclasses.replace(platform, kind="tpu-vm")
    tried = [*_tried_in_dev(chips, platform), *naming, *queried]
    if platform.kind != "machine":
        tried.append(f"this is {platform.name}: {platform.tpu_sign or platform.sign}")
    for line in tried:
        _log.debug("%s", line)
    without_library = environment.get("TPU_LOAD_LIBRARY", "").strip() == "0"
    # The client of a Pod leaves the chips of its own host to the worker.
    leaves_chips = bool(name) and without_library
    signs = platform.tpu_sign or (platform.kind == "tpu-vm" and part.accelerator_type)
    is_here = chips.files or (chips.unknown and signs)
    tpu = name
    if len(part.workers) > 1:
        tpu = name or ",".join(f"grpc://{host}:{WORKER_PORT}" for host in part.workers)
    elif (is_here and not leaves_chips) or (name is None and platform.tpu_sign):
        tpu = "local"
    return Search(tpu, tuple(tried), platform, chips, part, without_library)


def default_tpu() -> str | None:
    """Return the value of `TPUNB_TPU`: a TPU type to simulate, or a TPU."""
    return os.environ.get("TPUNB_TPU", "").strip() or None


def requires_tpu() -> bool:
    """Return whether `TPUNB_REQUIRE_TPU` forbids a virtual TPU.

    Any value that is not a clear no forbids it, so a typo never allows a virtual TPU silently.
    """
    return os.environ.get("TPUNB_REQUIRE_TPU", "").strip().lower() not in _NO


def refuse_simulation() -> None:
    """Raise an error if `TPUNB_REQUIRE_TPU` forbids a virtual TPU.

    Raises:
        ConnectError: `TPUNB_REQUIRE_TPU` forbids a virtual TPU.
    """
    if requires_tpu():
        raise ConnectError(
            "A virtual TPU was requested, but TPUNB_REQUIRE_TPU requires a real TPU.",
            fix="Unset TPUNB_REQUIRE_TPU to simulate, or connect to a TPU without simulating.",
        )


def _tried_in_dev(chips: Chips, platform: Platform) -> Iterator[str]:
    if chips.files:
        family = f" ({chips.family})" if chips.family else ""
        yield f"found {', '.join(chips.files)}{family}"
    elif chips.on_bus:
        yield f"{chips.on_bus_in_words}, but no device file in /dev"
    elif not chips.unknown:
        yield "no TPU device in /dev"
    if chips.unknown:
        certain = f"which {platform.name} uses for TPUs"
        meaning = certain if platform.tpu_sign else "which may be a TPU or another device"
        yield f"found {', '.join(chips.unknown)}, {meaning}"
    if chips.others:
        verb = "belongs" if len(chips.others) == 1 else "belong"
        yield f"{', '.join(chips.others)} {verb} to another device"


def _named(environment: Mapping[str, str]) -> tuple[str | None, Slice, list[str]]:
    """Return the TPU that the environment names, its known properties, and the checks made."""
    variable = next((name for name in _NAMING if environment.get(name, "").strip()), None)
    if variable is None:
        others = [name for name in _NAMING if name != "TPU_NAME"]
        rest = f"{', '.join(others[:-1])} and {others[-1]} are not set"
        return None, Slice(), ["TPU_NAME is not set", rest]
    value = environment[variable].strip()
    if variable == "TPU_CONFIG":
        part = _configured(value)
        if part.name is None:
            return None, part, ["TPU_CONFIG has no tpu_node_name"]
        full = f"projects/{part.project}/locations/{part.zone}/nodes/{part.name}"
        tpu = full if part.project and part.zone else part.name
        return tpu, part, [f"TPU_CONFIG names {mask(part.name)!r}"]
    tried = [f"{variable} is set to {mask(value, secrets_in(environment))!r}"]
    if variable in _ADDRESSES or "://" in value or "@" in value:
        # Normalise to `grpc://` with a port, without user names, which gRPC does not support.
        parts = (part.strip().rpartition("://")[2].rpartition("@")[2] for part in value.split(","))
        hosts = [host for part in parts if (host := part.rstrip("/"))]
        if not hosts:
            return None, Slice(), [f"{variable} has no address"]
        ports = ("" if re.search(r":\d+$", host) else f":{WORKER_PORT}" for host in hosts)
        value = ",".join(f"grpc://{host}{port}" for host, port in zip(hosts, ports, strict=True))
    return value, Slice(), tried


def _configured(text: str) -> Slice:
    """Return the TPU that `TPU_CONFIG` names, as TensorFlow reads it; unnamed if it names none."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return Slice()
    if not isinstance(config, dict):
        return Slice()
    keys = ("tpu_node_name", "project", "zone")
    texts = (value if isinstance(value := config.get(key), str) else "" for key in keys)
    name, project, zone = (text.strip() or None for text in texts)
    return Slice(name=name, project=project, zone=zone) if name else Slice()


def _slice(environment: Mapping[str, str], platform: Platform) -> tuple[Slice, list[str]]:
    """Return the slice from the environment and Google Cloud's metadata, and the checks made."""
    known = Slice(
        accelerator_type=_fitting(_TYPE, environment.get("TPU_ACCELERATOR_TYPE")),
        workers=_hosts(environment.get("TPU_WORKER_HOSTNAMES", "").split(",")),
        worker_id=_number(environment.get("TPU_WORKER_ID")),
    )
    if not platform.on_cloud or (known.accelerator_type and known.workers):
        return known, []
    if environment.get("TPU_SKIP_MDS_QUERY", "").strip().lower() in _SKIPS:
        return known, ["the metadata server was not queried: TPU_SKIP_MDS_QUERY is set"]
    try:
        from_metadata = slice_of_metadata(environment, _PATIENCE)
    except MetadataError as error:
        return known, [f"the metadata server: {mask(error.reason)}"]
    if from_metadata is None:
        return known, ["the metadata server has no TPU for this machine"]
    return known.filled_from(from_metadata), [f"the metadata server says: {from_metadata}"]
