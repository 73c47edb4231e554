"""The errors that a user can fix, each with the next thing to do.

`TpunbError` and its family are for states of the world and for input that
somebody can put right: they render in a line or two, without a traceback.
Bugs are not among them and keep their traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from tpunb._util.plain_text import plain


class TpunbError(Exception):
    """An error that names its fix.

    Args:
        message: What is wrong, in one sentence.
        fix: What to do next, in one sentence.

    Attributes:
        message: What is wrong, without the fix.
        fix: The same, for programs; an empty string where nothing is known.
    """

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(f"{message}\n{hint(fix)}" if fix else message)
        self.message = message
        self.fix = fix

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback."""
        return [plain(f"{type(self).__name__}: {self}")]


class AcceleratorTypeError(TpunbError, ValueError):
    """A TPU type or a number of cores that does not exist."""


class VirtualDevicesError(TpunbError, RuntimeError):
    """TensorFlow was started with fewer devices than a virtual TPU needs."""


class ComputationShapeError(TpunbError, ValueError):
    """A computation shape or a number of replicas that does not fit on the TPU."""


class ConnectError(TpunbError, RuntimeError):
    """Connecting failed.

    Attributes:
        tried: What was tried and what answered, in order.
    """

    def __init__(self, message: str, *, fix: str = "", tried: Sequence[str] = ()) -> None:
        super().__init__(message, fix=fix)
        self.tried = tuple(tried)


class WorkerError(ConnectError):
    """A worker that cannot be started, or that has ended."""


class NotConnectedError(TpunbError, RuntimeError):
    """Something needs a connection and there is none."""


class KernelError(TpunbError, RuntimeError):
    """A Jupyter kernel that cannot be installed, removed or started."""


class MemoryLimitError(TpunbError, MemoryError):
    """Something that would need more memory than this machine has."""

    ag_pass_through = True
    """Tells TensorFlow, which raises it while it traces, to leave it as it is."""


class CellError(TpunbError, ValueError):
    """A cell that cannot run on the replicas as it is written."""


class HistoryError(TpunbError, ValueError):
    """A training history cannot take a value, or does not have what is asked for."""


class TpuWarning(UserWarning):
    """Something runs on a virtual TPU that is slow on a TPU, or comes out otherwise."""


def hint(fix: str) -> str:
    """A fix as messages show it; a question speaks for itself."""
    return fix if fix.endswith("?") else f"Try: {fix}"


def nearest(word: str, choices: Iterable[str], *, most: int = 3) -> list[str]:
    """The choices that look most like a word, the likeliest first."""
    return difflib.get_close_matches(word, list(choices), n=most, cutoff=0.5)


def did_you_mean(word: str, choices: Iterable[object], otherwise: str = "") -> str:
    """A fix that names the choices which look like a word; `otherwise` where none does."""
    names = [choice for choice in choices if isinstance(choice, str)]
    near = " or ".join(f"`{name}`" for name in nearest(word, names))
    return f"Did you mean {near}?" if near else otherwise
