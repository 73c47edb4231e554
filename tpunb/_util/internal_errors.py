"""Errors of tpunb's own code that a slower way repairs. Users never see them; tests fail."""

from __future__ import annotations

import logging
import os

VARIABLE = "TPUNB_RAISE_INTERNAL_ERRORS"
"""The environment variable that makes internal errors fatal. `tests/conftest.py` sets it, so that
the processes that tests start fail as well."""


def report_internal_error(error: Exception, log: logging.Logger, consequence: str) -> None:
    """Log an internal error after the fallback has succeeded.

    Call it only where the fallback works: if the user's program is wrong, the fallback raises
    the error that the user should see.

    Args:
        error: The error of the faster way.
        log: The logger, which gets it at the level `DEBUG`.
        consequence: The cost of the fallback, in one sentence.

    Raises:
        Exception: The error itself, if `TPUNB_RAISE_INTERNAL_ERRORS` is set.
    """
    if os.environ.get(VARIABLE):
        raise error
    log.debug(consequence, exc_info=error)
