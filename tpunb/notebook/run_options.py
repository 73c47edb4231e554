"""The options of `%%tpu_run` and `%%tpu_compile`, read from their lines."""

from __future__ import annotations

import dataclasses
import keyword
import re
from typing import Any

from IPython.core.error import UsageError

from tpunb.cells.settings import RunSettings
from tpunb.tpu.types import accelerator

__all__ = ["CompileOptions", "RunOptions", "data_options", "is_name"]


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
