"""The verdict on one replica function for one TPU type: ask libtpu, and read its answer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence

from tpunb._util.child_process import ChildLostError
from tpunb._util.units import byte_count
from tpunb.compiler.ask import libtpu, versions
from tpunb.compiler.ask.answers import Compiled, Refused
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.libtpu import Bounded, Prepared, unmarked
from tpunb.compiler.ask.partial_answers import CompilationStopped, is_watched, watching
from tpunb.compiler.ask.topologies import Target, target
from tpunb.compiler.fit.memory_advice import advice
from tpunb.compiler.program import NotRecordedError, TpuProgram, merged
from tpunb.compiler.read.collectives import collectives_in
from tpunb.compiler.read.communication import communication
from tpunb.compiler.read.hlo import Module, parse
from tpunb.compiler.read.memory import described, line_name, of_refused
from tpunb.compiler.read.runs import Runs
from tpunb.compiler.read.scheduled_time import FORMS
from tpunb.compiler.read.step_time import step_time, why_no_time
from tpunb.errors.code_problems import Problem, SourceLine, is_library
from tpunb.errors.compiler_refusals import LIBTPU, refusal_of
from tpunb.errors.explain import explain
from tpunb.framework import program_display
from tpunb.tpu.compiled_program import CodeLine, ProgramMemory, Provenance

# This close to the limit, low effort may come to another verdict than full effort.
_CLOSE = 0.1
_ROOMIEST = "v5p-8"
_MUCH_CODE = 0.01

_PARTLY = "The largest tensors are from the same program compiled for v5p, where it fits."
DEPENDS_ON_DATA = (
    "Some sizes depend on data. A TPU reserves room for the largest size and computes all of it. "
    "Some operations do not support such sizes, and TensorFlow may refuse to return them."
)
"""A note on programs that have such sizes."""

# "Unable to parse module assembly: … but got 'tensor<?x?xf32, #stablehlo.bounds<9, 9>>'" (0.0.52)
_INEXPRESSIBLE = "#stablehlo.bounds<"
_CANNOT_BE_EXPRESSED = (
    "A tensor would have several open sizes, which the compiler's input format cannot express."
)
_UNKNOWN_LOOPS = "Collectives in loops of unknown length count as one run."
_LOW_EFFORT = "Compiled at low effort; full effort may change the peak by a few percent."


@dataclasses.dataclass(frozen=True)
class Lowering:
    """A function lowered for a number of replicas.

    Attributes:
        prepared: One prepared function for each call of `strategy.run` in it.
        examples: The global batch; None if unknown.
    """

    prepared: Sequence[Prepared]
    examples: int | None = None


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that is lowered for each TPU type that it is compiled for.

    Attributes:
        lowered: Lowers it for a number of replicas.
    """

    lowered: Callable[[int], Lowering]

    def on(self, wanted: Target, settings: Settings) -> TpuProgram:
        """Compile the function for one TPU type."""
        lowering = self.lowered(wanted.replicas)
        examples = lowering.examples
        programs = [program_for(each, wanted, settings, examples) for each in lowering.prepared]
        return merged(programs)


def program_for(
    prepared: Prepared, wanted: Target, settings: Settings, examples: int | None = None
) -> TpuProgram:
    """Compile a replica function for one TPU type.

    Args:
        prepared: The lowered function.
        wanted: The target of the compilation.
        settings: The settings of the compilation.
        examples: The global batch.

    Raises:
        CompilerUnavailableError: The compiler is not available.
    """
    begin = time.monotonic()
    program = TpuProgram(
        wanted.tpu.name,
        wanted.replicas,
        wanted.partitions,
        examples,
        notes=prepared.notes,
        provenance=Provenance(versions.now(), (), versions.releases(versions.software())),
    )
    if prepared.errors or prepared.unknown:
        return dataclasses.replace(program, errors=prepared.errors, unknown=prepared.unknown)
    program = _Compilation(prepared, wanted, settings).completed(program)
    if prepared.unsized and not program.unknown and not _beside_memory(program):
        program = TpuProgram(
            program.tpu,
            program.replicas,
            program.logical_devices,
            unsized=prepared.unsized,
            provenance=program.provenance,
        )
    return dataclasses.replace(program, compile_seconds=time.monotonic() - begin)


def _beside_memory(program: TpuProgram) -> bool:
    """Return whether a program is refused for another reason than memory."""
    return any(error.code != "memory" for error in program.errors)


@dataclasses.dataclass(frozen=True)
class _Compilation:
    """The compilation of a replica function for one TPU type.

    Attributes:
        prepared: The lowered function.
        wanted: The target of the compilation.
        settings: The settings of the compilation.
    """

    prepared: Prepared
    wanted: Target
    settings: Settings

    def completed(self, program: TpuProgram) -> TpuProgram:
        """Return a program completed with the compiler's answer."""
        prepared, settings, name = self.prepared, self.settings, self.wanted.tpu.name
        # JAX's own compilation is at full effort, and users compare the two.
        low = settings.rough or not (settings.speed or (prepared.jax and settings.details))
        available = self.wanted.hardware.usable_bytes
        settings.progress(f"compiling for {name}")
        given = settings.deadline.left
        try:
            answer = self._ask(self.wanted, low=low)
            needed = answer.peak if isinstance(answer, Compiled) else needed_bytes(answer.error)
            if low and needed and abs(needed - available) < _CLOSE * available:
                settings.progress(
                    f"compiling for {name} again at full effort: it is close to the limit"
                )
                low = False
                answer = self._ask(self.wanted, low=low)
            program = dataclasses.replace(program, provenance=answer.provenance)
            least = prepared.least_bytes(self.wanted)
            if isinstance(answer, Refused) and needed is None and prepared.bounded is not None:
                return self._refused_for_bounds(program, answer.error, prepared.bounded)
            if isinstance(answer, Refused):
                return self._refused(program, answer.error)
            if answer.peak < least and least >= _OVERFLOWS:
                return self._too_large(program, "", 0)
            program = self._accepted(program, answer)
            notes = (*program.notes, _LOW_EFFORT) if low else program.notes
            return dataclasses.replace(program, notes=notes)
        except ChildLostError as error:
            reason = str(error)
            if time.monotonic() >= settings.deadline.end:
                reason += about_the_limit(settings.deadline.seconds, given)
            if error.crashed and prepared.bounded is not None:
                reason += f" The open sizes may be the reason. {prepared.bounded.fix}"
            return dataclasses.replace(program, unknown=reason, crashed=error.crashed)

    def _ask(self, wanted: Target, *, low: bool, refused: bool = False) -> Compiled | Refused:
        settings = self.settings
        return libtpu.ask(
            self.prepared,
            wanted,
            deadline=settings.deadline,
            low_effort=low,
            text=settings.details or settings.speed or settings.rough,
            refused=refused,
            schedule=settings.speed and not refused and wanted.tpu.family in FORMS,
        )

    def _refused_for_bounds(
        self, program: TpuProgram, message: str, bounded: Bounded
    ) -> TpuProgram:
        """Return the verdict on a program with bounded sizes that libtpu refuses.

        The bounded sizes are the reason if libtpu accepts the same program with fixed sizes.
        """
        deadline, name = self.settings.deadline, self.wanted.tpu.name
        self.settings.progress(f"compiling for {name} with fixed sizes, to find the reason")
        fixed = bounded.fixed()
        if not fixed.module:
            return self._refused(program, message)
        answer = libtpu.ask(fixed, self.wanted, deadline=deadline, low_effort=True, text=False)
        if isinstance(answer, Refused) and needed_bytes(answer.error) is None:
            return dataclasses.replace(self, prepared=fixed)._refused(program, answer.error)
        if _INEXPRESSIBLE in message:
            return dataclasses.replace(program, unknown=f"{_CANNOT_BE_EXPRESSED} {bounded.fix}")
        return dataclasses.replace(program, errors=(bounded.problem(message, _node_in(message)),))

    def _accepted(self, program: TpuProgram, answer: Compiled) -> TpuProgram:
        module = parse(answer.text) if answer.text else None
        notes = [*program.notes]
        if answer.bounded and self.prepared.bounded is None:  # otherwise `prepared` has a note
            notes.append(DEPENDS_ON_DATA)
        if module is None and self.settings.details:
            name = self.wanted.tpu.name
            notes.append(f"The compiler does not return the program for {name}: totals only.")
        if answer.code >= _MUCH_CODE * self.wanted.hardware.usable_bytes:
            size = byte_count(answer.code)
            notes.append(f"The program's code takes {size} more, as long as the program is alive.")
        program = dataclasses.replace(
            program,
            memory=described(answer, module, self.prepared, self.wanted),
            text=unmarked(answer.text),
            notes=tuple(notes),
        )
        return program if module is None else self._with_module(program, answer, module)

    def _with_module(self, program: TpuProgram, answer: Compiled, module: Module) -> TpuProgram:
        """Return a program with the figures from the compiled program's text."""
        runs, prepared, wanted = Runs(module), self.prepared, self.wanted
        origins = prepared.origins
        lines = {line for node in set(module.nodes.values()) if (line := origins.line(node))}
        in_order = sorted(lines, key=lambda line: (line.file, line.line))
        speed, rough = self.settings.speed, self.settings.rough
        unknown = why_no_time(answer, runs, wanted)
        has_time = (speed or rough) and not unknown
        time = step_time(answer, module, runs, origins, wanted) if has_time else None
        found = communication(module, runs, prepared, wanted, time)
        # An estimate of the time has this note.
        notes = (_UNKNOWN_LOOPS,) if found and runs.unknown_loops and time is None else ()
        return dataclasses.replace(
            program,
            time=time,
            collectives=collectives_in(module, runs),
            communication=found,
            notes=(*program.notes, *notes, *([unknown] if speed and unknown else [])),
            lines=tuple(CodeLine(line, line_name(line)) for line in in_order),
        )

    def _refused(self, program: TpuProgram, message: str) -> TpuProgram:
        needed, available = needed_bytes(message), self.wanted.hardware.usable_bytes
        if needed is None and self.prepared.least_bytes(self.wanted) <= available:
            return dataclasses.replace(program, errors=(self._located(refusal(message)),))
        return self._too_large(program, message, needed or 0)

    def _too_large(self, program: TpuProgram, message: str, needed: int) -> TpuProgram:
        """Return a program with the error that it does not fit.

        Args:
            program: The program so far.
            message: The compiler's error.
            needed: The bytes that the error names; 0 if it names none.
        """
        memory, elsewhere = self._shortage(message, needed)
        reason = f"The program needs {memory.takes} of a core's {byte_count(memory.available)}."
        if memory.bound and memory.peak == memory.available + 1:  # nothing more is known
            reason = f"The program does not fit in a core's {byte_count(memory.available)}."
        fix = advice(memory, self.prepared, self.wanted)
        largest = memory.largest[0] if memory.largest else None
        if largest is None:
            problem = self._located(Problem("memory", reason, fix, message=message))
            return dataclasses.replace(program, errors=(problem,), memory=memory)
        source = largest.operation or largest.kind
        if largest.node:
            source += f" `{largest.node}`"
        reason += (
            f" The largest tensor, {largest.text} of {source}, takes "
            f"{byte_count(largest.padded_bytes)}."
        )
        if largest.wasted > largest.unpadded_bytes:
            reason += (
                f" {byte_count(largest.wasted)} of it are padding ({largest.factor:.0f} times)."
            )
        problem = Problem("memory", reason, fix, message=message, node=largest.node)
        problem = self._located(problem)
        # An error names the cell's line, not a line inside a function that the cell calls.
        is_known = problem.line is not None and self.settings.choose_user is not None
        if largest.line is not None and not is_known:
            problem = dataclasses.replace(problem, line=largest.line.line, file=largest.line.file)
        notes = (*program.notes, _PARTLY) if elsewhere else program.notes
        return dataclasses.replace(program, errors=(problem,), memory=memory, notes=notes)

    def _shortage(self, message: str, needed: int) -> tuple[ProgramMemory, bool]:
        """Return the memory that a program needs, and whether its tensors are another type's.

        Args:
            message: The compiler's error.
            needed: The bytes that the error names; 0 if it names none.
        """
        wanted = self.wanted
        available, held = wanted.hardware.usable_bytes, self.prepared.least_bytes(wanted)
        least = max(held, available, _allocation(message))
        if max(needed, held) >= _OVERFLOWS:
            needed, least = 0, max(needed, least)  # an overflowed sum is too small
        own = self._tensors(wanted, refused=True) if least < _OVERFLOWS else None
        roomy = own or self._in_a_larger_memory()
        bound = not needed and (roomy is None or roomy.peak <= least)
        memory = dataclasses.replace(
            roomy or ProgramMemory(0, available, wanted.tpu.hbm_bytes),
            peak=needed or (least + 1 if bound or roomy is None else roomy.peak),
            available=available,
            data_sheet=wanted.tpu.hbm_bytes,
            exact=bool(needed),
            bound=bound,
        )
        return memory, own is None

    def _located(self, problem: Problem) -> Problem:
        node = problem.node
        places = self.prepared.origins.places(node) if node else _places_in(problem.message)
        return problem.at(places).shown(self.settings.choose)

    def _in_a_larger_memory(self) -> ProgramMemory | None:
        """Compile a program for a larger memory, to find the tensors that do not fit."""
        roomy = target(_ROOMIEST, None, min(self.wanted.partitions, 4))
        if self.wanted.hardware.usable_bytes >= roomy.hardware.usable_bytes:
            return None
        return self._tensors(roomy, refused=False)

    def _tensors(self, wanted: Target, *, refused: bool) -> ProgramMemory | None:
        """Return the memory by the tensors of a scheduled program, if the compiler gives it.

        Args:
            wanted: The target.
            refused: Whether the program is known not to fit there.
        """
        if not self.settings.details:
            return None
        self.settings.progress("finding the tensors that take the memory")
        low = not (refused and self.prepared.jax)
        try:
            answer = self._ask(wanted, low=low, refused=refused)
        except (ChildLostError, NotRecordedError):
            return None
        if isinstance(answer, Refused) is not refused or not answer.text:
            return None
        if isinstance(answer, Refused):
            return of_refused(answer.text, self.prepared, wanted)
        return described(answer, parse(answer.text), self.prepared, wanted)


def about_the_limit(limit: float, given: float) -> str:
    """Return sentences on a time limit that has ended a compilation.

    Args:
        limit: The time limit in seconds, for all steps and TPU types.
        given: The seconds that were left when this compilation began.
    """
    before = limit - given
    spent = f" The steps before it took {before:.0f} of them." if before >= 1 else ""
    return f"{spent} Give it more: timeout={2 * limit:g} (--timeout {2 * limit:g})."


_OVERFLOWS = 2**50
"""From this size libtpu's sums may have overflowed 64 bits. libtpu 0.0.52 reports 4 EiB for five
results of 4 EiB each, and accepts two to four of them as a program that fits."""

_UNITS = {unit: 2 ** (10 * power) for power, unit in enumerate(["", *"KMGTPE"])}
_SIZE = r"([\d.]+)([KMGTPE]?)i?B?"
_NEEDED = (
    # "Ran out of memory on HBM, the total memory required for HLO temporaries (16.06G) exceeds
    # available HBM (15.75G)." (libtpu 0.0.52)
    re.compile(rf"total memory required[^(]*\({_SIZE}\)"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM"),
    # "Ran out of memory in memory space hbm. Used 21.95G of 15.48G hbm." (older libtpu, jaxlib 0.4)
    re.compile(rf"Used {_SIZE} of"),
    # "Attempting to reserve 29.49G at the bottom of memory." (a TPU's runtime, jaxlib 0.4)
    re.compile(rf"[Aa]ttempting to (?:allocate|reserve) {_SIZE}"),
)
# "Allocation (size=2305843009213693952) would exceed memory (size=17179869184) :: %s0 = …" (0.0.52)
_ALLOCATION = re.compile(r"Allocation \(size=(\d+)\) would exceed memory")
# `… %MatMul.1 = s64[2,2]{1,0} dot(…), metadata={op_name="MatMul" source_line=10}` (libtpu 0.0.52)
_NODE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
# "… an HLO for which this rewriting is not implemented: %MatMul.1 = s64[2,2]{1,0} dot(…" (0.0.52)
_OF_X64 = re.compile(r"not implemented: (?:ROOT )?%?\S+ = (\w+)\[")

# `at location: loc("mul:"("mul/mul"(callsite("kernel"("/home/me/a.py":20:29 to :32) at …`
# (libtpu 0.0.52)
_PLACE = re.compile(r'"([^"\n]{1,400}\.py)":(\d{1,7}):\d')
_OF_A_KERNEL = "Mosaic failed to compile TPU kernel"  # the beginning of such a message (0.0.52)

# "Used 193.09M of 127.94M vmem.", "Scoped allocation with size 31.07M and limit 16.00M exceeded …"
# (libtpu 2023 to 2026), and an allocation in bytes, as above.
_OF_VMEM = re.compile(
    r"Used (\S+) of (\S+) vmem|with size (\S+) and limit (\S+) exceeded"
    r"|Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)"
)

_TYPES = {"s64": "int64", "u64": "uint64", "f64": "float64", "c128": "complex128"}


def needed_bytes(message: str) -> int | None:
    """Return the HBM that a program which does not fit would need, according to the error.

    Returns:
        Bytes; 0 if the error does not say how many, None for another error.
    """
    # Errors about the core's fast memory are a different matter.
    if "vmem" in message.lower() or not re.search("HBM|hbm", message):
        return None
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        return None
    for pattern in _NEEDED:
        if match := pattern.search(message):
            return int(float(match[1]) * _UNITS[match[2]])
    return 0


def _allocation(message: str) -> int:
    """Return the bytes of the single buffer that an error names. The program needs more."""
    match = _ALLOCATION.search(message)
    return int(match[1]) if match else 0


def _of_vmem(message: str) -> str:
    """Return how much of the core's fast memory an error asks for: `: 32.4M of 16.0M`, or empty."""
    match = _OF_VMEM.search(message)
    sizes = [size for size in match.groups() if size] if match else []
    return f": {' of '.join(byte_count(int(s)) if s.isdigit() else s for s in sizes)}" * bool(sizes)


def _node_in(message: str) -> str:
    """Return the node that an error names; empty if it names none."""
    match = _NODE.search(message)
    return match[1] if match else ""


def _places_in(message: str) -> tuple[SourceLine, ...]:
    """Return the lines that an error about a kernel names, innermost first."""
    places = (SourceLine(file, int(line)) for file, line in _PLACE.findall(message))
    return tuple(place for place in places if not is_library(place.file))


def refusal(message: str) -> Problem:
    """Explain why libtpu refuses a program for another reason than memory."""
    node = _node_in(message)
    # The operations of kernels have names like "dynamic_gather".
    known = None if _OF_A_KERNEL in message else refusal_of(message, LIBTPU)
    if known:
        kind = _OF_X64.search(message)
        types = _TYPES.get(kind[1], "64 bits") if kind else "64 bits"
        reason = known.reason.format(types=types, of_vmem=_of_vmem(message))
        code, fix = known.code, known.fix
    else:
        code, reason = "compile", f"The TPU's compiler refuses it: {libtpu.reason_in(message)}."
        explained = explain(message)
        fix = explained.fix if explained else "Use other operations, or report this message."
    return Problem(code, reason, fix, message=message, node=node)


TRACING = "tracing the function"
LOWERING = "lowering the function to HLO"


@contextlib.contextmanager
def reporting(progress: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with each next step.

    Args:
        progress: Receives the steps. None shows them in a line of the notebook's cell, from two
            seconds on, above the completed types.
    """
    if progress is not None and is_watched():
        yield progress
    elif progress is not None:
        with watching(functools.partial(_said, progress)):
            yield progress
    else:
        doing = [TRACING]
        try:
            with program_display().compiling(lambda: doing[-1]) as shown, watching(shown.known):
                yield doing.append
        except CompilationStopped as stopped:
            program_display().publish(stopped.programs)
            raise


def _said(
    progress: Callable[[str], None], programs: Sequence[TpuProgram], left: Sequence[str]
) -> None:
    """Report the type that is done, and the types that are left."""
    if programs and left:
        progress(f"{programs[-1].headline} Left: {', '.join(left)}.")
