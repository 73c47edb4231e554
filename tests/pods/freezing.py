"""A worker freezes in the middle of a step; the stop button ends it, and the process ends too.

Prints what was seen as a line of JSON.
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
    """Stops a plain cell and a run of steps, each with a worker that is frozen."""
    workers = LocalWorkers(3, 1, timeout=600)
    connection = tpunb.connect(simulate=3, workers=list(workers.addresses))
    victim = workers.process_ids[1]
    with connection.strategy.scope():
        count = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    names: dict[str, Any] = {"tf": tf, "count": count, "rounds": tf.constant(3)}
    # Nothing here is read from a worker while it is frozen: that would wait for it.
    connection.cells.run(LOOP, names)

    def freeze() -> None:
        while connection.cells.calls.phase != "running":
            time.sleep(0.01)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    def stopped(go: Any) -> dict[str, Any]:
        connection.cells.calls.begin()
        names["rounds"] = tf.constant(10**9)
        thread = threading.Thread(target=freeze)
        thread.start()
        try:
            said = str(go())
        except Stopped as error:
            said = str(error)
        thread.join()
        os.kill(victim, signal.SIGCONT)
        names["rounds"] = tf.constant(3)
        count.assign(0.0)
        after = connection.cells.run(LOOP, names).assigned["done"]
        return {"said": said, "after": [float(v) for v in after.values]}

    run = connection.cells.steps(LOOP, names, steps=5)
    found = {
        "cell": stopped(lambda: connection.cells.run(LOOP, names)),
        "steps": stopped(lambda: run.go() or (run.stopped, run.is_half_done, run.done)),
    }
    print(json.dumps(found), flush=True)
    os.kill(victim, signal.SIGSTOP)  # the end of the process must not wait for it
    os.waitpid(victim, os.WUNTRACED)


if __name__ == "__main__":
    main()
