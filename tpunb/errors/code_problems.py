"""A problem in a user's code, and the line that it is at."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tpunb.errors.base import hint

_GENERATED = re.compile(r"__autograph_generated_file|^<frozen|^<string>")

# AutoGraph indents it, and blank lines with it.
_OURS = re.compile(
    r'^ +File "[^"\n]*", line \d+(?:\n +[^\n]*)?\n *\n *(?P<said>[^\n]+)\s*\Z', re.MULTILINE
)


@dataclasses.dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of code.

    Attributes:
        file: Its file, or what a notebook calls a cell.
        line: Its number, from 1.
    """

    file: str
    line: int


Choose = Callable[[Sequence[SourceLine]], "tuple[str, int] | None"]
"""Chooses which of the lines that led to a problem is shown."""

_quiet: Any = functools.partial(dataclasses.field, compare=False, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Something in a user's code that a TPU refuses, is slow at or does otherwise.

    Attributes:
        code: The rule's name; the documentation has the list.
        reason: The cause in a sentence, with figures where it is about speed.
        fix: The next step in a sentence.
        line: The line, in a cell or in `file`; None where none is known.
        file: The file, or what the notebook calls the cell; may be empty.
        entry: The code of its entry in the catalogue of errors, or None.
        message: What TensorFlow says on a TPU.
        node: The node that it was found at, with the names of the calls around it; empty
            where it concerns the whole function.
        op: The node's operation.
        places: The lines of the user's code that led to the node, innermost first.
    """

    code: str
    reason: str
    fix: str
    line: int | None = None
    file: str = ""
    entry: str | None = None
    message: str = _quiet(default="")
    node: str = _quiet(default="")
    op: str = _quiet(default="")
    places: tuple[SourceLine, ...] = _quiet(default=())

    def at(self, places: Iterable[SourceLine]) -> Problem:
        """The problem with the lines of the user's code that led to it."""
        return dataclasses.replace(self, places=tuple(places))

    def shown(self, choose: Choose) -> Problem:
        """The problem for a reader: with one of its lines, and its entry in the catalogue."""
        file, line = choose(self.places) or ("", None)
        from tpunb.errors.explain import explain  # loads the catalogue

        known = explain(self.message)
        entry = known.code if known else None
        return dataclasses.replace(self, line=line, file=file, entry=entry)

    @property
    def cause(self) -> str:
        """The reason, with the entry in the catalogue."""
        return f"{self.reason} (catalogue {self.entry})" if self.entry else self.reason

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}{self.cause}\n{hint(self.fix)}"


def refusal(theirs: str, places: str, problem: Problem) -> str:
    """The message of an error with which a TPU refuses code.

    Args:
        theirs: TensorFlow's message, by which programs know the error.
        places: The lines of code, as tracebacks write them.
        problem: What is the matter.
    """
    entry = f" {known_error(problem.entry)}" if problem.entry else ""
    return f"{theirs}\n{places}\n\n{problem.reason} {problem.fix}{entry}"


def known_error(code: str) -> str:
    """The sentence that leads from an error's message to its entry in the catalogue."""
    return f"Known error {code}. More: tpunb.explain({code})."


def refusal_in_short(message: str) -> str | None:
    """Returns our own words in a message made by `refusal`; None for other messages."""
    found = _OURS.search(message)
    return found["said"] if found else None


def innermost(places: Sequence[SourceLine]) -> tuple[str, int] | None:
    """The innermost line of the user's code that led to a diagnostic."""
    return (places[0].file, places[0].line) if places else None


def plain_function(fn: Any) -> Any:
    """The Python function in partials, in a `tf.function`, and in what wraps it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.unwrap(getattr(fn, "python_function", fn))


def definition(fn: Any) -> tuple[str, int] | None:
    """Return where a function of the user's is defined, as a stand-in for an unknown place."""
    code = getattr(plain_function(fn), "__code__", None)
    if code is None or is_library(code.co_filename):
        return None
    return code.co_filename, code.co_firstlineno


@functools.cache
def is_library(file: str) -> bool:
    """Returns whether a file belongs to Python, to a package that is installed, or to this one."""
    if _GENERATED.search(file):
        return True
    path = Path(file)
    if "site-packages" in path.parts or "dist-packages" in path.parts:
        return True
    homes = sysconfig.get_paths()
    return any(path.is_relative_to(homes[key]) for key in ("stdlib", "platstdlib"))


@functools.cache
def is_of_this_package(file: str) -> bool:
    """Returns whether a file is one of ours."""
    return Path(file).is_relative_to(Path(__file__).parents[1])
