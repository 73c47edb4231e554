"""The port: what the core needs of TensorFlow and of JAX, and the only place that imports a wing.

A wing implements it in its `port.py`, which the first call of `tensorflow` or `jax` imports. The
wings import the core as they like, so the core never imports a wing by itself. It also leads from
the compiler to the display, which imports the compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from tpunb.machine.framework import JAX
from tpunb.machine.import_tensorflow import require_tensorflow

if TYPE_CHECKING:
    # Every `import tpunb` may import this module, and types need not be imported to be named.
    from contextlib import AbstractContextManager

    from tpunb.compiler.ask.compile_settings import Settings
    from tpunb.compiler.ask.topologies import Target
    from tpunb.compiler.fit.any_batch import Lowerer
    from tpunb.compiler.fit.candidates import Spaces
    from tpunb.compiler.program import TpuProgram
    from tpunb.connection.plan import Plan
    from tpunb.tensorflow.checks.rule_check import CheckReport
    from tpunb.tpu.compiled_program import Program
    from tpunb.training.input_speed import InputSpeed
    from tpunb.training.profile import Profile
    from tpunb.training.run_result import RunResult, Timings
    from tpunb.verification.suite import Suite
    from tpunb.virtual.installation import Installation


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


class Framework(Protocol):
    """What the core needs of each framework."""

    def connect(self, plan: Plan, say: Callable[[str], None] | None) -> Any:
        """Connect as planned, and return a `TpuConnection`. `tpunb.connect` lists the errors.

        Args:
            plan: The TPU to connect to.
            say: Called with a description of each step that takes time.
        """

    def cell_runner(self, replicas: Any) -> RunsCells:
        """Return a new runner of cells, on a strategy of TensorFlow or on devices of JAX."""

    def install(self, installation: Installation) -> Installation:
        """Make the framework's own names find a virtual TPU, in place of the one in force."""

    def lowerer(self, fn: Any, args: Sequence[Any], strategy: Any, note: str) -> Lowerer:
        """Return how a function is traced for the compiler.

        Args:
            fn: The function.
            args: Its arguments.
            strategy: The strategy of TensorFlow whose replicas run it; None if there is none.
            note: A sentence if both frameworks could trace it; otherwise empty.
        """

    def compare(self, fn: Any, args: Sequence[Any], **options: Any) -> Any:
        """Run a function in two ways, and compare the results. `tpunb.compare` has the options."""

    def suites(self) -> tuple[type[Suite], ...]:
        """Import and return the suites of claims that `tpunb verify` tests.

        Claims about refusals come late, and claims that could leave the TPU unusable come last.
        """


class TensorFlowPort(Framework, Protocol):
    """What the core needs of TensorFlow alone."""

    def cell_runner(self, replicas: Any) -> ChecksCells:
        """Return a new runner of cells on a strategy."""

    def current_strategy(self) -> Any:
        """Return the strategy whose scope is entered, or the open connection's, or None."""

    def data_arrives(self, replicas: int, dataset: Any, distributed: Any) -> None:
        """Look at the data that a strategy distributes, on the caller's stack."""

    def notes_of_fit(self, model: Any) -> dict[str, str]:
        """Return notes on a training, including those known before its first step."""

    def check_step(self, run: Any) -> CheckReport:
        """Check a run of a cell before its first step."""

    def leave_out_of_warnings(self, problems: Any) -> None:
        """Do not warn again about problems that are shown."""

    def profile(self, keep: Any) -> AbstractContextManager[Profile]:
        """Profile a block, as `tpunb.profile` does."""

    def input_speed(self, data: Any, program: Any) -> InputSpeed:
        """Measure an input pipeline, as `tpunb.input_speed` does."""

    def read_again(self, data: Any) -> Any:
        """Return data that can be read from its beginning again, or raise an error."""


class JaxPort(Framework, Protocol):
    """What the core needs of JAX alone."""

    def can_trace(self, fn: Any, args: Sequence[Any]) -> bool:
        """Return whether JAX can trace a call."""

    def with_advice(
        self,
        program: TpuProgram,
        call: tuple[Any, Sequence[Any]],
        kind: Target,
        settings: Settings,
        *,
        live_arrays: bool,
    ) -> TpuProgram:
        """Return a program that fits with advice, refused if it does not fit beside the arrays."""

    def ways_to_fit(self, call: tuple[Any, Sequence[Any]], kind: Target) -> Spaces:
        """Return the changes to a call that may make it fit, by name."""

    def search(
        self,
        fn: Any,
        args: Sequence[Any],
        kinds: Sequence[Target],
        progress: Callable[[str], None] | None,
        **options: Any,
    ) -> Any:
        """Find the layout of a call that fits. `tpunb.search` has the options."""


def tensorflow(door: str = "") -> TensorFlowPort:
    """Import and return TensorFlow's wing.

    Args:
        door: The magic or function that needs it, for the message.

    Raises:
        ConnectError: TensorFlow is not installed.
    """
    require_tensorflow(door)
    return cast(TensorFlowPort, importlib.import_module("tpunb.tensorflow.port"))


def jax() -> JaxPort:
    """Import and return JAX's wing."""
    return cast(JaxPort, importlib.import_module("tpunb.jax.port"))


def of(framework: str) -> Framework:
    """Import and return the wing of a framework.

    Args:
        framework: `TENSORFLOW` or `JAX`, of `tpunb.machine.framework`.
    """
    return jax() if framework == JAX else tensorflow()


class Progress(Protocol):
    """The display of a compilation while it runs."""

    def known(self, programs: Sequence[Program], types_left: Sequence[str]) -> None:
        """Show the programs that are known, and the TPU types that are left."""


class ProgramDisplay(Protocol):
    """The interface of a display that the compiler uses."""

    def forms(self, programs: Sequence[Program]) -> dict[str, Any]:
        """Return the static forms of programs, by MIME type."""

    def compiling(self, phase: Callable[[], str]) -> AbstractContextManager[Progress]:
        """Show what `phase` returns, until the compilation ends."""

    def publish(self, programs: Sequence[Program]) -> None:
        """Show programs in the notebook's cell, if there is one."""

    def frontier(
        self, points: Sequence[tuple[str, float, int, bool, bool]], limits: Collection[int]
    ) -> str:
        """Return a picture of programs by time and memory, whose points are of `frontier.Point`."""


def program_display() -> ProgramDisplay:
    """Import and return the display of compiled programs."""
    return cast(ProgramDisplay, importlib.import_module("tpunb.display.compiled_programs"))
