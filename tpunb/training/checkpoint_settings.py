"""Where and when a run saves its checkpoints."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """The settings of a run's checkpoints.

    Attributes:
        folder: The folder of the checkpoints, also at an address such as `gs://bucket/run`.
        every: The number of steps between two checkpoints; None to save by the time.
        seconds: The time between two checkpoints if `every` is None.
        restart: Whether to begin again, and remove the checkpoints of the folder.
    """

    folder: str
    every: int | None = None
    seconds: float = 60.0
    restart: bool = dataclasses.field(default=False, compare=False)
