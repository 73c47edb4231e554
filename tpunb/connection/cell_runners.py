"""Where the package tells a connection how cells run on its replicas.

A connection calls what is registered here and imports no cells. `tpunb/__init__.py` registers
`tpunb/tensorflow/cells/runner.py` and `tpunb/jax/cells/runner.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    # Every `import tpunb` imports this module.
    from tpunb.tensorflow.checks.rule_check import CheckReport
    from tpunb.training.run_result import RunResult, Timings


class RunsCells(Protocol):
    """The interface of a runner of cells that every connection uses."""

    timings: Timings | None

    def run(
        self, cell: str | Callable[..., Any], namespace: dict[str, Any] | None, **settings: Any
    ) -> RunResult:
        """Run a cell or a function on every replica."""

    def close(self) -> None:
        """Forget every cell and every trace."""


class ChecksCells(RunsCells, Protocol):
    """The interface of a runner of cells that a connection of TensorFlow uses."""

    def check(
        self, cell: str | Callable[..., Any], namespace: dict[str, Any] | None, **settings: Any
    ) -> CheckReport:
        """Check whether a cell or a function would compile for a TPU."""


MakeRunner = Callable[[Any], ChecksCells]
"""Makes a runner from a strategy."""

MakeJaxRunner = Callable[[Sequence[Any]], RunsCells]
"""Makes a runner from the devices of JAX."""

_registered: MakeRunner | None = None
_registered_of_jax: MakeJaxRunner | None = None


def register_cell_runners(make: MakeRunner, make_of_jax: MakeJaxRunner) -> None:
    """Set how cells run on a strategy, and on devices of JAX."""
    global _registered, _registered_of_jax
    _registered, _registered_of_jax = make, make_of_jax


def cell_runner(strategy: Any) -> ChecksCells:
    """Return a new runner for a strategy."""
    assert _registered is not None, "tpunb/__init__.py registers one"
    return _registered(strategy)


def jax_cell_runner(devices: Sequence[Any]) -> RunsCells:
    """Return a new runner for devices of JAX."""
    assert _registered_of_jax is not None, "tpunb/__init__.py registers one"
    return _registered_of_jax(devices)
