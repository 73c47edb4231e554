"""`verify()`: tries on a TPU, real or virtual, what this package says of every TPU."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tpunb._util.deadline import Running
from tpunb._util.logs import logger
from tpunb._util.units import duration
from tpunb.connection.connect import make_connection
from tpunb.connection.connection import Connection, open_connections
from tpunb.connection.plan import Plan, resolve
from tpunb.connection.request import Request, takes
from tpunb.display.live_progress import ConnectDisplay
from tpunb.display.widgets.frontend import shows_widgets
from tpunb.errors import ConnectError
from tpunb.verification.report import VerifyReport, facts_of, scrubber
from tpunb.verification.suite import ConnectedTpu, NotRunError, Outcome, Suite, message_of

_LIMIT = 180.0

_log = logger("verification")


@takes(Request)
def verify(tpu: str | None = None, **values: Any) -> VerifyReport:
    """Connects to a TPU and tries on it what this package says of every TPU, in a few minutes.

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
    suites: Sequence[type[Suite]] | None = None,
    say: Callable[[str], None] | None = None,
    progress: Callable[[int, int, Outcome], object] | None = None,
) -> VerifyReport:
    """Connects as planned and tries claims; see `verify`.

    Args:
        plan: What to connect to.
        suites: What to try; by default everything.
        say: Called with what is being done while it connects.
        progress: Called with each outcome, its number from 1 and how many there will be.
    """
    # Somebody's models would be lost, or what they did would be measured.
    if open_connections():
        raise ConnectError(
            "A connection to a TPU is open, and verifying needs its own.",
            fix="Close it first: %tpu_disconnect, or connection.close().",
        )

    def connect() -> Connection:
        return make_connection(plan, say)

    names = [plan.request.zone, plan.request.project]
    names += [address.rpartition(":")[0] for address in plan.request.addresses]
    if plan.kind == "hardware" and plan.tpu != "local":
        names.append(plan.tpu)
    trial = Trial(ConnectedTpu(connect, connect()), scrubber(names))
    try:
        suites = all_suites() if suites is None else suites
        total = sum(len(suite.claims()) for suite in suites)
        facts = facts_of(trial.tpu.connection, plan)
        outcomes: list[Outcome] = []
        for outcome in trial.outcomes(suites):
            outcomes.append(outcome)
            if progress is not None:
                progress(len(outcomes), total, outcome)
        return VerifyReport(facts, tuple(outcomes), trial.interrupted, trial.hangs)
    finally:
        if not trial.hangs:  # closing would wait for what hangs
            trial.tpu.connection.close()


def all_suites() -> tuple[type[Suite], ...]:
    """Imports the suites, and with them TensorFlow, which has to be set up before.

    Those about refusals come late, those that could leave the TPU unusable last.
    """
    from tpunb.verification import interrupting, refusals, replicas, training

    return (
        replicas.Topology,
        replicas.Replicas,
        replicas.CollectivesInside,
        replicas.CollectivesOutside,
        replicas.Variables,
        training.Numbers,
        training.Training,
        refusals.Rules,
        refusals.KnownErrors,
        interrupting.Interrupting,
        interrupting.Reconnecting,
    )


@dataclasses.dataclass
class Trial:
    """Tries claims one after the other; what becomes of one does not end the others.

    Attributes:
        tpu: The TPU that they are tried on.
        scrub: Takes out of a text what says where it was made.
        limit: Seconds for each; TensorFlow may be left waiting where one takes longer, so
            that the claims after it are not run.
        interrupted: Whether the stop button has ended it.
        hangs: Whether a claim has taken too long, and may run on.
    """

    tpu: ConnectedTpu
    scrub: Callable[[str], str]
    limit: float = _LIMIT
    interrupted: bool = False
    hangs: bool = False

    def outcomes(self, suites: Sequence[type[Suite]]) -> Iterator[Outcome]:
        """Yields the outcome of each claim as soon as it is known."""
        for suite in (kind(self.tpu) for kind in suites):
            for name, says in suite.claims().items():
                begin = time.perf_counter()
                outcome = self._outcome(suite, name)
                _log.debug("%s: %s: %s", suite.group, name, outcome.status)
                yield dataclasses.replace(
                    outcome,
                    group=suite.group,
                    name=name,
                    says=says,
                    expected=self.scrub(outcome.expected),
                    found=self.scrub(outcome.found),
                    message=self.scrub(outcome.message),
                    seconds=time.perf_counter() - begin,
                )

    def _outcome(self, suite: Suite, name: str) -> Outcome:
        """Tries a claim, in a thread where no wait of TensorFlow's can hold up the others."""

        def attempt() -> Outcome:
            try:
                return suite.attempt(name)
            except TimeoutError as error:  # not that of the thread
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        if self.hangs:
            return Outcome(status="not run", found="an earlier claim has not ended")
        try:
            if self.interrupted:
                raise KeyboardInterrupt
            with _silence():
                if suite.on_main_thread:
                    return attempt()
                return Running(attempt).result(time.monotonic() + self.limit)
        except NotRunError as reason:
            return Outcome(status="not run", found=str(reason))
        except KeyboardInterrupt:
            self.interrupted = True
            return Outcome(status="not run", found="interrupted")
        except TimeoutError:
            self.hangs = True
            return Outcome(status="differs", found=f"it did not end within {duration(self.limit)}")
        except Exception as error:
            _log.debug("%s: %s", suite.group, name, exc_info=True)
            return Outcome(status="differs", found="it raised an error", message=message_of(error))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Warnings, and TensorFlow's own log, of what claims do on purpose, written nowhere."""
    log = logging.getLogger("tensorflow")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before
