"""A metadata server of Compute Engine on the loopback, well or ill-behaved.

    with MetadataServer({"instance/attributes/accelerator-type": "v3-8"}) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)

It answers as the real server does: 403 without the header `Metadata-Flavor: Google`, and 404 for
an unknown path. Each of its answers has that header.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest
from support.patience import PATIENCE

from counterparts.web import Handler, HTTPCounterpart
from tpunb.machine import detect
from tpunb.machine.metadata_server import metadata

__all__ = ["MetadataServer", "tpu_vm"]

Mode = Literal["answers", "broken", "hangs", "portal", "redirects", "slow", "trickles"]
"""How the server behaves.

It answers like the real server, answers with 500, accepts and says nothing, answers with the page
of a captive portal, redirects, answers after `delay`, or sends a byte every tenth of a second.
"""

_PREFIX = "/computeMetadata/v1/"
_GOOGLE = {"Metadata-Flavor": "Google"}


def tpu_vm(
    accelerator_type: str = "v3-8",
    *,
    name: str = "my-tpu",
    zone: str = "us-central1-b",
    project: str = "my-project",
    workers: tuple[str, ...] = ("10.0.0.2",),
    worker: int = 0,
) -> dict[str, str]:
    """Return the attributes of a Cloud TPU VM, in their real format."""
    tpu_env = {
        "ACCELERATOR_TYPE": accelerator_type,
        "CONSUMER_PROJECT_ID": project,
        "NODE_ID": name,
        "WORKER_ID": str(worker),
        "ZONE": zone,
    }
    return {
        "instance/attributes/accelerator-type": accelerator_type,
        "instance/attributes/agent-worker-number": str(worker),
        "instance/attributes/tpu-env": "".join(
            f"{key}: '{value}'\n" for key, value in tpu_env.items()
        ),
        "instance/attributes/worker-network-endpoints": ",".join(
            f"unknown:unknown:{ip}" for ip in workers
        ),
        "instance/zone": f"projects/1234/zones/{zone}",
        "project/project-id": project,
    }


class _Handler(Handler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        owner = self.server.owner
        owner.requests.append(self.path.removeprefix(_PREFIX))
        if owner.mode == "hangs":
            owner.stopped.wait()
        elif owner.mode == "portal":
            self.send(200, "<html>Please accept our terms</html>")
        elif owner.mode == "redirects":
            self.send(302, "", {**_GOOGLE, "Location": "http://127.0.0.1:9/login"})
        elif owner.mode == "broken":
            self.send(500, "internal error", _GOOGLE)
        elif owner.mode == "trickles":
            self.trickle(_GOOGLE)
        else:
            if owner.mode == "slow":
                owner.stopped.wait(owner.delay)
            self._answer()
        self.close_connection = True

    def _answer(self) -> None:
        value = self.server.owner.values.get(self.path.removeprefix(_PREFIX))
        if self.headers.get("Metadata-Flavor") != "Google":
            self.send(403, "Missing Metadata-Flavor:Google header.", _GOOGLE)
        elif value is None or not self.path.startswith(_PREFIX):
            self.send(404, "not found", _GOOGLE)
        else:
            self.send(200, value, _GOOGLE)


class MetadataServer(HTTPCounterpart):
    """The server, in its own threads while its `with` block runs.

    Args:
        values: Its values, by path below `computeMetadata/v1/`.
        mode: How it behaves; may be changed while it runs.
        delay: Seconds that `slow` waits before it answers.

    Attributes:
        host: Its address, as `host:port`.
        requests: The paths of the requests.
    """

    handler = _Handler

    def __init__(
        self,
        values: Mapping[str, str] | None = None,
        mode: Mode = "answers",
        delay: float = PATIENCE,
    ) -> None:
        super().__init__()
        self.values = dict(values or {})
        self.mode: Mode = mode
        self.delay = delay
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> MetadataServer:
        # The usual limit of a second must end silence, not an answer that a busy machine delays.
        if self.mode not in {"hangs", "slow", "trickles"}:
            self._patch.setattr(detect, "_PATIENCE", float(PATIENCE))
            self._patch.setitem(metadata.__kwdefaults__, "timeout", float(PATIENCE))
        super().__enter__()
        return self

    def stop(self) -> None:
        self._patch.undo()
        super().stop()
