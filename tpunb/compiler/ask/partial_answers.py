"""Programs for several TPU types. Each is shown once it is known, and an interrupt keeps it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

from tpunb._util.child_process import ChildLostError
from tpunb._util.interrupts import Stopped
from tpunb._util.plain_text import listed
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.program import TpuProgram, TpuPrograms, remember_program

Watcher = Callable[[Sequence[TpuProgram], Sequence[str]], None]
"""Called with the known programs and the types that are left."""

_watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar(
    "tpunb_programs_watcher", default=None
)


class CompilationStopped(Stopped):
    """An interrupt ended a compilation when some of its programs were known.

    Args:
        message: The types that are known, and the types that are not.
        programs: The known programs.

    Attributes:
        programs: The known programs.
    """

    def __init__(self, message: str, programs: TpuPrograms) -> None:
        super().__init__(message)
        self.programs = programs


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within a block, tell a watcher the known programs before each part of a compilation."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def is_watched() -> bool:
    """Return whether a watcher is set."""
    return _watcher.get() is not None


def for_each_type(
    kinds: Sequence[Target],
    compiled: Callable[[Target], TpuProgram],
    completed: Callable[[Target, TpuProgram], TpuProgram],
    shown: Callable[[TpuProgram], TpuProgram] = lambda program: program,
) -> TpuPrograms:
    """Compile for one TPU type after another.

    Args:
        kinds: The types.
        compiled: Compiles for a type.
        completed: Completes a program with results of further compilations, such as alternatives
            that fit. It is called when all verdicts are known.
        shown: Returns the program that a user sees.

    Raises:
        CompilationStopped: An interrupt ended the compilation, and some programs are known.
    """
    names = [kind.tpu.name for kind in kinds]
    programs: list[TpuProgram] = []

    def known() -> TpuPrograms:
        return TpuPrograms([shown(program) for program in programs])

    def judged(kind: Target) -> TpuProgram:
        try:
            return compiled(kind)
        except ChildLostError as error:  # when it read what JAX has exported
            unknown, crashed = str(error), error.crashed
        return TpuProgram(
            kind.tpu.name, kind.replicas, kind.partitions, unknown=unknown, crashed=crashed
        )

    def tell(left: Sequence[str]) -> None:
        if (watcher := _watcher.get()) is not None:
            watcher(known(), left)

    try:
        for place, kind in enumerate(kinds):
            tell(names[place:])
            programs.append(judged(kind))
        for place, kind in enumerate(kinds):
            tell([])
            programs[place] = completed(kind, programs[place])
    except CompilationStopped as stopped:  # the search for a batch, which has a part of its result
        (programs[place],) = stopped.programs
        raise CompilationStopped(str(stopped), known()) from None
    except KeyboardInterrupt:
        if not programs:
            raise
        raise CompilationStopped(_stopped(names, len(programs)), known()) from None
    done = known()
    remember_program(done)
    return done


def _stopped(names: Sequence[str], known: int) -> str:
    """Return the sentence after "CompilationStopped:"."""
    if known == len(names):
        state = "while looking for a batch or a type that fits. The verdicts are known."
    else:
        done, left = (
            f"{listed(some)} {'are' if len(some) > 1 else 'is'}"
            for some in (names[:known], names[known:])
        )
        state = f"while compiling for {names[known]}. {done} known, {left} not."
    return f"{state} Compile again to continue: known verdicts are stored."
