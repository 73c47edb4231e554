"""What of this machine matters for TPUs: where it is, its software, devices and memory."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from tpunb.environment import Search, find_tpu
from tpunb.machine.findings import Finding
from tpunb.machine.holders import Holding, find_holders
from tpunb.machine.memory import Memory, measure
from tpunb.machine.places import of_search
from tpunb.machine.software import Software, find_software, tensorflow_version
from tpunb.machine.variables import shown_variables

__all__ = [
    "Finding",
    "Holding",
    "Machine",
    "Memory",
    "Search",
    "Software",
    "find_holders",
    "look",
    "tensorflow_version",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What was found.

    Attributes:
        system: The operating system and the processor's architecture.
        search: Where this is, and what looking for a TPU found.
        software: The versions of what is installed.
        holding: Who holds the TPU.
        variables: Environment variables that are set, of those that matter; without
            secrets.
        memory: How much memory there is.
    """

    system: str
    search: Search
    software: Software
    holding: Holding
    variables: Mapping[str, str]
    memory: Memory

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is in the way or worth knowing; what has to be mended first comes first."""
        local = self.search.tpu == "local" and not self.search.is_only_said
        return self.findings_for(local_tpu=local)

    def findings_for(self, *, local_tpu: bool) -> tuple[Finding, ...]:
        """The same for a TPU of this machine, or for any other and a virtual one.

        Args:
            local_tpu: Whether a TPU of this machine is to be used.
        """
        found = [
            *of_search(self.search),
            *self.software.findings(local_tpu=local_tpu),
            # The client of a Pod leaves its host's chips to the worker, which holds them.
            *(self.holding.findings() if local_tpu else ()),
            *self.memory.findings(),
        ]
        return tuple(sorted(found, key=lambda finding: not finding.stops))


def look(environment: Mapping[str, str] | None = None, root: Path | None = None) -> Machine:
    """Looks at this machine; TensorFlow is not imported, and nothing is connected to.

    Args:
        environment: Environment variables; by default the process's own.
        root: Below which `dev`, `sys`, `proc` and `tmp` are looked for; by default the
            machine's own.
    """
    environment = os.environ if environment is None else environment
    search = find_tpu(environment, root)
    devices = (*search.chips.files, *search.chips.unknown)
    return Machine(
        system=f"{platform.system()} {platform.machine()}".strip(),
        search=search,
        software=find_software(environment),
        holding=find_holders(devices, environment, root),
        variables=shown_variables(environment),
        memory=measure(root),
    )
