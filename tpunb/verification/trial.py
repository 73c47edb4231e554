"""Tries claims one after the other; what becomes of one does not end the others."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Iterator

from tpunb._util.deadline import bounded
from tpunb._util.logs import logger
from tpunb._util.units import duration
from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claim
from tpunb.verification.observation import NotRunError, Observation
from tpunb.verification.observing import message_of
from tpunb.verification.report import DIFFERS, HOLDS, NOT_RUN, Outcome

__all__ = ["Trial"]

_log = logger("verification")


class Trial:
    """Tries claims.

    Args:
        bench: What they are tried on.
        claims: The claims.
        limit: Seconds for each; TensorFlow may be left waiting where one takes longer, so
            that the claims after it are not run.

    Attributes:
        interrupted: Whether the stop button has ended it.
        hangs: Whether a claim has taken too long, and may run on.
    """

    def __init__(self, bench: Bench, claims: tuple[Claim, ...], limit: float) -> None:
        self.interrupted = self.hangs = False
        self._bench, self._claims, self._limit = bench, claims, limit

    def outcomes(self) -> Iterator[Outcome]:
        """What becomes of each claim, as soon as it is known."""
        for claim in self._claims:
            begin = time.perf_counter()
            outcome = self._left_out(claim) or self._tried(claim)
            _log.debug("%s: %s: %s", claim.group, claim.name, outcome.status)
            yield _taking(outcome, time.perf_counter() - begin)

    def _left_out(self, claim: Claim) -> Outcome | None:
        if self.interrupted:
            return Outcome.of(claim, NOT_RUN, "interrupted")
        if self.hangs:
            return Outcome.of(claim, NOT_RUN, "a claim before it has not ended")
        return None

    def _tried(self, claim: Claim) -> Outcome:
        try:
            seen = self._seen(claim)
        except NotRunError as reason:
            return Outcome.of(claim, NOT_RUN, str(reason))
        except KeyboardInterrupt:
            self.interrupted = True
            return Outcome.of(claim, NOT_RUN, "interrupted")
        except TimeoutError:
            self.hangs = True
            return Outcome.of(claim, DIFFERS, f"it does not end in {duration(self._limit)}")
        except Exception as error:
            _log.debug("%s: %s", claim.group, claim.name, exc_info=True)
            return Outcome.of(claim, DIFFERS, "an error", message=message_of(error))
        status = HOLDS if seen.holds else DIFFERS
        return Outcome.of(claim, status, seen.found, expected=seen.expected, message=seen.message)

    def _seen(self, claim: Claim) -> Observation:
        def observe() -> Observation:
            return claim.observe(self._bench)

        with warnings.catch_warnings(), _silenced_logs():
            warnings.simplefilter("ignore")
            if claim.on_main_thread:
                return observe()
            return _within(observe, self._limit)


@contextlib.contextmanager
def _silenced_logs() -> Iterator[None]:
    """TensorFlow's own warnings and errors, of what claims do on purpose, written nowhere."""
    log = logging.getLogger("tensorflow")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _within(call: Callable[[], Observation], seconds: float) -> Observation:
    """Makes a call in a thread, where no wait of TensorFlow's can hold up the others.

    Raises:
        TimeoutError: It does not end in time; one that it raises itself is a `RuntimeError`.
    """

    def called() -> Observation:
        try:
            return call()
        except TimeoutError as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return bounded(called, time.monotonic() + seconds)


def _taking(outcome: Outcome, seconds: float) -> Outcome:
    return dataclasses.replace(outcome, seconds=seconds)
