"""The report of a verification, without any trace of the place where it was made."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpunb._util.plain_text import hanging, plain, shortened
from tpunb._util.secret_masking import mask, secrets_in
from tpunb._util.units import counted, duration
from tpunb.verification.suite import Outcome, Status

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = "tpunb-verify/1"
"""The version of the report as JSON. Reports of one version only gain fields."""

DIED = "the process ended within this claim"
"""What a report says of the claim that the process did not survive."""

_WIDTH = 96
_MOST_CHARACTERS = 600
_SHORTEST_NAME = 2
_LONGEST = 200  # characters of the line for a claim that holds

_ADDRESSES = re.compile(
    # Except the addresses of TensorFlow's own documentation; for example grpc://10.0.0.2:8470
    r"\b(?!https://(?:www\.)?(?:tensorflow\.org|github\.com)/)"
    r"[a-z][a-z0-9+]{1,9}://[^\s'\",;)>\]]+"
    r"|\b(?:ipv4|ipv6|dns|unix):[^\s'\",;)>]+"  # as gRPC writes peers
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b"
    r"|\[?(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}\b\]?(?::\d{1,5})?"
    r"|(?<!job:)\blocalhost(?::\d{1,5})?\b"
    r"|\b[\w-]+(?:\.[\w-]+)*:\d{4,5}\b",
    re.IGNORECASE,
)
# TensorFlow's device names look like paths, but a report needs them.
_PATHS = re.compile(
    r"(?<![\w/.:])(?:~|[A-Za-z]:)?[/\\](?!(?:job|replica|task|device|cpu|tpu):)[\w.+@~-]+"
    r"(?:[/\\][\w.+@~ -]*[\w.+@~-])+",
    re.IGNORECASE,
)

# Names of errors and operations, such as LookupTableFindV2, or CompileTimeHbmOom after its number
# E1000. Masking takes long names for keys.
_IDENTIFIERS = re.compile(
    r"(?<![\w=])(?:(?<![=:]\s)|(?<=E\d{4}:\s))(?<!bearer\s)"
    r"((?:[A-Z][a-z]{2,}){2,}(?:V\d)?)(?!\w)"
)


@dataclasses.dataclass(frozen=True, repr=False)
class VerifyReport:
    """The result of `verify`, which displays itself and hides the place where it was made.

    Attributes:
        facts: The TPU and the software, by name.
        outcomes: The outcome of each claim, in order.
        interrupted: Whether the stop button ended the verification before all claims were run.
        hangs: Whether a claim did not end in time. It may still be running, so the process must
            be restarted.
        planned: The number of claims to try. The process ended early if there are fewer outcomes.
    """

    facts: Mapping[str, str]
    outcomes: tuple[Outcome, ...]
    interrupted: bool = False
    hangs: bool = False
    planned: int = 0

    @property
    def not_reached(self) -> int:
        """The number of claims that the process did not come to."""
        return max(self.planned - len(self.outcomes), 0)

    @property
    def differences(self) -> tuple[Outcome, ...]:
        """The claims that do not hold."""
        return self._with("differs")

    @property
    def not_run(self) -> tuple[Outcome, ...]:
        """The claims that could not be tried."""
        return self._with("not run")

    @property
    def ok(self) -> bool:
        """True if no claim differs, some hold, and it was not interrupted."""
        if self.differences or self.interrupted or self.not_reached:
            return False
        return bool(self._with("holds"))

    @property
    def headline(self) -> str:
        """The result on one line."""
        held = counted(len(self._with("holds")), "claim")
        parts = [f"{held} held", f"{len(self.differences)} differed"]
        if self.not_run:
            parts.append(f"{len(self.not_run)} not run")
        if self.not_reached:
            parts.append(f"{self.not_reached} not reached")
        if self.interrupted:
            parts.append("interrupted")
        return f"TPU verification: {', '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON. `verify_report.schema.json` describes it."""
        return {
            "format": FORMAT,
            "ok": self.ok,
            "interrupted": self.interrupted,
            "not_reached": self.not_reached,
            "headline": self.headline,
            "facts": dict(self.facts),
            "claims": [
                {**dataclasses.asdict(outcome), "seconds": round(outcome.seconds, 2)}
                for outcome in self.outcomes
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the report that `as_dict` wrote.

        Args:
            values: The dict, which follows the schema.
        """
        outcomes = tuple(Outcome(**claim) for claim in values["claims"])
        planned = len(outcomes) + values["not_reached"]
        return cls(values["facts"], outcomes, values["interrupted"], planned=planned)

    def __str__(self) -> str:
        lines = [self.headline, "", *_rows("", self.facts)]
        for title, outcomes in (
            ("Differed", self.differences),
            ("Not run", self.not_run),
            ("Held", self._with("holds")),
        ):
            if outcomes:
                lines += ["", title, *(line for outcome in outcomes for line in _lines(outcome))]
        seconds = sum(outcome.seconds for outcome in self.outcomes)
        return plain("\n".join([*lines, "", f"Took {duration(round(seconds))}."]))

    __repr__ = __str__

    def _with(self, status: Status) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.status == status)


def schema() -> dict[str, Any]:
    """Return the JSON schema of the report."""
    text = Path(__file__).with_name("verify_report.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def is_final(report: VerifyReport) -> bool:
    """Return whether the process of a report did not die: it came to its end or was interrupted."""
    died = report.not_reached or any(each.found == DIED for each in report.outcomes)
    return report.interrupted or not died


def merged(reports: Sequence[VerifyReport], *, to_come: int = 0) -> VerifyReport:
    """Return the reports of several frameworks on one TPU as one.

    Args:
        reports: The reports.
        to_come: The number of frameworks whose claims have not been tried yet.
    """
    facts: dict[str, str] = {}
    for report in reports:
        facts = {**report.facts, **facts}
    return VerifyReport(
        {"TPU": "not known", **facts},
        tuple(outcome for report in reports for outcome in report.outcomes),
        any(report.interrupted for report in reports),
        any(report.hangs for report in reports),
        sum(len(report.outcomes) + report.not_reached for report in reports) + to_come,
    )


def _lines(outcome: Outcome) -> list[str]:
    """Return one line for a claim that holds, and all details of any other claim."""
    title = f"  {outcome.group}: {outcome.name}"
    if outcome.status == "holds":
        message = f": {outcome.message}" if outcome.message else ""
        return [shortened(_one_line(f"{title}: {outcome.found}{message}"), _LONGEST)]
    if outcome.status == "not run":
        return [title, *_rows("    ", {"because": outcome.found})]
    rows = {"claim": outcome.says, "expected": outcome.expected, "found": outcome.found}
    return [title, *_rows("    ", {**rows, "message": outcome.message})]


def _rows(indent: str, rows: Mapping[str, str]) -> list[str]:
    """Return names and texts in two columns."""
    width = max(map(len, rows), default=0)
    return [
        hanging(f"{indent}{name:<{width}}  ", _one_line(text), _WIDTH)
        for name, text in rows.items()
        if text
    ]


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text)


def scrubber(names: Iterable[str | None] = ()) -> Callable[[str], str]:
    """Return a function that removes traces of the place from a text.

    Its result has a bounded length, and contains no addresses, paths, names or secrets.

    Args:
        names: Names that must not be in the text, such as names of TPUs, zones, projects.
    """
    secrets = secrets_in(os.environ)
    hidden = [*names, socket.gethostname(), Path.home().name]
    with contextlib.suppress(OSError, KeyError, ImportError):  # the user has no entry
        hidden.append(getpass.getuser())
    long = {name.strip() for name in hidden if name and len(name.strip()) >= _SHORTEST_NAME}
    words = "|".join(map(re.escape, sorted(long, key=len, reverse=True)))
    named = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None

    def scrub(text: str) -> str:
        parts = _IDENTIFIERS.split(text)
        parts[::2] = [mask(part, secrets) for part in parts[::2]]
        text = _PATHS.sub("<path>", _ADDRESSES.sub("<address>", "".join(parts)))
        if named is not None:
            text = named.sub("<name>", text)
        if len(text) > _MOST_CHARACTERS:
            half = _MOST_CHARACTERS // 2
            # In an error from a tf.function, the message is at the end, below the source lines.
            text = f"{text[:half]} […] {text[-half:]}"
        return text

    return scrub
