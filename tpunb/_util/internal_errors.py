"""Errors of our own code that a slower way makes good: users never see them, tests fail."""

from __future__ import annotations

import logging
import os

VARIABLE = "TPUNB_RAISE_INTERNAL_ERRORS"
"""The environment variable that makes them fatal. `tests/conftest.py` sets it, so that the
processes that tests start fail as well."""


def report_internal_error(error: Exception, log: logging.Logger, consequence: str) -> None:
    """Log an internal error after the fallback has succeeded.

    Call it only where the fallback works: if the user's program is wrong, the fallback raises
    the error that the user should see.

    Args:
        error: The error of the faster way.
        log: Where it is logged, at the level `DEBUG`.
        consequence: What the fallback costs, as a sentence.

    Raises:
        Exception: The error itself, if `TPUNB_RAISE_INTERNAL_ERRORS` is set.
    """
    if os.environ.get(VARIABLE):
        raise error
    log.debug(consequence, exc_info=error)
