"""Pictures of collectives on the values that a cell assigned."""

from __future__ import annotations

from typing import Any

import pytest
from support.shell import Notebook

SETUP = """\
import tensorflow as tf, tpunb
%load_ext tpunb
%tpu_connect --simulate 4
%%tpu_run
x = 10 * (replica_id + 1)
sums = ctx.all_reduce("sum", x)
moved = tf.raw_ops.CollectivePermute(input=x, source_target_pairs=[(0, 1), (1, 2)])
parts = ctx.all_gather(tf.reshape(x, [1]), axis=0)
"""


@pytest.mark.usefixtures("tf")
def test_a_picture_shows_what_the_cell_computed(tmp_path: Any) -> None:
    setup, cell = SETUP.split("%%", 1)
    with Notebook(tmp_path, setup) as book:
        book.good(f"%%{cell}")
        for call, name in (
            ('"all_reduce", x', "sums"),
            ('"ppermute", x, pairs=[(0, 1), (1, 2)]', "moved"),
            ('"all_gather", x', "parts"),
        ):
            effect = book.good(f"tpunb.draw.collective({call})").value.description
            assert [held.values.tolist() for held in effect.before] == [10, 20, 30, 40]
            own = [part.numpy().tolist() for part in book.names[name].values]
            assert [held.values.tolist() for held in effect.after] == own
