"""The Cloud TPU API over HTTP on the loopback: nodes in all states, and misbehaviour.

with CloudAPI({"my-tpu": node(state="CREATING")}) as api:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", api.root)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from counterparts.web import Handler, HTTPCounterpart

__all__ = ["PARENT", "CloudAPI", "node"]

PARENT = "projects/my-project/locations/us-central1-b/nodes"

Mode = Literal["answers", "hangs", "trickles", "no json", "redirects"]


def node(
    name: str = "my-tpu",
    *,
    state: str = "READY",
    workers: tuple[str, ...] = ("10.0.0.2:8470",),
    api: str = "v2",
    version: str = "",
    **more: Any,
) -> dict[str, Any]:
    """Return a TPU as the API describes it, in version v2 or v1."""
    endpoints: list[dict[str, Any]] = []
    for worker in workers:
        host, _, port = worker.partition(":")
        endpoints.append({"ipAddress": host, **({"port": int(port)} if port else {})})
    kind = {"runtimeVersion": version} if api == "v2" else {"tensorflowVersion": version}
    return {
        "name": f"{PARENT}/{name}",
        "state": state,
        "acceleratorType": "v3-8",
        "networkEndpoints": endpoints,
        **kind,
        **more,
    }


class _Handler(Handler):
    def do_GET(self) -> None:
        owner = self.server.owner
        owner.requests.append(self.path)
        if "Authorization" in self.headers:
            owner.tokens.append(self.headers["Authorization"])
        if owner.mode == "hangs":
            owner.stopped.wait()
        elif owner.mode == "trickles":
            self.trickle()
        elif owner.mode == "no json":
            self.send(200, "<html>Please log in</html>")
        elif owner.mode == "redirects":
            self.send(302, "", {"Location": "http://127.0.0.1:9/"})
        elif owner.error is not None:
            self._fail(*owner.error)
        else:
            self._answer()

    def _answer(self) -> None:
        owner = self.server.owner
        path = self.path.lstrip("/")
        if path.startswith("discovery/"):
            if owner.document is None:
                self._fail(404, "NOT_FOUND", "no such document")
            else:
                self.send(200, json.dumps(owner.document))
            return
        version, _, rest = path.partition("/")
        if version not in owner.apis:
            self._fail(404, "NOT_FOUND", "not found in this version")
        elif rest == PARENT:
            self.send(200, json.dumps({"nodes": list(owner.nodes.values())}))
        elif rest.startswith(f"{PARENT}/") and (name := rest.rpartition("/")[2]) in owner.nodes:
            self.send(200, json.dumps(owner.nodes[name]))
        else:
            self._fail(404, "NOT_FOUND", f"Resource '{rest}' was not found")

    def _fail(self, status: int, code: str, message: str) -> None:
        error: dict[str, Any] = {"code": status, "status": code, "message": message}
        if code == "SERVICE_DISABLED":
            error |= {"status": "PERMISSION_DENIED", "details": [{"reason": code}]}
        self.send(status, json.dumps({"error": error}))


class CloudAPI(HTTPCounterpart):
    """The API, in its own threads while its `with` block runs.

    Args:
        nodes: The TPUs by name.
        apis: The versions that know them.
        mode: How it behaves.
        error: The HTTP status, code and message with which it answers every request.
        document: The discovery document; it has none by default.

    Attributes:
        root: Its address.
        requests: The paths of the requests.
        tokens: The `Authorization` headers of the requests.
    """

    handler = _Handler

    def __init__(
        self,
        nodes: Mapping[str, dict[str, Any]] | None = None,
        *,
        apis: tuple[str, ...] = ("v2",),
        mode: Mode = "answers",
        error: tuple[int, str, str] | None = None,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.nodes = dict(nodes or {})
        self.apis = apis
        self.mode: Mode = mode
        self.error = error
        self.document = document
        self.tokens: list[str] = []

    @property
    def root(self) -> str:
        return f"http://{self.host}"
