"""This machine's TPU setup: platform, software, devices and memory."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping

from tpunb.machine.detect import Search, find_tpu
from tpunb.machine.problems import Problem
from tpunb.machine.processes_using_tpu import Holding, find_holders
from tpunb.machine.resources import Memory, measure
from tpunb.machine.software import Software, find_software
from tpunb.machine.variables import shown_variables


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """A machine's TPU setup.

    Attributes:
        system: The operating system and the processor's architecture.
        search: The platform, and the result of looking for a TPU.
        software: Installed versions.
        holding: The processes that use the TPU.
        variables: Relevant environment variables that are set, without secrets.
        memory: The memory.
    """

    system: str
    search: Search
    software: Software
    holding: Holding
    variables: Mapping[str, str]
    memory: Memory

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems, blocking ones first."""
        local = self.search.tpu == "local" and not self.search.tpu_only_from_env
        return self.problems_for(local_tpu=local)

    def problems_for(self, *, local_tpu: bool) -> tuple[Problem, ...]:
        """Problems for using this machine's TPU, or any other TPU.

        Args:
            local_tpu: Whether this machine's TPU is to be used.
        """
        found = [
            *self.search.problems(local_tpu=local_tpu),
            *self.software.problems(local_tpu=local_tpu),
            # The client of a Pod leaves its host's chips to the worker, which uses them.
            *(self.holding.problems() if local_tpu else ()),
            *self.memory.problems(),
        ]
        return tuple(sorted(found, key=lambda problem: not problem.stops))


def look(environment: Mapping[str, str] | None = None) -> Machine:
    """Inspects this machine without importing TensorFlow or connecting to a TPU.

    Args:
        environment: Environment variables; by default the process's own.
    """
    environment = os.environ if environment is None else environment
    search = find_tpu(environment)
    devices = (*search.chips.files, *search.chips.unknown)
    return Machine(
        system=f"{platform.system()} {platform.machine()}".strip(),
        search=search,
        software=find_software(environment),
        holding=find_holders(devices, environment),
        variables=shown_variables(environment),
        memory=measure(),
    )
