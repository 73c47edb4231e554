"""Answers of the compiler, as the files of verdicts have them."""

from __future__ import annotations

from typing import Any

MADE: dict[str, Any] = {
    "time": "2026-11-26T00:00:00Z",
    "compiler": {"libtpu": "0.0.52"},
    "software": {},
}
COMPILED: dict[str, Any] = {
    "peak": 12,
    "arguments": 4,
    "outputs": 4,
    "aliased": 0,
    "code": 0,
    "text": "",
    "cost": {"flops": 1.5},  # as in the files of older releases
    "schedule": {
        "k": {
            "cycles": [9, 9],
            "bytes": [8, 9],
            "strided": 0,
            "steps": 4,
            "unit": "VALU",
            "busy": 1.5,
            "matmul": 0.0,
            "spills": 0.0,
        }
    },
    "product": {},
    "bounded": False,
    "made": MADE,
}
"""The answer about a program that compiles."""
