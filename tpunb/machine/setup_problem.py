"""Problems of a machine's TPU setup."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class SetupProblem:
    """A fact that blocks the use of a TPU, or that is worth knowing.

    Attributes:
        about: The subject, such as `"tensorflow"` or `"lock file"`.
        message: The problem, in one sentence.
        fix: The fix, in one sentence.
        command: The command that fixes it; may be empty.
        stops: Whether it blocks the use of a TPU, real or virtual.
    """

    about: str
    message: str
    fix: str
    command: str = ""
    stops: bool = True
