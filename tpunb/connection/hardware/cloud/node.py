"""A TPU as the Cloud TPU API describes it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tpunb._util.secret_masking import mask
from tpunb.tpu.defaults import WORKER_PORT

__all__ = ["Node", "node_of", "service", "where"]

_ENDPOINT = re.compile(r"[\w.-]{1,255}:[0-9]{1,5}")
_HEALTHY = ("", "HEALTHY", "HEALTH_UNSPECIFIED")


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A TPU as the Cloud TPU API describes it.

    Attributes:
        name: Its name.
        zone: Its zone.
        project: Its project.
        api: The version of the API that knows it: `"v2"` or `"v1"`.
        state: As `"READY"`, `"CREATING"` or `"PREEMPTED"`.
        health: As `"HEALTHY"`; empty if the API gives none.
        health_description: The API's description of a bad health.
        version: The software of the TPU, as `"tpu-vm-tf-2.18.0-pod"` or `"2.18"`.
        accelerator_type: As `"v3-8"`.
        endpoints: The addresses of its workers, as `host:port`.
        symptoms: Past events, the latest last, as `"OUT_OF_MEMORY"`.
        spot: Whether it may be preempted.
    """

    name: str
    zone: str
    project: str
    api: str
    state: str
    health: str = ""
    health_description: str = ""
    version: str = ""
    accelerator_type: str = ""
    endpoints: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    spot: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether its health is good or unknown."""
        return self.health in _HEALTHY

    def command(self, verb: str) -> str:
        """The gcloud command for a verb, as `"start"`."""
        kind = "tpus tpu-vm" if self.api == "v2" else "tpus"
        return f"gcloud compute {kind} {verb} {self.name} {where(self.zone, self.project)}"

    def __str__(self) -> str:
        facts = [self.accelerator_type, self.version, self.health.lower().replace("_", " ")]
        more = ", ".join(fact for fact in facts if fact)
        return f"TPU {self.name} is {self.state}" + (f" ({more})" if more else "")


def service(node: Node) -> Any:
    """A `service` for TensorFlow's TPUClusterResolver that knows one TPU.

    Args:
        node: The TPU; the service returns its description without a request.
    """
    return _Service(
        {
            "name": f"projects/{node.project}/locations/{node.zone}/nodes/{node.name}",
            "state": node.state,
            "health": node.health or "HEALTHY",
            "tensorflowVersion": node.version,
            "acceleratorType": node.accelerator_type,
            "networkEndpoints": [
                dict(zip(("ipAddress", "port"), endpoint.rsplit(":", 1), strict=True))
                for endpoint in node.endpoints
            ],
        }
    )


class _Service:
    """The part of googleapiclient's service that TensorFlow calls."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def projects(self) -> _Service:
        return self

    locations = nodes = projects

    def get(self, name: str) -> _Service:
        return self

    def execute(self) -> dict[str, Any]:
        return dict(self._answer)


def node_of(answer: Mapping[str, Any], name: str, zone: str, project: str, api: str) -> Node:
    """Parses the API's description of a TPU, of either version."""

    def text(key: str) -> str:
        value = answer.get(key)
        return mask(value)[:200] if isinstance(value, str) else ""

    scheduling = answer.get("schedulingConfig")
    scheduling = scheduling if isinstance(scheduling, dict) else {}
    symptoms = answer.get("symptoms")
    symptoms = symptoms if isinstance(symptoms, list) else []
    symptoms = sorted(
        (one for one in symptoms if isinstance(one, dict)),
        key=lambda one: str(one.get("createTime")),
    )
    return Node(
        name=name,
        zone=zone,
        project=project,
        api=api,
        state=text("state") or "UNKNOWN",
        health=text("health"),
        health_description=text("healthDescription"),
        version=text("runtimeVersion") or text("tensorflowVersion"),
        accelerator_type=text("acceleratorType"),
        endpoints=tuple(_endpoints(answer)),
        symptoms=tuple(str(one.get("symptomType", ""))[:80] for one in symptoms),
        spot=any(scheduling.get(kind) is True for kind in ("preemptible", "spot")),
    )


def _endpoints(answer: Mapping[str, Any]) -> list[str]:
    listed = answer.get("networkEndpoints")
    found = listed if isinstance(listed, list) and listed else [answer]
    endpoints = [
        f"{one['ipAddress']}:{one.get('port') or WORKER_PORT}"
        for one in found
        if isinstance(one, dict) and isinstance(one.get("ipAddress"), str)
    ]
    return [endpoint for endpoint in endpoints if _ENDPOINT.fullmatch(endpoint)]


def where(zone: str, project: str) -> str:
    """The options by which gcloud finds a TPU."""
    return f"--zone={zone} --project={project}"
