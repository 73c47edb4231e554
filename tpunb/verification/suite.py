"""A suite of programs that try claims, the TPU they run on, and the comparisons they end in."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from tpunb.connection.connection import Connection
from tpunb.errors.explain import explain

Status = Literal["holds", "differs", "not run"]

_MOST_NUMBERS = 8
_FRAMES = re.compile(r'^\s*File "[^"\n]*", line \d+.*\n(?:\s+\S.*\n)?', re.MULTILINE)


class NotRunError(Exception):
    """A claim cannot be tried here; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of trying a claim.

    Attributes:
        group: The claim's group, such as `"topology"`.
        name: The claim's name, unique in its group.
        says: The claim, in a sentence.
        status: `"holds"`, `"differs"` or `"not run"`.
        expected: What is claimed; empty if the claim was not run, or has raised.
        found: What was found, or why the claim was not run.
        message: The error's text, if there was an error.
        seconds: How long it took.
    """

    group: str = ""
    name: str = ""
    says: str = ""
    status: Status
    expected: str = ""
    found: str
    message: str = ""
    seconds: float = 0.0


Program = Callable[["Suite"], Outcome]


@dataclasses.dataclass
class ConnectedTpu:
    """The TPU that claims are tried on.

    Attributes:
        connect: Connects to it.
        connection: The connection that is open.
    """

    connect: Callable[[], Connection]
    connection: Connection


class Suite:
    """The programs of one group of claims.

    Each public method of a subclass is a program, in the order in which they are written: the
    method's name is the claim's, its docstring says what is claimed, and it returns the outcome.
    It raises `NotRunError` where the claim cannot be tried; any other error is a difference.

    Args:
        tpu: What the claims are tried on.
    """

    group: ClassVar[str]
    """The subject of the claims, as reports call it."""
    on_main_thread: ClassVar[bool] = False
    """True if the programs need the main thread, where no time limit can end them."""

    def __init__(self, tpu: ConnectedTpu) -> None:
        self.tpu = tpu

    @classmethod
    def claims(cls) -> Mapping[str, str]:
        """The claims by their names."""
        return {
            name.replace("_", " "): " ".join((program.__doc__ or "").split())
            for name, program in vars(cls).items()
            if inspect.isfunction(program) and not name.startswith("_")
        }

    def attempt(self, name: str) -> Outcome:
        """Tries the claim of that name."""
        outcome: Outcome = getattr(self, re.sub(r"\W", "_", name))()
        return outcome

    @property
    def connection(self) -> Connection:
        """The connection that is open."""
        return self.tpu.connection

    @property
    def strategy(self) -> Any:
        """The connection's `TPUStrategy`."""
        return self.connection.strategy

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def ranks(self) -> np.ndarray:
        """A number for each replica: 1.0 for the first, 2.0 for the second, and so on."""
        return np.arange(1.0, self.replicas + 1.0, dtype=np.float32)

    @property
    def is_virtual(self) -> bool:
        """True for a virtual TPU."""
        return self.connection.kind == "virtual"

    def tolerance(self, *, products: bool = False) -> float:
        """Returns the allowed difference from a CPU, as a part of the largest magnitude.

        Args:
            products: Whether matrix products are part of it, whose float32 factors a TPU's
                matrix unit rounds to bfloat16 (8 bits), unless told otherwise.
        """
        if self.is_virtual:
            return 1e-5
        return 2e-2 if products else 1e-3

    def need_replicas(self) -> None:
        """Ends a claim that a single replica cannot show, by a `NotRunError`."""
        if self.replicas < 2:
            raise NotRunError("it needs 2 replicas, and this TPU has 1")

    def everywhere(self, value: Any) -> np.ndarray:
        """Repeats a value for each replica, as NumPy."""
        return np.asarray([value] * self.replicas)

    def each(self, values: Sequence[Any] | np.ndarray) -> Any:
        """A value for each replica."""
        import tensorflow as tf

        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
        )

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Runs a replica function once, and gives each replica's result as NumPy."""
        import tensorflow as tf

        @tf.function  # type: ignore[untyped-decorator]
        def step(*arguments: Any) -> Any:
            return self.strategy.run(function, args=arguments)

        return self.local(step(*arguments))

    def on_ranks(self, function: Callable[[Any], Any]) -> list[Any]:
        """Runs a function of one number on every replica: 1.0 on the first, 2.0 on the next."""
        return self.run(function, self.each(self.ranks))

    def local(self, result: Any) -> list[Any]:
        """Each replica's part of a value, as NumPy."""
        parts = self.strategy.experimental_local_results(result)
        return [part.numpy() if hasattr(part, "numpy") else part for part in parts]

    def variable(self, value: Any, **options: Any) -> Any:
        """A variable in the strategy's scope, as `tf.Variable` takes it."""
        import tensorflow as tf

        with self.strategy.scope():
            return tf.Variable(value, **options)


def compared(holds: bool, expected: str, found: str, message: str = "") -> Outcome:
    """The outcome of a comparison; `Trial` adds which claim it is about."""
    return Outcome(
        status="holds" if holds else "differs", expected=expected, found=found, message=message
    )


def equal(expected: Any, found: Any) -> Outcome:
    """Compares by `==`: names, counts, shapes."""
    return compared(bool(expected == found), str(expected), str(found))


def close(expected: Any, found: Any, tolerance: float = 0.0) -> Outcome:
    """Compares numbers.

    Args:
        expected: An array, or something that NumPy makes one of.
        found: Likewise, of the same shape.
        tolerance: The largest difference allowed, as a part of the largest expected magnitude,
            or of 1 if that is less.
    """
    wanted, got = _array(expected), _array(found)
    if wanted.shape != got.shape:
        return compared(False, _text(wanted), f"the shape {list(got.shape)}: {_text(got)}")
    if not tolerance:
        return compared(bool(np.array_equal(wanted, got)), _text(wanted), _text(got))
    difference = float(np.max(np.abs(wanted - got), initial=0.0))
    allowed = tolerance * max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
    limit = f"largest difference {difference:.2g}, allowed {allowed:.2g}"
    # NaN is never within a limit.
    return compared(difference <= allowed, _text(wanted), f"{_text(got)}; {limit}")


def refused(call: Callable[[], Any], code: str | None = None) -> Outcome:
    """Makes a call that a TPU refuses.

    Args:
        call: The call.
        code: The known error that it ends with; None if only the refusal is claimed.
    """
    expected = "refused" if code is None else f"refused, known error {code}"
    try:
        result = call()
    except NotRunError:
        raise
    except Exception as error:
        known = explain(error)
        found = "refused" if known is None else f"refused, known error {known.code}"
        if known is None and code is not None:
            found += ", by an unknown error"
        return compared(code is None or found == expected, expected, found, message_of(error))
    try:
        shown = _text(_array(result))
    except (TypeError, ValueError):
        shown = type(result).__name__
    return compared(False, expected, f"runs and gives {shown}")


def message_of(error: BaseException) -> str:
    """Returns an error's message without the lines of our code that autograph adds to it."""
    text = _FRAMES.sub("", str(error)).replace("in user code:", "")
    name = type(error).__name__
    text = " ".join(text.split()).removeprefix(f"{name}: ")
    return f"{name}: {text}"


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = np.asarray([np.asarray(item) for item in value])
    array = np.asarray(value)
    # NumPy knows bfloat16 as a type of its own kind, of which it cannot print a mean.
    return array.astype(np.float64) if array.dtype.kind not in "biuf" else array


def _text(array: np.ndarray) -> str:
    flat = array.reshape(-1)
    shown = " ".join(f"{number:.6g}" for number in flat[:_MOST_NUMBERS])
    more = " …" if flat.size > _MOST_NUMBERS else ""
    shape = f" {list(array.shape)}" if array.ndim > 1 or more else ""
    return f"{shown}{more}{shape}"
