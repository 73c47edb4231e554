"""A suite of programs that try claims, the TPU they run on, and their comparisons."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from tpunb.connection.tpu_connection import TpuConnection
from tpunb.errors.explain import explain

Status = Literal["holds", "differs", "not run"]

_MOST_NUMBERS = 8
_FRAMES = re.compile(r'^\s*File "[^"\n]*", line \d+.*\n(?:\s+\S.*\n)?', re.MULTILINE)


class NotRunError(Exception):
    """A claim cannot be tried here. The message says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of trying a claim.

    Attributes:
        group: The claim's group, such as `"topology"`.
        name: The claim's name, unique in its group.
        says: The claim, in one sentence.
        status: `"holds"`, `"differs"` or `"not run"`.
        expected: The claimed result; empty if the claim was not run or raised an error.
        found: The actual result, or the reason why the claim was not run.
        message: The error's text, if there was an error.
        seconds: The time that the claim took.
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
    """The TPU on which claims are tried.

    Attributes:
        connect: Connects to the TPU.
        connection: The open connection.
    """

    connect: Callable[[], TpuConnection]
    connection: TpuConnection


class Suite:
    """The programs of one group of claims.

    Each public method of a subclass is a program, and programs run in the order of their
    definition. The method's name is the claim's name. Its docstring is the claim, after "Check
    that". It returns the outcome, or raises `NotRunError` if the claim cannot be tried. Any other
    error is a difference.

    Args:
        tpu: The TPU on which to try the claims.
    """

    group: ClassVar[str]
    """The subject of the claims, as reports name it."""
    says: ClassVar[str] = ""
    """The claim, for a suite that makes the same claim of each of its programs."""
    programs: ClassVar[Mapping[str, Any]] = {}
    """The programs of such a suite by name; its `attempt` tries one."""
    on_main_thread: ClassVar[bool] = False
    """True if the programs need the main thread, where a time limit cannot end them."""

    def __init__(self, tpu: ConnectedTpu) -> None:
        self.tpu = tpu

    @classmethod
    def claims(cls) -> Mapping[str, str]:
        """Return the claims by name."""
        if cls.programs:
            return dict.fromkeys(cls.programs, cls.says)
        return {
            name.replace("_", " "): _claim(program.__doc__ or "")
            for name, program in vars(cls).items()
            if inspect.isfunction(program) and not name.startswith("_")
        }

    def attempt(self, name: str) -> Outcome:
        """Try the claim with the given name."""
        outcome: Outcome = getattr(self, re.sub(r"\W", "_", name))()
        return outcome

    @property
    def connection(self) -> Any:
        """The open connection."""
        return self.tpu.connection

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return int(self.connection.replicas)

    @property
    def ranks(self) -> np.ndarray:
        """One number per replica: 1.0 for the first, 2.0 for the second, and so on."""
        return np.arange(1.0, self.replicas + 1.0, dtype=np.float32)

    @property
    def is_virtual(self) -> bool:
        """True for a virtual TPU."""
        return bool(self.connection.kind == "virtual")

    def tolerance(self, *, products: bool = False) -> float:
        """Return the allowed difference from a CPU, as a fraction of the largest magnitude.

        Args:
            products: Whether the computation has matrix products. A TPU's matrix unit rounds
                their float32 factors to bfloat16 (8 bits) by default.
        """
        if self.is_virtual:
            return 1e-5
        return 2e-2 if products else 1e-3

    def need_replicas(self) -> None:
        """Raise `NotRunError` for a claim that a single replica cannot show."""
        if self.replicas < 2:
            raise NotRunError("the claim needs 2 replicas, but this TPU has 1")

    def need_hardware(self, why: str) -> None:
        """Raise `NotRunError` for a claim that only a real TPU can show.

        Args:
            why: The reason, as a sentence without its period.
        """
        if self.is_virtual:
            raise NotRunError(why)

    def everywhere(self, value: Any) -> np.ndarray:
        """Return a value repeated for each replica, as a NumPy array."""
        return np.asarray([value] * self.replicas)


def _claim(docstring: str) -> str:
    """Return the sentence that a program's docstring asks to check."""
    sentence = " ".join(docstring.split()).removeprefix("Check that ")
    return sentence[:1].upper() + sentence[1:]


def compared(holds: bool, expected: str, found: str, message: str = "") -> Outcome:
    """Return the outcome of a comparison. `Trial` adds the claim."""
    return Outcome(
        status="holds" if holds else "differs", expected=expected, found=found, message=message
    )


def equal(expected: Any, found: Any) -> Outcome:
    """Compare by `==`: names, counts, shapes."""
    return compared(bool(expected == found), str(expected), str(found))


def close(expected: Any, found: Any, tolerance: float = 0.0) -> Outcome:
    """Compare numbers.

    Args:
        expected: An array, or a value that NumPy converts to one.
        found: An array of the same shape, or a value that NumPy converts to one.
        tolerance: The largest allowed difference, as a fraction of the largest expected
            magnitude, or of 1 if that magnitude is smaller.
    """
    wanted, actual = _array(expected), _array(found)
    if wanted.shape != actual.shape:
        return compared(False, _text(wanted), f"the shape {list(actual.shape)}: {_text(actual)}")
    if not tolerance:
        return compared(bool(np.array_equal(wanted, actual)), _text(wanted), _text(actual))
    difference = float(np.max(np.abs(wanted - actual), initial=0.0))
    allowed = tolerance * max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
    limit = f"largest difference {difference:.2g}, allowed {allowed:.2g}"
    # NaN is never within a limit.
    return compared(difference <= allowed, _text(wanted), f"{_text(actual)}; {limit}")


def refused(call: Callable[[], Any], code: str | None = None) -> Outcome:
    """Make a call that a TPU refuses.

    Args:
        call: The call.
        code: The known error that the call ends with; None to claim only the refusal.
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
        value = _text(_array(result))
    except (TypeError, ValueError):
        value = type(result).__name__
    return compared(False, expected, f"runs and returns {value}")


def message_of(error: BaseException) -> str:
    """Return an error's message without the lines of tpunb's code that AutoGraph adds."""
    text = _FRAMES.sub("", str(error)).replace("in user code:", "")
    name = type(error).__name__
    text = " ".join(text.split()).removeprefix(f"{name}: ")
    return f"{name}: {text}"


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = np.asarray([np.asarray(item) for item in value])
    array = np.asarray(value)
    # NumPy gives bfloat16 a dtype kind that it cannot print a mean of.
    return array.astype(np.float64) if array.dtype.kind not in "biuf" else array


def _text(array: np.ndarray) -> str:
    flat = array.reshape(-1)
    shown = " ".join(f"{number:.6g}" for number in flat[:_MOST_NUMBERS])
    more = " …" if flat.size > _MOST_NUMBERS else ""
    shape = f" {list(array.shape)}" if array.ndim > 1 or more else ""
    return f"{shown}{more}{shape}"
