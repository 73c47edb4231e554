"""`%%tpu_run` with data, steps and curves, on a real IPython shell."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from support.shell import Notebook

import tpunb
from tpunb._util.interrupts import Stopped
from tpunb.display.widgets import frontend
from tpunb.errors import CellError

SETUP = """\
import numpy as np, tensorflow as tf, tpunb
%load_ext tpunb
%tpu_connect --simulate 4
ds = tf.data.Dataset.range(64).map(lambda n: tf.cast(n, tf.float32)).batch(8, drop_remainder=True)
with strategy.scope():
    total = tf.Variable(0.0)"""
STEP = """
mean = ctx.all_reduce("mean", tf.reduce_mean(batch))
total.assign_add(mean);
"""


@pytest.fixture(scope="module")
def shell(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with Notebook(tmp_path_factory.mktemp("ipython"), SETUP) as notebook:
        yield notebook


@pytest.fixture
def book(shell: Notebook, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    monkeypatch.delenv(frontend.VARIABLE, raising=False)
    shell.names["total"].assign(0.0)
    return shell


def test_a_run_ends_with_the_data(book: Notebook) -> None:
    ran = book.good(f"%%tpu_run -d ds -p mean{STEP}")
    # The numbers are for a terminal, which has no picture.
    assert ran.plain == "Training curves · mean · 8 steps\nrun 1: mean 59.5\n8 steps\n"
    assert float(book.names["total"].numpy()) == sum(range(64)) / 8
    assert tpunb.history is not None
    assert tpunb.history.values("mean").tolist() == [3.5 + 8 * n for n in range(8)]
    assert [float(part) for part in book.names["mean"].values] == [59.5] * 4
    assert book.session.connection.timings.steps == 8


def test_without_curves_the_cell_shows_a_line(book: Notebook) -> None:
    assert book.good(f"%%tpu_run -d ds{STEP}").plain == "8 steps\n"
    assert book.good("%%tpu_run -n 1\nx = replica_id\n").plain == "1 step\n"


def test_parts_of_a_batch_and_the_result(book: Notebook) -> None:
    book.good("x, y = np.arange(128.0, dtype='float32'), np.ones([128], 'float32')")
    ran = book.good("%%tpu_run -d x,y --as a,b -r s=sum -o kept\ns = tf.reduce_sum(a * b)\ns")
    assert float(book.names["s"]) == sum(range(128))
    assert [float(part) for part in book.names["kept"].values] == [496, 1520, 2544, 3568]
    assert "PerReplica of 4 replicas" in ran.plain
    display = book.good("%%tpu_run -d x,y --as a,b -t 2\ntf.reduce_sum(a * b)").plain
    assert "2544" in display
    assert "3568" not in display


def test_times(book: Notebook) -> None:
    ran = book.good(f"%%tpu_run -d ds -n 8 -k 3 --time{STEP}")
    for word in ("steady step", "8 steps in", "waiting for data"):
        assert word in ran.plain
    assert re.search(r"steps per loop +3\n", ran.plain)


@pytest.mark.parametrize(
    ("cell", "kind", "message"),
    [
        ("%%tpu_run -n 0\n1", UsageError, "-n takes a number of at least 1, not 0"),
        ("%%tpu_run -n 5 -k -1\n1", UsageError, "-k takes a number of at least 1"),
        ("%%tpu_run -n x\n1", UsageError, "-n takes a number of at least 1, not x"),
        ("%%tpu_run -n 3 -k 5\nx = 1", CellError, "longer than the 3 steps"),
        ("%%tpu_run -d dss\n1", UsageError, "there is no 'dss' in the notebook"),
        ("%%tpu_run -d ds --as 1,2\n1", UsageError, "--as takes names"),
        ("%%tpu_run -p loss\nloss = tf.constant(1.0)", CellError, "number of steps is missing"),
        (f"%%tpu_run -d ds -p mena{STEP}", CellError, "Did you mean `mean`"),
        (f"%%tpu_run -d ds -n 20{STEP}", CellError, "ended after 8 of 20 steps"),
    ],
)
def test_bad_input(book: Notebook, cell: str, kind: type[Exception], message: str) -> None:
    ran = book.run(cell)
    assert isinstance(ran.error, kind)
    assert message in ran.text
    assert "Traceback" not in ran.text
    assert book.good("total.numpy()").error is None


def test_similar_names_are_suggested(book: Notebook) -> None:
    assert "did you mean 'ds'?" in book.run(f"%%tpu_run -d dss{STEP}").text
    ran = book.run("%%tpu_run -d ds\nxs * 2.0")
    assert "A step's batch is `batch`; `--as xs,...` names its parts." in ran.text


def test_a_run_that_fails_at_once_uses_no_number(book: Notebook) -> None:
    book.good("%%tpu_run -n 2 -p loss\nloss = tf.constant(1.0);")
    assert tpunb.history is not None
    before = tpunb.history.name
    assert book.run("%%tpu_run -n 2 -p loss\nloss = tf.constant(1.0) + missing").error is not None
    book.good("%%tpu_run -n 2 -p loss\nloss = tf.constant(1.0);")
    number = int(before.removeprefix("run ")) + 1
    assert tpunb.history.name == f"run {number}"
    assert book.names["history"] is tpunb.history
    history_before = tpunb.history
    failed = book.run("%%tpu_run -n 2 -p loss\nloss = tf.ones([3]) @ tf.ones([2])")
    assert failed.error is not None
    assert failed.shown == []
    assert tpunb.history is book.names["history"] is history_before


def test_a_name_of_the_notebook_is_not_overwritten(book: Notebook) -> None:
    saved, book.names["history"] = book.names.get("history"), "mine"
    book.good("%%tpu_run -n 2 -p loss\nloss = tf.constant(1.0);")
    assert book.names["history"] == "mine"
    book.names["history"] = saved


def test_a_warning_of_nan_names_the_replica(book: Notebook) -> None:
    cell = "loss = tf.math.log(2.5 - tf.cast(replica_id, tf.float32)) * batch[0]"
    with pytest.warns(RuntimeWarning, match="not finite at step 1 on replica 3, for the first"):
        book.good(f"%%tpu_run -d ds -p loss\n{cell};")


def test_a_check_before_the_steps(book: Notebook) -> None:
    ran = book.run("%%tpu_run --check -d ds\ny = tf.strings.as_string(batch)")
    assert "string tensor" in ran.text
    assert ran.error is not None
    checked = book.good(f"%%tpu_run --check -d ds -p mean{STEP}")
    assert checked.plain.endswith("8 steps\n")
    assert float(book.names["total"].numpy()) == sum(range(64)) / 8


def test_an_early_end_of_the_data_keeps_the_finished_steps(book: Notebook) -> None:
    book.names.pop("mean", None)
    assert book.run(f"%%tpu_run -d ds -n 20 -p mean{STEP}").error is not None
    assert float(book.names["total"].numpy()) == sum(range(64)) / 8
    assert "mean" in book.names
    assert len(tpunb.history) == 8


def test_an_error_names_the_line_and_the_step(book: Notebook) -> None:
    ran = book.run("%%tpu_run -d ds -k 1\nx = batch\ntf.debugging.assert_less(batch, 30.0, 'high')")
    assert "line 3" in ran.text
    assert "step 4" in ran.text
    assert "float32[2]" in ran.text
    assert "tpunb" not in ran.text.replace("tpunb_", "")


def test_an_error_names_the_replicas(book: Notebook) -> None:
    ran = book.run("%%tpu_run\ntf.debugging.assert_less(replica_id, 2, 'high')")
    assert "On replica" in ran.text
    assert set(ran.error.tpunb_replicas) <= {2, 3}


class PressStop:
    """Press the stop button once a run has made `after` steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        from tpunb.display.live_progress import RunDisplay

        set_steps = RunDisplay.set_steps

        def set_and_press(display: RunDisplay, steps: int, examples: int | None) -> None:
            set_steps(display, steps, examples)
            if steps >= after and not self.done:
                self.done = True
                os.kill(os.getpid(), signal.SIGINT)

        self.done = False
        monkeypatch.setattr(RunDisplay, "set_steps", set_and_press)


def test_a_stopped_run_continues(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = f"%%tpu_run -d ds -k 1 -p mean{STEP}"
    PressStop(monkeypatch, after=3)
    ran = book.run(cell)
    assert isinstance(ran.error, Stopped)
    assert "Stopped: after 3 of 8 steps" in ran.text
    assert "Traceback" not in ran.text
    assert float(book.names["total"].numpy()) == 3.5 + 11.5 + 19.5
    first = tpunb.history
    assert first is not None
    assert first.state == "stopped"
    assert book.good(cell).plain.endswith("8 steps\n")
    assert float(book.names["total"].numpy()) == sum(range(64)) / 8
    assert tpunb.history is first
    assert first.steps("mean").tolist() == list(range(1, 9))
    book.good(cell)  # a new run
    assert tpunb.history is not first
    assert float(book.names["total"].numpy()) == 2 * sum(range(64)) / 8


def test_a_stopped_run_restarts(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = f"%%tpu_run -d ds -k 1{STEP}"
    PressStop(monkeypatch, after=3)
    assert book.run(cell).error is not None
    book.good(cell.replace("-k 1", "-k 1 --restart"))
    assert float(book.names["total"].numpy()) == 34.5 + sum(range(64)) / 8


def test_live_progress(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[tuple[dict[str, Any], bool]] = []

    def publish(data: Any, metadata: Any, *, display_id: str, update: bool) -> None:
        published.append((data, update))

    monkeypatch.setattr(frontend, "publish", publish)
    monkeypatch.setenv(frontend.VARIABLE, "always")
    book.good(f"%%tpu_run -d ds -k 1 -p mean{STEP}")
    views = [data for data, _ in published if "application/vnd.jupyter.widget-view+json" in data]
    assert len(views) == 1
    assert published[-1][0] == {"text/plain": "8 steps"}
    frozen = [data for data, update in published if update and "image/png" in data]
    # The title does not change.
    assert [data["text/plain"] for data in frozen] == ["Training curves"]
    our_threads = ("tpunb-progress", "tpunb-curves")
    assert not [t.name for t in threading.enumerate() if t.name in our_threads]


def test_the_history_can_be_written_to_a_file(book: Notebook, tmp_path: Path) -> None:
    book.good(f"%%tpu_run -d ds -p mean{STEP}")
    tpunb.history.to_csv(tmp_path / "history.csv")
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 9
