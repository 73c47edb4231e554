"""Looks up a TPU by name in the Cloud TPU API, with a deadline.

TensorFlow's own lookup needs packages that it does not depend on (googleapiclient and
oauth2client) and has no timeout.
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
from tpunb.connection.hardware.attempt import SIMULATE, Attempt
from tpunb.errors import ConnectError, nearest
from tpunb.machine.metadata_server import MetadataError, access_token, metadata
from tpunb.tpu.defaults import WORKER_PORT

_log = logger("connection")

_MOST_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an HTTP server.

    Attributes:
        host: The server.
        status: The HTTP status; 0 without an answer.
        json: The body, if it is a JSON object.
        reason: Why there is no answer, or the server's error message.
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
    """Gets a JSON object.

    Args:
        url: The URL.
        token: Returns the token for a URL, or None.
        deadline: Also enforced on servers that trickle bytes.
    """
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    try:
        # Outside of the thread, so that `tried` stays in order.
        secret = token(url)
        answer = Running(lambda: _get(url, host, secret, deadline)).result(deadline.end)
    except TimeoutError:
        answer = Answer(host, 0, reason="no answer in time")
    except Exception as error:  # urllib, http, ssl and sockets each have their own
        inner = getattr(error, "reason", error)
        said = getattr(inner, "strerror", None) or type(inner).__name__
        late = isinstance(inner, TimeoutError)
        answer = Answer(host, 0, reason="no answer in time" if late else mask(str(said))[:200])
    _log.debug("GET %s: %s", url, answer)
    return answer


def _get(url: str, host: str, secret: str | None, deadline: Deadline) -> Answer:
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Following a redirect would send the token to another host."""

        def redirect_request(self, *arguments: Any) -> None:
            return None

    # A plain-HTTP server is a local one, for which no proxy is used.
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
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _reason(body: dict[str, Any] | None) -> str:
    """The message and the code of an error of Google's APIs."""
    error = (body or {}).get("error")
    if not isinstance(error, dict):
        return ""
    details = error.get("details")
    reasons = [
        str(one["reason"])
        for one in (details if isinstance(details, list) else [])
        if isinstance(one, dict) and "reason" in one
    ]
    words = [str(error.get("status", "")), *reasons, str(error.get("message", "")).split("\n")[0]]
    return mask(": ".join(word for word in words if word))[:300]


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
        """True if its health is good or unknown."""
        return self.health in _HEALTHY

    @property
    def where(self) -> str:
        """The options by which gcloud finds it."""
        return f"--zone={self.zone} --project={self.project}"

    def command(self, verb: str) -> str:
        """The gcloud command for a verb, as `"start"`."""
        kind = "tpus tpu-vm" if self.api == "v2" else "tpus"
        return f"gcloud compute {kind} {verb} {self.name} {self.where}"

    def __str__(self) -> str:
        facts = [self.accelerator_type, self.version, self.health.lower().replace("_", " ")]
        more = ", ".join(fact for fact in facts if fact)
        return f"TPU {self.name} is {self.state}" + (f" ({more})" if more else "")


def described(node: Node, answer: Mapping[str, Any]) -> Node:
    """A TPU with what the API says of it, in either version."""

    def text(key: str) -> str:
        value = answer.get(key)
        return mask(value)[:200] if isinstance(value, str) else ""

    listed = answer.get("symptoms")
    symptoms = [
        one for one in (listed if isinstance(listed, list) else []) if isinstance(one, dict)
    ]
    symptoms.sort(key=lambda one: str(one.get("createTime")))
    listed = answer.get("networkEndpoints")
    endpoints = [
        f"{one['ipAddress']}:{one.get('port') or WORKER_PORT}"
        for one in (listed if isinstance(listed, list) and listed else [answer])
        if isinstance(one, Mapping) and isinstance(one.get("ipAddress"), str)
    ]
    return dataclasses.replace(
        node,
        state=text("state") or "UNKNOWN",
        health=text("health"),
        health_description=text("healthDescription"),
        version=text("runtimeVersion") or text("tensorflowVersion"),
        accelerator_type=text("acceleratorType"),
        endpoints=tuple(endpoint for endpoint in endpoints if _ENDPOINT.fullmatch(endpoint)),
        symptoms=tuple(str(one.get("symptomType", ""))[:80] for one in symptoms),
    )


_SHOWN = 5


def explain_refusal(answer: Answer, node: Node, attempt: Attempt) -> ConnectError:
    """The error for a request that the API refuses or does not answer."""
    name, project, describe = node.name, node.project, node.command("describe")
    said = f" ({answer.reason})" if answer.reason else ""
    if answer.is_disabled:
        message = f"The Cloud TPU API is not enabled in the project {project}."
        fix = f"Enable it: gcloud services enable tpu.googleapis.com --project={project}"
    elif answer.status == 401:
        message = f"The Cloud TPU API requires credentials to look up the TPU {name}{said}."
        fix = (
            "Log in with `gcloud auth application-default login`, install google-auth with "
            '%pip install "google-auth[requests]", and connect again.'
        )
    elif answer.status == 403:
        message = f"You may not look up the TPU {name}{said}."
        fix = (
            "Ask for the role roles/tpu.viewer in the project, or give the machine's service "
            f"account the scope cloud-platform; try it with: {describe}"
        )
    elif answer.status < 400 and answer.status:
        message = (
            f"{answer.host} answers in place of the Cloud TPU API, without a description of a "
            f"TPU ({answer})."
        )
        fix = (
            "Check the network for a proxy or a login page in the way, and the variables "
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU and TPU_API_DISCOVERY_URL; try it with: "
            f"{describe}"
        )
    elif answer.status:
        message = f"The Cloud TPU API failed: {answer.host} answered {answer}."
        fix = f"Connect again in a while; try it with: {describe}"
    else:
        message = f"The Cloud TPU API cannot be reached: {answer.host}: {answer.reason}."
        fix = (
            "Check the network, and https_proxy if it is set; or give the worker's address: "
            "%tpu_connect grpc://HOST:8470. "
            f"{SIMULATE}"
        )
    return attempt.error(message, fix)


def not_found(node: Node, others: Sequence[str] | None, attempt: Attempt) -> ConnectError:
    """The error if no TPU has that name, but others have these; None if that is unknown."""
    message = (
        f"There is no TPU {node.name!r} in the zone {node.zone} of the project {node.project}."
    )
    fix = f"List the TPUs: gcloud compute tpus tpu-vm list {node.where}"
    if others:
        near = nearest(node.name, others, most=_SHOWN)
        near += [other for other in sorted(others) if other not in near]
        shown = ", ".join(near[:_SHOWN])
        more = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
        fix = f"Choose one of {shown}{more}, or give another --zone or --project."
    elif others is not None:
        fix = f"Give the TPU's --zone and --project: this zone has no TPU. {SIMULATE}"
    if others is not None:
        attempt.note(f"the zone {node.zone} has {counted(len(others), 'TPU')}")
    return attempt.error(message, fix)


_MADE_AGAIN = (
    "create it again, as a queued resource (gcloud compute tpus queued-resources create) to wait "
    "for one, with --spot if it may be taken back again."
)
_STATES = {
    **dict.fromkeys(
        ("CREATING", "STARTING", "RESTARTING", "REIMAGING", "STOPPING", "UNHIDING"),
        (
            ": it cannot be connected to yet",
            "Wait until it is READY, then connect again; check with: {describe}",
        ),
    ),
    "STOPPED": ("", "Start it: {start}"),
    "PREEMPTED": (
        ": Google Cloud took it back, with all that was on it",
        f"Delete it with `{{delete}}` and {_MADE_AGAIN}",
    ),
    "TERMINATED": (
        ": it is gone, with all that was on it",
        f"Delete it with `{{delete}}` and {_MADE_AGAIN}",
    ),
    "DELETING": (
        ": it is gone, with all that was on it",
        f"Check with `{{describe}}` that it is gone, then {_MADE_AGAIN}",
    ),
    "REPAIRING": (
        ": Google Cloud is repairing it",
        "Wait until it is READY; check with: {describe}",
    ),
    "READY": (" but has no network address", "Check its state: {describe}"),
}
"""What a TPU's state means, and what to do."""


def refuse_unusable(node: Node, attempt: Attempt) -> None:
    """Raises if a TPU cannot be used.

    Raises:
        ConnectError: It is not READY, is unhealthy or has no address.
    """
    if node.state == "READY" and node.is_healthy and node.endpoints:
        return
    means, fix = _STATES.get(node.state, ("", "Check its state: {describe}"))
    if node.state == "READY" and not node.is_healthy:
        why = f": {node.health_description}" if node.health_description else ""
        last = f". Its last symptom is {node.symptoms[-1]}" if node.symptoms else ""
        means = f" and not healthy: {node.health}{why}{last}"
        fix = "Stop it and start it again: {stop} && {start}"
        if node.health == "UNHEALTHY_MAINTENANCE":
            fix = "Wait for the end of the maintenance: {describe}"
        elif node.symptoms and "MEMORY" in node.symptoms[-1]:
            fix += (
                ". Its memory ran out: drop dataset.cache(), and reduce buffers and the batch size."
            )
    commands = {verb: node.command(verb) for verb in ("start", "stop", "delete", "describe")}
    raise attempt.error(f"The TPU {node.name} is {node.state}{means}.", fix.format(**commands))


_ROOT = "https://tpu.googleapis.com"
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_METADATA = 2.0  # seconds at most for each request to the metadata server
_CREDENTIALS = 5.0  # google.auth queries it too, with retries


class Asking:
    """A lookup, of which an attempt to connect has the deadline and the record."""

    def __init__(self, attempt: Attempt, environment: Mapping[str, str]) -> None:
        self.attempt = attempt
        self.environment = environment

    def location(self, what: str, given: str | None) -> str:
        """The zone or the project."""
        for source, found in ((f"the {what} given", given), *self._locations(what)):
            if not found:
                continue
            if not _PART.fullmatch(found):
                source = f"{source[0].upper()}{source[1:]}"
                raise self.attempt.error(
                    f"{source} is not a {what} of Google Cloud: {mask(found)[:80]!r}.",
                    f"Give it with --{what}.",
                )
            if given is None:
                self.attempt.note(f"{what} {found}, from {source}")
            return found
        try:
            path = "instance/zone" if what == "zone" else "project/project-id"
            left = min(_METADATA, self.attempt.deadline.left)
            known = metadata(path, timeout=left, environment=self.environment)
            found = (known or "").rpartition("/")[2]
            if not _PART.fullmatch(found):
                raise MetadataError(f"it knows no {what}")
        except MetadataError as error:
            self.attempt.note(f"the {what} from the metadata server: {error.reason}")
            raise self.attempt.error(
                f"The {what} of the TPU is not known: this does not seem to be a machine of "
                f"Google Cloud ({error.reason}).",
                f"Give it with --{what}, as %tpu_connect NAME --zone ZONE --project PROJECT, "
                f"or give an address: %tpu_connect grpc://HOST:8470. {SIMULATE}",
            ) from None
        self.attempt.note(f"{what} {found}, from the metadata server")
        return found

    def _locations(self, what: str) -> list[tuple[str, str]]:
        names = ["CLOUDSDK_COMPUTE_ZONE"]
        if what == "project":
            names = ["CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT"]
        found = [(name, self.environment.get(name, "").strip()) for name in names]
        try:
            config = json.loads(self.environment.get("TPU_CONFIG", "") or "{}")
        except ValueError:
            config = None
        value = config.get(what) if isinstance(config, dict) else None
        return [("TPU_CONFIG", value if isinstance(value, str) else ""), *found]

    def token(self, url: str) -> str | None:
        """The token for an address; None if it may not receive one, or there is none.

        Credentials are sent only to Google, and only over TLS.
        """
        if not re.match(r"https://(?:[A-Za-z0-9-]+\.)*googleapis\.com(?::443)?/", url):
            return None
        return self._token

    @functools.cached_property
    def _token(self) -> str | None:
        """The token of the machine's service account, else of google.auth's credentials."""
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
            found, _ = auth.default(["https://www.googleapis.com/auth/cloud-platform"])
            found.refresh(transport.Request())
            return found.token if isinstance(found.token, str) else None

        try:
            limit = Deadline(min(_CREDENTIALS, self.attempt.deadline.left))
            return Running(refresh).result(limit.end)
        except Exception as error:  # google.auth's errors and its transports'
            self.attempt.note(f"google.auth: {type(error).__name__}")
            return None

    def urls(self, node: Node) -> list[tuple[str, str]]:
        """The versions of the API to ask, with their URLs."""
        path = f"projects/{node.project}/locations/{node.zone}/nodes/{node.name}"
        template = self._address("TPU_API_DISCOVERY_URL")
        if template:
            return [
                (version, f"{self._api_root(template, version)}{path}") for version in ("v1", "v2")
            ]
        root = self._address("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU") or _ROOT
        return [(version, f"{root.rstrip('/')}/{version}/{path}") for version in ("v2", "v1")]

    def _address(self, variable: str) -> str:
        """A URL from the environment; empty if the variable is not set."""
        value = self.environment.get(variable, "").strip()
        # urllib also reads file: URLs.
        if value and not value.startswith(("https://", "http://")):
            raise self.attempt.error(
                f"{variable} is not an address of the form https://HOST.",
                "Unset it, for Google's own.",
            )
        return value

    def _api_root(self, template: str, version: str) -> str:
        """The URL before `projects/`, from a discovery document or from its own URL.

        The template has been checked to begin with https:// or http://.
        """
        url = template.replace("{apiVersion}", version).replace("{api}", "tpu")
        document = ask(url, lambda _: None, self.attempt.deadline).json or {}
        base = f"{document.get('rootUrl', '')}{document.get('servicePath', '')}"
        bases = (str(document.get("baseUrl")), base, "/".join(url.split("/")[:3]))
        base = next(base for base in bases if base.startswith(("https://", "http://")))
        return f"{base.rstrip('/')}/{version}/"

    def names(self, urls: Sequence[tuple[str, str]]) -> list[str] | None:
        """The names of the zone's TPUs, from all API versions; None if they cannot be listed."""
        found: set[str] | None = None
        for _, url in urls:
            answer = ask(url.rpartition("/")[0], self.token, self.attempt.deadline)
            nodes = (answer.json or {}).get("nodes", [])
            if answer.status == 200 and isinstance(nodes, list):
                found = found or set()
                found |= {str(node.get("name", "")) for node in nodes if isinstance(node, dict)}
        return None if found is None else sorted(name.rpartition("/")[2] for name in found if name)


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
    """Gets a TPU's description from the Cloud TPU API.

    Args:
        attempt: The attempt to connect to it, which has the time limit and records requests and
            answers. The TPU is a name, or the full one, `projects/P/locations/Z/nodes/N`.
        zone: Its zone; by default from the environment or the metadata server.
        project: Its project; by default from the same.
        environment: Environment variables; by default the process's own.

    Returns:
        The TPU, in whatever state it is.

    Raises:
        ConnectError: There is no TPU of this name, or the API cannot be reached.
    """
    asking = Asking(attempt, os.environ if environment is None else environment)
    name = attempt.tpu
    if full := _FULL_NAME.fullmatch(name.strip()):
        project, zone, name = full.groups()
    if not _NAME.fullmatch(name) or _ADDRESS.fullmatch(name):
        shown = mask(name)[:80]
        fix = "Give a TPU's name, local, or an address: %tpu_connect grpc://HOST:8470."
        if _ADDRESS.fullmatch(name):
            fix = f"Write an address with grpc:// before it: %tpu_connect grpc://{shown}."
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
