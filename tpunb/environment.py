"""Is there a TPU here, and which? Asked when connecting, never at import.

Looked at are the device files and the PCI bus, the environment, and, where there are signs
of Google Cloud, its metadata server, within a second: elsewhere nobody waits for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tpunb.chips import Chips, find_chips
from tpunb.errors import ConnectError
from tpunb.masking import mask, secrets_in
from tpunb.metadata import MetadataError
from tpunb.place import Place, find_place
from tpunb.slices import Slice, slice_of_environment, slice_of_metadata

__all__ = ["Search", "default_tpu", "find_tpu", "refuse_simulation", "requires_tpu"]

_NO = frozenset({"", "0", "false", "no", "off"})
_PATIENCE = 1.0  # seconds for the metadata server
_PORT = 8470  # of a TPU worker, unless it is said
# In TensorFlow's order; the last is that of Colab's former TPUs.
_NAMING = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG", "COLAB_TPU_ADDR")
_ADDRESSES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR")
_ONE_CORE = re.compile(r"v(?:5e|5litepod|6e)-1")
_SKIPS = frozenset({"1", "true"})


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Search:
    """What looking for a TPU found.

    Attributes:
        tpu: What to connect to, `"local"`, a name or addresses; None if there is no
            sign of a TPU that could be used.
        tried: What was looked at and what was there, in order; without secrets.
        notes: Sentences about the TPU that its user should read.
        place: Where this is.
        chips: What of a TPU is in /dev and on the PCI bus.
        slice: The TPU's type, its workers and which of them this is.
    """

    tpu: str | None
    tried: tuple[str, ...]
    notes: tuple[str, ...] = ()
    place: Place = dataclasses.field(default_factory=Place)
    chips: Chips = dataclasses.field(default_factory=Chips)
    slice: Slice = dataclasses.field(default_factory=Slice)

    @property
    def lacks_devices(self) -> bool:
        """Whether there is a TPU, and no device file to reach it by."""
        return _lacks_devices(self.place, self.chips)

    @property
    def is_only_said(self) -> bool:
        """Whether a variable alone says that this machine has a TPU; it may be left over."""
        chips = self.chips
        there = chips.files or chips.unknown or chips.on_bus or self.place.tpu_sign
        return self.tpu == "local" and not there and self.place.kind != "tpu-vm"

    def __repr__(self) -> str:
        """As of any dataclass, without the secrets that may be in an address or a name."""
        names = [field.name for field in dataclasses.fields(self)]
        return mask(f"Search({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})")


def find_tpu(environment: Mapping[str, str] | None = None, root: Path | None = None) -> Search:
    """Looks for signs of a TPU in /dev, in the environment and in metadata.

    Args:
        environment: Environment variables; by default the process's own.
        root: Below which `dev` and `sys` are looked for; by default the machine's own.

    Returns:
        What to connect to, and what was tried. It takes milliseconds, and on Google
        Cloud a second at most.
    """
    environment = os.environ if environment is None else environment
    place = find_place(environment, root)
    chips = find_chips(root)
    tried = list(_tried_in_dev(chips, place))
    named, naming = _named(environment)
    tried += naming
    part, asked = _slice(environment, place, chips)
    tried += asked
    if place.kind == "compute-engine" and (chips.files or part.accelerator_type):
        place = dataclasses.replace(place, kind="tpu-vm")
    if place.kind != "machine":
        tried.append(f"this is {place.name}: {place.tpu_sign or place.sign}")
    part = part if named is None else named[1].filled_from(part)
    tpu = _choice(environment, place, chips, part, named[0] if named else None)
    notes = _notes(environment, tpu, place, chips, part)
    return Search(tpu, tuple(tried), tuple(notes), place, chips, part)


def default_tpu(environment: Mapping[str, str] | None = None) -> str | None:
    """What `TPUNB_TPU` says to connect to: a TPU type to simulate, or a TPU."""
    environment = os.environ if environment is None else environment
    return environment.get("TPUNB_TPU", "").strip() or None


def requires_tpu(environment: Mapping[str, str] | None = None) -> bool:
    """Whether `TPUNB_REQUIRE_TPU` forbids a virtual TPU.

    Whatever is no plain no does: a slip must not lead to a virtual TPU in silence.
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
            mend="Unset TPUNB_REQUIRE_TPU to simulate, or connect to a TPU without simulating.",
        )


def _choice(
    environment: Mapping[str, str], place: Place, chips: Chips, part: Slice, named: str | None
) -> str | None:
    """What to connect to."""
    if len(part.workers) > 1:
        return named or ",".join(f"grpc://{host}:{_PORT}" for host in part.workers)
    if named and environment.get("TPU_LOAD_LIBRARY", "").strip() == "0":
        return named  # the client of a Pod leaves the chips of its own host to the worker
    if _is_ours(place, chips, part):
        return "local"
    return named or ("local" if place.tpu_sign else None)


def _is_ours(place: Place, chips: Chips, part: Slice) -> bool:
    """Whether device files of this machine are a TPU's."""
    signs = place.tpu_sign or (place.kind == "tpu-vm" and part.accelerator_type)
    return bool(chips.files or (chips.unknown and signs))


def _tried_in_dev(chips: Chips, place: Place) -> Iterator[str]:
    if chips.files:
        of = f" ({chips.family})" if chips.family else ""
        yield f"found {', '.join(chips.files)}{of}"
    elif chips.on_bus:
        yield f"{_on_bus(chips)}, but no device file in /dev"
    elif not chips.unknown:
        yield "no TPU device in /dev"
    if chips.unknown:
        sure = f"which {place.name} has for TPUs" if place.tpu_sign else "which nothing says is one"
        yield f"found {', '.join(chips.unknown)}, {sure}"
    if chips.others:
        yield f"{', '.join(chips.others)} {_is(chips.others)} another device's"


def _named(environment: Mapping[str, str]) -> tuple[tuple[str, Slice] | None, list[str]]:
    """What the environment names, and what was tried."""
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
    """Addresses, each with `grpc://` and a port, and without a user: gRPC knows none."""
    hosts = (part.strip().rpartition("://")[2].rpartition("@")[2] for part in text.split(","))
    return ",".join(f"grpc://{_with_port(host)}" for host in hosts if host)


def _with_port(host: str) -> str:
    host = host.rstrip("/")
    return host if re.search(r":\d+$", host) else f"{host}:{_PORT}"


def _slice(environment: Mapping[str, str], place: Place, chips: Chips) -> tuple[Slice, list[str]]:
    """What is known of the slice, and what was tried to know it."""
    said = slice_of_environment(environment)
    if not place.on_cloud or (said.accelerator_type and said.workers):
        return said, []
    if environment.get("TPU_SKIP_MDS_QUERY", "").strip().lower() in _SKIPS:
        return said, ["the metadata server was not asked: TPU_SKIP_MDS_QUERY is set"]
    try:
        found = slice_of_metadata(environment, _PATIENCE)
    except MetadataError as error:
        return said, [f"the metadata server: {mask(error.reason)}"]
    if found is None:
        return said, ["the metadata server knows of no TPU here"]
    return said.filled_from(found), [f"the metadata server says: {found}"]


def _notes(
    environment: Mapping[str, str], tpu: str | None, place: Place, chips: Chips, part: Slice
) -> Iterator[str]:
    if _lacks_devices(place, chips):
        what = f"There is {_on_bus(chips)}" if chips.on_bus else f"This is {place.name}"
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
            "them with %tpu_connect --simulate v5e-8."
        )
    if len(part.workers) > 1:
        which = "a worker" if part.worker_id is None else f"worker {part.worker_id}"
        own = " Kubernetes starts no such workers: choose a node pool of one host."
        yield (
            f"This is {which} of {len(part.workers)} of {kind or 'a TPU slice'}: TensorFlow wants "
            f"one client, which connects to the workers of all hosts on port {_PORT}, with "
            "TPU_LOAD_LIBRARY=0 set before TensorFlow is imported."
            f"{own if place.kind == 'kubernetes' else ''}"
        )
    elif tpu == "local" and environment.get("TPU_LOAD_LIBRARY", "").strip() == "0":
        yield (
            "TPU_LOAD_LIBRARY=0 keeps TensorFlow from this machine's TPU: unset it before "
            "TensorFlow is imported."
        )
    if tpu == "local" and not (chips.files or chips.unknown or chips.on_bus):
        yield f"{place.tpu_sign or 'TPU_NAME is local'}, but there is no device file in /dev."


def _lacks_devices(place: Place, chips: Chips) -> bool:
    there = chips.on_bus or place.kind == "tpu-vm"
    return bool(there and not (chips.files or chips.unknown))


def _on_bus(chips: Chips) -> str:
    family = "TPU" if chips.family in ("", "TPU") else f"TPU {chips.family}"
    many = f"{chips.on_bus} {family} chips" if chips.on_bus > 1 else f"a {family} chip"
    return f"{many} on the PCI bus"


def _is(items: tuple[str, ...]) -> str:
    return "is" if len(items) == 1 else "are"
