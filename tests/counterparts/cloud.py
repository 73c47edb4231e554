"""A gcloud that knows some TPUs, first in PATH: `Gcloud(folder, {"my-tpu": node()}).use(monkeypatch)`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["PARENT", "Gcloud", "node"]

PARENT = "projects/my-project/locations/us-central1-b/nodes"

_SCRIPT = """#!{python} -S
import json, pathlib, sys, time
here = pathlib.Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
settings = json.loads((here / "settings.json").read_text())
time.sleep(settings["seconds"])
name = sys.argv[5]
if settings["error"] or name not in settings["nodes"]:
    said = settings["error"] or f"NOT_FOUND: Resource '{{name}}' was not found."
    sys.exit(f"WARNING: a notice\\nERROR: (gcloud.compute.tpus.tpu-vm.describe) {{said}}")
print(settings["text"] or json.dumps(settings["nodes"][name]))
"""


def node(
    name: str = "my-tpu",
    *,
    state: str | None = "READY",
    workers: tuple[str, ...] = ("10.0.0.2:8470",),
    version: str = "",
    **more: Any,
) -> dict[str, Any]:
    """Return a TPU as gcloud describes it."""
    endpoints: list[dict[str, Any]] = []
    for worker in workers:
        host, _, port = worker.partition(":")
        endpoints.append({"ipAddress": host, **({"port": int(port)} if port else {})})
    return {
        "name": f"{PARENT}/{name}",
        "state": state,
        "acceleratorType": "v3-8",
        "networkEndpoints": endpoints,
        "runtimeVersion": version,
        **more,
    }


class Gcloud:
    """The command, in a folder of its own.

    Args:
        folder: Where to write it.
        nodes: The TPUs by name.
        error: What it says of every TPU, instead of describing it.
        text: What it prints instead of a description.
        seconds: The time that it takes.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, dict[str, Any]] | None = None,
        *,
        error: str = "",
        text: str = "",
        seconds: float = 0,
    ) -> None:
        self.folder = folder / "gcloud-of-the-test"
        self.folder.mkdir(exist_ok=True)
        settings = {"nodes": dict(nodes or {}), "error": error, "text": text, "seconds": seconds}
        (self.folder / "settings.json").write_text(json.dumps(settings))
        command = self.folder / "gcloud"
        command.write_text(_SCRIPT.format(python=sys.executable, folder=str(self.folder)))
        command.chmod(0o755)

    def use(self, monkeypatch: pytest.MonkeyPatch) -> Gcloud:
        """Put it first in PATH."""
        monkeypatch.setenv("PATH", f"{self.folder}{os.pathsep}{os.environ['PATH']}")
        return self

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
