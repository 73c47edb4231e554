"""The options of the magics, each written once, and read from their lines."""

from __future__ import annotations

import dataclasses
import keyword
import re
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand
from IPython.core.magic_arguments import argument

from tpunb.cells.settings import RunSettings
from tpunb.errors import nearest
from tpunb.tpu.types import accelerator

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


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The options of a `%%tpu_run` line.

    Attributes:
        settings: Those of the run, without its data.
        data: The notebook's names for the data.
        out: The name to keep the displayed result under.
        targets: The replicas to show; empty for all.
        check: Whether to check for the TPU first.
        verbose: Whether to show why the cell was traced.
        restart: Whether not to continue a stopped run.
    """

    settings: RunSettings
    data: tuple[str, ...]
    out: str | None
    targets: list[slice]
    check: bool
    verbose: bool
    restart: bool

    @property
    def is_stepped(self) -> bool:
        """Whether the cell is run step after step."""
        asked = self.settings
        return bool(self.data or asked.plot or asked.steps or asked.steps_per_loop)

    @classmethod
    def of(cls, args: Any) -> RunOptions:
        """Reads what the command line's parser has found.

        Raises:
            UsageError: Something is no name, no number or no list of these.
        """
        data, names = data_options(args)
        settings = RunSettings(
            names=names,
            steps=_count(args.steps, "-n"),
            steps_per_loop=_count(args.steps_per_loop, "-k"),
            plot=_names(",".join(args.plot), "-p"),
            reduce=_reductions(args.reduce),
            gather=_gathers(args.gather),
            timed=args.time,
        )
        return cls(
            settings=settings,
            data=data,
            out=_out(args.out),
            targets=_targets(args.targets),
            check=args.check,
            verbose=args.verbose,
            restart=args.restart,
        )


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """The options of a `%%tpu_compile` line.

    Attributes:
        tpus: TPU types; empty for the connection's.
        speed: Whether to estimate the time.
        timeout: Seconds for all of it; None for the default.
        largest_batch: Whether to look for the largest batch that fits.
        data: The notebook's names for the data.
        names: What a batch is called in the cell.
        out: The name to keep the program under.
    """

    tpus: tuple[str, ...]
    speed: bool
    timeout: float | None
    largest_batch: bool
    data: tuple[str, ...]
    names: tuple[str, ...]
    out: str | None

    @classmethod
    def of(cls, args: Any) -> CompileOptions:
        """Reads what the command line's parser has found.

        Raises:
            UsageError: Something is no name, no time or no list of these.
            AcceleratorTypeError: There is no such TPU type.
        """
        if args.timeout is not None and args.timeout <= 0:
            raise UsageError(f"--timeout takes seconds, not {args.timeout:g}")
        data, names = data_options(args)
        if args.largest_batch and not data:
            raise UsageError(
                "--largest-batch needs data whose batch it may change: name it with -d"
            )
        return cls(
            tpus=tuple(accelerator(name).name for name in _parts(args.tpus)),
            speed=args.speed,
            timeout=args.timeout,
            largest_batch=args.largest_batch,
            data=data,
            names=names,
            out=_out(args.out),
        )


def data_options(args: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The notebook's names for the data, and what a batch is called in the cell."""
    return _names(args.data or "", "-d", dotted=True), _names(args.names, "--as")


def _out(name: str | None) -> str | None:
    if name is not None and not is_name(name):
        raise UsageError(f"-o takes a Python name, not {name!r}")
    return name


def _count(count: int | None, option: str) -> int | None:
    if count is not None and count < 1:
        raise UsageError(f"{option} takes a number of at least 1, not {count}")
    return count


def _reductions(options: list[str]) -> dict[str, str]:
    """Reads `loss=mean,total=sum`."""
    found = {}
    for part in _parts(options):
        name, equals, operation = part.partition("=")
        if not equals or operation not in {"mean", "sum"} or not is_name(name):
            raise UsageError(f"-r takes NAME=mean or NAME=sum, not {part!r}")
        found[name] = operation
    return found


def _gathers(options: list[str]) -> dict[str, int]:
    """Reads `logits,labels:1`."""
    found = {}
    for part in _parts(options):
        name, _, axis = part.partition(":")
        if not is_name(name) or not re.fullmatch(r"-?\d*", axis):
            raise UsageError(f"-g takes NAME or NAME:AXIS, not {part!r}")
        found[name] = int(axis) if axis else 0
    return found


def _targets(text: str | None) -> list[slice]:
    """Reads `0,2:4` as slices of replicas."""
    if text is None:
        return []
    if not re.fullmatch(r"\d+(:\d*)?(,\d+(:\d*)?)*", text):
        raise UsageError(f"-t takes replicas such as 0,2:4, not {text!r}")
    slices = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        start = int(first)
        slices.append(slice(start, (int(last) if last else None) if colon else start + 1))
    return slices


def _names(text: str, option: str, *, dotted: bool = False) -> tuple[str, ...]:
    """Reads `x,y` as names."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if not all(is_name(part) for part in (name.split(".") if dotted else [name])):
            raise UsageError(f"{option} takes names such as x,y, not {text!r}")
    return names


def _parts(options: list[str]) -> list[str]:
    return [part for option in options for part in option.split(",") if part]


def is_name(text: str) -> bool:
    """Whether a text can be a name in Python."""
    return text.isidentifier() and not keyword.iskeyword(text)
