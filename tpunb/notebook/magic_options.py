"""The options of the magics, each defined once, and the parsing of their values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import keyword
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from tpunb._util.options import argument_of, options_of, parts
from tpunb.cells.settings import CompileSettings
from tpunb.connection.options import Request
from tpunb.errors import nearest
from tpunb.training.checkpoint_settings import CheckpointSettings

_Magic = TypeVar("_Magic", bound=Callable[..., Any])


def is_name(text: str) -> bool:
    """Return whether a text can be a name in Python."""
    return text.isidentifier() and not keyword.iskeyword(text)


def _name(option: str, text: str) -> str:
    if not is_name(text):
        raise UsageError(f"{option} takes a Python name, not {text!r}")
    return text


def _names(option: str, text: str) -> tuple[str, ...]:
    """Read `x,y`; the names of data may have dots."""
    names = tuple(parts(text))
    for name in names:
        if not all(map(is_name, name.split(".") if option == "-d" else [name])):
            raise UsageError(f"{option} takes names such as x,y, not {text!r}")
    return names


def _count(option: str, text: str) -> int:
    if not re.fullmatch(r"\+?0*[1-9]\d*", text):
        raise UsageError(f"{option} takes a number of at least 1, not {text}")
    return int(text)


def _interval(text: str) -> tuple[int | None, float | None]:
    """Read `100`, a number of steps, or `30s`, a number of seconds."""
    if re.fullmatch(r"0*[1-9]\d*", text):
        return int(text), None
    if re.fullmatch(r"\d+(\.\d+)?s", text):
        return None, float(text[:-1])
    raise UsageError(f"--checkpoint-every takes steps, as in 100, or seconds, as in 30s: {text!r}")


def _reductions(text: str) -> list[tuple[str, str]]:
    """Read `loss=mean,total=sum`."""
    reductions = []
    for part in parts(text):
        name, _, operation = part.partition("=")
        if operation not in {"mean", "sum"} or not is_name(name):
            raise UsageError(f"-r takes NAME=mean or NAME=sum, not {part!r}")
        reductions.append((name, operation))
    return reductions


def _gathers(text: str) -> list[tuple[str, int]]:
    """Read `logits,labels:1`."""
    gathers = []
    for part in parts(text):
        name, _, axis = part.partition(":")
        if not is_name(name) or not re.fullmatch(r"(-?\d+)?", axis):
            raise UsageError(f"-g takes NAME or NAME:AXIS, not {part!r}")
        gathers.append((name, int(axis or 0)))
    return gathers


def _targets(text: str) -> list[slice]:
    """Read `0,2:4` as slices of replicas."""
    if not re.fullmatch(r"\d+(:\d*)?(,\d+(:\d*)?)*", text):
        raise UsageError(f"-t takes replicas such as 0,2:4, not {text!r}")
    slices = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        start = int(first)
        slices.append(slice(start, (int(last) if last else None) if colon else start + 1))
    return slices


def _arguments_of_fields(kind: Any) -> list[argument]:
    """Return the options that are fields of a dataclass, with the same defaults."""
    fields = [field for field in options_of(kind) if field.metadata["in_lines"]]
    return [argument(flag, **settings) for flag, settings in map(argument_of, fields)]


_DATA = argument(
    "-d",
    "--data",
    type=functools.partial(_names, "-d"),
    default=(),
    metavar="NAME",
    help="take a batch for each step from this dataset, iterator, function or arrays (x,y)",
)
_AS = argument(
    "--as",
    dest="names",
    type=functools.partial(_names, "--as"),
    default=("batch",),
    metavar="NAMES",
    help="the cell's name for a batch, or x,y for its parts (default: batch)",
)
_OUT = argument(
    "-o",
    "--out",
    type=functools.partial(_name, "-o"),
    metavar="NAME",
    help="keep the displayed result under a name",
)

RUN = (
    _DATA,
    argument(
        "-n",
        "--steps",
        type=functools.partial(_count, "-n"),
        metavar="N",
        help="make N steps; by default to the end of the data",
    ),
    argument(
        "-k",
        "--steps-per-loop",
        type=functools.partial(_count, "-k"),
        metavar="K",
        help="steps inside one tf.function; chosen by measuring unless given",
    ),
    _AS,
    argument(
        "-p",
        "--plot",
        action="extend",
        type=functools.partial(_names, "-p"),
        default=[],
        metavar="NAMES",
        help="draw curves of these numbers while it runs",
    ),
    argument(
        "--restart", action="store_true", help="start over, and do not continue a stopped run"
    ),
    _OUT,
    argument(
        "-t",
        "--targets",
        type=_targets,
        default=[],
        metavar="0,2:4",
        help="show only these replicas",
    ),
    argument(
        "-r",
        "--reduce",
        action="extend",
        type=_reductions,
        default=[],
        metavar="NAME=mean|sum",
        help="combine a name over the replicas; _ is the last expression",
    ),
    argument(
        "-g",
        "--gather",
        action="extend",
        type=_gathers,
        default=[],
        metavar="NAME[:AXIS]",
        help="concatenate a name over the replicas (axis 0)",
    ),
    argument(
        "--checkpoint",
        metavar="DIR",
        help="save the run in this folder, and continue it from there after a restart",
    ),
    argument(
        "--checkpoint-every",
        type=_interval,
        metavar="N|Ns",
        help="save every N steps, or every N seconds with an s (default: 60s)",
    ),
    argument("--check", action="store_true", help="first check for the TPU, as %%%%tpu_check does"),
    argument(
        "--time",
        action="store_true",
        dest="timed",
        help="show how long tracing and the step took",
    ),
    argument("--verbose", action="store_true", help="show whether and why the cell was traced"),
)
COMPILE = (
    *_arguments_of_fields(CompileSettings),
    argument(
        "--search",
        action="store_true",
        help="for a call of JAX: look for the layout that fits and is fastest",
    ),
    argument(
        "--input",
        action="store_true",
        dest="input_speed",
        help="measure how fast -d delivers, and compare it with the TPU's estimate",
    ),
    _DATA,
    _AS,
    _OUT,
)
CHECK = (
    _DATA,
    _AS,
    argument(
        "--compare",
        action="store_true",
        help="also run the step on copies of the variables, on all replicas and on one, and "
        "compare the gradients",
    ),
    _OUT,
)
PROFILE = (
    argument(
        "--keep", metavar="DIR", help="keep the recording in this folder, for TensorBoard or xprof"
    ),
    _OUT,
)
CONNECT = (
    *_arguments_of_fields(Request),
    argument(
        "--as",
        dest="name",
        type=functools.partial(_name, "--as"),
        default="strategy",
        help="the strategy's name (default: strategy)",
    ),
)
"""An option for each parameter of `tpunb.connect`, with the same defaults."""


def options(*arguments: argument) -> Callable[[_Magic], _Magic]:
    """Return a decorator that adds options to a magic."""

    def give(magic: _Magic) -> _Magic:
        for option in reversed(arguments):
            magic = option(magic)
        return magic

    return give


def answering_help(magic: _Magic) -> _Magic:
    """Return a magic that prints its help for `--help`, and does nothing else."""

    @functools.wraps(magic)
    def call(line: str, *cell: str) -> Any:
        words = line.split()
        takes_code = magic.__name__ == "tpu_profile"  # only the first word is an option for sure
        if {"-h", "--help"} & set(words[:1] if takes_code else words):
            sys.stdout.write(f"{inspect.getdoc(magic)}\n")
            return None
        return magic(line, *cell)

    return cast("_Magic", call)


def arguments_of(magic: Callable[..., Any], line: str) -> Any:
    """Return a magic's arguments, split as in a shell: quotes are not part of a value.

    Raises:
        UsageError: An argument is unknown, or its value does not fit.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{error} in: {line}") from None
    parser = magic.parser  # type: ignore[attr-defined]
    parser.allow_abbrev = False
    try:
        arguments, unknown = parser.parse_known_args(words)
    except UsageError as error:
        bare = re.fullmatch(r"argument (-[^:/]+)(?:/\S+)?: expected one argument", str(error))
        if bare is None:
            raise
        values = [
            a.metavar or a.dest.upper() for a in parser._actions if bare[1] in a.option_strings
        ]
        raise UsageError(f"{bare[1]} needs a value: {bare[1]} {values[0]}") from None
    if (dashless := _bare_option(parser, words, arguments, unknown)) is not None:
        raise UsageError(f"{dashless[0]} is an option: did you mean {' '.join(dashless[1])}?")
    if unknown:
        options = [name for action in parser._actions for name in action.option_strings]
        near = nearest(unknown[0].partition("=")[0], options, most=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return arguments


def _bare_option(
    parser: Any, words: Sequence[str], arguments: Any, unknown: Sequence[str]
) -> tuple[str, list[str]] | None:
    """Return an option's name that is written as a value, and the words with its dashes.

    Args:
        parser: The magic's parser.
        words: The words of the line.
        arguments: The arguments that the parser has found.
        unknown: The words that it does not know.
    """
    long = {name[2:] for a in parser._actions for name in a.option_strings if name[:2] == "--"}
    values = [getattr(arguments, a.dest) for a in parser._actions if not a.option_strings]
    for place, word in enumerate(words):
        name = word.partition("=")[0].lower()
        if name in long and (word in values or word in unknown):
            return word, [*words[:place], f"--{name}{word[len(name) :]}", *words[place + 1 :]]
    return None


def checkpoint_settings(args: Any) -> CheckpointSettings | None:
    """Return the settings of a run's checkpoints from the arguments of `%%tpu_run`.

    Raises:
        UsageError: An interval was given without a folder.
    """
    if args.checkpoint is None:
        if args.checkpoint_every is not None:
            raise UsageError("--checkpoint-every needs a folder: add --checkpoint DIR")
        return None
    steps, seconds = args.checkpoint_every or (None, None)
    folder = args.checkpoint
    if "://" not in folder:  # an address such as gs://bucket/run stays as it is
        folder = str(Path(folder).expanduser())
    settings = CheckpointSettings(folder, every=steps, restart=args.restart)
    return settings if seconds is None else dataclasses.replace(settings, seconds=seconds)
