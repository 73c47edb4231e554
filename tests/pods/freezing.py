"""Freeze a worker in the middle of a step: the stop button ends the step, and the process can end.

Prints the results as a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import Any

import tensorflow as tf

import tpunb
from tpunb._util.interrupts import Stopped
from tpunb.connection.cluster.local_workers import LocalWorkers

LOOP = """
for _ in tf.range(rounds):
    count.assign_add(ctx.all_reduce("mean", 1.0))
done = count + 0.0
"""


def main() -> None:
    """Stop a plain cell and a run of steps, each with a frozen worker."""
    workers = LocalWorkers(3, 1, timeout=600)
    connection = tpunb.connect(simulate=3, workers=list(workers.addresses))
    victim = workers.process_ids[1]
    with connection.strategy.scope():
        count = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    names: dict[str, Any] = {"tf": tf, "count": count, "rounds": tf.constant(3)}
    # Read nothing from a worker while it is frozen: the read would wait for it.
    connection.cells.run(LOOP, names)

    def freeze() -> None:
        while connection.cells.calls.phase != "running":
            time.sleep(0.01)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    def stop(go: Any) -> dict[str, Any]:
        connection.cells.calls.begin()
        names["rounds"] = tf.constant(10**9)
        thread = threading.Thread(target=freeze)
        thread.start()
        try:
            message = str(go())
        except Stopped as error:
            message = str(error)
        thread.join()
        os.kill(victim, signal.SIGCONT)
        names["rounds"] = tf.constant(3)
        count.assign(0.0)
        after = connection.cells.run(LOOP, names).assigned["done"]
        return {"said": message, "after": [float(v) for v in after.values]}

    run = connection.cells.steps(LOOP, names, steps=5)
    results = {
        "cell": stop(lambda: connection.cells.run(LOOP, names)),
        "steps": stop(lambda: run.go() or (run.stopped, run.is_half_done, run.done)),
    }
    print(json.dumps(results), flush=True)
    os.kill(victim, signal.SIGSTOP)  # the end of the process must not wait for the worker
    os.waitpid(victim, os.WUNTRACED)


if __name__ == "__main__":
    main()
