"""The errors that a user can fix, each with the next thing to do.

`TpunbError` and its subclasses describe a state of the machine or an input that the user
can correct. They are shown in one or two lines, without a traceback. A bug in tpunb is not
a `TpunbError`: it keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from tpunb._util.plain_text import plain


class TpunbError(Exception):
    """An error that names its fix.

    Args:
        message: The problem, in one sentence.
        fix: The next step, in one sentence.

    Attributes:
        message: The problem, without the fix.
        fix: The next step; an empty string if none is known.
    """

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(f"{message}\n{hint(fix)}" if fix else message)
        self.message = message
        self.fix = fix

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback."""
        return [plain(f"{type(self).__name__}: {self}")]


class AcceleratorTypeError(TpunbError, ValueError):
    """A TPU type or a number of cores that does not exist."""


class VirtualDevicesError(TpunbError, RuntimeError):
    """TensorFlow has fewer devices than a virtual TPU needs."""


class ComputationShapeError(TpunbError, ValueError):
    """A computation shape or a number of replicas that does not fit on the TPU."""


class ConnectError(TpunbError, RuntimeError):
    """A connection that could not be made.

    Attributes:
        tried: Each attempt and its answer, in order.
    """

    def __init__(self, message: str, *, fix: str = "", tried: Sequence[str] = ()) -> None:
        super().__init__(message, fix=fix)
        self.tried = tuple(tried)


class TensorFlowMissingError(ConnectError, AttributeError):
    """The error of a public name that needs TensorFlow, where TensorFlow is missing.

    Python's own tools look every name of a module up. `hasattr`, `help` and `inspect` pass over an
    `AttributeError`.
    """


class WorkerError(ConnectError):
    """A TPU's worker that has ended."""


class NotConnectedError(TpunbError, RuntimeError):
    """A call that needs a connection while none is open."""


class KernelError(TpunbError, RuntimeError):
    """A Jupyter kernel that cannot be installed, removed or started."""


class MemoryLimitError(TpunbError, MemoryError):
    """A request for more memory than this machine has."""

    code = "memory"
    """The rule of strictness that refuses the request."""

    ag_pass_through = True
    """Tells AutoGraph, which traces the code that raises this error, not to wrap it."""


class CellError(TpunbError, ValueError):
    """A cell that cannot run on the replicas as it is written."""


class CompileError(TpunbError, ValueError):
    """A program that the TPU's compiler refuses, or that it cannot be asked about."""


class CompilerUnavailableError(TpunbError, RuntimeError):
    """A compiler that is not installed, or that does not exist for this machine."""


class NotRecordedError(CompilerUnavailableError):
    """A program without a recorded verdict, where the compiler is missing."""


class DoesNotFitError(CompileError):
    """A program that takes more memory than a core has, or than a limit.

    Attributes:
        tpu: The TPU type.
        needed: The bytes that the program takes on a core.
        limit: The bytes that it may take.
    """

    def __init__(self, message: str, *, fix: str, tpu: str, needed: int, limit: int) -> None:
        super().__init__(message, fix=fix)
        self.tpu, self.needed, self.limit = tpu, needed, limit


class NotKnownError(CompileError):
    """A program about which the compiler has no verdict, or no figures: it may fit or not."""


class HistoryError(TpunbError, ValueError):
    """A value that a training history cannot record, or a metric that it does not have."""


class TpuWarning(UserWarning):
    """Code that works on a virtual TPU but is slow, or gives another result, on a TPU."""


def hint(fix: str) -> str:
    """Return a fix as messages show it. A question gets no "Try:" in front."""
    return fix if fix.endswith("?") else f"Try: {fix}"


def nearest(word: str, choices: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the choices that are spelled most like a word, the best first."""
    return difflib.get_close_matches(word, list(choices), n=most, cutoff=0.5)


def did_you_mean(word: str, choices: Iterable[object], otherwise: str = "") -> str:
    """Return "Did you mean …?" with the choices most like a word, or `otherwise` if none is."""
    names = [choice for choice in choices if isinstance(choice, str)]
    near = " or ".join(f"`{name}`" for name in nearest(word, names))
    return f"Did you mean {near}?" if near else otherwise
