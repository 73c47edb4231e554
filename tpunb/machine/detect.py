"""Finds this machine's platform and TPU, when connecting and never at import.

It checks device files, the PCI bus, the environment and, on Google Cloud only, the metadata
server, with a timeout of a second. Kaggle's image is derived from Colab's, so Kaggle is checked
first; both run on Google Cloud, which is checked last.

A slice of several hosts has a worker on each. The environment variables are documented by
GKE; the metadata keys are from JAX (`cloud_tpu_cluster.py`) and PyTorch/XLA (`tpu.py`).
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
from tpunb.machine.problems import Problem
from tpunb.tpu.defaults import DEFAULT_TPU, WORKER_PORT

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
# Set by the platforms themselves on machines with a TPU.
_TPU_SIGNS = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_TOPOLOGY")
# In TensorFlow's order; the last is that of Colab's former TPUs.
_NAMING = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG", "COLAB_TPU_ADDR")
_ADDRESSES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR")
_OTHER_RUNTIME = {
    "colab": "For one, choose Runtime, Change runtime type, v5e-1 TPU; it has one core.",
    "kaggle": "For one, choose Settings, Accelerator, TPU v5e-8.",
}
_NO = frozenset({"", "0", "false", "no", "off"})
_SKIPS = frozenset({"1", "true"})
_PATIENCE = 1.0  # seconds for the metadata server

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
        tpu_sign: What indicates a TPU; empty if nothing does.
        on_cloud: Whether to query Google Cloud's metadata server.
    """

    kind: PlatformKind = "machine"
    sign: str = ""
    tpu_sign: str = ""
    on_cloud: bool = False

    @property
    def name(self) -> str:
        """The platform, for people."""
        return _NAMES[self.kind]


def detect_platform(environment: Mapping[str, str]) -> Platform:
    """Detects the platform, without a request to any server.

    Args:
        environment: Environment variables.
    """
    board = text_of(device_files.ROOT / _BOARD)
    on_board = (board or "").strip() in _BOARDS
    for kind, variables in _SIGNS:
        found = next((name for name in variables if environment.get(name, "").strip()), None)
        if found is None:
            continue
        # Colab and Kaggle replace the metadata server by one without TPU data.
        on_cloud = kind == "compute-engine" or (kind == "kubernetes" and on_board)
        # Elsewhere the variables of a TPU may be left over.
        signs = _TPU_SIGNS if kind in ("kaggle", "kubernetes") else ()
        name = next((name for name in signs if environment.get(name, "").strip()), None)
        tpu_sign = f"{name} is set" if name else ""
        if kind == "colab" and environment.get("COLAB_TPU_1VM", "").strip() == "1":
            tpu_sign = "COLAB_TPU_1VM is 1"
        return Platform(kind, f"{found} is set", tpu_sign, on_cloud)
    if on_board:
        return Platform("compute-engine", "its board says so", "", on_cloud=True)
    return Platform()


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """The TPU that this machine is part of.

    Attributes:
        accelerator_type: As `"v5litepod-8"`; None if unknown.
        workers: The addresses of the hosts of its workers.
        worker_id: The number of this one; None if unknown.
        name: The TPU's name in Google Cloud; None if unknown.
        project: Its project there.
        zone: Its zone there.
    """

    accelerator_type: str | None = None
    workers: tuple[str, ...] = ()
    worker_id: int | None = None
    name: str | None = None
    project: str | None = None
    zone: str | None = None

    def filled_from(self, other: Slice) -> Slice:
        """This slice, with unknown fields filled from another."""
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
    """The slice according to Google Cloud's metadata server.

    Args:
        environment: Environment variables, which may give the server's address.
        timeout: Seconds for all requests together.

    Returns:
        The slice; None if the server has no TPU for this machine.

    Raises:
        MetadataError: It does not answer.
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
            # Report the timeout for all requests, not what was left for this one.
            raise (late if time.monotonic() >= end else error) from None

    known = dict(_ATTRIBUTE.findall(attribute("tpu-env") or ""))
    accelerator_type = known.get("ACCELERATOR_TYPE") or attribute("accelerator-type")
    if not accelerator_type:
        return None
    endpoints = attribute("worker-network-endpoints") or ""
    return Slice(
        accelerator_type=_fitting(_TYPE, accelerator_type),
        # As unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3
        workers=_hosts(name.rpartition(":")[2] for name in endpoints.split(",")),
        worker_id=_number(known.get("WORKER_ID") or attribute("agent-worker-number")),
        name=_fitting(_NAME, known.get("NODE_ID")),
        project=_fitting(_NAME, known.get("CONSUMER_PROJECT_ID")),
        zone=_fitting(_NAME, known.get("ZONE")),
    )


def _hosts(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(host for name in names if (host := _fitting(_HOST, name)))


def _fitting(pattern: re.Pattern[str], value: str | None) -> str | None:
    """A value if it matches the pattern, else None."""
    value = (value or "").strip()
    return value if pattern.fullmatch(value) else None


def _number(value: str | None) -> int | None:
    value = (value or "").strip()
    return int(value) if value.isdecimal() and len(value) < 6 else None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Search:
    """The result of looking for a TPU.

    Attributes:
        tpu: What to connect to, `"local"`, a name or addresses; None if no usable TPU was
            found.
        tried: What was checked, with the result, in order; without secrets.
        platform: The platform.
        chips: The chips in /dev and on the PCI bus.
        slice: The TPU's type, its workers and which of them this is.
        without_library: Whether `TPU_LOAD_LIBRARY` keeps TensorFlow from a TPU of this machine.
    """

    tpu: str | None
    tried: tuple[str, ...]
    platform: Platform = dataclasses.field(default_factory=Platform)
    chips: Chips = dataclasses.field(default_factory=Chips)
    slice: Slice = dataclasses.field(default_factory=Slice)
    without_library: bool = False

    @property
    def lacks_devices(self) -> bool:
        """True if there is a TPU without a device file."""
        there = self.chips.on_bus or self.platform.kind == "tpu-vm"
        return bool(there and not (self.chips.files or self.chips.unknown))

    @property
    def tpu_only_from_env(self) -> bool:
        """True if only an environment variable, perhaps a leftover, indicates a TPU."""
        there = self.chips.there or self.platform.tpu_sign or self.platform.kind == "tpu-vm"
        return self.tpu == "local" and not there

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the TPU to show to the user, beside its problems."""
        if self.tpu is None:
            return ()
        found = []
        kind, workers = self.slice.accelerator_type or "", len(self.slice.workers)
        if _ONE_CORE.fullmatch(kind.lower()) and self.tpu == "local":
            found.append(
                f"{kind} has one core, so there is one replica: to learn about several, simulate "
                f"them with %tpu_connect --simulate {DEFAULT_TPU}."
            )
        if workers > 1:
            number = self.slice.worker_id
            note = (
                f"This is {'a worker' if number is None else f'worker {number}'} of {workers} of "
                f"{kind or 'a TPU slice'}: TensorFlow wants one client, which connects to the "
                f"workers of all hosts on port {WORKER_PORT}, with TPU_LOAD_LIBRARY=0 set before "
                "TensorFlow is imported."
            )
            if self.platform.kind == "kubernetes":
                note += " Kubernetes starts no such workers: choose a node pool of one host."
            found.append(note)
        if self.tpu == "local" and self.platform.tpu_sign and not self.chips.there:
            found.append(f"{self.platform.tpu_sign}, but /dev has no device file for it.")
        return tuple(found)

    def problems(self, *, local_tpu: bool) -> Iterator[Problem]:
        """Problems: devices that are missing, and variables that lead nowhere.

        Args:
            local_tpu: Whether this machine's TPU is to be used.
        """
        kind = self.platform.kind
        if self.lacks_devices:
            there = f"This machine has {self.chips.on_bus_in_words}"
            yield Problem(
                "device",
                f"{there if self.chips.on_bus else f'This is {self.platform.name}'}, but /dev has "
                "no device file for a TPU.",
                "Start the container with its devices (docker run --privileged), or load the "
                "driver.",
            )
        elif self.tpu is None and kind in _OTHER_RUNTIME:
            yield Problem(
                "device",
                f"This runtime of {self.platform.name} has no TPU.",
                _OTHER_RUNTIME[kind],
                stops=False,
            )
        if self.tpu_only_from_env:
            yield Problem(
                "TPU_NAME",
                "TPU_NAME is local, but nothing else says that this machine has a TPU.",
                "Unset TPU_NAME to simulate a TPU, or run this on the TPU's own machine.",
            )
        if self.without_library and local_tpu and not self.lacks_devices:
            yield Problem(
                "TPU_LOAD_LIBRARY",
                "TPU_LOAD_LIBRARY=0 keeps TensorFlow from this machine's TPU.",
                "Unset it, then restart the kernel; or, on a slice of several hosts, connect to "
                "the TPU by its name: %tpu_connect NAME.",
            )

    def __repr__(self) -> str:
        """The dataclass's repr, with secrets in addresses and names masked."""
        names = [field.name for field in dataclasses.fields(self)]
        return mask(f"Search({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})")


def find_tpu(environment: Mapping[str, str] | None = None) -> Search:
    """Looks for a TPU in /dev, in the environment and in metadata.

    Args:
        environment: Environment variables; by default the process's own.

    Returns:
        What to connect to, and what was tried. It takes milliseconds; on Google Cloud a
        second at most.
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
    """The value of `TPUNB_TPU`: a TPU type to simulate, or a TPU."""
    return os.environ.get("TPUNB_TPU", "").strip() or None


def requires_tpu() -> bool:
    """Returns whether `TPUNB_REQUIRE_TPU` forbids a virtual TPU.

    Any value but a clear no does, so that a typo never silently allows a virtual TPU.
    """
    return os.environ.get("TPUNB_REQUIRE_TPU", "").strip().lower() not in _NO


def refuse_simulation() -> None:
    """Raises where `TPUNB_REQUIRE_TPU` forbids a virtual TPU.

    Raises:
        ConnectError: It does.
    """
    if requires_tpu():
        raise ConnectError(
            "A virtual TPU was asked for, and TPUNB_REQUIRE_TPU wants a real one.",
            fix="Unset TPUNB_REQUIRE_TPU to simulate, or connect to a TPU without simulating.",
        )


def _tried_in_dev(chips: Chips, platform: Platform) -> Iterator[str]:
    if chips.files:
        of = f" ({chips.family})" if chips.family else ""
        yield f"found {', '.join(chips.files)}{of}"
    elif chips.on_bus:
        yield f"{chips.on_bus_in_words}, but no device file in /dev"
    elif not chips.unknown:
        yield "no TPU device in /dev"
    if chips.unknown:
        known = f"which {platform.name} has for TPUs"
        what = known if platform.tpu_sign else "which may be a TPU or another device"
        yield f"found {', '.join(chips.unknown)}, {what}"
    if chips.others:
        are = "is" if len(chips.others) == 1 else "are"
        yield f"{', '.join(chips.others)} {are} another device's"


def _named(environment: Mapping[str, str]) -> tuple[str | None, Slice, list[str]]:
    """The TPU that the environment names, what is known of it, and what was tried."""
    variable = next((name for name in _NAMING if environment.get(name, "").strip()), None)
    if variable is None:
        others = [name for name in _NAMING if name != "TPU_NAME"]
        nor = f"nor are {', '.join(others[:-1])} and {others[-1]}"
        return None, Slice(), ["TPU_NAME is not set", nor]
    value = environment[variable].strip()
    if variable == "TPU_CONFIG":
        part = _configured(value)
        if part.name is None:
            return None, part, ["TPU_CONFIG has no tpu_node_name"]
        return part.name, part, [f"TPU_CONFIG names {mask(part.name)!r}"]
    tried = [f"{variable} is set to {mask(value, secrets_in(environment))!r}"]
    if variable in _ADDRESSES or "://" in value or "@" in value:
        # Each with `grpc://` and a port, without user names, which gRPC lacks.
        parts = (part.strip().rpartition("://")[2].rpartition("@")[2] for part in value.split(","))
        hosts = [host for part in parts if (host := part.rstrip("/"))]
        if not hosts:
            return None, Slice(), [f"{variable} has no address"]
        ports = ("" if re.search(r":\d+$", host) else f":{WORKER_PORT}" for host in hosts)
        value = ",".join(f"grpc://{host}{port}" for host, port in zip(hosts, ports, strict=True))
    return value, Slice(), tried


def _configured(text: str) -> Slice:
    """The TPU that `TPU_CONFIG` names, as TensorFlow reads it; without a name if it has none."""
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
    """What the environment and Google Cloud's metadata say of the slice, and what was tried."""
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
        found = slice_of_metadata(environment, _PATIENCE)
    except MetadataError as error:
        return known, [f"the metadata server: {mask(error.reason)}"]
    if found is None:
        return known, ["the metadata server has no TPU here"]
    return known.filled_from(found), [f"the metadata server says: {found}"]
