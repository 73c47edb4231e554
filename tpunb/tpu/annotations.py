"""Annotations: the logical devices of a replica that hold a tensor or a variable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Placement = Literal["assigned", "split", "replicated"]


@dataclass(frozen=True, slots=True)
class Annotation:
    """The placement of a tensor or variable on the logical devices of a replica.

    Attributes:
        name: The tensor's name in its function, or the variable's.
        shape: Its shape; None for an axis of unknown size, and instead of a
            shape of unknown rank.
        dtype: TensorFlow's name of its type.
        kind: `"assigned"` to one logical device, `"split"` over all of them, or
            `"replicated"` to all of them.
        device: The logical device that it is assigned to; else None.
        tiling: Into how many parts each axis is split; else None. The parts, in
            row-major order, go to logical devices 0, 1, ….
        where: The function and the line that assign it; empty if unknown.
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
        """The shape of what one logical device holds."""
        if self.shape is None or self.tiling is None:
            return self.shape
        return tuple(
            None if size is None else size // parts
            for size, parts in zip(self.shape, self.tiling, strict=True)
        )


class Annotations(tuple[Annotation, ...]):
    """All annotations of a strategy, in the order in which they were made.

    Args:
        annotations: The annotations.
        logical_devices: How many logical devices a replica has.
    """

    # A tuple's subclass cannot have slots.
    logical_devices: int

    def __new__(cls, annotations: Iterable[Annotation], logical_devices: int) -> Annotations:
        """Makes the tuple, with the number of logical devices."""
        made = super().__new__(cls, annotations)
        made.logical_devices = logical_devices
        return made

    def __getnewargs__(self) -> tuple[tuple[Annotation, ...], int]:
        return tuple(self), self.logical_devices
