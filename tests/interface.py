"""The parsers of the magics and of the commands, by the name that users type."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from tpunb.cli import parser_of_commands
from tpunb.notebook.magics import TpuMagics


def magics() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each magic, as users write it: `%tpu_connect`, `%%tpu_run`."""
    named = {}
    for kind, percent in (("line", "%"), ("cell", "%%")):
        for name in TpuMagics.magics[kind].values():
            if parser := getattr(getattr(TpuMagics, name), "parser", None):
                named[f"{percent}{name}"] = parser
    return named


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command and subcommand: `tpunb run`, `tpunb kernel install`."""
    return dict(_commands(parser_of_commands()))


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _commands(each)


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments of a parser, except for its help and its commands."""
    other = argparse._HelpAction, argparse._SubParsersAction
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [action for action in shown if not isinstance(action, other)]


def usage(action: argparse.Action) -> str:
    """Return an option or argument as users write it: `-d, --data NAME`."""
    value = _value(action)
    if not action.option_strings:
        return f"[{value}]" if action.nargs in ("?", "*") else value
    if action.nargs == "?":
        value = f"[{value}]"
    return ", ".join(action.option_strings) + (f" {value}" if value else "")


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is None and action.choices:
        return "|".join(map(str, action.choices))
    name = action.metavar or action.dest.upper()
    return name if isinstance(name, str) else " ".join(name)


def meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help of an option, without the paths of this machine."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return text.replace(sys.prefix, "sys.prefix")
