"""Whether a file is a library's is decided in one way, also for tpunb's own files."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tpunb
from tpunb.errors.code_problems import is_library, is_of_this_package


@pytest.mark.parametrize(
    ("file", "library"),
    [
        (json.__file__, True),
        (np.__file__, True),
        (tpunb.__file__, True),
        ("<string>", True),
        ("<frozen importlib._bootstrap>", True),
        ("/tmp/__autograph_generated_file1a2b.py", True),
        ("/tmp/ipykernel_12/345.py", False),
        ("lesson.ipynb", False),
        ("", False),
    ],
)
def test_libraries(file: str, library: bool) -> None:
    assert is_library(file) is library
    assert is_of_this_package(file) is (file == tpunb.__file__)
