"""The compiler's answers about a module, in the form in which files have them too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tpunb.tpu.compiled_program import Provenance


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a kernel, counted in one run of its scalar code.

    The first of two figures is without what only the program's data decides, the second with it.

    Attributes:
        cycles: The cycles of the core.
        bytes: The bytes copied from and to HBM.
        strided: The bytes among them that are copied in pieces.
        steps: The steps of the loops that copy, which wait for their copies.
        unit: The fullest unit.
        busy: The cycles that this unit needs at least.
        matmul: The cycles that the matrix unit needs at least.
        spills: The cycles that the stores for lack of registers need at least.
    """

    cycles: tuple[int, int]
    bytes: tuple[int, int]
    strided: int
    steps: int
    unit: str
    busy: float
    matmul: float
    spills: float


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A module compiled by libtpu. Sizes are in bytes per core.

    Attributes:
        peak: The most memory in use at a time.
        arguments: The memory of the arguments.
        outputs: The memory of the results, including results that replace an argument.
        aliased: The memory of the results that replace an argument.
        code: The memory of the program's code.
        text: The optimised HLO; empty if libtpu did not return it.
        bounded: Whether some sizes are only bounded.
        provenance: When and by which compiler it was compiled.
        schedule: The schedules of its kernels, by the names of their instructions; empty if the
            time was not asked for.
        product: The schedule of a known product, to test whether schedules are understood.
    """

    peak: int
    arguments: int
    outputs: int
    aliased: int
    code: int
    text: str
    bounded: bool
    provenance: Provenance | None = None
    schedule: Mapping[str, Schedule] = dataclasses.field(default_factory=dict)
    product: Mapping[str, Schedule] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """The reason why libtpu does not compile a module.

    Attributes:
        error: libtpu's message.
        provenance: When and by which compiler it was refused.
        text: The optimised HLO of a program that does not fit, if it was asked for and exists.
    """

    error: str
    provenance: Provenance | None = None
    text: str = ""
