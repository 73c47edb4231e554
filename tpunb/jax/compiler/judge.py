"""The verdicts of the TPU's own compiler on the programs that JAX runs on a virtual TPU.

A program is judged in a thread, while the CPU compiles it. Calls wait for the verdict, as they wait
for the compiler on a TPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from tpunb._util.deadline import Deadline
from tpunb._util.logs import logger
from tpunb._util.patching import attribute
from tpunb._util.plain_values import record_from
from tpunb._util.units import byte_count
from tpunb.compiler.ask import kept_verdicts, libtpu, recorded_verdicts
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.exported_modules import prepared_module
from tpunb.compiler.ask.fingerprint import Fingerprint
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.ask.verdict import program_for
from tpunb.compiler.compile import with_fixes
from tpunb.compiler.program import TpuProgram
from tpunb.errors import TpunbError
from tpunb.errors.base import hint
from tpunb.errors.code_problems import innermost
from tpunb.framework import program_display
from tpunb.jax.checks.findings import Findings
from tpunb.jax.virtual.jit_calls import present_jit
from tpunb.jax.virtual.memory import LiveArray
from tpunb.tpu.families import HARDWARE
from tpunb.tpu.types import Accelerator

if TYPE_CHECKING:
    from tpunb.jax.virtual.lowering import LoweredProgram
    from tpunb.jax.virtual.virtual_tpu import Options

When = Literal["wait", "later", "off"]
"""A call waits for its verdict, the verdict is shown later, or the compiler is not asked."""


_SECONDS_FOR_RELEASES = 60.0
_TURN = 0.1
"""Seconds between two looks for an interrupt."""

_LARGE = 1 / 16
"""The part of a device's memory from which JAX's own operations are judged too."""


_judges: weakref.WeakSet[Judge] = weakref.WeakSet()


@contextlib.contextmanager
def shown_elsewhere() -> Iterator[None]:
    """Keep the verdicts of a block out of the lines below the cell, unless the block fails."""
    before = [(judge, len(judge._new), len(judge._waiting)) for judge in _judges]
    yield
    for judge, new, waiting in before:
        del judge._new[new:], judge._waiting[waiting:]


@contextlib.contextmanager
def nothing_judged() -> Iterator[None]:
    """Within a block, run programs without asking the compiler or looking for mistakes."""
    with contextlib.ExitStack() as undo:
        for judge in list(_judges):
            undo.enter_context(attribute(judge, "_when", "off"))
            undo.enter_context(attribute(judge, "findings", Findings({})))
        yield


class Judge:
    """The judge of one virtual TPU: the TPU's own compiler, and its verdicts.

    Args:
        tpu: The TPU type.
        when: Whether calls wait.
        speed: Whether to estimate times, which takes the compiler ten times as long.
        recorded: A folder of recorded verdicts, or None for the folder that the environment names.
        namespace: The notebook's names.
        seconds: How long the compiler may take for a program.
        fixes: Whether to compile changes to a call that does not fit, to say which of them fit.

    Attributes:
        findings: What the checks of a step find.
        programs: The judged programs, in the order of their verdicts.
    """

    def __init__(
        self,
        tpu: Accelerator,
        when: When = "wait",
        *,
        speed: bool = False,
        recorded: Any = None,
        namespace: Mapping[str, Any] = MappingProxyType({}),
        seconds: float = 300.0,
        fixes: bool = False,
    ) -> None:
        self._seconds, self._fixes = seconds, fixes
        self._tpu, self._when, self._speed, self._recorded = tpu, when, speed, recorded
        self._verdicts: dict[str, _Verdict] = {}
        self._lock = threading.Lock()
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._new: list[TpuProgram] = []
        self._waiting: list[tuple[str, _Verdict]] = []
        self.programs: list[TpuProgram] = []
        self.findings = Findings(namespace)
        _judges.add(self)

    @property
    def why_off(self) -> str:
        """The reason why programs run without a verdict, in a sentence; empty if they do not."""
        if self._when == "off":
            return "Programs are not judged, because of --judge off."
        with recorded_verdicts.recorded_in(self._recorded):
            missing = libtpu.why_unavailable()
            if missing is None or recorded_verdicts.folder() is not None:
                return ""
        return f"Programs run, but are not judged: {missing.message} {hint(missing.fix)}"

    def begin(
        self,
        program: LoweredProgram,
        devices: int,
        options: Options,
        beside: Callable[[int], str],
        moved: Sequence[LiveArray] = (),
    ) -> Judgement:
        """Begin to judge a program. See `tpunb.jax.virtual.virtual_tpu.Judge`.

        Raises:
            Exception: The error with which JAX refuses to lower the program for a TPU.
        """
        self.findings.look_at(program, devices, moved)
        if not self._is_worth_it(program) or self.why_off:
            return Judgement(program.name)
        verdict = self._verdict_on(program, devices, options)
        if self._when == "later":
            self._waiting.append((program.name, verdict))
            return Judgement(program.name, verdict)
        fixed = functools.partial(self._fixed, devices) if self._fixes else None
        return Judgement(program.name, verdict, beside, fixed)

    def take_new(self) -> list[TpuProgram]:
        """Return the programs that calls have waited for since the last call of this method."""
        new, self._new = self._new, []
        return new

    def take_waiting(self) -> list[tuple[str, Callable[[Callable[[TpuProgram], None]], None]]]:
        """Return the programs that no call waits for, since the last call of this method.

        Returns:
            The name of each, and a function that calls another function when the program is known.
        """
        waiting, self._waiting = self._waiting, []
        return [(name, functools.partial(_when_known, verdict)) for name, verdict in waiting]

    def close(self) -> None:
        """End the thread when it has answered its present question."""
        self._questions.put(None)

    def _is_worth_it(self, program: LoweredProgram) -> bool:
        """Return whether a program is more than one of JAX's own operations on small arrays."""
        is_large = program.size >= _LARGE * HARDWARE[self._tpu.family].usable_bytes
        return is_large or program.has_kernel or not program.is_of_jax

    def _verdict_on(self, program: LoweredProgram, devices: int, options: Options) -> _Verdict:
        """Return the verdict on a program, which may not be known yet."""
        digest = f"{program.digest()} {devices} {options}"
        with self._lock:
            if digest in self._verdicts:
                return self._verdicts[digest]
            verdict = self._verdicts[digest] = _Verdict()
        try:
            key = self._key(digest)
            if key is not None and (known := _kept(*key)) is not None:
                self._settle(verdict, known)
                return verdict
            lowered = program.for_a_tpu.artifact()
        except BaseException:
            with self._lock:
                del self._verdicts[digest]
            raise
        self._ask(_Question(verdict, lowered, program.name, devices, options, key))
        return verdict

    def _key(self, digest: str) -> tuple[Fingerprint, dict[str, Any]] | None:
        """Return what a verdict is kept under in the user's cache; None if none is kept."""
        with recorded_verdicts.recorded_in(self._recorded):
            records = recorded_verdicts.folder() is not None  # which every verdict passes through
        if kept_verdicts.folder() is None or records or libtpu.why_unavailable() is not None:
            return None
        compiler = None
        with contextlib.suppress(TpunbError):  # asking for the verdict says why
            compiler = libtpu.identity(Deadline(_SECONDS_FOR_RELEASES))
        if compiler is None:
            return None
        asked = {"tpu": self._tpu.name, "speed": self._speed, "jax": sys.modules["jax"].__version__}
        return Fingerprint(digest, ()), {"judged": asked, "compiler": compiler}

    def _ask(self, question: _Question) -> None:
        with self._lock:
            if self._thread is None:
                # A daemon, so that a kernel which ends does not wait for the compiler.
                self._thread = threading.Thread(target=self._answer, name="tpunb", daemon=True)
                self._thread.start()
        self._questions.put(question)

    def _answer(self) -> None:
        """Answer questions, one after another, until there are no more."""
        while (question := self._questions.get()) is not None:
            try:
                program = self._compiled(question)
            except Exception as error:  # must not end the thread: calls wait for it
                logger("compiler").exception("no verdict on %s", question.name)
                program = self._unknown(question, f"{type(error).__name__}: {error}")
            if question.key is not None:
                _keep(*question.key, program)
            self._settle(question.verdict, program)

    def _settle(self, verdict: _Verdict, program: TpuProgram) -> None:
        self.programs.append(program)
        logger("compiler").info("%s: %s", program.name, program.headline)
        if self._when == "wait":
            self._new.append(program)
        verdict.set_result(program)

    def _compiled(self, question: _Question) -> TpuProgram:
        settings = Settings(innermost, Deadline(self._seconds), self._speed)
        target = Target(self._tpu, 1, question.devices)
        try:
            with recorded_verdicts.recorded_in(self._recorded):
                prepared, _ = prepared_module(question.module, settings, own=True)
                prepared = dataclasses.replace(prepared, options=question.options)
                if prepared.replicated:
                    target = Target(self._tpu, question.devices)
                program = program_for(prepared, target, settings)
        except TpunbError as error:
            return self._unknown(question, error.message)
        return dataclasses.replace(program, name=question.name)

    def _fixed(self, devices: int, program: TpuProgram) -> TpuProgram:
        """Return a program that does not fit with the changes to its call that fit."""
        if (call := present_jit()) is None:
            return program
        with recorded_verdicts.recorded_in(self._recorded):
            return with_fixes(program, Target(self._tpu, 1, devices), *call, self._seconds)

    def _unknown(self, question: _Question, why: str) -> TpuProgram:
        return TpuProgram(self._tpu.name, 1, question.devices, unknown=why, name=question.name)


_MAKE_ROOM = "Delete the arrays that you no longer need, or donate them."
_CODES = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED", "INTERNAL", "NOT_FOUND")


_Verdict = Future[TpuProgram]
"""A program that the compiler judges, or has judged."""


@dataclasses.dataclass(slots=True)
class Judgement:
    """The verdict on a program that is compiled. See `tpunb.jax.virtual.virtual_tpu.Judgement`.

    Attributes:
        name: The function's name.
        verdict: The verdict; None if the program is not judged.
        beside: What leaves a program no room; None if calls do not wait for the verdict.
        fixed: Returns a program that does not fit with what fits; None to leave that out.
    """

    name: str
    verdict: _Verdict | None = None
    beside: Callable[[int], str] | None = None
    fixed: Callable[[TpuProgram], TpuProgram] | None = None
    _known: TpuProgram | None = None

    def require(self) -> None:
        """Wait for the verdict, and raise the error with which JAX on a TPU ends a call."""
        __tracebackhide__ = True
        if self.beside is None or (program := self.program(wait=True)) is None:
            return
        error = sys.modules["jax"].errors.JaxRuntimeError
        if program.errors:
            if self.fixed is not None:
                program = self._known = self.fixed(program)
            problem = program.errors[0]
            kind = "RESOURCE_EXHAUSTED" if problem.code == "memory" else "INVALID_ARGUMENT"
            said = problem.message.strip()
            theirs = said if said.startswith(tuple(_CODES)) else f"{kind}: {said}".rstrip(": ")
            raise error(f"{theirs}\n\n{program.name}: {problem.reason}\n{hint(problem.fix)}")
        if (memory := program.memory) is None:
            return
        if others := self.beside(memory.available - memory.needs):
            raise error(
                f"RESOURCE_EXHAUSTED: {program.name} needs {memory.takes} of a core's "
                f"{byte_count(memory.available)}, but {others}\n{hint(_MAKE_ROOM)}"
            )

    def program(self, *, wait: bool) -> TpuProgram | None:
        """Return the program with its verdict; None if the verdict is not known."""
        if self.verdict is None or not (wait or self.verdict.done()):
            return None
        return self._known or _awaited(self.verdict, self.name)


def _when_known(verdict: _Verdict, then: Callable[[TpuProgram], None]) -> None:
    """Call a function with a program, now or when it is known."""
    verdict.add_done_callback(lambda known: then(known.result()))


def _awaited(verdict: _Verdict, name: str) -> TpuProgram:
    """Return a program when it is known. An interrupt ends the wait, not the compiler.

    Args:
        verdict: The verdict on the program.
        name: The function's name, for the line that a long wait shows.
    """
    doing = f"the TPU's compiler is judging {name} (--judge later does not wait)"
    if not wait([verdict], _TURN).done:
        with program_display().compiling(lambda: doing):
            while not wait([verdict], _TURN).done:
                pass
    return verdict.result()


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
    """A program for the compiler.

    Attributes:
        verdict: What waits for the answer.
        module: The program, as StableHLO.
        name: The function's name.
        devices: The number of devices that run it.
        options: The user's options for the compiler.
        key: What the answer is kept under; None to keep it in this process only.
    """

    verdict: _Verdict
    module: bytes
    name: str
    devices: int
    options: Options
    key: tuple[Fingerprint, dict[str, Any]] | None


def _kept(program: Fingerprint, question: dict[str, Any]) -> TpuProgram | None:
    """Return a program from the user's cache, or None."""
    answer = kept_verdicts.kept_answer(program, question)
    if answer is None:
        return None
    with contextlib.suppress(TypeError, LookupError, ValueError):  # another release wrote it
        known: TpuProgram = record_from(TpuProgram, answer["program"])
        return known
    return None


def _keep(program: Fingerprint, question: dict[str, Any], judged: TpuProgram) -> None:
    """Keep a program in the user's cache, unless another attempt may give another verdict."""
    if judged.unknown:
        return
    answer = {"peak": 0, "program": dataclasses.asdict(judged)}
    kept_verdicts.answer_for(program, question, lambda: answer)
