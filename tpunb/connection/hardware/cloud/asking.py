"""Requests to the Cloud TPU API: addresses, zone, project and credentials."""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpunb._util.deadline import bounded
from tpunb._util.secret_masking import mask
from tpunb.connection.hardware.cloud.answer_errors import explain_silence
from tpunb.connection.hardware.cloud.http import ask
from tpunb.errors import ConnectError
from tpunb.machine.metadata_server import MetadataError, access_token, metadata

__all__ = ["Asking"]

_ROOT = "https://tpu.googleapis.com"
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_METADATA = 2.0  # seconds at most for each request to the metadata server
_CREDENTIALS = 5.0  # google.auth queries it too, with retries


class Asking:
    """A lookup's deadline, environment and record of what was tried."""

    def __init__(self, deadline: float, tried: list[str], environment: Mapping[str, str]) -> None:
        self.deadline = deadline
        self.tried = tried
        self.environment = environment

    def location(self, what: str, given: str | None) -> str:
        """The zone or the project."""
        for source, found in ((f"the {what} given", given), *self._locations(what)):
            if not found:
                continue
            if not _PART.fullmatch(found):
                source = f"{source[0].upper()}{source[1:]}"
                raise ConnectError(
                    f"{source} is not a {what} of Google Cloud: {mask(found)[:80]!r}.",
                    fix=f"Give it with --{what}.",
                    tried=self.tried,
                )
            if given is None:
                self.tried.append(f"{what} {found}, from {source}")
            return found
        try:
            path = "instance/zone" if what == "zone" else "project/project-id"
            found = (self._metadata(path) or "").rpartition("/")[2]
        except MetadataError as error:
            raise explain_silence(error, what, self.tried) from None
        if not _PART.fullmatch(found):
            raise explain_silence(MetadataError(f"it knows no {what}"), what, self.tried)
        self.tried.append(f"{what} {found}, from the metadata server")
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

    def _metadata(self, path: str) -> str | None:
        left = max(0.05, min(_METADATA, self.deadline - time.monotonic()))
        return metadata(path, timeout=left, environment=self.environment)

    def token(self) -> Callable[[str], str | None]:
        """Returns a function that gives a token for addresses that may receive it."""
        kept: list[str | None] = []

        def for_address(url: str) -> str | None:
            # Credentials are sent only to Google, and only over TLS.
            if not re.match(r"https://(?:[A-Za-z0-9-]+\.)*googleapis\.com(?::443)?/", url):
                return None
            if not kept:
                kept.append(self._token())
            return kept[0]

        return for_address

    def _token(self) -> str | None:
        left = max(0.05, min(_METADATA, self.deadline - time.monotonic()))
        try:
            return access_token(timeout=left, environment=self.environment)
        except MetadataError as error:
            self.tried.append(f"a token from the metadata server: {error.reason}")
        return self._default_token()

    def _default_token(self) -> str | None:
        """A token from google.auth's default credentials, if it is installed."""
        try:
            auth = importlib.import_module("google.auth")
            transport = importlib.import_module("google.auth.transport.requests")
        except ImportError:
            self.tried.append("google.auth is not installed")
            return None

        def refresh() -> str | None:
            found, _ = auth.default(["https://www.googleapis.com/auth/cloud-platform"])
            found.refresh(transport.Request())
            return found.token if isinstance(found.token, str) else None

        try:
            return bounded(refresh, min(self.deadline, time.monotonic() + _CREDENTIALS))
        except Exception as error:  # google.auth's errors and its transports'
            self.tried.append(f"google.auth: {type(error).__name__}")
            return None

    def urls(self, name: str, zone: str, project: str) -> list[tuple[str, str]]:
        """The versions of the API and their URLs, in order."""
        path = f"projects/{project}/locations/{zone}/nodes/{name}"
        template = self._address("TPU_API_DISCOVERY_URL")
        if template:
            return [
                (version, f"{self._described(template, version)}{path}") for version in ("v1", "v2")
            ]
        root = self._address("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU") or _ROOT
        return [(version, f"{root.rstrip('/')}/{version}/{path}") for version in ("v2", "v1")]

    def _address(self, variable: str) -> str:
        """A URL from the environment; empty if the variable is not set."""
        value = self.environment.get(variable, "").strip()
        # urllib also reads file: URLs.
        if value and not value.startswith(("https://", "http://")):
            raise ConnectError(
                f"{variable} is not an address of the form https://HOST.",
                fix="Unset it, for Google's own.",
                tried=self.tried,
            )
        return value

    def _described(self, template: str, version: str) -> str:
        """The URL before `projects/`, from a discovery document or from its own URL."""
        url = template.replace("{apiVersion}", version).replace("{api}", "tpu")
        document = ask(url, lambda _: None, self.deadline).json or {}
        base = document.get("baseUrl")
        if not isinstance(base, str):
            base = f"{document.get('rootUrl', '')}{document.get('servicePath', '')}"
        if not base.startswith(("https://", "http://")):
            base = "/".join(url.split("/")[:3])
        return f"{base.rstrip('/')}/{_prefix_of(document, version)}"

    def names(
        self, urls: Sequence[tuple[str, str]], token: Callable[[str], str | None]
    ) -> list[str] | None:
        """The names of the zone's TPUs, from all API versions; None if they cannot be listed."""
        found: set[str] | None = None
        for _, url in urls:
            answer = ask(url.rpartition("/")[0], token, self.deadline)
            nodes = (answer.json or {}).get("nodes", [])
            if answer.status == 200 and isinstance(nodes, list):
                found = found or set()
                found |= {str(node.get("name", "")) for node in nodes if isinstance(node, dict)}
        return None if found is None else sorted(name.rpartition("/")[2] for name in found if name)


def _prefix_of(document: Mapping[str, Any], version: str) -> str:
    """The part before the name in the path of the method that gets a node."""
    found: Any = document.get("resources")
    way = ("projects", "resources", "locations", "resources", "nodes", "methods", "get", "path")
    for step in way:
        found = found.get(step) if isinstance(found, dict) else None
    match = re.fullmatch(r"([\w/.-]{0,80})\{\+name\}", found) if isinstance(found, str) else None
    return match[1] if match else f"{version}/"
