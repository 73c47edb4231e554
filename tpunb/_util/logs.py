"""Logs for debugging. `TPUNB_LOG=debug` writes them to standard error.

The loggers are the standard library's, below `tpunb`: `tpunb.connection`, `tpunb.cells`,
`tpunb.replicate`, and so on. Without the variable they are silent, like any library's, unless
the program configures them.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tpunb._util.secret_masking import mask

VARIABLE = "TPUNB_LOG"
"""The environment variable that sets the level."""

NAMES = {"names": True}
"""The `extra` of a record of names of operations, which look like secrets."""

_FORMAT = "%(asctime)s.%(msecs)03d %(name)s: %(message)s"
_OFF = frozenset({"", "0", "false", "no", "off"})

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class _MaskingFormatter(logging.Formatter):
    """A formatter that hides text that looks like a secret, except in records of `NAMES`."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if getattr(record, "names", False) else mask(text)


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler for the current standard error, which kernels and tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        if self.stream is not None:  # None in a process without a console
            super().emit(record)


def logger(name: str) -> logging.Logger:
    """Return the logger `tpunb.name`, configured from the environment.

    Args:
        name: The part of tpunb, such as `"connection"`.
    """
    _configure_once()
    return logging.getLogger(f"tpunb.{name}")


def configure(value: str) -> None:
    """Set the level, and add a handler that writes to standard error.

    Args:
        value: A level's name, such as `"debug"` or `"info"`. Any other value that is not a
            clear no means `"debug"`.
    """
    if value.strip().lower() in _OFF:
        return
    top = logging.getLogger("tpunb")
    level = logging.getLevelName(value.strip().upper())
    top.setLevel(level if isinstance(level, int) else logging.DEBUG)
    if not any(isinstance(handler, _StandardError) for handler in top.handlers):
        handler = _StandardError()
        handler.setFormatter(_MaskingFormatter(_FORMAT, "%H:%M:%S"))
        top.addHandler(handler)
    top.propagate = False  # absl, which TensorFlow imports, prints every record of the root


@functools.cache
def _configure_once() -> None:
    configure(os.environ.get(VARIABLE, ""))


def timed(
    name: str, action: str
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return a decorator that logs the time of each call of a function.

    Args:
        name: The logger's name, as for `logger`.
        action: The function's action, such as `"trace the replica function"`.
    """
    log = logger(name)

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(function)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            if not log.isEnabledFor(logging.DEBUG):
                return function(*args, **kwargs)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                log.debug("%s: %.3f s", action, time.perf_counter() - begin)

        return call

    return decorate
