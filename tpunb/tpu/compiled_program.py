"""A program compiled for a TPU: its use of a core's memory and time.

The compiler fills these records; displays read them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from tpunb._util.units import byte_count, counted, duration
from tpunb.errors.code_problems import Problem, SourceLine


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in a core's memory.

    Attributes:
        shape: The sizes on one core.
        dtype: XLA's name of the type: `"f32"`, `"bf16"`, `"s32"`, `"pred"`, ….
        padded_bytes: The bytes in the core's layout, which fills up tiles.
        unpadded_bytes: The bytes of the numbers alone.
        operation: The operation that made the tensor, by TensorFlow's name (`"Conv2D"`) or
            XLA's; `"argument"` or `"variable"` for an argument or a variable.
        node: The name of the node, the argument or the variable; empty if unknown.
        line: The line of the user's code, or None if unknown.
        layer: The Keras layer; empty if there is none.
        kind: `"variable"`, `"argument"`, `"temporary"` or `"output"`.
        layout: The layout as XLA writes it, such as `"{3,0,2,1:T(8,128)}"`; may be empty.
        last: The line that uses a temporary value last; None if unknown, or if it is alive to the
            end.
    """

    shape: tuple[int, ...]
    dtype: str
    padded_bytes: int
    unpadded_bytes: int
    operation: str
    node: str = ""
    line: SourceLine | None = None
    layer: str = ""
    kind: str = "temporary"
    layout: str = ""
    last: SourceLine | None = None

    @property
    def text(self) -> str:
        """The type and sizes as XLA writes them: `"f32[128,56,56,256]"`."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def wasted(self) -> int:
        """The bytes of padding."""
        return max(self.padded_bytes - self.unpadded_bytes, 0)

    @property
    def factor(self) -> float:
        """The bytes in memory divided by the bytes of the numbers: 1 without padding."""
        return self.padded_bytes / self.unpadded_bytes if self.unpadded_bytes else 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """The time and memory of a line, a layer, an operation or a collective.

    Attributes:
        name: The line's code, the layer's name, the operation's type, or the
            collective's kind and size.
        line: The line, if the share is a line's.
        seconds: Seconds of a step, in the middle of the range; None without an estimate.
        fraction: Fraction of the step's time, 0 to 1; None without an estimate.
        memory: Bytes that it made and that are alive at the peak, variables included.
        bytes: Bytes that it moves: over the links for a collective, through HBM otherwise.
        needed: Bytes of its operands and results in HBM, which `bytes` may exceed; 0 if unknown.
        limit: The fullest unit of the core and its use, such as `"VALU 71%"`, and the part of the
            time that stores for lack of registers need, if it is large; empty if unknown.
    """

    name: str
    line: SourceLine | None = None
    seconds: float | None = None
    fraction: float | None = None
    memory: int = 0
    bytes: int = 0
    needed: int = 0
    limit: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryOwner:
    """The memory of a line's values over a program.

    Attributes:
        name: The line's code, or `"arguments and variables"`; empty for all other lines.
        line: The line, if it is a line's.
        sizes: Bytes at each of the program's moments.
    """

    name: str
    line: SourceLine | None
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryOverProgram:
    """The memory of a core over a program, in the order of its instructions.

    Attributes:
        steps: The number of instructions. A loop's body and each branch count once.
        moments: The instructions at which the memory is listed, the peak among them. Each needs the
            most in its part of the program.
        owners: The memory by the lines that made it, the largest first.
    """

    steps: int
    moments: tuple[int, ...]
    owners: tuple[MemoryOwner, ...]

    def __post_init__(self) -> None:
        places = (-1, *self.moments, self.steps)
        if any(before >= after for before, after in itertools.pairwise(places)):
            raise ValueError("the moments of a program are not in its order")
        if any(len(owner.sizes) != len(self.moments) for owner in self.owners):
            raise ValueError("the memory of a line is not known at each moment")

    @property
    def totals(self) -> tuple[int, ...]:
        """The bytes of all owners at each moment."""
        return tuple(map(sum, zip(*(owner.sizes for owner in self.owners), strict=True)))

    @property
    def peak(self) -> int:
        """The place of the peak in `moments`."""
        return max(range(len(self.totals)), key=self.totals.__getitem__, default=0)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class ProgramMemory:
    """A program's use of a core's memory, in bytes.

    Attributes:
        peak: The most bytes in use at a time, as the compiler reports; for a program that does
            not fit, the bytes that it would need.
        available: HBM that a program can use, as the compiler counts it.
        data_sheet: HBM according to the data sheet.
        arguments: Inputs and variables.
        variables: The variables' part of `arguments`.
        outputs: Results that do not replace an argument.
        aliased: Results that replace an argument.
        temporaries: Intermediate values at the peak.
        code: The program's code, which is not in `peak`.
        largest: The largest buffers alive at the peak, largest first.
        padding: The buffers with the most padding, worst first.
        by_line: Bytes alive at the peak, by line of the user's code.
        by_layer: Bytes alive at the peak, by Keras layer.
        over_program: The memory over the program, by line; None if the compiler gave no program.
        exact: Whether `peak` is the compiler's figure. If the compiler gave none, as for some
            programs that do not fit, `peak` is the sum of the sizes that it reported.
        bound: Whether the program needs more than `peak`, by an unknown amount.
    """

    peak: int
    available: int
    data_sheet: int
    arguments: int = 0
    variables: int = 0
    outputs: int = 0
    aliased: int = 0
    temporaries: int = 0
    code: int = 0
    largest: tuple[Buffer, ...] = ()
    padding: tuple[Buffer, ...] = ()
    by_line: tuple[Share, ...] = ()
    by_layer: tuple[Share, ...] = ()
    over_program: MemoryOverProgram | None = None
    exact: bool = True
    bound: bool = False

    def __repr__(self) -> str:
        return f"{self.takes} of {byte_count(self.available)} per core"

    @property
    def takes(self) -> str:
        """The peak for a reader: `"16.1 GiB"`, perhaps after `"about"` or `"more than"`."""
        how = "more than " if self.bound else "" if self.exact else "about "
        return f"{how}{byte_count(self.peak)}"

    @property
    def needs(self) -> int:
        """The peak and the program's code, which is in HBM as long as the program is alive."""
        return self.peak + self.code

    @property
    def fits(self) -> bool:
        """True if the peak and the program's code are within the available memory."""
        return self.needs <= self.available

    def exceeds(self, limit: int) -> bool:
        """Return whether a program that compiles takes more than a limit.

        All of the available memory is no limit: the compiler itself refuses what takes more.
        """
        return self.needs > limit < self.available

    @property
    def free(self) -> int:
        """The bytes left at the peak; 0 if the program does not fit."""
        return max(self.available - self.peak, 0)

    @property
    def over(self) -> int:
        """The bytes missing at the peak; 0 if the program fits."""
        return max(self.peak - self.available, 0)

    @property
    def fraction(self) -> float:
        """The peak as a fraction of the available memory; above 1 if the program does not fit."""
        return self.peak / self.available

    @property
    def parts(self) -> dict[str, int]:
        """The parts of a core's memory at the peak, in bytes, `"free"` memory last.

        They add up to the peak, or to the available memory if that is larger. `"other"` is the
        rest: the compiler's scratch memory.
        """
        sizes = {
            "variables": self.variables,
            "inputs": max(self.arguments - self.variables, 0),
            "results": self.outputs,
            "temporaries": self.temporaries,
            "other": self.peak,
        }
        parts, begin = {}, 0
        for kind, size in sizes.items():
            # The sums include buffers that share memory or are freed before the peak.
            size = min(size, self.peak - begin)
            if size > 0:
                parts[kind] = size
                begin += size
        return {**parts, "free": self.free} if self.free else parts


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class StepTime:
    """An estimate of the time of one call on the TPU, in seconds.

    Nothing was run: the estimate is a range, and `not_counted` lists what it omits.

    Attributes:
        low: The lower estimate.
        high: The higher estimate, including the host's time to start the call.
        matmul: The fraction of matrix products and convolutions, 0 to 1.
        memory_bound: The fraction of operations that wait for memory: elementwise operations,
            reductions, copies.
        collectives_fraction: The fraction of communication over the links.
        by_line: The shares by line of the user's code, longest first.
        by_layer: The shares by Keras layer, longest first.
        by_operation: The shares by TensorFlow operation, longest first.
        collectives: The collectives, longest first; `bytes` is the number that a core sends.
        not_counted: The omissions of the estimate, one sentence each.
        start: Seconds that the host takes to start a call, unless it starts the next call while
            the TPU still runs the last.
        scheduled: The fraction of the time that is read from the compiler's own schedule, 0 to 1.
            The rest is estimated.
    """

    low: float
    high: float
    matmul: float = 0.0
    memory_bound: float = 0.0
    collectives_fraction: float = 0.0
    by_line: tuple[Share, ...] = ()
    by_layer: tuple[Share, ...] = ()
    by_operation: tuple[Share, ...] = ()
    collectives: tuple[Share, ...] = ()
    not_counted: tuple[str, ...] = ()
    start: float = 0.0
    scheduled: float = 0.0

    @property
    def source(self) -> str:
        """Where the time comes from: `"from the compiler's schedule"`, or `"estimated"`."""
        if not self.scheduled:
            return "estimated"
        if self.scheduled > 0.995:
            return "from the compiler's schedule"
        return f"{self.scheduled:.0%} from the compiler's schedule, the rest estimated"

    @property
    def estimate(self) -> float:
        """The geometric mean of both estimates of the TPU's own time."""
        return math.sqrt(self.low * (self.high - self.start))

    @property
    def host_decides(self) -> bool:
        """True if the host takes longer to start a call than the TPU to run it."""
        return self.high - self.start < self.start

    @property
    def parts(self) -> dict[str, float]:
        """The fractions of the time by kind of work. They add up to 1."""
        fractions = {
            "matrix products": self.matmul,
            "memory-bound": self.memory_bound,
            "collectives": self.collectives_fraction,
        }
        parts = {name: min(part, 1.0) for name, part in fractions.items() if part > 0}
        rest = 1 - math.fsum(fractions.values())
        return {**parts, "other": rest} if parts and rest > 0.005 else parts

    def __repr__(self) -> str:
        return time_in_words(self)


def time_in_words(time: StepTime, of: str = "") -> str:
    """Return a range of times, and the host's time apart if it is longer than the TPU's own.

    Args:
        time: The time.
        of: What takes this time, such as `" a call"`.
    """
    on_tpu = f"{time_of_tpu(time)}{of}"
    if not time.host_decides:
        return on_tpu
    return f"{on_tpu} on the TPU, up to {duration(time.high)} with the host"


def time_of_tpu(time: StepTime) -> str:
    """Return a range of times, without the host's if it is longer than the TPU's own."""
    high = time.high - time.start if time.host_decides else time.high
    return f"{duration(time.low)} to {duration(high)}"


@dataclasses.dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the user's code that the program came from.

    Attributes:
        place: The file and the line number.
        text: The line's code, without surrounding space.
    """

    place: SourceLine
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class TpuRow:
    """A TPU type in the table "which TPU do I need".

    Attributes:
        tpu: The TPU type.
        cores: The number of cores.
        fits: Whether the program compiles and fits; None if unknown.
        peak: Bytes per core at the peak; None if the compiler gave no figure.
        available: Bytes per core that a program can use.
        largest_batch: The largest global batch, if it was asked for.
        fitting_batch: A smaller batch that fits, if the program does not.
        low: The lower estimate of a call in seconds, if time was asked for.
        high: The higher estimate.
        examples_per_second_per_core: The rate in the middle of the range.
    """

    tpu: str
    cores: int
    fits: bool | None
    peak: int | None
    available: int | None
    largest_batch: int | None
    fitting_batch: int | None
    low: float | None
    high: float | None
    examples_per_second_per_core: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """A package and its release."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclasses.dataclass(frozen=True, slots=True)
class Provenance:
    """When and by which software a program was compiled.

    Attributes:
        time: The time in UTC: `"2026-11-26T23:50:00Z"`.
        compiler: The compiler's packages: libtpu, jax, jaxlib. Empty if the compiler was not asked,
            because the program was refused before.
        software: tpunb, and the frameworks that traced the program.
        recorded: Whether a folder of recorded verdicts answered, instead of the compiler.
        file: The name of the file that the program was loaded from; empty for a program of this
            process.
    """

    time: str = ""
    compiler: tuple[Release, ...] = ()
    software: tuple[Release, ...] = ()
    recorded: bool = False
    file: str = ""

    @property
    def mark(self) -> str:
        """The mark of a program that was not compiled here: `"recorded"` or a file's name."""
        return ", ".join(filter(None, [self.file, "recorded" if self.recorded else ""]))

    def __str__(self) -> str:
        when = self.time.replace("T", " ").replace("Z", " UTC")
        by, traced_with = (", ".join(map(str, each)) for each in (self.compiler, self.software))
        where = f"Loaded from {self.file}" if self.file else "This program"
        if not self.time:
            return f"{where}. Its time and its compiler are not known."
        what = "a recorded verdict, " if self.recorded else ""
        how = f"compiled on {when} by {by}" if by else f"refused before compiling, on {when}"
        return f"{where}: {what}{how}. Traced with {traced_with}."


@dataclasses.dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives of one kind in a program. One inside a loop counts once.

    Attributes:
        kind: XLA's operation, such as `"all-reduce"`.
        count: Their number.
        bytes: The bytes of their results on a core.
    """

    kind: str
    count: int
    bytes: int

    def __str__(self) -> str:
        return f"{counted(self.count, self.kind)} of {byte_count(self.bytes)}"


@dataclasses.dataclass(frozen=True, slots=True)
class CoreGroups:
    """The cores that exchange data with each other in some of a program's collectives.

    Attributes:
        groups: The positions of the cores in the mesh, for each group; empty if all cores are one
            group, or if the groups are not known.
        axes: The mesh axes along which the groups lie; empty if they are not known.
        known: Whether the groups are known.
    """

    groups: tuple[tuple[int, ...], ...] = ()
    axes: tuple[str, ...] = ()
    known: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of a program, or several that are equal and come from the same line.

    Attributes:
        kind: XLA's operation, such as `"all-reduce"`.
        bytes: The bytes of one result on a core.
        sent: The bytes that a core sends in a call, in all runs together.
        group: The number of its cores' groups in `Communication.groups`.
        count: The number of equal collectives. One inside a loop counts once.
        runs: The number of runs in a call, of all of them together.
        line: The line of the user's code; None if unknown.
        seconds: Seconds of all runs, modelled from the links' bandwidth.
        fraction: Their fraction of the step's time, 0 to 1; None without an estimate of the time.
        argument: The argument that is moved as it is, such as `"params['kernel']"`; empty if it is
            a result of the program's own, or not known.
    """

    kind: str
    bytes: int
    sent: int
    group: int
    count: int = 1
    runs: float = 1.0
    line: SourceLine | None = None
    seconds: float = 0.0
    fraction: float | None = None
    argument: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class MeshAxis:
    """An axis of a mesh of cores."""

    name: str
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Communication:
    """The collectives of a program, on the mesh of its cores.

    Attributes:
        mesh: The axes of the mesh; empty if the program has no mesh with names.
        cores: The number of cores.
        groups: The cores that exchange data, once for all collectives with the same groups.
        transfers: The collectives, longest first.
    """

    mesh: tuple[MeshAxis, ...]
    cores: int
    groups: tuple[CoreGroups, ...]
    transfers: tuple[Transfer, ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Program:
    """A function compiled for one TPU type, or the reason why it does not compile.

    Attributes:
        tpu: The TPU type, such as `"v5e-8"`.
        replicas: The number of replicas that run it.
        logical_devices: The number of cores of a replica. The figures are for one core.
        examples: The global batch of a call; None if unknown.
        errors: The compiler's refusals, as a check reports them.
        unknown: Why the verdict is not known, if the compiler crashed or took too long;
            empty if it answered.
        crashed: Whether the verdict is unknown because the compiler crashed.
        unsized: Why only the memory and the time are unknown, and what to do: a size of an
            argument is unknown, such as the batch.
        memory: The use of a core's memory; None if the compiler gave no figures.
        time: An estimate of the time; None if none was asked for or the program does not compile.
        lines: The lines of the user's code that it came from, in order.
        text: The optimised HLO; empty if the compiler gave none.
        compile_seconds: The seconds of compiling.
        notes: Remarks that a reader of the figures needs, one sentence each.
        largest_batch: The largest global batch that fits, if it was asked for.
        fitting_batch: A smaller batch that fits, if the program does not and one was found.
        provenance: When and by which compiler it was compiled; None if unknown.
        name: The function's name, if the program was compiled for a call of it.
        collectives: The collectives of the program, by kind.
        communication: The same collectives with their lines and cores; None if there are none, or
            if the compiler gave no program.
    """

    tpu: str
    replicas: int
    logical_devices: int = 1
    examples: int | None = None
    errors: tuple[Problem, ...] = ()
    unknown: str = ""
    crashed: bool = False
    unsized: str = ""
    memory: ProgramMemory | None = None
    time: StepTime | None = None
    lines: tuple[CodeLine, ...] = ()
    text: str = ""
    compile_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    largest_batch: int | None = None
    fitting_batch: int | None = None
    provenance: Provenance | None = None
    name: str = ""
    collectives: tuple[Collectives, ...] = ()
    communication: Communication | None = None

    @property
    def ok(self) -> bool:
        """True if the program compiles and fits."""
        return not self.errors and not self.unknown and not self.unsized

    @property
    def cores(self) -> int:
        """The number of cores that run the program."""
        return self.replicas * self.logical_devices

    @property
    def examples_per_second_per_core(self) -> float | None:
        """The rate in the middle of the range; None if a figure is missing or the host decides."""
        if self.time is None or self.examples is None or self.time.host_decides:
            return None
        return self.examples / self.time.estimate / self.cores

    @property
    def label(self) -> str:
        """The TPU type, marked if the verdict was not compiled here: `"v5e-8 (recorded)"`."""
        mark = "" if self.provenance is None else self.provenance.mark
        return f"{self.tpu} ({mark})" if mark else self.tpu

    @property
    def headline(self) -> str:
        """The outcome on one line."""
        if self.unknown:
            return f"{self.label}: not known: {self.unknown}"
        if self.unsized and not self.errors:
            return f"{self.label}: compiles; whether it fits is not known, because {self.unsized}"
        if not self.ok:
            return f"{self.label}: does not compile: {self.errors[0].reason}"
        parts = [f"{self.label}: compiles"]
        if self.memory is not None:
            parts.append(f"{self.memory.takes} of {byte_count(self.memory.available)} a core")
        if self.time is not None:
            parts.append(f"about {time_in_words(self.time, ' a call')}")
        return ", ".join(parts) + "."

    @property
    def row(self) -> TpuRow:
        """The program's row in the table "which TPU do I need"."""
        memory, time = self.memory, self.time
        return TpuRow(
            self.tpu,
            self.cores,
            None if self.unknown or (self.unsized and not self.errors) else self.ok,
            None if memory is None else memory.peak,
            None if memory is None else memory.available,
            self.largest_batch,
            self.fitting_batch,
            None if time is None else time.low,
            None if time is None else time.high,
            self.examples_per_second_per_core,
        )
