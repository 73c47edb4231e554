"""The options of `%tpu_connect`, which are those of `tpunb.connect`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.magic_arguments import argument

from tpunb.connection.request import options

__all__ = ["connect_options"]

_Magic = TypeVar("_Magic", bound=Callable[..., Any])


def connect_options(magic: _Magic) -> _Magic:
    """Gives a magic one argument for each option of `tpunb.connect`, with the same defaults."""
    for option in reversed(options()):
        flag, settings = _argument(option)
        magic = argument(flag, **settings)(magic)
    return magic


def _argument(option: dataclasses.Field[Any]) -> tuple[str, dict[str, Any]]:
    """The flag of an option, and what argparse is to know of it."""
    settings = {"help": option.metadata["help"], "default": option.default}
    settings |= option.metadata["line"]
    if option.default is False and not option.metadata["line"]:
        settings["action"] = "store_true"
    flag = settings.pop("flag", f"--{option.name.replace('_', '-')}")
    if flag.startswith("-"):
        settings["dest"] = option.name
    if option.default not in (None, True, False):
        settings["help"] += " (default: %(default)s)"
    return flag, settings
