"""`%%tpu_run --checkpoint`: its options, and a kernel that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import WITHOUT_KERAS, environment
from IPython.core.error import UsageError
from jupyter_client.manager import KernelManager
from support.kernels import Client
from support.shell import Notebook
from support.tiers import THOROUGH

from tpunb.display.widgets import frontend

SETUP = """\
import os, tensorflow as tf, tpunb
%load_ext tpunb
%tpu_connect --simulate 2
def shuffled():
    numbers = tf.data.Dataset.range(640).map(lambda n: tf.cast(n, tf.float32))
    return numbers.shuffle(640, seed=1).batch(8, drop_remainder=True)
ds = shuffled()
with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)"""
STEP = """
loss = ctx.all_reduce("mean", tf.reduce_mean(batch))
total.assign(0.9 * total + loss);
"""
DIES_AT = """
def until(limit):
    def read(batch):
        if batch[0] in last_of(limit):
            os.kill(os.getpid(), 9)
        return batch
    return lambda batch: tf.ensure_shape(tf.numpy_function(read, [batch], tf.float32), [8])
def last_of(limit):
    return list(shuffled().take(limit).skip(limit - 1))[0][:1].numpy()
ds = shuffled().map(until({limit}))"""


@pytest.fixture(scope="module")
def shell(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with Notebook(tmp_path_factory.mktemp("ipython"), SETUP) as notebook:
        yield notebook


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--checkpoint run", "add -d DATASET or -n N"),
        ("-d ds --checkpoint-every 3", "add --checkpoint DIR"),
        ("-d ds --checkpoint run --checkpoint-every 0", "takes steps, as in 100, or seconds"),
        ("-d ds --checkpoint run --checkpoint-every 3m", "takes steps, as in 100, or seconds"),
    ],
)
def test_options_that_do_not_fit(shell: Notebook, line: str, message: str) -> None:
    ran = shell.run(f"%%tpu_run {line}{STEP}")
    assert isinstance(ran.error, UsageError)
    assert message in ran.text


def test_a_run_continues_and_completes(shell: Notebook, tmp_path: Path) -> None:
    shell.names["total"].assign(0.0)
    shell.good(f"%%tpu_run -d ds -n 80 -p loss{STEP}")
    expected, curve = float(shell.names["total"].numpy()), shell.names["history"].values("loss")
    line = f"%%tpu_run -d ds -p loss --checkpoint {tmp_path / 'run'} --checkpoint-every 7"
    shell.names["total"].assign(0.0)
    new_dataset = "ds = shuffled()"  # a new kernel has a new iterator
    shell.good(new_dataset)
    shell.good(f"{line} -n 30{STEP}")
    shell.good(f"{new_dataset}\ntotal.assign(5.0)")
    ran = shell.good(f"{line} -n 80{STEP}")
    assert "Continues at step 30 of 80 from" in ran.plain
    assert float(shell.names["total"].numpy()) == expected
    assert len(curve) == 80
    ran = shell.good(f"{line} -n 80{STEP}")
    assert "The run was complete, at step 80 of 80" in ran.plain
    assert "80 steps" in ran.plain


@THOROUGH
@pytest.mark.tensorflow
def test_a_run_continues_after_its_kernel_is_killed(tmp_path: Path) -> None:
    """After a kill, a restarted kernel continues to the numbers of an uninterrupted run."""
    look = "print(total.numpy(), tpunb.history.values('loss').sum(), len(tpunb.history))"
    line = f"%%tpu_run -d ds -p loss --checkpoint {tmp_path / 'run'} --checkpoint-every 9 -k 4"
    results = []
    for code in ("", DIES_AT.replace("{limit}", "41"), ""):
        manager = KernelManager()
        manager.start_kernel(env={**environment(), frontend.VARIABLE: "never"})
        client = Client(manager)
        try:
            content, _ = client.run(WITHOUT_KERAS + SETUP + code)
            assert content["status"] == "ok", content
            cell = f"%%tpu_run -d ds -p loss{STEP}" if not results else f"{line}{STEP}"
            if code:
                client.start(cell)
                client.wait_until_dead()
                results.append(None)
                continue
            content, shown = client.run(cell)
            assert content["status"] == "ok", content
            results.append((shown, client.run(look)[1]))
        finally:
            client.close()
    uninterrupted, _, continued = results
    assert "Continues at step 36 of 80" in continued[0]
    assert continued[1] == uninterrupted[1]
    assert continued[1].split()[-1] == "80"
