"""Annotations that place a tensor or a variable on the logical devices of a replica."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Placement = Literal["assigned", "split", "replicated"]


@dataclass(frozen=True, slots=True)
class Annotation:
    """The placement of a tensor or variable on the logical devices of a replica.

    Attributes:
        name: The name of the tensor in its function, or of the variable.
        shape: The shape, with None for a size that is unknown; None for an unknown rank.
        dtype: TensorFlow's name of the type.
        kind: `"assigned"` to one logical device, `"split"` over all of them, or
            `"replicated"` to all of them.
        device: The logical device if the tensor is assigned to one, else None.
        tiling: The number of parts of each axis if the tensor is split, else None. The parts, in
            row-major order, go to logical devices 0, 1, ….
        where: The function and the line that place it; empty if unknown.
        variable: Whether it is a variable.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str
    kind: Placement
    device: int | None = None
    tiling: tuple[int, ...] | None = None
    where: str = ""
    variable: bool = False

    @property
    def part(self) -> tuple[int | None, ...] | None:
        """The shape of the part on one logical device."""
        if self.shape is None or self.tiling is None:
            return self.shape
        return tuple(
            None if size is None else size // parts
            for size, parts in zip(self.shape, self.tiling, strict=True)
        )


class Annotations(tuple[Annotation, ...]):
    """All annotations of a strategy, in the order of their making.

    Args:
        annotations: The annotations.
        logical_devices: The number of logical devices of a replica.
    """

    # A subclass of tuple cannot have nonempty slots.
    logical_devices: int

    def __new__(cls, annotations: Iterable[Annotation], logical_devices: int) -> Annotations:
        """Make the tuple and record the number of logical devices."""
        annotated = super().__new__(cls, annotations)
        annotated.logical_devices = logical_devices
        return annotated

    def __getnewargs__(self) -> tuple[tuple[Annotation, ...], int]:
        return tuple(self), self.logical_devices
