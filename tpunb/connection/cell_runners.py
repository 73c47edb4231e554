"""Where the package tells a connection how cells run on its replicas.

A connection calls what is registered here and imports no cells. `tpunb/__init__.py` registers
`tpunb/cells/runner.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    # Every `import tpunb` imports this module.
    from tpunb.training.run_result import RunResult, Timings
    from tpunb.virtual.rule_check import CheckReport


class RunsCells(Protocol):
    """What a connection needs of a runner of cells."""

    timings: Timings | None

    def run(
        self, cell: str | Callable[..., Any], namespace: dict[str, Any] | None, **settings: Any
    ) -> RunResult:
        """Run a cell or a function on every replica."""

    def check(
        self, cell: str | Callable[..., Any], namespace: dict[str, Any] | None, **settings: Any
    ) -> CheckReport:
        """Check whether a cell or a function would compile for a TPU."""

    def close(self) -> None:
        """Forget every cell and every trace."""


MakeRunner = Callable[[Any, Callable[[], object], Callable[[], Iterable[str]] | None], RunsCells]
"""Makes a runner from a strategy, from what ends a frozen worker, and from the workers' output."""

_registered: MakeRunner | None = None


def register_cell_runner(make: MakeRunner) -> None:
    """Set how cells run on a strategy."""
    global _registered
    _registered = make


def cell_runner(
    strategy: Any, last_resort: Callable[[], object], lines: Callable[[], Iterable[str]] | None
) -> RunsCells:
    """Return a new runner for a strategy."""
    assert _registered is not None, "tpunb/__init__.py registers one"
    return _registered(strategy, last_resort, lines)
