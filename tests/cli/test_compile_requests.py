"""Requests to `tpunb compile --serve`: their fields, and what they mean."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tpunb.cli.compile_requests import arguments_of, checked, read_request, schema
from tpunb.cli.python_source import SourceError


def test_the_schemas_are_schemas() -> None:
    for each in schema().values():
        jsonschema.Draft202012Validator.check_schema(each)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"source": "a.py::f", "for": "v5e-8,v6e-8"}, {"tpus": ["v5e-8", "v6e-8"]}),
        ({"file": "a.py", "function": "f", "for": ["v5e-8"]}, {"tpus": ["v5e-8"]}),
        ({"source": "a.py::f", "args": "-1, training=True"}, {"args": "-1, training=True"}),
        ({"file": "m.keras", "batch": 8, "input": [224, 224, 3]}, {"input": [224, 224, 3]}),
        ({"source": "a.py::f", "limit": 0.9}, {"limit": "90.0%"}),
        ({"source": "a.py::f", "limit": 1024, "timeout": 2.5}, {"limit": "1024", "timeout": 2.5}),
        ({"source": "a.py::f", "speed": True, "recorded": None}, {"speed": True, "recorded": None}),
        ({"source": "--help", "speed": False}, {"source": "--help", "speed": False}),
    ],
)
def test_a_request_means_what_the_options_mean(
    request_: dict[str, Any], expected: dict[str, Any]
) -> None:
    jsonschema.validate(request_, schema()["request"])
    parsed = vars(arguments_of(checked(request_)))
    assert {name: parsed[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"source": "a.py::f", "fro": "v5e-8"}, "no field 'fro'"),
        ({"source": "a.py::f", "speed": 1}, "'speed' is 1, and must be: boolean"),
        ({"source": "a.py::f", "batch": True}, "'batch' is true, and must be: integer"),
        ({"source": 5}, "'source' is 5"),
        ({"for": "v5e-8"}, "names its program"),
        ({"function": "f"}, "names its program"),
        ({"source": "a.py::f", "file": "a.py"}, "names its program"),
        ({"source": "a.py::f", "timeout": -1}, "not a positive number of seconds"),
        ({"source": "m.keras", "step": "train"}, "invalid choice"),
        ({"source": "m.keras", "input": [2, "x"]}, "not a positive whole number"),
    ],
)
def test_a_wrong_request_is_refused(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        arguments_of(checked(request_))


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000])
def test_a_line_without_an_object_is_refused(line: bytes) -> None:
    with pytest.raises(SourceError, match="line is not"):
        read_request(line)


def test_every_field_of_the_schema_is_an_option_or_the_server_s_own() -> None:
    values = {"string": "1", "integer": 1, "number": 1, "boolean": True, "array": ["1"]}
    fields = schema()["request"]["properties"]
    given = {
        name: values[field["type"][0]]
        for name, field in fields.items()
        if name not in ("id", "file", "function", "step")
    }
    json.dumps(vars(arguments_of(checked(given))), default=str)
