"""The parsers of the magics, the commands and pytest's plugin, by the name that users type."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator

from tpunb.cli import parser_of_commands
from tpunb.notebook.magics import TpuMagics
from tpunb.pytest_plugin import pytest_addoption

_CODES = re.compile(r"^exit codes?: .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


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


def pytest_options() -> list[argparse.Action]:
    """Return the options of the plugin for pytest."""
    group = _Group()
    pytest_addoption(group)  # type: ignore[arg-type]
    return options(group.parser)


class _Group:
    """A parser of pytest that keeps the options in a parser of argparse."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser()
        self.addoption = self.parser.add_argument

    def getgroup(self, *_: str) -> _Group:
        return self


def exit_codes(parser: argparse.ArgumentParser) -> str:
    """Return the paragraph about the exit codes of a command, or an empty text."""
    codes = _CODES.search(parser.epilog or "")
    return codes[0].strip() if codes else ""


def described(parser: argparse.ArgumentParser) -> str:
    """Return a command's description, without this machine's path and without the epilog below."""
    text = parser.description or ""
    return text.replace(sys.executable, "sys.executable").replace(": see below", "")


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
