"""A function with other batches than its own, and the largest that fits."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tpunb._util.deadline import Deadline
from tpunb._util.freed_memory import giving_back
from tpunb._util.tables import escaped
from tpunb._util.units import grouped
from tpunb.compiler import jax_functions, libtpu
from tpunb.compiler.frameworks import JAX
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.compiler.topologies import Target, targets
from tpunb.compiler.verdict import Settings, reporting
from tpunb.virtual.import_tensorflow import has_tensorflow, needing_tensorflow
from tpunb.virtual.keras_internals import backend_of, chooser, model_of

_DIVIDED_BY_ANY_MESH = 1 << 14


class Lowering(NamedTuple):
    """The way in which a function is lowered.

    Attributes:
        lower: Lowers it, as `prepare.function_for` does or `jax_functions.function_for`.
        args: The arguments to lower it with.
        strategy: The strategy whose replicas run it; None for one of JAX.
        note: A sentence where both frameworks could trace it; else empty.
    """

    lower: Callable[..., Any]
    args: Sequence[Any]
    strategy: Any
    note: str = ""


def lowering(fn: Any, args: Sequence[Any], strategy: Any) -> Lowering:
    """Return how a function, JAX's or TensorFlow's, is lowered, and on whose replicas it runs."""
    _refuse_without_framework(fn)
    strategy = strategy or current_strategy()
    framework, note = jax_functions.chosen(fn, args, strategy)
    if framework == JAX:
        return Lowering(jax_functions.function_for, args, None, note)
    with needing_tensorflow():
        from tpunb.compiler.prepare import function_for
        from tpunb.virtual.dataset_sizes import with_batches
        from tpunb.virtual.keras_models import strategy_of
    strategy = strategy or current_strategy()
    if strategy is None and (model := model_of(fn)) is not None:
        strategy = strategy_of(model)
    return Lowering(function_for, with_batches(args), strategy, note)


def _refuse_without_framework(fn: Any) -> None:
    """Refuse a function that neither JAX nor TensorFlow could trace.

    Raises:
        CompileError: No framework could trace it.
    """
    backend = backend_of(fn)
    if backend not in {"jax", "tensorflow", ""}:
        raise CompileError(
            f"Keras runs on {backend} here, and models are compiled for TPUs with JAX or "
            "TensorFlow.",
            fix='Set os.environ["KERAS_BACKEND"] = "jax" before Keras is imported.',
        )
    if "jax" not in sys.modules and not has_tensorflow():
        raise CompileError(
            "JAX is not imported and TensorFlow is not installed: nothing traces the function.",
            fix="Write it with JAX: import jax, and call jax.numpy in it.",
        )


def current_strategy() -> Any:
    """The strategy in use; None where TensorFlow is not imported."""
    if sys.modules.get("tensorflow") is None:
        return None
    from tpunb.virtual.strategy import current

    return current()


@dataclasses.dataclass(frozen=True)
class AnyBatch:
    """A function with any batch.

    Attributes:
        lower: Lowers it with given arguments.
        resized: Its arguments with a batch.
        before: The batch that they have; None where it is open.
        times: Their batch, in batches of a replica.
        replicas: How many replicas run a function of JAX, whose arguments say so; else None.
        whole: Whether its batch is that of all replicas of the TPU type, as a model's is.
    """

    lower: Callable[[Sequence[Any], Settings], Any]
    resized: Callable[[int], Sequence[Any]]
    before: int | None
    times: int
    replicas: int | None = None
    whole: bool = False

    def on(self, kind: Target, per_replica: int, settings: Settings) -> TpuProgram:
        """Compiles it for a TPU type, with a batch of each replica."""
        arguments = self.resized(per_replica * self.times)
        program: TpuProgram = self.lower(arguments, settings).on(kind, settings)
        return program


def with_any_batch(fn: Any, how: Lowering, kind: Target) -> AnyBatch:
    """A function whose batch can be changed; see `tpunb.largest_batch` for what the batch is.

    Raises:
        CompileError: None of the arguments has a batch.
    """
    lower, args, strategy, _ = how

    def lowered(arguments: Sequence[Any], settings: Settings) -> Any:
        return lower(fn, arguments, strategy, settings)

    # A model takes its global batch, a replica function that of a replica.
    whole = model_of(fn) is not None
    if lower is jax_functions.function_for:  # JAX's take the batch of all devices
        before, resized = jax_functions.any_batch(fn, args)
        sized = args if before else resized(_DIVIDED_BY_ANY_MESH)
        cores = kind.replicas if whole else jax_functions.devices_of(fn, sized, kind)
        return AnyBatch(lowered, resized, before, cores, cores, whole=whole)
    before, resized = _any_batch(args)
    return AnyBatch(lowered, resized, before, kind.replicas if whole else 1, whole=whole)


def _any_batch(specs: Sequence[Any]) -> tuple[int | None, Callable[[int], list[Any]]]:
    """The batch in the arguments (None where it is open), and what makes them with another.

    Raises:
        CompileError: None of them has one.
    """
    import tensorflow as tf

    from tpunb.virtual.dataset_sizes import DatasetBatch

    given = list(specs)
    batch = given[0] if given and isinstance(given[0], DatasetBatch) else None
    elements = given if batch is None else batch.largest
    shapes = [getattr(value, "shape", None) for value in tf.nest.flatten(elements)]
    sizes = [shape[0] for shape in shapes if shape is not None and len(shape)]
    if not sizes:
        raise CompileError(
            "None of the arguments has a batch.", fix="Pass a tf.TensorSpec([None, …])."
        )

    if batch is not None:
        return sizes[0], lambda size: [batch.with_batch(size)]

    def with_batch(size: int) -> list[Any]:
        def resized(value: Any) -> Any:
            shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
            if shape is None or dtype is None or not len(shape) or shape[0] != sizes[0]:
                return value
            return tf.TensorSpec([size, *shape[1:]], dtype)

        return list(tf.nest.map_structure(resized, given))

    return sizes[0], with_batch


FINE = 32
"""Batches are told apart to this part of themselves: 1/32."""

_MOST_TRIES = 12
_LARGEST = 2**24
_FARTHEST = 16
_FIRST = 128
"""The batch of a replica to begin with where none is given."""

_FINEST = 256
"""To such a part of itself a batch is exact that `largest_batch` finds, or to its step."""

_ROUND = 128
"""Lanes of a TPU's registers and matrix units: batches that are a multiple of it fill them."""


def search(
    attempt: Callable[[int], TpuProgram], first: int, available: int, *, fine: int, step: int = 1
) -> int:
    """Finds the largest size that fits, by trying some.

    Memory grows about linearly with a batch: what two sizes take says where to look next.

    Args:
        attempt: Compiles with a size.
        first: The size to begin with.
        available: Bytes that there are.
        fine: The answer is exact to this part of itself, or to a step.
        step: Sizes are multiples of it.

    Returns:
        The size; 0 where nothing fits.
    """
    low, high = 0, _LARGEST
    peaks: dict[int, int] = {}
    size = max(first // step, 1) * step
    retreat = 1
    for _ in range(_MOST_TRIES):
        program = attempt(size)
        if program.memory is not None and program.memory.exact:
            peaks[size] = program.memory.peak
        low, high = (size, high) if program.ok else (low, size)
        unit = max(low // fine // step, 1) * step
        if high - low <= unit:
            break
        middle = 2 * low if high == _LARGEST else (low + high) // 2
        guess = (_guessed(peaks, available) or middle) // step * step
        # Lines that lead beyond what does not fit are wrong: each one goes further back.
        retreat = 1 if program.ok or guess < high else 4 * retreat
        farthest = max(high - retreat * unit, (low + high) // 2 // step * step)
        if high == _LARGEST and len(peaks) < 2:  # a line through one size does not lead far
            farthest = _FARTHEST * low
        # Where no more is to be expected, show that one more does not fit.
        size = max(min(guess, farthest), low + unit)
    return low


def _guessed(peaks: Mapping[int, int], available: int) -> int:
    """Extrapolate the two nearest sizes to the size that fills the memory; 0 if that is impossible.

    With a single size, a line through the origin.
    """
    near = sorted(peaks, key=lambda size: abs(peaks[size] - available))[:2]
    if not near:
        return 0
    small, large = (0, *near) if len(near) == 1 else sorted(near)
    slope = (peaks[large] - peaks.get(small, 0)) / (large - small)
    return large + int((available - peaks[large]) // slope) if slope > 0 else 0


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch of a TPU type that fits.

    Attributes:
        tpu: The type.
        per_replica: Examples of a replica; 0 where not one fits.
        batch: The global batch.
        program: What it compiles to; of one that does not fit where none does.
        tried: The batches of a replica that were compiled, with the peak in bytes a core
            where the compiler gave it, and whether they fit.
    """

    tpu: str
    per_replica: int
    batch: int
    program: TpuProgram
    tried: tuple[tuple[int, int | None, bool], ...]

    @property
    def round(self) -> int:
        """A round global batch that fits too: a multiple of 128 a replica, or a power of two."""
        per_replica = self.per_replica // _ROUND * _ROUND
        if self.per_replica and not per_replica:
            per_replica = 2 ** (self.per_replica.bit_length() - 1)
        return per_replica * (self.batch // self.per_replica) if self.per_replica else 0

    def __str__(self) -> str:
        if not self.per_replica:
            return f"{self.tpu}: not even one example a replica fits."
        each = f"{grouped(self.batch)} examples, {grouped(self.per_replica)} a replica"
        round_one = "" if self.round == self.batch else f" A round batch is {grouped(self.round)}."
        return f"{self.tpu}: {each}.{round_one} Next: batch({self.round}) in your dataset."

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The sentence, and the program with the bar of its memory."""
        del include, exclude
        bundle = self.program._repr_mimebundle_()
        bundle["text/plain"] = f"{self}\n\n{bundle['text/plain']}"
        bundle["text/html"] = f"<div>{escaped(str(self))}</div>{bundle['text/html']}"
        return bundle


@giving_back()
def largest_batch(
    fn: Any,
    *specs: Any,
    tpu: str | Sequence[str] | None = None,
    strategy: Any = None,
    step: int = 8,
    timeout: float = 300,
    progress: Callable[[str], None] | None = None,
) -> LargestBatch | tuple[LargestBatch, ...]:
    """Finds the largest batch that fits into the memory of a TPU.

    The function is compiled with a few sizes: memory grows almost in proportion to the
    batch, so that each compilation tells which size to try next.

    Args:
        fn: What `tpunb.compile` takes.
        *specs: Its arguments; the first size of each tensor with the same first size as
            the first of them is the batch, and its value where the search begins. It may
            be None. Of a function of JAX the batch is the first size of its last argument;
            what else has it in all its arrays is resized with it.
        tpu: A TPU type, or several; by default the strategy's.
        strategy: As for `tpunb.compile`.
        step: The batch of a replica is a multiple of it; it is exact to that, or to a 256th.
        timeout: Seconds that one batch may take.
        progress: Is called with what is done next; by default a notebook's cell shows it.

    Returns:
        The batch; for several types one of each.

    Raises:
        CompileError: It does not compile for another reason than memory, or no argument
            has a batch.
        CompilerUnavailableError: The compiler is not installed.
    """
    libtpu.start()
    how = lowering(fn, specs, strategy)
    with reporting(progress) as say:
        found = [
            _largest(
                with_any_batch(fn, how, kind),
                kind,
                step,
                lambda: Settings(chooser(fn), Deadline(timeout), details=False),
                say,
            )
            for kind in targets(tpu, how.strategy)
        ]
    return found[0] if tpu is None or isinstance(tpu, str) else tuple(found)


def _largest(
    batches: AnyBatch,
    kind: Target,
    step: int,
    settings: Callable[[], Settings],
    progress: Callable[[str], None],
) -> LargestBatch:
    """The largest batch on a TPU type; `settings` gives each try its own, with time of its own."""
    if batches.replicas:
        kind = dataclasses.replace(kind, replicas=batches.replicas)
    programs: dict[int, TpuProgram] = {}

    def attempt(size: int) -> TpuProgram:
        number = len(programs) + 1
        progress(f"try {number}: a batch of {grouped(size)} a replica on {kind.tpu.name}")
        program = programs[size] = batches.on(kind, size, settings())
        if program.unknown or any(error.code != "memory" for error in program.errors):
            program.raise_if_refused()
        return program

    first = _FIRST if batches.before is None else batches.before // batches.times
    available = kind.hardware.usable_bytes
    good = search(attempt, max(first, step), available, step=step, fine=_FINEST)
    batch = good * kind.replicas
    program = dataclasses.replace(programs[good or min(programs)], largest_batch=batch)
    tried = (
        (size, one.memory.peak if one.memory else None, one.ok)
        for size, one in sorted(programs.items())
    )
    return LargestBatch(kind.tpu.name, good, batch, program, tuple(tried))
