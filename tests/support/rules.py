"""The rules of a check, without the TPU's own compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpunb.virtual.keras_models import strategy_for
from tpunb.virtual.rule_check import CheckReport, examined
from tpunb.virtual.untouched import untouched


def check(fn: Callable[..., Any], *args: Any, strategy: Any = None) -> CheckReport:
    """Check a function as `tpunb.check` does, by the rules of the virtual TPU alone."""
    with untouched(fn, args):
        return examined(fn, args, strategy_for(fn, strategy))[0]
