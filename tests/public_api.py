"""Write the list of everything that a user's program can name, as docs/compatibility.md promises.

    cd tests && python -m public_api

A test compares the list, `tests/public_api.txt`. Run the command after a deliberate change to a
public name, and say in CHANGELOG.md what users have to change.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from interface import commands, exit_codes, magics, options, pytest_options, usage

import tpunb
import tpunb.jax
from tpunb.cells import kept_checkpoints
from tpunb.compiler import fit_report, program_files
from tpunb.compiler.ask import verdict_files
from tpunb.compiler.program import TpuProgram
from tpunb.training.input_speed import InputSpeed
from tpunb.training.profile import Profile
from tpunb.verification import report

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "public_api.txt"
PACKAGE = ROOT / "tpunb"
REFERENCE = ROOT / "docs" / "api.md"
MADE_BY_USERS = {"History", "LiveCurves"}
"""The classes whose constructors users call; tpunb makes the objects of the others."""

FOR_TPUNB = {
    *("CheckReport.compared", "CheckReport.not_compared"),
    *(f"Connection.{name}" for name in ("framework", "lent", "link", "plan", "request")),
    *(f"DoctorReport.{name}" for name in ("hide", "machine", "prospect", "sections")),
    *("History.forget", "History.version", "History.when_changed"),
    *("Explanation.rank", "LiveCurves.async_safe"),
}
"""Members without an underscore that are not for users, and may change in any release."""

INTERNAL = {"TPUNB_RAISE_INTERNAL_ERRORS", "TPUNB_KERNEL", "TPUNB_DRY_REPORT"}
"""Variables for tpunb's own tests, its own kernel specs, and processes that it starts."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def public_api() -> str:
    """Return the list."""
    sections = {
        "Python": _python(),
        "Magics": _parsers(magics()),
        "Commands": _parsers(commands()),
        "Exit codes": _exit_codes(),
        "pytest": [*map(usage, pytest_options()), "fixture tpu_compiler"],
        "Environment variables": sorted(variables()),
        "JSON": _json(),
        "File formats": _formats(),
    }
    return "\n".join(f"# {title}\n" + "\n".join(lines) + "\n" for title, lines in sections.items())


def _python() -> Iterator[str]:
    for name in sorted(tpunb.__all__):
        if name in ("__version__", "history"):
            yield f"tpunb.{name}"
        else:
            yield from _described(f"tpunb.{name}", getattr(tpunb, name))
    for home, name in results():
        yield from _described(
            f"tpunb.{home}.{name}", getattr(importlib.import_module(f"tpunb.{home}"), name)
        )
    for module in sorted({*tpunb._PUBLIC_MODULES} - {"keras", "pytest_plugin"}):
        loaded = importlib.import_module(f"tpunb.{module}")
        for name in sorted(loaded.__all__):
            yield from _described(f"tpunb.{module}.{name}", getattr(loaded, name))
    yield from _described("tpunb.jax.tune", tpunb.jax.tune)
    yield "tpunb.keras.LiveCurves"


def results() -> list[tuple[str, str]]:
    """Return the module and name of each class whose objects tpunb makes."""
    page = REFERENCE.read_text(encoding="utf-8")
    return re.findall(r"^   ([a-z_.]+)\.([A-Z]\w+)$", page, re.MULTILINE)


def _described(name: str, value: Any) -> Iterator[str]:
    """Yield a name with its signature, and the members of a class."""
    if not inspect.isclass(value):
        yield f"{name}{signature(value)}"
    elif issubclass(value, BaseException):
        yield f"{name}({', '.join(base.__name__ for base in value.__bases__)})"
    else:
        made = value.__name__ in MADE_BY_USERS or name.startswith("tpunb.virtual.")
        yield name + (signature(value) if made else "")
        named = sorted(members(value))
        yield from (f"{name}.{member}" for member in named if is_promised(value, member))


def is_promised(kind: type, member: str) -> bool:
    """Return whether a member is for users, and not for tpunb, Keras or TensorFlow."""
    name = member.partition("(")[0]
    is_hook = kind.__name__ == "LiveCurves" and name.startswith(("on_", "set_"))
    return not is_hook and f"{kind.__name__}.{name}" not in FOR_TPUNB


def members(kind: type) -> Iterator[str]:
    """Yield the public methods, properties and fields of a class and of our bases of it."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("tpunb."):
            found.update(vars(base))
            found.update(dict.fromkeys(attributes(base)))
    if dataclasses.is_dataclass(kind):
        found.update({field.name: None for field in dataclasses.fields(kind)})
    for name, value in found.items():
        if not name.startswith("_"):
            yield f"{name}{signature(value) if inspect.isfunction(value) else ''}"


def attributes(kind: type) -> list[str]:
    """Return the attributes that the docstring of a class lists."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[2]
    section = re.split(r"\n\S", text)[0]
    return re.findall(r"^    (\w+):", section, re.MULTILINE)


def signature(function: Any) -> str:
    """Return the signature of a function without the addresses of objects."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    return ADDRESS.sub("", re.sub(r"'([^']*)'", r"\1", str(found)))


def _parsers(parsers: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    for name, parser in parsers.items():
        yield name
        yield from (f"{name} {usage(option)}" for option in options(parser))


def _exit_codes() -> Iterator[str]:
    for name, parser in commands().items():
        if codes := exit_codes(parser):
            one_type = " ".join(codes.split()).partition(" For several")[0]
            yield f"{name}: {' '.join(re.findall(r'[:;,] ([0-9]+) ', one_type))}"


def variables() -> set[str]:
    """Return the environment variables that the source names."""
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    return {name for text in sources for name in re.findall(r"TPUNB_[A-Z_]+[A-Z]", text)} - INTERNAL


def _json() -> Iterator[str]:
    for schema in sorted(PACKAGE.rglob("*.schema.json"), key=lambda path: path.name):
        fields = _fields(json.loads(schema.read_text(encoding="utf-8")))
        yield from sorted({f"{schema.name}: {field}" for field in fields})
    empty = {
        "tpunb doctor --json": tpunb.doctor(),
        "TpuProgram.as_dict": TpuProgram("v5e-8", 8),
        "Profile.as_dict": Profile(),
        "InputSpeed.as_dict": InputSpeed(1.0, 1.0, 1.0, ""),
    }
    for name, value in empty.items():
        yield from (f"{name}: {field}" for field in sorted(value.as_dict()))


def _fields(schema: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each field of a JSON schema, such as `types[].memory.peak`."""
    if isinstance(schema, list):
        for each in schema:
            yield from _fields(each, path)
    if not isinstance(schema, dict):
        return
    for name, inner in schema.get("properties", {}).items():
        field = f"{path}.{name}" if path else name
        yield field
        yield from _fields(inner, field)
    for key, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        yield from _fields(schema.get(key), f"{path}{suffix}")
    for key in ("anyOf", "oneOf", "allOf"):
        yield from _fields(schema.get(key), path)
    for name, inner in schema.get("$defs", {}).items():
        yield from _fields(inner, f"{path}#{name}")


def _formats() -> Iterable[str]:
    return (
        f"saved program: {program_files._FORMAT}",
        f"kept verdict: {verdict_files._FORMAT}",
        f"checkpoint of a run: {kept_checkpoints.FORMAT}",
        f"report of tpunb compile: {fit_report.FORMAT}",
        f"report of tpunb verify: {report.FORMAT}",
    )


if __name__ == "__main__":
    LIST.write_text(public_api(), encoding="utf-8")
