"""Write the documentation's page of every option of magics, commands and pytest.

    cd tests && python -m options_page

Run the command after a change to an option. A test compares the page.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from interface import commands, magics, meaning, options, usage

from tpunb.notebook.magics import TpuMagics
from tpunb.pytest_plugin import pytest_addoption

PAGE = Path(__file__).parents[1] / "docs" / "options.md"

_START = """\
# Every option

Look up an option of a magic, of the command `tpunb` or of pytest. The texts are those of `--help`.
[Magics, functions, commands](magics.md) explains the options by task, with the functions behind them.

```text
%tpu_connect --help
```

- [Magics](#magics)
- [Commands](#commands), with their exit codes
- [pytest](#pytest)
"""

_CODES = re.compile(r"^exit codes?: .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
_EXAMPLES = re.compile(r"\n *(?:Examples?)::\n\n(.*?)(?=\n\S|\Z)", re.DOTALL)


def page() -> str:
    """Return the page."""
    return "\n".join([_START, *_magics(), *_commands(), *_pytest()])


def _magics() -> Iterator[str]:
    yield "## Magics\n"
    for name, parser in magics().items():
        text = inspect.cleandoc(getattr(TpuMagics, name.strip("%")).__doc__ or "")
        described = inspect.cleandoc(parser.description or text)
        yield f"### `{name}`\n"
        yield f"{_markdown(described.partition(chr(10) * 2)[0])}\n"
        if example := _EXAMPLES.search(described):
            yield f"```text\n{inspect.cleandoc(example[1])}\n```\n"
        yield from _table(parser)


def _commands() -> Iterator[str]:
    yield "## Commands\n"
    for name, parser in commands().items():
        yield f"### `{name}`\n"
        yield f"{_markdown(described(parser))}\n"
        yield from _table(parser)
        if codes := exit_codes(parser):
            yield f"E{_markdown(codes)[1:]}.\n".replace("..", ".")


def pytest_options() -> list[argparse.Action]:
    """Return the options of the plugin for pytest."""
    group = _Group()
    pytest_addoption(group)  # type: ignore[arg-type]
    return options(group.parser)


def exit_codes(parser: argparse.ArgumentParser) -> str:
    """Return the paragraph about the exit codes of a command, or an empty text."""
    codes = _CODES.search(parser.epilog or "")
    return codes[0].strip() if codes else ""


def described(parser: argparse.ArgumentParser) -> str:
    """Return a command's description, without this machine's path and without the epilog below."""
    text = parser.description or ""
    return text.replace(sys.executable, "sys.executable").replace(": see below", "")


def _pytest() -> Iterator[str]:
    yield "## pytest\n"
    yield "The plugin is part of tpunb, and pytest finds it. The fixture is `tpu_compiler`.\n"
    yield from _rows((usage(each), each.help or "") for each in pytest_options())


class _Group:
    """A parser of pytest that keeps the options in a parser of argparse."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser()
        self.addoption = self.parser.add_argument

    def getgroup(self, *_: str) -> _Group:
        return self


def _table(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from _rows((usage(each), meaning(parser, each)) for each in options(parser))


def _rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = [f"| `{_cell(option)}` | {_cell(_markdown(text))} |" for option, text in rows]
    if lines:
        yield "| option | meaning |\n|---|---|"
        yield from [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _markdown(text: str) -> str:
    """Return a text on one line, with names that Markdown would change as code."""
    text = " ".join(text.replace("``", "`").split())
    return re.sub(
        r"(?<![`\w.-])(%%?\w+|--?[a-z][\w-]*|[\w.]*_\w+(?:=\w+)?)(?![`\w])", r"`\1`", text
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
