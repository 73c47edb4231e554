"""docs/maintainers/jax-fidelity.md has the operations that `python -m jax_fidelity` compares."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jax_fidelity.compare import REFUSED, SAME
from jax_fidelity.operations import GROUPS
from jax_fidelity.page import PATH, rows_of
from support.tiers import THOROUGH

TESTS = Path(__file__).parents[1]
ROWS = rows_of(PATH.read_text(encoding="utf-8"))


def test_the_page_has_every_operation() -> None:
    known = [(name, each.on_a_tpu) for group in GROUPS.values() for name, each in group.items()]
    assert [(row.name, row.on_a_tpu) for row in ROWS] == known


def test_no_operation_gives_other_numbers() -> None:
    assert {row.numbers for row in ROWS} == {SAME, REFUSED}


def test_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == sum(len(group) for group in GROUPS.values())


@THOROUGH
def test_numbers_on_this_release_are_those_of_cpu_devices() -> None:
    command = [sys.executable, "-m", "jax_fidelity", "--unjudged"]
    done = subprocess.run(
        command, cwd=TESTS, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
