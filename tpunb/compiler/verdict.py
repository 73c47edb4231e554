"""One replica function for one TPU type: ask libtpu, and read its answer."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence

from tpunb._util.child_process import ChildLostError
from tpunb._util.deadline import Deadline
from tpunb._util.units import byte_count
from tpunb.compiler import libtpu
from tpunb.compiler.hlo import Module, parse
from tpunb.compiler.libtpu import LOW_EFFORT, Compiled, Refused
from tpunb.compiler.lowered import Prepared, unmarked
from tpunb.compiler.memory import described, line_name
from tpunb.compiler.program import TpuProgram, merged
from tpunb.compiler.step_time import step_time
from tpunb.compiler.topologies import Target, target
from tpunb.display.live_progress import CellDisplay
from tpunb.errors.code_problems import Choose, Problem, SourceLine
from tpunb.errors.refusals import LIBTPU, SMALLER, refusal_of
from tpunb.tpu.compiled_program import Buffer, CodeLine, ProgramMemory

_SECONDS = 300.0
"""How long compiling for one type may take where nothing else is said."""
# So close to the limit, low effort may come to another verdict than all of it.
_CLOSE = 0.1
_ROOMIEST = "v5p-8"
_PARTLY = "The largest tensors are those of the same program compiled for v5p, where it fits."
_BOUNDED = (
    "Some sizes depend on data: a TPU reserves room for the largest, and computes all of it. Not "
    "every operation supports such sizes, and TensorFlow may refuse to return them."
)
_LOW_EFFORT = "Compiled at low effort; full effort may change the peak by a few percent."


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a compilation.

    Attributes:
        choose: Which of the lines that led to an error is shown.
        deadline: When all of it has to be done.
        speed: Whether an estimate of the time is wanted, which takes ten times as long.
        details: Whether tensors, lines and layers are wanted, beside the verdict and the peak.
        progress: Is called with a sentence about what is done next.
    """

    choose: Choose
    deadline: Deadline
    speed: bool = False
    details: bool = True
    progress: Callable[[str], None] = lambda _: None


def deadline_for(kinds: Sequence[Target], timeout: float | None) -> Deadline:
    """Return the deadline for compiling for some types, starting now."""
    return Deadline(_SECONDS * len(kinds) if timeout is None else timeout)


@dataclasses.dataclass(frozen=True)
class Function:
    """A function whose replica functions are traced and lowered.

    Attributes:
        prepared: One for each call of `strategy.run` in it.
        replicas: On how many it was traced.
        partitions: Cores of a replica.
        examples: The global batch there.
    """

    prepared: tuple[Prepared, ...]
    replicas: int
    partitions: int = 1
    examples: int | None = None

    def on(self, wanted: Target, settings: Settings) -> TpuProgram:
        """Compiles it for one TPU type, with the same batch on each replica."""
        examples = self.examples
        if examples is not None and wanted.replicas != self.replicas:
            examples = -(-examples // self.replicas) * wanted.replicas
        programs = [program_for(one, wanted, settings, examples) for one in self.prepared]
        return merged(programs)


def program_for(
    prepared: Prepared, wanted: Target, settings: Settings, examples: int | None = None
) -> TpuProgram:
    """Compiles a replica function for one TPU type.

    Args:
        prepared: The function, lowered.
        wanted: What to compile for.
        settings: How.
        examples: The global batch.

    Raises:
        CompilerUnavailableError: There is no compiler.
    """
    begin = time.monotonic()
    program = TpuProgram(
        wanted.tpu.name, wanted.replicas, wanted.partitions, examples, notes=prepared.notes
    )
    if prepared.errors or prepared.unknown:
        return dataclasses.replace(program, errors=prepared.errors, unknown=prepared.unknown)
    settings.progress(f"compiling for {wanted.tpu.name}")
    try:
        answer, low = _asked(prepared, wanted, settings)
        if isinstance(answer, Refused):
            program = _refused(program, answer, prepared, wanted, settings)
        else:
            program = _accepted(program, answer, prepared, wanted, settings)
            if low:
                program = _noting(program, _LOW_EFFORT)
    except ChildLostError as error:
        program = dataclasses.replace(program, unknown=str(error), crashed=error.crashed)
    return dataclasses.replace(program, compile_seconds=time.monotonic() - begin)


def _asked(
    prepared: Prepared, wanted: Target, settings: Settings
) -> tuple[Compiled | Refused, bool]:
    """The compiler's answer, and whether it was made with low effort."""
    # JAX's own compilation, which users hold it against, is at full effort.
    low = not settings.speed and not (prepared.jax and settings.details)
    answer = _ask(prepared, wanted, settings, low=low)
    if not low or not _is_close(answer, wanted.hardware.usable_bytes):
        return answer, low
    settings.progress(
        f"compiling for {wanted.tpu.name} again, at full effort: it is close to the limit"
    )
    return _ask(prepared, wanted, settings, low=False), False


def _ask(
    prepared: Prepared, wanted: Target, settings: Settings, *, low: bool
) -> Compiled | Refused:
    return libtpu.ask(
        prepared.module,
        wanted,
        effort=LOW_EFFORT if low else "",
        deadline=settings.deadline,
        text=settings.details or settings.speed,
        jax=prepared.jax,
    )


def _is_close(answer: Compiled | Refused, available: int) -> bool:
    needed = needed_bytes(answer.message) if isinstance(answer, Refused) else answer.peak
    return bool(needed) and abs(needed - available) < _CLOSE * available  # type: ignore[operator]


def _accepted(
    program: TpuProgram, answer: Compiled, prepared: Prepared, wanted: Target, settings: Settings
) -> TpuProgram:
    module = parse(answer.text) if answer.text else None
    memory = described(answer, module, prepared, wanted)
    notes = [*program.notes]
    if answer.bounded:
        notes.append(_BOUNDED)
    if module is None and settings.details:
        notes.append(
            f"The compiler does not return the program for {wanted.tpu.name}: totals only."
        )
    return dataclasses.replace(
        program,
        memory=memory,
        time=step_time(answer, module, prepared.origins, wanted)
        if settings.speed and module
        else None,
        lines=tuple(_lines(module, prepared)) if module else (),
        text=unmarked(answer.text),
        notes=tuple(notes),
    )


def _refused(
    program: TpuProgram, answer: Refused, prepared: Prepared, wanted: Target, settings: Settings
) -> TpuProgram:
    needed = needed_bytes(answer.message)
    if needed is None:
        found = _problem(refusal(answer.message), prepared, settings)
        return dataclasses.replace(program, errors=(found,))
    available = wanted.hardware.usable_bytes
    memory = _larger(prepared, wanted, settings)
    peak = needed or (memory.peak if memory else available + 1)
    exact = bool(needed)
    empty = ProgramMemory(peak, available, wanted.tpu.hbm_bytes)
    memory = dataclasses.replace(
        memory or empty,
        peak=peak,
        available=available,
        data_sheet=wanted.tpu.hbm_bytes,
        exact=exact,
    )
    largest = memory.largest[0] if memory.largest else None
    found = _problem(memory_refusal(answer.message, peak, available, largest), prepared, settings)
    if largest is not None and largest.line is not None:
        found = dataclasses.replace(found, line=largest.line.line, file=largest.line.file)
    program = dataclasses.replace(program, errors=(found,), memory=memory)
    return _noting(program, _PARTLY) if memory.largest else program


def _larger(prepared: Prepared, wanted: Target, settings: Settings) -> ProgramMemory | None:
    """Compile a program that does not fit for a larger memory, to show what takes it."""
    roomy = target(_ROOMIEST, None, min(wanted.partitions, 4))
    if not settings.details or wanted.hardware.usable_bytes >= roomy.hardware.usable_bytes:
        return None
    settings.progress("finding the tensors that take the memory")
    try:
        answer = _ask(prepared, roomy, settings, low=True)
    except ChildLostError:
        return None
    if isinstance(answer, Refused) or not answer.text:
        return None
    module = parse(answer.text)
    return described(answer, module, prepared, roomy)


def _problem(found: Problem, prepared: Prepared, settings: Settings) -> Problem:
    places = prepared.origins.places(found.node) if found.node else ()
    return found.at(places).shown(settings.choose)


def _noting(program: TpuProgram, note: str) -> TpuProgram:
    return dataclasses.replace(program, notes=(*program.notes, note))


def _lines(module: Module, prepared: Prepared) -> Iterator[CodeLine]:
    """The lines that a program came from, in the order of the code."""
    nodes = {
        module.nodes[instruction.name]
        for computation in module.computations.values()
        for instruction in computation.instructions
    }
    found: set[SourceLine] = {line for node in nodes if (line := prepared.origins.line(node))}
    for line in sorted(found, key=lambda one: (one.file, one.line)):
        yield CodeLine(line, line_name(line))


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
_NEEDED = (
    re.compile(rf"total memory required[^(]*\({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM"),
    re.compile(rf"[Aa]ttempting to (?:allocate|reserve) {_SIZE}"),
)
_NODE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_OF_X64 = re.compile(r"not implemented: (?:ROOT )?%?\S+ = (\w+)\[")

_TYPES = {"s64": "int64", "u64": "uint64", "f64": "float64", "c128": "complex128"}


def needed_bytes(message: str) -> int | None:
    """Reads from the error how much HBM a program that does not fit would need.

    Returns:
        Bytes; 0 where the error does not say how many, None for another error.
    """
    # Within the core's fast memory it is another matter.
    if "vmem" in message.lower() or not re.search("HBM|hbm", message):
        return None
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        return None
    for pattern in _NEEDED:
        if found := pattern.search(message):
            return int(float(found[1]) * _UNITS[found[2]])
    return 0


def refusal(message: str) -> Problem:
    """Explains why libtpu refuses a program for another reason than memory."""
    found = _NODE.search(message)
    node = found[1] if found else ""
    if known := refusal_of(message, LIBTPU):
        kind = _OF_X64.search(message)
        types = _TYPES.get(kind[1], "64 bits") if kind else "64 bits"
        reason = known.reason.format(types=types)
        return Problem(known.code, reason, known.fix, message=message, node=node)
    first = unmarked(message).splitlines()[0].rstrip(".") if message else "it gives no reason"
    return Problem(
        "compile",
        f"The TPU's compiler refuses it: {first}.",
        "Write it with other operations, or report it with this message.",
        message=message,
        node=node,
    )


def memory_refusal(message: str, needed: int, available: int, largest: Buffer | None) -> Problem:
    """Explains why a program does not fit."""
    takes = byte_count(needed) if needed else "more than that"
    reason = f"The program takes {takes} of a core's {byte_count(available)}."
    if largest is not None:
        reason += f" The largest tensor, {largest.text} of {largest.operation or largest.kind}"
        reason += f" `{largest.node}`," if largest.node else ","
        reason += f" takes {byte_count(largest.padded_bytes)}."
    return Problem(
        "memory",
        reason,
        SMALLER,
        message=message,
        node=largest.node if largest else "",
    )


TRACING = "tracing the function"
LOWERING = "lowering the function to HLO"


@contextlib.contextmanager
def told(progress: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    """Gives what to call with each thing that is done next.

    Args:
        progress: What the caller wants it told to; None for a line in the notebook's cell,
            from two seconds on.
    """
    if progress is not None:
        yield progress
        return
    doing = [TRACING]
    with CellDisplay(lambda: doing[-1]):
        yield doing.append
