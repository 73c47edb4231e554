"""A program that was compiled for a TPU: its use of a core's memory and time.

The compiler fills these records; displays read them.
"""

from __future__ import annotations

import dataclasses
import math

from tpunb._util.units import byte_count, duration
from tpunb.errors.code_problems import Problem, SourceLine


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in a core's memory.

    Attributes:
        shape: Its sizes on one core.
        dtype: XLA's name of its type: `"f32"`, `"bf16"`, `"s32"`, `"pred"`, ….
        padded_bytes: What it takes in its layout, which fills tiles up.
        unpadded_bytes: What its numbers alone take.
        operation: TensorFlow's operation that made it (`"Conv2D"`), or XLA's; of an
            argument or a variable `"argument"` or `"variable"`.
        node: The node's name, or the argument's or the variable's; empty where unknown.
        line: The line of the user's code, None where none is known.
        layer: The Keras layer, empty where there is none.
        kind: `"variable"`, `"argument"`, `"temporary"` or `"output"`.
        layout: XLA's text of the layout, as `"{3,0,2,1:T(8,128)}"`; may be empty.
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

    @property
    def text(self) -> str:
        """Its type and sizes, as XLA writes them: `"f32[128,56,56,256]"`."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def wasted(self) -> int:
        """Bytes that are padding."""
        return max(self.padded_bytes - self.unpadded_bytes, 0)

    @property
    def factor(self) -> float:
        """Its size in memory as a multiple of its numbers': 1 without padding."""
        return self.padded_bytes / self.unpadded_bytes if self.unpadded_bytes else 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """The time and memory of a line, a layer, an operation or a collective.

    Attributes:
        name: The line's code, the layer's name, the operation's type, or the
            collective's kind and size.
        line: The line, where it is one's.
        seconds: Of a step, in the middle of the range; None where no time was asked for.
        fraction: Of the step's time, 0 to 1; None likewise.
        memory: Bytes alive at the peak that it made, variables included.
        bytes: What it moves: of a collective over the links; else through HBM.
    """

    name: str
    line: SourceLine | None = None
    seconds: float | None = None
    fraction: float | None = None
    memory: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramMemory:
    """A program's use of a core's memory, in bytes.

    Attributes:
        peak: The most that is in use at a time, as the compiler says; of a program that
            does not fit, what it would need.
        available: HBM that a program can use, as the compiler counts it.
        data_sheet: HBM as the data sheet has it.
        arguments: Inputs and variables.
        variables: Of these, the variables'.
        outputs: Results that do not take a variable's place.
        temporaries: What is made in between, at the peak.
        code: The program itself.
        largest: The largest buffers alive at the peak, largest first.
        padding: The buffers with most padding, worst first.
        by_line: Bytes alive at the peak by line of the user's code.
        by_layer: The same by Keras layer.
        exact: Whether `peak` is the compiler's figure; a sum of what it reported where it
            gave none, as for some programs that do not fit.
        bound: Whether the program takes more than `peak`, and nobody knows how much.
    """

    peak: int
    available: int
    data_sheet: int
    arguments: int = 0
    variables: int = 0
    outputs: int = 0
    temporaries: int = 0
    code: int = 0
    largest: tuple[Buffer, ...] = ()
    padding: tuple[Buffer, ...] = ()
    by_line: tuple[Share, ...] = ()
    by_layer: tuple[Share, ...] = ()
    exact: bool = True
    bound: bool = False

    @property
    def takes(self) -> str:
        """The peak for a reader: `"16.1 GiB"`, with `"about"` or `"more than"` before it."""
        how = "more than " if self.bound else "" if self.exact else "about "
        return f"{how}{byte_count(self.peak)}"

    @property
    def fits(self) -> bool:
        """True if the peak is within the available memory."""
        return self.peak <= self.available

    @property
    def free(self) -> int:
        """The memory left at the peak; 0 if the program does not fit."""
        return max(self.available - self.peak, 0)

    @property
    def over(self) -> int:
        """The memory missing at the peak; 0 if the program fits."""
        return max(self.peak - self.available, 0)

    @property
    def fraction(self) -> float:
        """The peak as a fraction of the available memory; above 1 if the program does not fit."""
        return self.peak / self.available

    @property
    def parts(self) -> dict[str, int]:
        """The parts of a core's memory at the peak, in bytes, `"free"` memory last.

        Together they are the peak, or the available memory if that is more. `"other"` is the
        remainder: the program itself, and the compiler's scratch memory.
        """
        sizes = {
            "variables": self.variables,
            "inputs": max(self.arguments - self.variables, 0),
            "results": self.outputs,
            "temporaries": self.temporaries,
            "other": self.peak,
        }
        found, begin = {}, 0
        for kind, size in sizes.items():
            # What aliases or is freed before the peak is in the sums, not in the peak.
            size = min(size, self.peak - begin)
            if size > 0:
                found[kind] = size
                begin += size
        return {**found, "free": self.free} if self.free else found


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """An estimate of the time of one call on the TPU, in seconds.

    Nothing was run: it is a range, and `not_counted` says what it leaves out.

    Attributes:
        low: The lower of two estimates.
        high: The higher one, with the time that the host takes to start the call.
        matmul: The share of matrix products and convolutions, 0 to 1.
        memory_bound: The share of what waits for memory: elementwise operations,
            reductions, copies.
        collectives_fraction: The share of what goes over the links.
        by_line: By line of the user's code, longest first.
        by_layer: By Keras layer, longest first.
        by_operation: By TensorFlow operation, longest first.
        collectives: All-reduces and the like, longest first; `bytes` is what a core sends.
        not_counted: What the estimate leaves out, a sentence each.
        start: Seconds that the host takes to start a call, where it does not start the next one
            while the TPU still runs the last.
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

    @property
    def estimate(self) -> float:
        """The geometric middle of both estimates of the TPU's own time."""
        return math.sqrt(self.low * (self.high - self.start))

    @property
    def host_decides(self) -> bool:
        """True if the host takes longer to start a call than the TPU to run it."""
        return self.high - self.start < self.start

    @property
    def parts(self) -> dict[str, float]:
        """The fractions of the time by kind of work, which add up to 1."""
        fractions = {
            "matrix products": self.matmul,
            "memory-bound": self.memory_bound,
            "collectives": self.collectives_fraction,
        }
        found = {name: min(part, 1.0) for name, part in fractions.items() if part > 0}
        rest = 1 - math.fsum(fractions.values())
        return {**found, "other": rest} if found and rest > 0.005 else found

    def __str__(self) -> str:
        return f"{duration(self.low)} to {duration(self.high)}"


@dataclasses.dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the user's code that the program came from.

    Attributes:
        place: Its file and number.
        text: The code, without what is around it.
    """

    place: SourceLine
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class TpuRow:
    """A TPU type in the table "which TPU do I need".

    Attributes:
        tpu: The type.
        cores: How many it has.
        fits: Whether the program compiles and fits; None where nothing is known.
        peak: Bytes a core at the peak; None where the compiler gave no figure.
        available: Bytes a core that a program can use.
        largest_batch: The largest global batch, where it was asked for.
        fitting_batch: A smaller batch that fits, where the program does not.
        low: The lower estimate of a call, in seconds, where time was asked for.
        high: The higher one.
        examples_per_second_per_core: In the middle of the range.
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


@dataclasses.dataclass(frozen=True, repr=False)
class Program:
    """A function as the compiler of TPUs compiled it for one TPU type, or why it did not.

    Attributes:
        tpu: The TPU type, such as `"v5e-8"`.
        replicas: How many replicas run it.
        logical_devices: Cores of a replica; the figures are those of one core.
        examples: The global batch of a call, None where it is not known.
        errors: What the compiler refuses, as a check reports it.
        unknown: Why nothing is known, where the compiler crashed or took too long;
            empty where it answered.
        crashed: Whether that is because it crashed.
        unsized: Why only its memory and its time are not known, and what to do: a size of its
            arguments is not known, such as the batch.
        memory: What it takes of a core's memory; None where the compiler gave no figures.
        time: An estimate of its time; None where none was asked for, or it does not compile.
        lines: The lines of the user's code that it came from, in order.
        text: The optimised HLO; empty where the compiler gave none.
        compile_seconds: How long compiling took.
        notes: What a reader has to know of the figures, a sentence each.
        largest_batch: The largest global batch that fits, where it was asked for.
        fitting_batch: A smaller batch that fits, where the program does not and one was found.
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

    @property
    def ok(self) -> bool:
        """True if it compiles and fits."""
        return not self.errors and not self.unknown and not self.unsized

    @property
    def cores(self) -> int:
        """The cores that run it."""
        return self.replicas * self.logical_devices

    @property
    def examples_per_second_per_core(self) -> float | None:
        """The middle of the range; None if a figure is missing, or the host decides."""
        if self.time is None or self.examples is None or self.time.host_decides:
            return None
        return self.examples / self.time.estimate / self.cores

    @property
    def headline(self) -> str:
        """The outcome in a line."""
        if self.unknown:
            return f"{self.tpu}: not known: {self.unknown}"
        if self.unsized and not self.errors:
            return f"{self.tpu}: compiles; whether it fits is not known, because {self.unsized}"
        if not self.ok:
            return f"{self.tpu}: does not compile: {self.errors[0].reason}"
        parts = [f"{self.tpu}: compiles"]
        if self.memory is not None:
            parts.append(f"{self.memory.takes} of {byte_count(self.memory.available)} a core")
        if self.time is not None:
            parts.append(f"about {self.time} a call")
        return ", ".join(parts) + "."

    @property
    def row(self) -> TpuRow:
        """Its row in the table "which TPU do I need"."""
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
