"""`verify()`: tries on a TPU, real or virtual, what this package says of every TPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tpunb.connection.connect import make_connection
from tpunb.connection.connection import open_connections
from tpunb.connection.plan import Plan, resolve
from tpunb.connection.request import Request, takes
from tpunb.display.progress import ConnectDisplay
from tpunb.display.widgets.frontend import shows_widgets
from tpunb.errors import ConnectError
from tpunb.verification.bench import Bench
from tpunb.verification.catalogue import CLAIMS
from tpunb.verification.claims import Claim
from tpunb.verification.facts import facts_of
from tpunb.verification.report import Outcome, VerifyReport
from tpunb.verification.scrubber import Scrubber
from tpunb.verification.trial import Trial

__all__ = ["verify", "verify_plan"]

_LIMIT = 180.0

Progress = Callable[[int, int, Outcome], object]


@takes(Request)
def verify(tpu: str | None = None, **values: Any) -> VerifyReport:
    """Connects to a TPU and tries on it what this package says of every TPU, in some minutes.

    Topology, replica ids, collectives, variables, numbers, training, strictness, known
    errors, interrupting and connecting again. An interrupt ends it with what is known.

    Returns:
        A report that displays itself, to attach to an issue: where the TPU and the claims
        differ. It holds no secrets, addresses, paths or names.

    Raises:
        ConnectError: There is no such TPU, it does not answer, or a connection is open.
    """
    plan = resolve(Request.of(tpu, **values))
    if not shows_widgets():
        return verify_plan(plan)
    with ConnectDisplay("Verified.", "Not verified.") as shown:

        def progress(number: int, total: int, outcome: Outcome) -> None:
            shown.say(f"{number} of {total} claims tried, {outcome.group}")

        return verify_plan(plan, say=shown.say, progress=progress)


def verify_plan(
    plan: Plan,
    *,
    claims: tuple[Claim, ...] = CLAIMS,
    limit: float = _LIMIT,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Connects as planned and tries claims; see `verify`.

    Args:
        plan: What to connect to.
        claims: What to try.
        limit: Seconds for each claim.
        say: Called with what is being done while it connects.
        progress: Called with each outcome, its number from 1 and how many there will be.
    """
    _refuse_open_connections()
    scrub = Scrubber(_names(plan))
    bench = Bench(lambda: make_connection(plan, say))
    trial = Trial(bench, claims, limit)
    try:
        facts = dict(facts_of(bench.connection))
        outcomes = []
        for outcome in trial.outcomes():
            outcomes.append(outcome.scrubbed(scrub))
            if progress is not None:
                progress(len(outcomes), len(claims), outcomes[-1])
        return VerifyReport(facts, tuple(outcomes), trial.interrupted, trial.hangs)
    finally:
        if not trial.hangs:  # closing would wait for what hangs
            bench.connection.close()


def _refuse_open_connections() -> None:
    """Raises if somebody's models would be lost, or what they did would be measured."""
    if open_connections():
        raise ConnectError(
            "A connection to a TPU is open, and verifying connects anew.",
            fix="Close it first: %tpu_disconnect, or connection.close().",
        )


def _names(plan: Plan) -> Iterator[str | None]:
    """What the TPU is called, and where it is."""
    request = plan.request
    yield from (request.zone, request.project)
    if plan.kind == "hardware" and plan.tpu != "local":
        yield plan.tpu
    for address in request.addresses:
        yield address.rpartition(":")[0]
