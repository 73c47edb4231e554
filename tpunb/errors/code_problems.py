"""A problem in a user's code, and the line where it is."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tpunb._util.user_code import is_users_file
from tpunb.errors.base import hint

_GENERATED = re.compile(r"__autograph_generated_file|^<frozen|^<string>")

# AutoGraph indents the message, blank lines included.
_REFUSAL = re.compile(
    r'^ +File "[^"\n]*", line \d+(?:\n +[^\n]*)?\n *\n *(?P<summary>[^\n]+)\s*\Z', re.MULTILINE
)

# The code of a library has no lines of the user's.
_KNOWN_REFUSAL = re.compile(
    r"\n *\n *(?P<summary>[^\n]+ Known error [^\n.]+\. More: tpunb\.explain\([^\n)]*\)\.)\s*\Z"
)


@dataclasses.dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of code.

    Attributes:
        file: The file, or the notebook's name for a cell.
        line: The line number, from 1.
    """

    file: str
    line: int


Choose = Callable[[Sequence[SourceLine]], "tuple[str, int] | None"]
"""Chooses the line to show, from the lines that led to a problem."""

_quiet: Any = functools.partial(dataclasses.field, compare=False, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Code that a TPU refuses, runs slowly, or runs with another result.

    Attributes:
        code: The rule's name, as in the documentation.
        reason: The cause in one sentence, with figures if it concerns speed.
        fix: The next step in one sentence.
        line: The line in a cell or in `file`, or None if it is unknown.
        file: The file, or the notebook's name for the cell; may be empty.
        entry: The code of the entry in the catalogue of errors, or None.
        message: TensorFlow's message on a TPU.
        node: The name of the graph's node, with the names of the calls around it; empty if the
            problem concerns the whole function.
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
        """Return this problem with the lines of the user's code that led to it."""
        return dataclasses.replace(self, places=tuple(places))

    def shown(self, choose: Choose) -> Problem:
        """Return this problem with the line that a reader sees and its catalogue entry."""
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
    """Return the message of an error with which a TPU refuses code.

    Args:
        theirs: TensorFlow's message, which programs compare with.
        places: The lines of code, as tracebacks write them.
        problem: The problem, with its reason and its fix.
    """
    entry = f" {known_error(problem.entry)}" if problem.entry else ""
    return f"{theirs}\n{places}\n\n{problem.reason} {problem.fix}{entry}"


def known_error(code: str) -> str:
    """Return the sentence that points from an error's message to its catalogue entry."""
    return f"Known error {code}. More: tpunb.explain({code})."


def refusal_in_short(message: str) -> str | None:
    """Return tpunb's own words in a message made by `refusal`, or None for another message."""
    match = _REFUSAL.search(message) or _KNOWN_REFUSAL.search(message)
    return match["summary"] if match else None


def innermost(places: Sequence[SourceLine]) -> tuple[str, int] | None:
    """Return the innermost line of the user's code that led to a diagnostic."""
    return (places[0].file, places[0].line) if places else None


def plain_function(fn: Any) -> Any:
    """Return the Python function inside partials, a `tf.function` and decorators."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.unwrap(getattr(fn, "python_function", fn))


def definition(fn: Any) -> tuple[str, int] | None:
    """Return where the user defined a function, for problems whose own place is unknown."""
    code = getattr(plain_function(fn), "__code__", None)
    if code is None or is_library(code.co_filename):
        return None
    return code.co_filename, code.co_firstlineno


def is_library(file: str) -> bool:
    """Return whether a file belongs to Python, to a package that is installed, or to tpunb."""
    return bool(_GENERATED.search(file)) or not is_users_file(file)


@functools.cache
def is_of_this_package(file: str) -> bool:
    """Return whether a file is one of ours."""
    return Path(file).is_relative_to(Path(__file__).parents[1])


def lines_of(error: BaseException) -> list[SourceLine]:
    """Return the user's lines in an error's traceback, innermost first."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [SourceLine(frame.f_code.co_filename, line) for frame, line in frames]
    inside = itertools.takewhile(lambda place: not is_of_this_package(place.file), reversed(places))
    return [place for place in inside if not is_library(place.file)]
