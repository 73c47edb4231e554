"""JAX's side of the port. `tpunb.framework` says what each function does.

Each function imports what it needs, so that nothing imports JAX before it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpunb.compiler.ask.compile_settings import Settings
    from tpunb.compiler.ask.topologies import Target
    from tpunb.compiler.fit.any_batch import Lowerer
    from tpunb.compiler.fit.candidates import Spaces
    from tpunb.compiler.program import TpuProgram
    from tpunb.connection.plan import Plan
    from tpunb.framework import RunsCells
    from tpunb.jax.connection.connection import JaxConnection
    from tpunb.jax.connection.hardware import JaxHardwareConnection
    from tpunb.verification.suite import Suite
    from tpunb.virtual.installation import Installation


def connect(plan: Plan, say: Callable[[str], None] | None) -> JaxConnection | JaxHardwareConnection:
    if plan.kind == "hardware":
        from tpunb.jax.connection.hardware import JaxHardwareConnection

        return JaxHardwareConnection(plan)
    from tpunb.jax.connection.connection import JaxConnection

    return JaxConnection(plan, vars(sys.modules["__main__"]))


def cell_runner(replicas: Any) -> RunsCells:
    from tpunb.jax.cells.runner import CellRunner

    return CellRunner(replicas)


def install(installation: Installation) -> Installation:
    from tpunb.jax.connection.installing import install

    return install(installation)


def lowerer(fn: Any, args: Sequence[Any], strategy: Any, note: str) -> Lowerer:
    from tpunb.jax.compiler.batches import lowerer

    del strategy  # TensorFlow's
    return lowerer(fn, args, note)


def compare(fn: Any, args: Sequence[Any], **options: Any) -> Any:
    from tpunb.jax.compiler.compare_meshes import compare_meshes
    from tpunb.jax.compiler.judge import shown_elsewhere
    from tpunb.virtual import current_type

    with shown_elsewhere():
        return compare_meshes(fn, args, options["meshes"], current_type.get())


def suites() -> tuple[type[Suite], ...]:
    from tpunb.jax.verification.suites import suites

    return suites()


def can_trace(fn: Any, args: Sequence[Any]) -> bool:
    from tpunb.jax.compiler.functions import can_trace

    return can_trace(fn, args)


def with_advice(
    program: TpuProgram,
    call: tuple[Any, Sequence[Any]],
    kind: Target,
    settings: Settings,
    *,
    live_arrays: bool,
) -> TpuProgram:
    from tpunb.jax.compiler.beside_arrays import beside_live_arrays
    from tpunb.jax.compiler.fits import with_advice

    program = with_advice(program, *call, kind, settings)
    return beside_live_arrays(program, kind, *call) if live_arrays else program


def ways_to_fit(call: tuple[Any, Sequence[Any]], kind: Target) -> Spaces:
    from tpunb.jax.compiler.fits import ways

    return ways(*call, kind)


def search(
    fn: Any,
    args: Sequence[Any],
    kinds: Sequence[Target],
    progress: Callable[[str], None] | None,
    **options: Any,
) -> Any:
    from tpunb.jax.compiler.search.search import Options, search

    return search(fn, args, kinds, Options(**options), progress)
