"""Problems of a machine's TPU setup."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Something that blocks using a TPU, or that is worth knowing.

    Attributes:
        about: The subject, as `"tensorflow"` or `"lock file"`.
        message: What is wrong, in a sentence.
        fix: How to fix it, in a sentence.
        command: The command to type for it; or empty.
        stops: Whether it blocks using a TPU, real or virtual.
    """

    about: str
    message: str
    fix: str
    command: str = ""
    stops: bool = True
