"""One thing that a look at the machine has found."""

from __future__ import annotations

import dataclasses

__all__ = ["Finding"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something that is in the way, or worth knowing.

    Attributes:
        about: What it is about, in a word: `"tensorflow"`, `"lock file"`.
        message: What is the matter, in a sentence.
        mend: What to do about it, in a sentence.
        command: What to type for it; empty where that is nothing to type.
        stops: Whether it has to be mended before a TPU, or a virtual one, can be used.
    """

    about: str
    message: str
    mend: str
    command: str = ""
    stops: bool = True
