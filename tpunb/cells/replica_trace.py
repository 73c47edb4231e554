"""What holds while a replica function is traced, and what the cell raised meanwhile."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from .lessons import is_traced_in_branch
from .printing import Printer
from .replica_function import registered
from .source import CellSource

__all__ = ["ReplicaTrace"]


class ReplicaTrace:
    """Surrounds the traces of one program's replica function.

    It keeps the exception that a cell raises: AutoGraph raises another one in its place, of
    another type if it does not know how to make one of the same.

    Args:
        printer: Collects what the replicas print.

    Attributes:
        failure: What the cell raised in its last trace.
        in_branch: Whether it was raised where a branch or a loop over tensors is traced.
    """

    def __init__(self, printer: Printer) -> None:
        self.failure: BaseException | None = None
        self.in_branch = False
        self._printer = printer
        self._written: tuple[str, CellSource] | None = None
        self._around = ExitStack()

    def registers(self, text: str, cell: CellSource) -> None:
        """Lets AutoGraph find the text of a cell's replica function while it is traced."""
        self._written = (text, cell)

    def __enter__(self) -> None:
        self.failure = None
        self._around = ExitStack()
        self._around.enter_context(self._printer.tracing())
        if self._written is not None:
            self._around.enter_context(registered(*self._written))

    def __exit__(
        self, kind: object, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.failure = error
        self.in_branch = is_traced_in_branch(frames)
        self._around.close()
