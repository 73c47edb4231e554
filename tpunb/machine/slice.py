"""Detects the TPU slice and this host's worker number, from the environment and metadata.

A slice of several hosts has a worker on each. The environment variables are documented by
GKE; the metadata keys are from JAX (`cloud_tpu_cluster.py`) and PyTorch/XLA (`tpu.py`).
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping

from tpunb.machine.metadata_server import MetadataError, metadata

__all__ = ["Slice", "slice_of_environment", "slice_of_metadata"]

_TYPE = re.compile(r"[A-Za-z0-9_-]{2,40}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_NAME = re.compile(r"[a-z0-9:._-]{1,128}")
_ATTRIBUTE = re.compile(r"^\s*([A-Z_]+)\s*:\s*'?([^'\n]*)'?\s*$", re.MULTILINE)


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
        names = [field.name for field in dataclasses.fields(self)]
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return Slice(*(theirs if mine in (None, ()) else mine for mine, theirs in pairs))

    def __str__(self) -> str:
        words = [self.accelerator_type or "a TPU"]
        if len(self.workers) > 1:
            which = "one" if self.worker_id is None else f"number {self.worker_id}"
            words.append(f"{which} of {len(self.workers)} workers")
        return ", ".join(words)


def slice_of_environment(environment: Mapping[str, str]) -> Slice:
    """The slice according to the environment."""
    hostnames = environment.get("TPU_WORKER_HOSTNAMES", "").split(",")
    return Slice(
        accelerator_type=_fitting(_TYPE, environment.get("TPU_ACCELERATOR_TYPE")),
        workers=tuple(host for name in hostnames if (host := _fitting(_HOST, name))),
        worker_id=_number(environment.get("TPU_WORKER_ID")),
    )


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
    return Slice(
        accelerator_type=_fitting(_TYPE, accelerator_type),
        workers=_workers(attribute("worker-network-endpoints") or ""),
        worker_id=_number(known.get("WORKER_ID") or attribute("agent-worker-number")),
        name=_fitting(_NAME, known.get("NODE_ID")),
        project=_fitting(_NAME, known.get("CONSUMER_PROJECT_ID")),
        zone=_fitting(_NAME, known.get("ZONE")),
    )


def _workers(endpoints: str) -> tuple[str, ...]:
    """The hosts of `unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3`."""
    hosts = (endpoint.strip().rpartition(":")[2] for endpoint in endpoints.split(","))
    return tuple(found for host in hosts if (found := _fitting(_HOST, host)))


def _fitting(pattern: re.Pattern[str], value: str | None) -> str | None:
    """A value if it matches the pattern, else None."""
    value = (value or "").strip()
    return value if pattern.fullmatch(value) else None


def _number(value: str | None) -> int | None:
    value = (value or "").strip()
    return int(value) if value.isdecimal() and len(value) < 6 else None
