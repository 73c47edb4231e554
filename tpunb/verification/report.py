"""What came out of trying all claims: for a person, and for an issue."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tpunb._util.plain_text import hanging, plain, shortened
from tpunb._util.units import counted, duration
from tpunb.verification.claims import Claim

__all__ = ["DIFFERS", "HOLDS", "NOT_RUN", "Outcome", "VerifyReport"]

Status = Literal["holds", "differs", "not run"]

HOLDS: Status = "holds"
DIFFERS: Status = "differs"
NOT_RUN: Status = "not run"

_WIDTH = 96
_INDENT = "  "
_LONGEST = 200  # characters of a claim that holds


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What trying one claim has shown.

    Attributes:
        group: The claim's.
        name: The claim's.
        says: The claim, in a sentence.
        status: `"holds"`, `"differs"` or `"not run"`.
        expected: What is claimed; empty if it was not run, or has raised.
        found: What was found, or why it was not run.
        message: The error's text, where there was one.
        seconds: How long it took.
    """

    group: str
    name: str
    says: str
    status: Status
    expected: str = ""
    found: str = ""
    message: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, claim: Claim, status: Status, found: str, **more: Any) -> Outcome:
        """The outcome of a claim."""
        return cls(claim.group, claim.name, claim.says, status, found=found, **more)

    def scrubbed(self, scrub: Callable[[str], str]) -> Outcome:
        """The outcome without what says where it was made."""
        return dataclasses.replace(
            self,
            expected=scrub(self.expected),
            found=scrub(self.found),
            message=scrub(self.message),
        )


@dataclasses.dataclass(frozen=True, repr=False)
class VerifyReport:
    """The result of `verify`; displays itself, and holds nothing that says where it was made.

    Attributes:
        facts: The TPU and the software, by name.
        outcomes: What became of each claim, in order.
        interrupted: Whether the stop button has ended it, so that claims were not run.
        hangs: Whether a claim has not ended in time: it may still be running, so that the
            process has to be started anew.
    """

    facts: Mapping[str, str]
    outcomes: tuple[Outcome, ...]
    interrupted: bool = False
    hangs: bool = False

    @property
    def differences(self) -> tuple[Outcome, ...]:
        """The claims that do not hold."""
        return self._with(DIFFERS)

    @property
    def not_run(self) -> tuple[Outcome, ...]:
        """The claims that could not be tried."""
        return self._with(NOT_RUN)

    @property
    def ok(self) -> bool:
        """Whether no claim differs, some hold, and it was not interrupted."""
        return not self.differences and bool(self._with(HOLDS)) and not self.interrupted

    @property
    def headline(self) -> str:
        """The result in a line."""
        held = counted(len(self._with(HOLDS)), "claim")
        parts = [f"{held} held", f"{len(self.differences)} differed"]
        if self.not_run:
            parts.append(f"{len(self.not_run)} not run")
        if self.interrupted:
            parts.append("interrupted")
        return f"TPU verification: {', '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers, for JSON."""
        return {
            "ok": self.ok,
            "interrupted": self.interrupted,
            "headline": self.headline,
            "facts": dict(self.facts),
            "claims": [
                {**dataclasses.asdict(outcome), "seconds": round(outcome.seconds, 2)}
                for outcome in self.outcomes
            ],
        }

    def __str__(self) -> str:
        width = max((len(name) for name in self.facts), default=0)
        lines = [self.headline, "", *(_row(*fact, width) for fact in self.facts.items())]
        for title, status in (("Differed", DIFFERS), ("Not run", NOT_RUN), ("Held", HOLDS)):
            found = self._with(status)
            lines += ["", title, *(line for one in found for line in _lines(one))] if found else []
        seconds = sum(outcome.seconds for outcome in self.outcomes)
        return plain("\n".join([*lines, "", f"Took {duration(round(seconds))}."]))

    __repr__ = __str__

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("VerifyReport(...)" if cycle else str(self))

    def _with(self, status: Status) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.status == status)


def _lines(outcome: Outcome) -> list[str]:
    """A line for a claim that holds, and all that is known of one that does not."""
    title = f"{outcome.group}: {outcome.name}"
    if outcome.status == HOLDS:
        message = f": {outcome.message}" if outcome.message else ""
        return [shortened(_one_line(f"{_INDENT}{title}: {outcome.found}{message}"), _LONGEST)]
    rows = {"claim": outcome.says, "expected": outcome.expected, "found": outcome.found}
    if outcome.status == NOT_RUN:
        rows = {"because": outcome.found}
    rows["message"] = outcome.message
    width = max(map(len, rows))
    return [
        f"{_INDENT}{title}",
        *(_row(name, _one_line(text), width, _INDENT * 2) for name, text in rows.items() if text),
    ]


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text)


def _row(name: str, value: str, width: int, indent: str = "") -> str:
    return hanging(f"{indent}{name:<{width}}  ", value, _WIDTH)
