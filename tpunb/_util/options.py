"""Options that are written once, as fields of a dataclass, for functions, magics and commands."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any


def option(
    default: Any, text: str, *, compare: bool = True, in_lines: bool = True, **line: Any
) -> Any:
    """Return a field of a dataclass that is an option.

    Args:
        default: The option's default.
        text: The option's help.
        compare: Whether the field counts when two objects are compared.
        in_lines: Whether magics have the option, too; otherwise only functions have it.
        line: How a parser reads the option from its line, as arguments of argparse's
            `add_argument`, if the default does not determine it.
    """
    return dataclasses.field(
        default=default,
        compare=compare,
        metadata={"help": text, "in_lines": in_lines, "line": line},
    )


def options_of(kind: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that are options, in order."""
    return [field for field in dataclasses.fields(kind) if field.metadata]


def argument_of(field: dataclasses.Field[Any]) -> tuple[str, dict[str, Any]]:
    """Return the flag of an option and its settings for argparse."""
    settings = {"help": field.metadata["help"], "default": field.default}
    settings |= field.metadata["line"]
    if field.default is False and not field.metadata["line"]:
        settings["action"] = "store_true"
    elif field.default == ():
        settings["default"] = []  # which argparse extends
    flag = settings.pop("flag", f"--{field.name.replace('_', '-')}")
    if flag.startswith("-"):
        settings["dest"] = field.name
    if field.default not in (None, True, False, ()):
        settings["help"] += " (default: %(default)s)"
    return flag, settings


def parts(text: str) -> list[str]:
    """Read `a,b`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def positive_seconds(text: str) -> float:
    """Read a number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds
