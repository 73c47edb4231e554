"""The lookup of a TPU by name with gcloud, which has the credentials, zone and project of its user.

TensorFlow's own lookup needs packages that TensorFlow does not depend on (googleapiclient and
oauth2client), and has no timeout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from tpunb._util.secret_masking import mask
from tpunb.machine.metadata_server import MetadataError, metadata
from tpunb.tensorflow.connection.hardware.attempt import SIMULATE, Attempt
from tpunb.tpu.default_tpu import WORKER_PORT

_ENDPOINT = re.compile(r"[\w.-]{1,255}:[0-9]{1,5}")
_HEALTHY = ("", "HEALTHY", "HEALTH_UNSPECIFIED")


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A TPU as gcloud describes it.

    Attributes:
        name: The TPU's name.
        zone: The TPU's zone; empty for gcloud's own.
        project: The TPU's project; empty for gcloud's own.
        state: The state, such as `"READY"`, `"CREATING"` or `"PREEMPTED"`.
        health: The health, such as `"HEALTHY"`; empty if gcloud gives none.
        health_description: The description of a bad health.
        version: The TPU's software, such as `"tpu-vm-tf-2.18.0-pod"` or `"2.18"`.
        accelerator_type: The TPU type, such as `"v3-8"`.
        endpoints: The addresses of its workers, as `host:port`.
        symptoms: Past events such as `"OUT_OF_MEMORY"`, the latest last.
    """

    name: str
    zone: str = ""
    project: str = ""
    state: str = "UNKNOWN"
    health: str = ""
    health_description: str = ""
    version: str = ""
    accelerator_type: str = ""
    endpoints: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """True if the health is good or unknown."""
        return self.health in _HEALTHY

    @property
    def where(self) -> str:
        """The options with which gcloud finds the TPU."""
        given = {"zone": self.zone, "project": self.project}
        return "".join(f" --{option}={value}" for option, value in given.items() if value)

    def command(self, verb: str) -> str:
        """Return the gcloud command for a verb such as `"start"`."""
        return f"gcloud compute tpus tpu-vm {verb} {self.name}{self.where}"

    def __str__(self) -> str:
        facts = [self.accelerator_type, self.version, self.health.lower().replace("_", " ")]
        more = ", ".join(fact for fact in facts if fact)
        return f"TPU {self.name} is {self.state}" + (f" ({more})" if more else "")


def described(node: Node, answer: Mapping[str, Any]) -> Node:
    """Return a TPU completed with gcloud's answer."""

    def text(key: str) -> str:
        value = answer.get(key)
        return mask(value)[:200] if isinstance(value, str) else ""

    listed = answer.get("symptoms")
    symptoms = [
        event for event in (listed if isinstance(listed, list) else []) if isinstance(event, dict)
    ]
    symptoms.sort(key=lambda event: str(event.get("createTime")))
    listed = answer.get("networkEndpoints")
    endpoints = [
        f"{endpoint['ipAddress']}:{endpoint.get('port') or WORKER_PORT}"
        for endpoint in (listed if isinstance(listed, list) else [])
        if isinstance(endpoint, Mapping) and isinstance(endpoint.get("ipAddress"), str)
    ]
    return dataclasses.replace(
        node,
        state=text("state") or "UNKNOWN",
        health=text("health"),
        health_description=text("healthDescription"),
        version=text("runtimeVersion"),
        accelerator_type=text("acceleratorType"),
        endpoints=tuple(endpoint for endpoint in endpoints if _ENDPOINT.fullmatch(endpoint)),
        symptoms=tuple(str(event.get("symptomType", ""))[:80] for event in symptoms),
    )


_MADE_AGAIN = (
    "create it again. To wait for a TPU, create it as a queued resource (gcloud compute tpus "
    "queued-resources create), with --spot if Google Cloud may take it back."
)
_STATES = {
    **dict.fromkeys(
        ("CREATING", "STARTING", "RESTARTING", "REIMAGING", "STOPPING", "UNHIDING"),
        (
            ": it is not ready for a connection",
            "Wait until it is READY, then connect again. Check with: {describe}",
        ),
    ),
    "STOPPED": ("", "Start it: {start}"),
    "PREEMPTED": (
        ": Google Cloud took it back, with everything on it",
        f"Delete it with `{{delete}}` and {_MADE_AGAIN}",
    ),
    "TERMINATED": (
        ": it has gone, with everything on it",
        f"Delete it with `{{delete}}` and {_MADE_AGAIN}",
    ),
    "DELETING": (
        ": it has gone, with everything on it",
        f"Check with `{{describe}}` that it has gone, then {_MADE_AGAIN}",
    ),
    "REPAIRING": (
        ": Google Cloud is repairing it",
        "Wait until it is READY. Check with: {describe}",
    ),
    "READY": (" but has no network address", "Check its state: {describe}"),
}
"""The meaning of a TPU's state, and the next step."""


def refuse_unusable(node: Node, attempt: Attempt) -> None:
    """Raise an error if a TPU cannot be used.

    Raises:
        ConnectError: The TPU is not READY, is unhealthy or has no address.
    """
    if node.state == "READY" and node.is_healthy and node.endpoints:
        return
    means, fix = _STATES.get(node.state, ("", "Check its state: {describe}"))
    if node.state == "READY" and not node.is_healthy:
        why = f": {node.health_description}" if node.health_description else ""
        last = f". Its last symptom is {node.symptoms[-1]}" if node.symptoms else ""
        means = f" and not healthy: {node.health}{why}{last}"
        fix = "Stop the TPU and start it again: {stop} && {start}"
        if node.health == "UNHEALTHY_MAINTENANCE":
            fix = "Wait for the end of the maintenance: {describe}"
        elif node.symptoms and "MEMORY" in node.symptoms[-1]:
            fix += (
                ". Its memory ran out: remove dataset.cache(), and use smaller buffers and batches."
            )
    commands = {verb: node.command(verb) for verb in ("start", "stop", "delete", "describe")}
    raise attempt.error(f"The TPU {node.name} is {node.state}{means}.", fix.format(**commands))


_FULL = "projects/PROJECT/locations/ZONE/nodes/NAME"
_OR_ADDRESS = f"Or give the worker's address: %tpu_connect grpc://HOST:{WORKER_PORT}."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_ADDRESS = re.compile(r"[A-Za-z0-9._-]+:\d+|\d+(?:\.\d+){3}|localhost")
_FULL_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/nodes/([^/]+)")

_FIXES = {
    r"SERVICE_DISABLED|has not been used": "Enable it: gcloud services enable tpu.googleapis.com.",
    r"auth login|UNAUTHENTICATED": "Log in: gcloud auth login.",
    r"PERMISSION_DENIED": "Ask for the role roles/tpu.viewer in the project.",
    r"NOT_FOUND": "List the TPUs: gcloud compute tpus tpu-vm list{where}.",
    r"\[(?:zone|project)\]": f"Give the TPU's full name: %tpu_connect {_FULL}.",
}
"""The next step, by what gcloud says: for example "[...] run: $ gcloud auth login" (528.0.0)."""


def look_up(attempt: Attempt, *, zone: str | None = None, project: str | None = None) -> Node:
    """Look up a TPU's description.

    Args:
        attempt: The attempt to connect, which has the time limit. Its TPU is a name, or a full
            name `projects/P/locations/Z/nodes/N`.
        zone: The zone. By default, this machine's zone on Google Cloud, or gcloud's own.
        project: The project. By default, gcloud's own.

    Returns:
        The TPU, in any state.

    Raises:
        ConnectError: gcloud is missing, or describes no TPU of this name in time.
    """
    name = attempt.tpu.strip()
    if full := _FULL_NAME.fullmatch(name):
        project, zone, name = full.groups()
    if not _NAME.fullmatch(name) or _ADDRESS.fullmatch(name):
        shown = mask(name)[:80]
        fix = f"Give a TPU's name, local, or an address: %tpu_connect grpc://HOST:{WORKER_PORT}."
        if _ADDRESS.fullmatch(name):
            fix = f"Write grpc:// before an address: %tpu_connect grpc://{shown}."
        raise attempt.error(f"{shown!r} is not the name of a TPU.", fix)
    for kind, value in (("zone", zone), ("project", project)):
        if value is not None and not _NAME.fullmatch(value):
            raise attempt.error(
                f"{mask(value)[:80]!r} is not a {kind} of Google Cloud.",
                f"Correct it, or give the TPU's full name: %tpu_connect {_FULL}.",
            )
    node = Node(name, zone or _zone_here(attempt), project or "")
    answer = _ask_gcloud(node, attempt)
    attempt.note(f"gcloud describes the TPU {name}")
    return described(node, answer)


def _zone_here(attempt: Attempt) -> str:
    """Return the zone of this machine of Google Cloud; empty to leave it to gcloud."""
    if os.environ.get("CLOUDSDK_COMPUTE_ZONE"):  # gcloud reads it
        return ""
    try:
        zone = (metadata("instance/zone", environment=os.environ) or "").rpartition("/")[2]
    except MetadataError as error:
        attempt.note(f"the zone from the metadata server: {error.reason}")
        return ""
    return zone if _NAME.fullmatch(zone) else ""


def _ask_gcloud(node: Node, attempt: Attempt) -> dict[str, Any]:
    """Return what gcloud prints about a TPU, as JSON."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        raise attempt.error(
            f"The TPU {node.name} cannot be looked up, because gcloud is not installed here.",
            f"Install it: https://cloud.google.com/sdk/docs/install. {_OR_ADDRESS} {SIMULATE}",
        )
    command = node.command("describe")
    try:
        done = subprocess.run(
            [gcloud, *command.split()[1:], "--format=json", "--quiet"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=attempt.deadline.left,
        )
    except subprocess.TimeoutExpired:
        message = f"gcloud did not describe the TPU {node.name} in {attempt.timeout:g} s."
        raise attempt.error(message, f"Try it: {command}. {_OR_ADDRESS} {SIMULATE}") from None
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(done.stdout)
        if done.returncode == 0 and isinstance(answer, dict):
            return answer
    said = " ".join(re.sub(r"(?s).*ERROR: (\(gcloud[\w.-]*\))?", "", done.stderr).split())
    message = f"gcloud does not describe the TPU {node.name}: {mask(said)[:140] or 'no JSON'}"
    fixes = (fix for pattern, fix in _FIXES.items() if re.search(pattern, said))
    fix = next(fixes, f"Try it: {command}.").format(where=node.where)
    raise attempt.error(message, f"{fix} {_OR_ADDRESS}")
