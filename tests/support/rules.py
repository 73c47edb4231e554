"""The rules of a check, without the TPU's own compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpunb.tensorflow.checks.keras_models import strategy_for
from tpunb.tensorflow.checks.rule_check import CheckReport, examined
from tpunb.tensorflow.checks.untouched import untouched


def check(fn: Callable[..., Any], *args: Any, strategy: Any = None) -> CheckReport:
    """Check a function as `tpunb.check` does, by the rules of the virtual TPU alone."""
    with untouched(fn, args):
        return examined(fn, args, strategy_for(fn, strategy))[0]
