"""Runs of cells on the devices of a virtual TPU for JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from tpunb.cells.base_runner import BaseRunner
from tpunb.cells.settings import CompileSettings, RunSettings
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.errors import CellError
from tpunb.jax.cells.programs import Programs
from tpunb.jax.cells.steps import Steps


class CellRunner(BaseRunner):
    """A runner of cells on the devices of JAX.

    Args:
        devices: The devices.

    Attributes:
        calls: The programs of the cells.
        timings: The times of the last run of many steps; None before the first run.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        super().__init__()
        self.calls = Programs(devices)

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The mesh of the devices, in the order of the replicas. Its axis is `"replica"`."""
        return self.calls.mesh

    @property
    def traces(self) -> int:
        """The number of programs that were compiled."""
        return self.calls.traces

    def steps(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None = None,
        settings: RunSettings | None = None,
        **options: Any,
    ) -> Steps:
        """Return a run of a cell, before its first step. See `BaseRunner.steps`."""
        if not isinstance(cell, str):
            raise CellError(
                "Only a cell's text runs on every device in JAX.",
                fix="Call jax.jit(jax.shard_map(function, ...)) yourself.",
            )
        settings = dataclasses.replace(settings or RunSettings(), **options)
        names = {} if namespace is None else namespace
        return Steps(self.calls, self.parsed(cell), names, settings)

    def compile(
        self,
        cell: str,
        namespace: dict[str, Any] | None = None,
        how: CompileSettings | None = None,
        **options: Any,
    ) -> TpuProgram | TpuPrograms:
        """Compile a cell with the TPU's own compiler, without running it.

        Args:
            cell: The cell's body.
            namespace: The namespace of the cell's names.
            how: The TPU types, and so on.
            **options: Settings by name, as for `steps`.

        Returns:
            The program; for several types a table of programs.

        Raises:
            CompilerUnavailableError: The compiler is not installed, or not for this machine.
            CompileError: The TPU type is not known, or has another number of cores.
            Exception: Any error that the cell raises when it is traced, as from `run`.
        """
        from tpunb.compiler.compile import compile_call

        how = how or CompileSettings()
        if how.largest_batch:
            raise CompileError(
                "--largest-batch does not change the data of a cell for JAX.",
                fix="Find it with the step's function: tpunb.largest_batch(step, params, batch).",
            )
        traced, arguments = self.steps(cell, namespace, **options).examined()
        how = dataclasses.replace(how, live_arrays=False)  # its arguments are shapes of these
        programs = list(compile_call(traced.function, arguments.values, {}, how))
        return TpuPrograms(programs) if len(programs) > 1 else programs[0]

    def close(self) -> None:
        """Forget every cell and every program."""
        self._sources.clear()
        self.calls.clear()
