"""Requests to `tpunb compile --serve`: JSON objects with the command's options as fields."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tpunb.cli.compiled_source import add_arguments
from tpunb.cli.python_source import SEPARATOR, SourceError
from tpunb.compiler import fit_report
from tpunb.errors import did_you_mean

_SCHEMA = Path(__file__).with_name("compile_requests.schema.json")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
}
_NO_OPTIONS = {"id", "fresh", "source", "file", "function"}
_EXAMPLE = '{"source": "train.py::step", "for": "v5e-8"}'


def schema() -> dict[str, Any]:
    """Return the JSON schemas of requests and answers."""
    return {"request": _request_schema(), "answer": _answer_schema()}


def _request_schema() -> dict[str, Any]:
    return dict(json.loads(_SCHEMA.read_text(encoding="utf-8")))


def _answer_schema() -> dict[str, Any]:
    """Return the schema of the report, with the fields that only answers have."""
    report = fit_report.schema()
    report["title"] = "An answer of tpunb compile --serve"
    report["required"] += ["id", "seen", "seconds"]
    report["properties"] |= {
        "id": {"description": "The id of the request; null without one."},
        "seen": {
            "type": "boolean",
            "description": "Whether this is the kept answer to an equal request, whose files "
            "have not changed since.",
        },
        "seconds": {
            "type": "number",
            "minimum": 0,
            "description": "The seconds between the request and the answer.",
        },
    }
    return report


def read_request(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line.

    Raises:
        SourceError: The line is not one.
    """
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"The line is not JSON: {error}.", fix=f"Write one JSON object a line: {_EXAMPLE}"
        ) from None
    if not isinstance(request, dict):
        raise SourceError("The line is not a JSON object.", fix=f"For example: {_EXAMPLE}")
    return request


def checked(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request whose fields are known and have the right types, with its `source`.

    Raises:
        SourceError: A field is unknown or has another type, or no program is named.
    """
    fields = _request_schema()["properties"]
    for name, value in request.items():
        if name not in fields:
            raise SourceError(
                f"A request has no field {name!r}.",
                fix=did_you_mean(name, list(fields), f"The fields are {', '.join(fields)}."),
            )
        _check(name, value, fields[name])
    given = {name: value for name, value in request.items() if value is not None}
    file, function = given.pop("file", None), given.pop("function", None)
    if "source" not in given and file is not None:
        given["source"] = file if function is None else f"{file}{SEPARATOR}{function}"
    elif "source" not in given or file is not None or function is not None:
        raise SourceError(
            'A request names its program in "source", or in "file" and "function".',
            fix=f"For example: {_EXAMPLE}",
        )
    return given


def _check(name: str, value: Any, field: Mapping[str, Any]) -> None:
    kinds = field.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not kinds or value is None or any(_is(value, kind) for kind in kinds):
        return
    wanted = " or ".join(kind for kind in kinds if kind != "null")
    raise SourceError(f"The field {name!r} is {json.dumps(value)}, and must be: {wanted}.")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # which is a number for Python
        return kind == "boolean"
    return isinstance(value, _KINDS.get(kind, ()))


class _Parser(argparse.ArgumentParser):
    """A parser that raises the errors of a request."""

    def error(self, message: str) -> NoReturn:
        raise SourceError(f"The request is wrong: {message}.", fix="tpunb compile --help")


def arguments_of(request: Mapping[str, Any]) -> argparse.Namespace:
    """Return a checked request as the arguments of the command.

    Raises:
        SourceError: An option does not take its value.
    """
    parser = _Parser(add_help=False)
    add_arguments(parser)
    return parser.parse_args([*_line(request), "--", request["source"]])


def _line(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield a request's options as on a command line, where each is described and checked."""
    for name, value in request.items():
        if name in _NO_OPTIONS or value is False:
            continue
        if value is True:
            yield f"--{name}"
            continue
        if name == "limit" and isinstance(value, float) and 0 < value <= 1:
            value = f"{100 * value}%"
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"--{name}={text}"
