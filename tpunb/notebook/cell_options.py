"""The options of magics that take a cell, each written once."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand
from IPython.core.magic_arguments import argument

from tpunb.errors import nearest

__all__ = ["arguments_of", "check_options", "compile_options", "profile_options", "run_options"]

_Magic = TypeVar("_Magic", bound=Callable[..., Any])

_DATA = argument(
    "-d",
    "--data",
    metavar="NAME",
    help="take a batch for each step from this dataset, iterator, function or arrays (x,y)",
)
_STEPS = argument(
    "-n", "--steps", type=int, metavar="N", help="make N steps; else to the data's end"
)
_LOOP = argument(
    "-k",
    "--steps-per-loop",
    type=int,
    metavar="K",
    help="steps inside one tf.function; chosen by measuring unless given",
)
_AS = argument(
    "--as",
    dest="names",
    default="batch",
    metavar="NAMES",
    help="what a batch is called in the cell; x,y for its parts (default: batch)",
)
_PLOT = argument(
    "-p",
    "--plot",
    action="append",
    default=[],
    metavar="NAMES",
    help="draw curves of these numbers while it runs",
)
_RESTART = argument(
    "--restart", action="store_true", help="do not continue a stopped run: start over"
)
_OUT = argument("-o", "--out", metavar="NAME", help="keep the displayed result under a name")
_TARGETS = argument("-t", "--targets", metavar="0,2:4", help="show only these replicas")
_REDUCE = argument(
    "-r",
    "--reduce",
    action="append",
    default=[],
    metavar="NAME=mean|sum",
    help="combine a name over the replicas; _ is the last expression",
)
_GATHER = argument(
    "-g",
    "--gather",
    action="append",
    default=[],
    metavar="NAME[:AXIS]",
    help="concatenate a name over the replicas (axis 0)",
)
_CHECK = argument(
    "--check", action="store_true", help="first check for the TPU, as %%%%tpu_check does"
)
_TIME = argument("--time", action="store_true", help="show how long tracing and the step took")
_VERBOSE = argument(
    "--verbose", action="store_true", help="show whether and why the cell was traced"
)
_FOR = argument(
    "--for",
    dest="tpus",
    action="append",
    default=[],
    metavar="TYPE",
    help="TPU types, such as v3-8,v5e-8; by default the connection's",
)
_SPEED = argument(
    "--speed",
    action="store_true",
    help="estimate the time as well, which takes the compiler ten times as long",
)
_LARGEST = argument(
    "--largest-batch", action="store_true", help="look for the largest batch of -d that fits"
)
_TIMEOUT = argument(
    "--timeout",
    type=float,
    metavar="S",
    help="give up after so many seconds (default: 300 for each TPU type)",
)
_KEEP = argument(
    "--keep", metavar="DIR", help="keep what is recorded in this folder, for TensorBoard or xprof"
)

_RUN = (
    *(_DATA, _STEPS, _LOOP, _AS, _PLOT, _RESTART, _OUT),
    *(_TARGETS, _REDUCE, _GATHER, _CHECK, _TIME, _VERBOSE),
)
_COMPILE = (_FOR, _SPEED, _LARGEST, _TIMEOUT, _DATA, _AS, _OUT)
_PROFILE = (_KEEP, _OUT)
_CHECKED = (_DATA, _AS)


def run_options(magic: _Magic) -> _Magic:
    """Gives a magic the options of `%%tpu_run`."""
    return _given(magic, _RUN)


def check_options(magic: _Magic) -> _Magic:
    """Gives a magic the options of `%%tpu_check`."""
    return _given(magic, _CHECKED)


def compile_options(magic: _Magic) -> _Magic:
    """Gives a magic the options of `%%tpu_compile`."""
    return _given(magic, _COMPILE)


def profile_options(magic: _Magic) -> _Magic:
    """Gives a magic the options of `%%tpu_profile`, and leaves its line as it is."""
    return no_var_expand(_given(magic, _PROFILE))  # type: ignore[no-any-return]


def _given(magic: _Magic, options: tuple[argument, ...]) -> _Magic:
    for option in reversed(options):
        magic = option(magic)
    return magic


def arguments_of(magic: Callable[..., Any], line: str) -> Any:
    """A magic's arguments, split as a shell does: quotes are not part of a value."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{error} in: {line}") from None
    parser = magic.parser  # type: ignore[attr-defined]
    parser.allow_abbrev = False
    found, unknown = parser.parse_known_args(words)
    if unknown:
        options = [name for action in parser._actions for name in action.option_strings]
        near = nearest(unknown[0].partition("=")[0], options, most=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return found
