"""The options of `%tpu_connect`, which are those of `tpunb.connect`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.magic_arguments import argument

from tpunb.connection.request import argument_of, options

_Magic = TypeVar("_Magic", bound=Callable[..., Any])


def connect_options(magic: _Magic) -> _Magic:
    """Gives a magic one argument for each option of `tpunb.connect`, with the same defaults."""
    for option in reversed(options()):
        flag, settings = argument_of(option)
        magic = argument(flag, **settings)(magic)
    return magic
