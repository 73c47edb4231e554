"""TensorFlow's side of the port. `tpunb.framework` says what each function does.

Each function imports what it needs, so that nothing imports TensorFlow before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpunb.compiler.fit.any_batch import Lowerer
    from tpunb.connection.plan import Plan
    from tpunb.framework import ChecksCells
    from tpunb.tensorflow.checks.rule_check import CheckReport
    from tpunb.tensorflow.connection.connection import Connection
    from tpunb.training.input_speed import InputSpeed
    from tpunb.training.profile import Profile
    from tpunb.verification.suite import Suite
    from tpunb.virtual.installation import Installation


def connect(plan: Plan, say: Callable[[str], None] | None) -> Connection:
    from tpunb.tensorflow.connection.connecting import connect

    return connect(plan, say)


def cell_runner(replicas: Any) -> ChecksCells:
    from tpunb.tensorflow.cells.runner import CellRunner

    return CellRunner(replicas)


def install(installation: Installation) -> Installation:
    from tpunb.tensorflow.virtual.installing import install

    return install(installation)


def lowerer(fn: Any, args: Sequence[Any], strategy: Any, note: str) -> Lowerer:
    from tpunb.tensorflow.compiler.batches import lowerer

    return lowerer(fn, args, strategy, note)


def compare(fn: Any, args: Sequence[Any], **options: Any) -> Any:
    from tpunb.compiler.frameworks import refuse_jax
    from tpunb.tensorflow.checks.compare import CompareError, compare

    refuse_jax("tpunb.compare", fn, args, CompareError)
    return compare(fn, *args, **options)


def suites() -> tuple[type[Suite], ...]:
    from tpunb.tensorflow.verification.suites import suites

    return suites()


def current_strategy() -> Any:
    from tpunb.tensorflow.virtual.strategy import current

    return current()


def data_arrives(replicas: int, dataset: Any, distributed: Any) -> None:
    from tpunb.tensorflow.checks.fit_notes import data_arrives

    data_arrives(replicas, dataset, distributed)


def notes_of_fit(model: Any) -> dict[str, str]:
    from tpunb.tensorflow.checks import fit_notes

    notes = fit_notes.notes_of(model)
    if fit_notes.LOST not in notes and (lost := fit_notes.lost_variables(model)):
        notes[fit_notes.LOST] = lost
    return notes


def check_step(run: Any) -> CheckReport:
    from tpunb.tensorflow.cells.checking import check_step

    return check_step(run)


def leave_out_of_warnings(problems: Any) -> None:
    from tpunb.tensorflow.virtual.strict.examination import leave_out_of_warnings

    leave_out_of_warnings(problems)


def profile(keep: Any) -> AbstractContextManager[Profile]:
    from tpunb.tensorflow.cells.profiling import profile

    return profile(keep)


def input_speed(data: Any, program: Any) -> InputSpeed:
    from tpunb.tensorflow.cells.pipeline.speed import input_speed

    return input_speed(data, program)


def read_again(data: Any) -> Any:
    from tpunb.tensorflow.cells.pipeline.reading import repeated

    return repeated(data)
