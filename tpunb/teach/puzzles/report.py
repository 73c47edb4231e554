"""The report about an answer: what is wrong, or what its program costs beside the best known."""

from __future__ import annotations

import dataclasses
import math

from tpunb._util.tables import GREEN, LINED, ORANGE, Markup, badge, block, escaped, table
from tpunb.compiler.program import TpuProgram
from tpunb.errors import TpunbError
from tpunb.teach.puzzles.figures import has_open_loops
from tpunb.teach.puzzles.puzzle import Limit, Puzzle

_FULL = 100
_ROUNDING = 0.01
"""The difference between figures that counts as none."""

HEAD = ("figure", "your program", "limit", "best known")


class UnsolvedError(TpunbError, AssertionError):
    """A puzzle that is not solved."""


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The report about an answer.

    Attributes:
        puzzle: The puzzle.
        problem: Why the answer is wrong; empty if it computes the right results.
        unknown: Why its program is not known; empty if it is.
        program: Its program; None if it was not compiled.
    """

    puzzle: Puzzle
    problem: str = ""
    unknown: str = ""
    program: TpuProgram | None = None

    @property
    def solved(self) -> bool:
        """True if the results are right, and the program is within all limits."""
        known = self.program is not None and self.program.ok and not self.not_known
        return known and not self.exceeded

    @property
    def right(self) -> bool:
        """True if the results are right, whatever the program costs."""
        return not self.problem

    @property
    def not_known(self) -> str:
        """Why the figures of the program are not known; empty if they are."""
        program = self.program
        if program is None:
            return self.unknown
        if program.unknown or program.unsized or not program.ok:
            return program.unknown or program.unsized or ""
        figures = [self.puzzle.score, *(limit.figure for limit in self.puzzle.limits)]
        if missing := [figure.name for figure in figures if figure.of(program) is None]:
            why = "The length of a loop depends on data, so" if has_open_loops(program) else ""
            return f"{why} the {missing[0]} is not known.".lstrip().capitalize()
        return ""

    @property
    def exceeded(self) -> tuple[Limit, ...]:
        """The limits that the program exceeds."""
        if self.program is None or self.not_known:
            return ()
        values = [(limit, limit.figure.of(self.program)) for limit in self.puzzle.limits]
        return tuple(limit for limit, value in values if value is not None and value > limit.most)

    @property
    def score(self) -> int:
        """0 to 100: the best known figure as a percentage of the program's; 0 if not solved."""
        if self.program is None or not self.solved:
            return 0
        value = self.puzzle.score.of(self.program)
        if value is None:
            return 0
        if value <= self.puzzle.best * (1 + _ROUNDING):
            return _FULL
        return min(math.ceil(_FULL * self.puzzle.best / value), _FULL - 1)

    @property
    def headline(self) -> str:
        """The outcome in a sentence or two."""
        name = self.puzzle.name
        if self.problem:
            return f"{name}: not solved. {self.problem}"
        if self.not_known:
            return f"{name}: the results are right, but the program is not judged. {self.not_known}"
        if self.program is None:
            return f"{name}: not judged."
        if not self.program.ok:
            return f"{name}: not solved. The results are right, but the program does not compile."
        if self.exceeded:
            return f"{name}: not solved. The results are right, but the program costs too much."
        return f"{name}: solved. Score {self.score} of {_FULL}{self._beside_the_best}"

    @property
    def _beside_the_best(self) -> str:
        value = self.puzzle.score.of(self.program) if self.program is not None else None
        if value is None or self.score < _FULL:
            return f". The best known solution: {self.puzzle.score.text(self.puzzle.best)}."
        if value < self.puzzle.best * (1 - _ROUNDING):
            return ": better than the best known solution."
        return ": as good as the best known solution."

    @property
    def hints(self) -> tuple[str, ...]:
        """A hint for each refusal and each exceeded limit."""
        if self.program is None:
            return ()
        refusals = [f"{error.reason} {error.fix}".strip() for error in self.program.errors]
        if refusals and self.program.memory is None:
            return tuple(refusals)
        return (*refusals[:1], *(limit.hint for limit in self.exceeded))

    def raise_if_unsolved(self) -> None:
        """Raise an error if the puzzle is not solved, for tests.

        Raises:
            UnsolvedError: It is not solved.
        """
        if not self.solved:
            raise UnsolvedError(" ".join([self.headline, *self.hints]))

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the figures as text: the program's, the limit, the best known."""
        if self.program is None or self.program.unknown:
            return []
        puzzle, rows = self.puzzle, []
        limits = {limit.figure: limit for limit in puzzle.limits}
        for figure in dict.fromkeys([puzzle.score, *limits]):
            value, limit = figure.of(self.program), limits.get(figure)
            mine = "not known" if value is None else figure.text(value)
            most = f"at most {figure.text(limit.most)}" if limit else ""
            best = figure.text(puzzle.best) if figure is puzzle.score else ""
            rows.append((figure.name, mine, most, best))
        return rows

    def __repr__(self) -> str:
        rows = [HEAD, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        figures = [f"  {line}" for line in lines] if len(rows) > 1 else []
        return "\n".join([self.headline, *(f"Hint: {hint}" for hint in self.hints), *figures])

    def _repr_html_(self) -> str:
        colour = GREEN if self.solved else ORANGE
        state, _, rest = self.headline.partition(": ")[2].partition(". ")
        name = f"<b>{escaped(self.puzzle.name)}</b>"
        parts = [block(Markup(f"{badge(state, colour)} {name} {escaped(rest)}"))]
        parts += [block(Markup(f"<b>Hint:</b> {escaped(hint)}")) for hint in self.hints]
        if rows := self.rows():
            parts.append(table(rows, head=HEAD, named=True, style=LINED))
        if self.program is not None:
            parts.append(Markup(self.program._repr_html_()))
        return "".join(parts)
