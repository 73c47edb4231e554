"""Finds this machine's TPU, when connecting and never at import.

It checks device files, the PCI bus, the environment and, on Google Cloud only, the metadata
server, with a timeout of a second.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tpunb._util.logs import logger
from tpunb._util.secret_masking import mask, secrets_in
from tpunb.errors import ConnectError
from tpunb.machine.chips import Chips, find_chips
from tpunb.machine.metadata_server import MetadataError
from tpunb.machine.platform import Platform, detect_platform
from tpunb.machine.slice import Slice, slice_of_environment, slice_of_metadata
from tpunb.tpu.defaults import DEFAULT_TPU, WORKER_PORT

__all__ = ["Search", "default_tpu", "find_tpu", "refuse_simulation", "requires_tpu"]

_log = logger("machine")

_NO = frozenset({"", "0", "false", "no", "off"})
_PATIENCE = 1.0  # seconds for the metadata server
# In TensorFlow's order; the last is that of Colab's former TPUs.
_NAMING = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG", "COLAB_TPU_ADDR")
_ADDRESSES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR")
_ONE_CORE = re.compile(r"v(?:5e|5litepod|6e)-1")
_SKIPS = frozenset({"1", "true"})


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Search:
    """The result of looking for a TPU.

    Attributes:
        tpu: What to connect to, `"local"`, a name or addresses; None if no usable TPU was
            found.
        tried: What was checked, with the result, in order; without secrets.
        notes: Sentences to show to the user.
        platform: The platform.
        chips: The chips in /dev and on the PCI bus.
        slice: The TPU's type, its workers and which of them this is.
    """

    tpu: str | None
    tried: tuple[str, ...]
    notes: tuple[str, ...] = ()
    platform: Platform = dataclasses.field(default_factory=Platform)
    chips: Chips = dataclasses.field(default_factory=Chips)
    slice: Slice = dataclasses.field(default_factory=Slice)

    @property
    def lacks_devices(self) -> bool:
        """Whether there is a TPU without a device file."""
        return _lacks_devices(self.platform, self.chips)

    @property
    def tpu_only_from_env(self) -> bool:
        """Whether only an environment variable indicates a TPU; it may be left over."""
        chips = self.chips
        there = chips.files or chips.unknown or chips.on_bus or self.platform.tpu_sign
        return self.tpu == "local" and not there and self.platform.kind != "tpu-vm"

    def __repr__(self) -> str:
        """The dataclass's repr, with secrets in addresses and names masked."""
        names = [field.name for field in dataclasses.fields(self)]
        return mask(f"Search({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})")


def find_tpu(environment: Mapping[str, str] | None = None, root: Path | None = None) -> Search:
    """Looks for a TPU in /dev, in the environment and in metadata.

    Args:
        environment: Environment variables; by default the process's own.
        root: The directory with `dev` and `sys`; by default `/`.

    Returns:
        What to connect to, and what was tried. It takes milliseconds; on Google Cloud a
        second at most.
    """
    environment = os.environ if environment is None else environment
    platform = detect_platform(environment, root)
    chips = find_chips(root)
    tried = list(_tried_in_dev(chips, platform))
    named, naming = _named(environment)
    tried += naming
    part, queried = _slice(environment, platform, chips)
    tried += queried
    if platform.kind == "compute-engine" and (chips.files or part.accelerator_type):
        platform = dataclasses.replace(platform, kind="tpu-vm")
    if platform.kind != "machine":
        tried.append(f"this is {platform.name}: {platform.tpu_sign or platform.sign}")
    part = part if named is None else named[1].filled_from(part)
    tpu = _choice(environment, platform, chips, part, named[0] if named else None)
    notes = _notes(environment, tpu, platform, chips, part)
    for line in tried:
        _log.debug("%s", line)
    return Search(tpu, tuple(tried), tuple(notes), platform, chips, part)


def default_tpu(environment: Mapping[str, str] | None = None) -> str | None:
    """The value of `TPUNB_TPU`: a TPU type to simulate, or a TPU."""
    environment = os.environ if environment is None else environment
    return environment.get("TPUNB_TPU", "").strip() or None


def requires_tpu(environment: Mapping[str, str] | None = None) -> bool:
    """Whether `TPUNB_REQUIRE_TPU` forbids a virtual TPU.

    Any value but a clear no does, so that a typo never silently allows a virtual TPU.
    """
    environment = os.environ if environment is None else environment
    return environment.get("TPUNB_REQUIRE_TPU", "").strip().lower() not in _NO


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


def _choice(
    environment: Mapping[str, str], platform: Platform, chips: Chips, part: Slice, named: str | None
) -> str | None:
    """What to connect to."""
    if len(part.workers) > 1:
        return named or ",".join(f"grpc://{host}:{WORKER_PORT}" for host in part.workers)
    if named and environment.get("TPU_LOAD_LIBRARY", "").strip() == "0":
        return named  # the client of a Pod leaves the chips of its own host to the worker
    if _is_ours(platform, chips, part):
        return "local"
    return named or ("local" if platform.tpu_sign else None)


def _is_ours(platform: Platform, chips: Chips, part: Slice) -> bool:
    """Whether device files of this machine are a TPU's."""
    signs = platform.tpu_sign or (platform.kind == "tpu-vm" and part.accelerator_type)
    return bool(chips.files or (chips.unknown and signs))


def _tried_in_dev(chips: Chips, platform: Platform) -> Iterator[str]:
    if chips.files:
        of = f" ({chips.family})" if chips.family else ""
        yield f"found {', '.join(chips.files)}{of}"
    elif chips.on_bus:
        yield f"{_on_bus(chips)}, but no device file in /dev"
    elif not chips.unknown:
        yield "no TPU device in /dev"
    if chips.unknown:
        known = f"which {platform.name} has for TPUs"
        what = known if platform.tpu_sign else "which may be a TPU or another device"
        yield f"found {', '.join(chips.unknown)}, {what}"
    if chips.others:
        yield f"{', '.join(chips.others)} {_is(chips.others)} another device's"


def _named(environment: Mapping[str, str]) -> tuple[tuple[str, Slice] | None, list[str]]:
    """The TPU that the environment names, and what was tried."""
    for variable in _NAMING:
        value = environment.get(variable, "").strip()
        if not value:
            continue
        shown = mask(value, secrets_in(environment))
        if variable == "TPU_CONFIG":
            found = _configured(value)
            if found is None:
                return None, ["TPU_CONFIG has no tpu_node_name"]
            return found, [f"TPU_CONFIG names {mask(found[0])!r}"]
        addresses = variable in _ADDRESSES or "://" in value or "@" in value
        return (
            (_addresses(value) if addresses else value, Slice()),
            [f"{variable} is set to {shown!r}"],
        )
    others = [name for name in _NAMING if name != "TPU_NAME"]
    return None, ["TPU_NAME is not set", f"nor are {', '.join(others[:-1])} and {others[-1]}"]


def _configured(text: str) -> tuple[str, Slice] | None:
    """The TPU that `TPU_CONFIG` names, as TensorFlow reads it."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    name, project, zone = (config.get(key) for key in ("tpu_node_name", "project", "zone"))
    if not (isinstance(name, str) and name.strip()):
        return None
    return name.strip(), Slice(
        name=name.strip(),
        project=project if isinstance(project, str) else None,
        zone=zone if isinstance(zone, str) else None,
    )


def _addresses(text: str) -> str:
    """Addresses, each with `grpc://` and a port, without user names, which gRPC lacks."""
    hosts = (part.strip().rpartition("://")[2].rpartition("@")[2] for part in text.split(","))
    return ",".join(f"grpc://{_with_port(host)}" for host in hosts if host)


def _with_port(host: str) -> str:
    host = host.rstrip("/")
    return host if re.search(r":\d+$", host) else f"{host}:{WORKER_PORT}"


def _slice(
    environment: Mapping[str, str], platform: Platform, chips: Chips
) -> tuple[Slice, list[str]]:
    """What is known of the slice, and what was tried."""
    known = slice_of_environment(environment)
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


def _notes(
    environment: Mapping[str, str], tpu: str | None, platform: Platform, chips: Chips, part: Slice
) -> Iterator[str]:
    if _lacks_devices(platform, chips):
        what = f"There is {_on_bus(chips)}" if chips.on_bus else f"This is {platform.name}"
        yield (
            f"{what}, but there is no TPU in /dev: its driver is not loaded, or this container was "
            "started without its devices."
        )
    if tpu is None:
        return
    kind = part.accelerator_type or ""
    if _ONE_CORE.fullmatch(kind.lower()) and tpu == "local":
        yield (
            f"{kind} has one core, so there is one replica: to learn about several, simulate "
            f"them with %tpu_connect --simulate {DEFAULT_TPU}."
        )
    if len(part.workers) > 1:
        which = "a worker" if part.worker_id is None else f"worker {part.worker_id}"
        own = " Kubernetes starts no such workers: choose a node pool of one host."
        yield (
            f"This is {which} of {len(part.workers)} of {kind or 'a TPU slice'}: TensorFlow wants "
            f"one client, which connects to the workers of all hosts on port {WORKER_PORT}, with "
            "TPU_LOAD_LIBRARY=0 set before TensorFlow is imported."
            f"{own if platform.kind == 'kubernetes' else ''}"
        )
    elif tpu == "local" and environment.get("TPU_LOAD_LIBRARY", "").strip() == "0":
        yield (
            "TPU_LOAD_LIBRARY=0 keeps TensorFlow from this machine's TPU: unset it before "
            "TensorFlow is imported."
        )
    if tpu == "local" and not (chips.files or chips.unknown or chips.on_bus):
        yield f"{platform.tpu_sign or 'TPU_NAME is local'}, but there is no device file in /dev."


def _lacks_devices(platform: Platform, chips: Chips) -> bool:
    there = chips.on_bus or platform.kind == "tpu-vm"
    return bool(there and not (chips.files or chips.unknown))


def _on_bus(chips: Chips) -> str:
    family = "TPU" if chips.family in ("", "TPU") else f"TPU {chips.family}"
    many = f"{chips.on_bus} {family} chips" if chips.on_bus > 1 else f"a {family} chip"
    return f"{many} on the PCI bus"


def _is(items: tuple[str, ...]) -> str:
    return "is" if len(items) == 1 else "are"
