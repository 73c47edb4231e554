"""The times that a notebook waits: for loading tpunb, for connecting, and for `%%tpu_run`.

``python -m benchmarks.notebook CASE`` prints JSON: the seconds of tpunb and of its peer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

CASES = ("load_ext", "connect", "tpu_run")
_ROUNDS = 400
_CALLS = 1


def main() -> None:
    """Measure the case that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    measures = {"load_ext": load_ext, "connect": connect, "tpu_run": tpu_run}
    print(json.dumps(measures[parser.parse_args().case]()))


def load_ext() -> dict[str, float]:
    """Return the seconds of `%load_ext tpunb` in a fresh shell."""
    shell = _shell()
    began = time.perf_counter()
    shell.run_line_magic("load_ext", "tpunb")
    return {"ours": time.perf_counter() - began}


def connect() -> dict[str, float]:
    """Return the seconds of connecting to a virtual v5e-8 once TensorFlow is imported."""
    import tensorflow  # noqa: F401

    import tpunb

    began = time.perf_counter()
    tpunb.connect(simulate="v5e-8")
    return {"ours": time.perf_counter() - began}


def tpu_run() -> dict[str, float]:
    """Return the seconds of a `%%tpu_run` cell and of the same `tf.function` written by hand."""
    shell = _shell()
    shell.run_line_magic("load_ext", "tpunb")
    shell.run_line_magic("tpu_connect", "--simulate 2")
    shell.run_cell(_SETUP)
    by_cell = _runner(shell)
    by_hand: Callable[[], Any] = shell.user_ns["by_hand"]
    for _ in range(5):
        by_cell()
        by_hand()
    ours, peer = [], []
    # Taken in turns, so that what else the machine does falls on both.
    for _ in range(_ROUNDS):
        ours.append(_seconds(by_cell))
        peer.append(_seconds(by_hand))
    return {"ours": statistics.median(ours), "peer": statistics.median(peer)}


_CELL = """
y = tf.reduce_mean(x @ weights)
for _ in range(15):
    y = y + tf.reduce_mean((x * y) @ weights)
y;
"""

_SETUP = """
import tensorflow as tf

x = tf.random.uniform((64, 128))
weights = tf.random.uniform((128, 128))


@tf.function
def hand_written(x, weights):
    def replica(x, weights):
        y = tf.reduce_mean(x @ weights)
        for _ in range(15):
            y = y + tf.reduce_mean((x * y) @ weights)
        return y

    return strategy.run(replica, args=(x, weights))


def by_hand():
    return hand_written(x, weights)
"""


def _runner(shell: Any) -> Callable[[], Any]:
    run = shell.find_cell_magic("tpu_run")
    return lambda: run("", _CELL)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - began) / _CALLS


def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    return InteractiveShell.instance()


if __name__ == "__main__":
    main()
