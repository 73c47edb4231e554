"""The lookup of a TPU by name in the Cloud TPU API, with a deadline.

TensorFlow's own lookup needs packages that TensorFlow does not depend on (googleapiclient and
oauth2client), and has no timeout.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpunb._util.deadline import Deadline, Running
from tpunb._util.logs import logger
from tpunb._util.secret_masking import mask
from tpunb._util.units import counted
from tpunb.errors import ConnectError, nearest
from tpunb.machine.metadata_server import MetadataError, access_token, metadata
from tpunb.tensorflow.connection.hardware.attempt import SIMULATE, Attempt
from tpunb.tpu.default_tpu import WORKER_PORT

_log = logger("connection")

_MOST_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an HTTP server.

    Attributes:
        host: The server's host name.
        status: The HTTP status; 0 without an answer.
        json: The body, if it is a JSON object.
        reason: The reason why there is no answer, or the server's error message.
    """

    host: str
    status: int
    json: dict[str, Any] | None = None
    reason: str = ""

    @property
    def is_disabled(self) -> bool:
        """True if the API is not enabled in the project."""
        return "SERVICE_DISABLED" in self.reason or "has not been used" in self.reason

    def __str__(self) -> str:
        if not self.status:
            return self.reason
        return f"{self.status}" + (f", {self.reason}" if self.reason else "")


def ask(url: str, token: Callable[[str], str | None], deadline: Deadline) -> Answer:
    """Request a JSON object.

    Args:
        url: The URL.
        token: Returns the token for a URL, or None.
        deadline: The deadline, which also applies to a server that trickles bytes.
    """
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    try:
        # Outside the thread, so that `tried` stays in order.
        secret = token(url)
        answer = Running(lambda: _get(url, host, secret, deadline)).result(deadline.end)
    except TimeoutError:
        answer = Answer(host, 0, reason="no answer in time")
    except Exception as error:  # urllib, http, ssl and sockets each have their own errors
        inner = getattr(error, "reason", error)
        cause = getattr(inner, "strerror", None) or type(inner).__name__
        late = isinstance(inner, TimeoutError)
        answer = Answer(host, 0, reason="no answer in time" if late else mask(str(cause))[:200])
    _log.debug("GET %s: %s", url, answer)
    return answer


def _get(url: str, host: str, secret: str | None, deadline: Deadline) -> Answer:
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """A handler that refuses redirects, which would send the token to another host."""

        def redirect_request(self, *arguments: Any) -> None:
            return None

    # A plain-HTTP server is a local server, which needs no proxy.
    ways = [] if url.startswith("https://") else [urllib.request.ProxyHandler({})]
    opener = urllib.request.build_opener(NoRedirect, *ways)
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    if secret:
        request.add_unredirected_header("Authorization", f"Bearer {secret}")
    try:
        with opener.open(request, timeout=deadline.left) as response:
            return Answer(host, response.status, _object(response.read(_MOST_BYTES)))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(host, error.code, None, _reason(_object(error.read(_MOST_BYTES))))


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _reason(body: dict[str, Any] | None) -> str:
    """Return the message and the code of an error of a Google API."""
    error = (body or {}).get("error")
    if not isinstance(error, dict):
        return ""
    details = error.get("details")
    reasons = [
        str(detail["reason"])
        for detail in (details if isinstance(details, list) else [])
        if isinstance(detail, dict) and "reason" in detail
    ]
    words = [str(error.get("status", "")), *reasons, str(error.get("message", "")).split("\n")[0]]
    return mask(": ".join(word for word in words if word))[:300]


_ENDPOINT = re.compile(r"[\w.-]{1,255}:[0-9]{1,5}")
_HEALTHY = ("", "HEALTHY", "HEALTH_UNSPECIFIED")


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A TPU as the Cloud TPU API describes it.

    Attributes:
        name: The TPU's name.
        zone: The TPU's zone.
        project: The TPU's project.
        api: The version of the API that lists the TPU: `"v2"` or `"v1"`.
        state: The state, such as `"READY"`, `"CREATING"` or `"PREEMPTED"`.
        health: The health, such as `"HEALTHY"`; empty if the API gives none.
        health_description: The API's description of a bad health.
        version: The TPU's software, such as `"tpu-vm-tf-2.18.0-pod"` or `"2.18"`.
        accelerator_type: The TPU type, such as `"v3-8"`.
        endpoints: The addresses of its workers, as `host:port`.
        symptoms: Past events such as `"OUT_OF_MEMORY"`, the latest last.
    """

    name: str
    zone: str
    project: str
    api: str
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
        return f"--zone={self.zone} --project={self.project}"

    def command(self, verb: str) -> str:
        """Return the gcloud command for a verb such as `"start"`."""
        kind = "tpus tpu-vm" if self.api == "v2" else "tpus"
        return f"gcloud compute {kind} {verb} {self.name} {self.where}"

    def __str__(self) -> str:
        facts = [self.accelerator_type, self.version, self.health.lower().replace("_", " ")]
        more = ", ".join(fact for fact in facts if fact)
        return f"TPU {self.name} is {self.state}" + (f" ({more})" if more else "")


def described(node: Node, answer: Mapping[str, Any]) -> Node:
    """Return a TPU completed with the API's answer, in either version of the API."""

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
        for endpoint in (listed if isinstance(listed, list) and listed else [answer])
        if isinstance(endpoint, Mapping) and isinstance(endpoint.get("ipAddress"), str)
    ]
    return dataclasses.replace(
        node,
        state=text("state") or "UNKNOWN",
        health=text("health"),
        health_description=text("healthDescription"),
        version=text("runtimeVersion") or text("tensorflowVersion"),
        accelerator_type=text("acceleratorType"),
        endpoints=tuple(endpoint for endpoint in endpoints if _ENDPOINT.fullmatch(endpoint)),
        symptoms=tuple(str(event.get("symptomType", ""))[:80] for event in symptoms),
    )


_SHOWN = 5
_FULL = "projects/PROJECT/locations/ZONE/nodes/NAME"


def explain_refusal(answer: Answer, node: Node, attempt: Attempt) -> ConnectError:
    """Return the error for a request that the API refuses or does not answer."""
    name, project, describe = node.name, node.project, node.command("describe")
    reason = f" ({answer.reason})" if answer.reason else ""
    if answer.is_disabled:
        message = f"The Cloud TPU API is not enabled in the project {project}."
        fix = f"Enable it: gcloud services enable tpu.googleapis.com --project={project}"
    elif answer.status == 401:
        message = f"The Cloud TPU API requires credentials to look up the TPU {name}{reason}."
        fix = (
            "Log in with `gcloud auth application-default login`, install google-auth with "
            '%pip install "google-auth[requests]", and connect again.'
        )
    elif answer.status == 403:
        message = f"You may not look up the TPU {name}{reason}."
        fix = (
            "Ask for the role roles/tpu.viewer in the project, or give the machine's service "
            f"account the scope cloud-platform. Try it with: {describe}"
        )
    elif answer.status < 400 and answer.status:
        message = (
            f"{answer.host} answers instead of the Cloud TPU API, and does not describe a "
            f"TPU ({answer})."
        )
        fix = (
            "Check whether a proxy or a login page of the network is in the way, and check the "
            "variables CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU and TPU_API_DISCOVERY_URL. Try it with: "
            f"{describe}"
        )
    elif answer.status:
        message = f"The Cloud TPU API failed: {answer.host} answered {answer}."
        fix = f"Connect again in a while. Try it with: {describe}"
    else:
        message = f"The Cloud TPU API cannot be reached: {answer.host}: {answer.reason}."
        fix = (
            "Check the network, and https_proxy if it is set. Or give the worker's address: "
            "%tpu_connect grpc://HOST:8470. "
            f"{SIMULATE}"
        )
    return attempt.error(message, fix)


def not_found(node: Node, others: Sequence[str] | None, attempt: Attempt) -> ConnectError:
    """Return the error for a name that no TPU has, where `others` are the zone's TPUs if known."""
    message = (
        f"There is no TPU {node.name!r} in the zone {node.zone} of the project {node.project}."
    )
    fix = f"List the TPUs: gcloud compute tpus tpu-vm list {node.where}"
    if others:
        near = nearest(node.name, others, most=_SHOWN)
        near += [other for other in sorted(others) if other not in near]
        shown = ", ".join(near[:_SHOWN])
        more = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
        fix = f"Choose {shown}{more}, or give another zone or project: %tpu_connect {_FULL}."
    elif others is not None:
        fix = f"This zone has no TPU. Give the TPU's full name: %tpu_connect {_FULL}. {SIMULATE}"
    if others is not None:
        attempt.note(f"the zone {node.zone} has {counted(len(others), 'TPU')}")
    return attempt.error(message, fix)


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


_ROOT = "https://tpu.googleapis.com"
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_METADATA = 2.0  # seconds at most for each request to the metadata server
_CREDENTIALS = 5.0  # google.auth queries the metadata server too, with retries


class Asking:
    """A lookup with the deadline and the record of an attempt to connect."""

    def __init__(self, attempt: Attempt, environment: Mapping[str, str]) -> None:
        self.attempt = attempt
        self.environment = environment

    def location(self, kind: str, choice: str | None) -> str:
        """Return the zone or the project."""
        for source, place in ((f"the {kind} given", choice), *self._locations(kind)):
            if not place:
                continue
            if not _PART.fullmatch(place):
                source = f"{source[0].upper()}{source[1:]}"
                raise self.attempt.error(
                    f"{source} is not a {kind} of Google Cloud: {mask(place)[:80]!r}.",
                    f"Correct it, or give the TPU's full name: {_FULL}.",
                )
            if choice is None:
                self.attempt.note(f"{kind} {place}, from {source}")
            return place
        try:
            path = "instance/zone" if kind == "zone" else "project/project-id"
            left = min(_METADATA, self.attempt.deadline.left)
            known = metadata(path, timeout=left, environment=self.environment)
            place = (known or "").rpartition("/")[2]
            if not _PART.fullmatch(place):
                raise MetadataError(f"it knows no {kind}")
        except MetadataError as error:
            self.attempt.note(f"the {kind} from the metadata server: {error.reason}")
            raise self.attempt.error(
                f"The {kind} of the TPU is not known: this does not seem to be a machine of "
                f"Google Cloud ({error.reason}).",
                f"Give the TPU's full name: %tpu_connect {_FULL}. Or give an address: "
                f"%tpu_connect grpc://HOST:8470. {SIMULATE}",
            ) from None
        self.attempt.note(f"{kind} {place}, from the metadata server")
        return place

    def _locations(self, kind: str) -> list[tuple[str, str]]:
        names = ["CLOUDSDK_COMPUTE_ZONE"]
        if kind == "project":
            names = ["CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT"]
        settings = [(name, self.environment.get(name, "").strip()) for name in names]
        try:
            config = json.loads(self.environment.get("TPU_CONFIG", "") or "{}")
        except ValueError:
            config = None
        value = config.get(kind) if isinstance(config, dict) else None
        return [("TPU_CONFIG", value if isinstance(value, str) else ""), *settings]

    def token(self, url: str) -> str | None:
        """Return the token for an address, or None if there is none or it may not be sent there.

        Credentials are sent only to Google, and only over TLS.
        """
        if not re.match(r"https://(?:[A-Za-z0-9-]+\.)*googleapis\.com(?::443)?/", url):
            return None
        return self._token

    @functools.cached_property
    def _token(self) -> str | None:
        """The token of the machine's service account, or else of google.auth's credentials."""
        left = min(_METADATA, self.attempt.deadline.left)
        try:
            return access_token(timeout=left, environment=self.environment)
        except MetadataError as error:
            self.attempt.note(f"a token from the metadata server: {error.reason}")
        try:
            auth = importlib.import_module("google.auth")
            transport = importlib.import_module("google.auth.transport.requests")
        except ImportError:
            self.attempt.note("google.auth is not installed")
            return None

        def refresh() -> str | None:
            credentials, _ = auth.default(["https://www.googleapis.com/auth/cloud-platform"])
            credentials.refresh(transport.Request())
            return credentials.token if isinstance(credentials.token, str) else None

        try:
            limit = Deadline(min(_CREDENTIALS, self.attempt.deadline.left))
            return Running(refresh).result(limit.end)
        except Exception as error:  # google.auth and its transports have their own errors
            self.attempt.note(f"google.auth: {type(error).__name__}")
            return None

    def urls(self, node: Node) -> list[tuple[str, str]]:
        """Return the versions of the API to ask, with their URLs."""
        path = f"projects/{node.project}/locations/{node.zone}/nodes/{node.name}"
        template = self._address("TPU_API_DISCOVERY_URL")
        if template:
            return [
                (version, f"{self._api_root(template, version)}{path}") for version in ("v1", "v2")
            ]
        root = self._address("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU") or _ROOT
        return [(version, f"{root.rstrip('/')}/{version}/{path}") for version in ("v2", "v1")]

    def _address(self, variable: str) -> str:
        """Return a URL from the environment, or an empty string if the variable is not set."""
        value = self.environment.get(variable, "").strip()
        # Refuse other schemes: urllib also reads file: URLs.
        if value and not value.startswith(("https://", "http://")):
            raise self.attempt.error(
                f"{variable} is not an address of the form https://HOST.",
                "Unset it to use Google's own address.",
            )
        return value

    def _api_root(self, template: str, version: str) -> str:
        """Return the URL before `projects/`, from a discovery document or from its own URL.

        The template has been checked to begin with https:// or http://.
        """
        url = template.replace("{apiVersion}", version).replace("{api}", "tpu")
        document = ask(url, lambda _: None, self.attempt.deadline).json or {}
        base = f"{document.get('rootUrl', '')}{document.get('servicePath', '')}"
        bases = (str(document.get("baseUrl")), base, "/".join(url.split("/")[:3]))
        base = next(base for base in bases if base.startswith(("https://", "http://")))
        return f"{base.rstrip('/')}/{version}/"

    def names(self, urls: Sequence[tuple[str, str]]) -> list[str] | None:
        """Return the names of the zone's TPUs, or None if they cannot be listed."""
        names: set[str] | None = None
        for _, url in urls:
            answer = ask(url.rpartition("/")[0], self.token, self.attempt.deadline)
            nodes = (answer.json or {}).get("nodes", [])
            if answer.status == 200 and isinstance(nodes, list):
                names = names or set()
                names |= {str(node.get("name", "")) for node in nodes if isinstance(node, dict)}
        return None if names is None else sorted(name.rpartition("/")[2] for name in names if name)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ADDRESS = re.compile(r"[A-Za-z0-9._-]+:\d+|\d+(?:\.\d+){3}|localhost")
_FULL_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/nodes/([^/]+)")


def look_up(
    attempt: Attempt,
    *,
    zone: str | None = None,
    project: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Node:
    """Look up a TPU's description in the Cloud TPU API.

    Args:
        attempt: The attempt to connect, which has the time limit and records requests and
            answers. Its TPU is a name, or a full name `projects/P/locations/Z/nodes/N`.
        zone: The zone. By default, from the environment or the metadata server.
        project: The project. By default, from the environment or the metadata server.
        environment: Environment variables. By default, the process's own.

    Returns:
        The TPU, in any state.

    Raises:
        ConnectError: No TPU has this name, or the API cannot be reached.
    """
    asking = Asking(attempt, os.environ if environment is None else environment)
    name = attempt.tpu
    if full := _FULL_NAME.fullmatch(name.strip()):
        project, zone, name = full.groups()
    if not _NAME.fullmatch(name) or _ADDRESS.fullmatch(name):
        shown = mask(name)[:80]
        fix = "Give a TPU's name, local, or an address: %tpu_connect grpc://HOST:8470."
        if _ADDRESS.fullmatch(name):
            fix = f"Write grpc:// before an address: %tpu_connect grpc://{shown}."
        raise attempt.error(f"{shown!r} is not the name of a TPU.", fix)
    node = Node(name, asking.location("zone", zone), asking.location("project", project), "v2")
    urls = asking.urls(node)
    for version, url in urls:
        answer = ask(url, asking.token, attempt.deadline)
        attempt.note(f"{answer.host}, {version}: {answer}")
        if answer.status == 200 and answer.json is not None:
            return described(dataclasses.replace(node, api=version), answer.json)
        if answer.status != 404 or answer.is_disabled:
            raise explain_refusal(answer, node, attempt)
    raise not_found(node, asking.names(urls), attempt)
