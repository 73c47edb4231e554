"""`verify()`: tries tpunb's claims about every TPU on one TPU, real or virtual."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tpunb import framework
from tpunb._util.deadline import Running
from tpunb._util.logs import logger
from tpunb._util.units import duration
from tpunb.connection.connect import make_connection
from tpunb.connection.options import Request, takes
from tpunb.connection.plan import Plan, resolve
from tpunb.connection.tpu_connection import TpuConnection, open_connections
from tpunb.display.live_progress import ConnectDisplay
from tpunb.display.widgets.frontend import shows_widgets
from tpunb.errors import ConnectError
from tpunb.verification.facts import facts_of
from tpunb.verification.report import DIED, VerifyReport, scrubber
from tpunb.verification.suite import ConnectedTpu, NotRunError, Outcome, Suite, message_of

_LIMIT = 180.0

_log = logger("verification")


@takes(Request)
def verify(tpu: str | None = None, **values: Any) -> VerifyReport:
    """Connect to a TPU and try tpunb's claims about every TPU on it, in a few minutes.

    The claims concern topology, replica ids, collectives, variables, numbers, training,
    strictness, known errors, interrupting and connecting again. With `framework="jax"`, they
    concern JAX's devices, arrays, numbers, collectives, training, refusals, kernels, the memory
    of programs and the time of steps. An interrupt ends the verification with the outcomes so
    far.

    Example:
        >>> report = tpunb.verify("local")  # doctest: +SKIP
        >>> report.ok, report.differences  # doctest: +SKIP
        (True, ())

    Returns:
        A report that displays itself and can be attached to an issue. It says where the TPU
        differs from the claims, and contains no secrets, addresses, paths or names.

    Raises:
        ConnectError: The TPU does not exist or does not answer, or a connection is open.
    """
    plan = resolve(Request.of(tpu, **values))
    if not shows_widgets():
        return verify_plan(plan)
    with ConnectDisplay("Verified.", "Not verified.") as shown:

        def progress(number: int, total: int, outcome: Outcome) -> None:
            shown.say(f"{number} of {total} claims tried: {outcome.group}")

        return verify_plan(plan, say=shown.say, progress=progress)


def verify_plan(
    plan: Plan,
    *,
    suites: Sequence[type[Suite]] | None = None,
    say: Callable[[str], None] | None = None,
    progress: Callable[[int, int, Outcome], object] | None = None,
    so_far: Callable[[VerifyReport], object] | None = None,
) -> VerifyReport:
    """Connect as planned and try claims. See `verify`.

    Args:
        plan: The resolved request. A TPU that was found is not replaced by a virtual one.
        suites: The suites to try. By default, all suites.
        say: Called with a description of each step of connecting.
        progress: Called with each outcome's number, from 1, the number of claims, and the
            outcome.
        so_far: Called with the report to keep if the process dies: before each claim, and at the
            end.
    """
    # Otherwise models might be lost, or their work might be measured.
    if open_connections():
        raise ConnectError(
            "A connection to a TPU is open, but verifying needs its own connection.",
            fix="Close the open connection first: %tpu_disconnect, or connection.close().",
        )
    plan = dataclasses.replace(plan, fallback=False)

    def connect() -> TpuConnection:
        return make_connection(plan, say)

    names = [plan.request.zone, plan.request.project]
    if plan.kind == "hardware" and plan.tpu != "local":
        names.append(plan.tpu)
    trial = Trial(ConnectedTpu(connect, connect()), scrubber(names))
    try:
        suites = framework.of(plan.framework).suites() if suites is None else suites
        total = sum(len(suite.claims()) for suite in suites)
        facts = facts_of(trial.tpu.connection, plan)
        outcomes: list[Outcome] = []
        try:
            for suite, claim in trial.claims(suites):
                if so_far is not None:
                    so_far(VerifyReport(facts, (*outcomes, claim), planned=total))
                outcomes.append(trial.outcome(suite, claim))
                if progress is not None:
                    progress(len(outcomes), total, outcomes[-1])
        except KeyboardInterrupt:  # between two claims
            trial.interrupted = True
        report = VerifyReport(facts, tuple(outcomes), trial.interrupted, trial.hangs, total)
        if so_far is not None:
            so_far(report)
        return report
    finally:
        if not trial.hangs:  # closing would wait for a claim that hangs
            trial.tpu.connection.close()


@dataclasses.dataclass
class Trial:
    """A trial of claims, one after the other. The outcome of one claim does not end the others.

    Attributes:
        tpu: The TPU on which to try them.
        scrub: Removes traces of the place from a text.
        limit: Seconds for each claim. The framework may still wait in a claim that takes longer,
            so the claims after it are not run.
        interrupted: Whether the stop button ended the trial.
        hangs: Whether a claim took too long, and may still run.
    """

    tpu: ConnectedTpu
    scrub: Callable[[str], str]
    limit: float = _LIMIT
    interrupted: bool = False
    hangs: bool = False

    def claims(self, suites: Sequence[type[Suite]]) -> Iterator[tuple[Suite, Outcome]]:
        """Yield each claim with its suite and with the outcome that it has if the process dies."""
        for suite in (kind(self.tpu) for kind in suites):
            for name, says in suite.claims().items():
                yield (
                    suite,
                    Outcome(group=suite.group, name=name, says=says, status="differs", found=DIED),
                )

    def outcome(self, suite: Suite, claim: Outcome) -> Outcome:
        """Return the outcome of trying a claim."""
        begin = time.perf_counter()
        outcome = self._outcome(suite, claim.name)
        _log.debug("%s: %s: %s", claim.group, claim.name, outcome.status)
        return dataclasses.replace(
            claim,
            status=outcome.status,
            expected=self.scrub(outcome.expected),
            found=self.scrub(outcome.found),
            message=self.scrub(outcome.message),
            seconds=time.perf_counter() - begin,
        )

    def _outcome(self, suite: Suite, name: str) -> Outcome:
        """Try a claim, in a thread so that a wait of the framework cannot block the others."""

        def attempt() -> Outcome:
            try:
                return suite.attempt(name)
            except TimeoutError as error:  # the claim's own, not the thread's
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        if self.hangs:
            return Outcome(status="not run", found="an earlier claim did not end")
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
    """Silence warnings and TensorFlow's log, which claims provoke on purpose."""
    log = logging.getLogger("tensorflow")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before
