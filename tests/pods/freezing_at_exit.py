"""A worker freezes while the process ends, just after it answered that it is alive.

The argument says who started the workers: the Pod (`own`) or the test (`given`).
"""

from __future__ import annotations

import os
import signal
import sys

import tensorflow as tf

import tpunb
from tpunb.connection.cluster import pod
from tpunb.connection.cluster.local_workers import LocalWorkers


def main() -> None:
    """Run a cell, then let a worker freeze while the process ends."""
    if sys.argv[1] == "own":
        connection = tpunb.connect(simulate=2, local_workers=2, timeout=600)
        workers = connection.pod.local
    else:
        workers = LocalWorkers(2, 1, timeout=600)
        connection = tpunb.connect(simulate=2, workers=list(workers.addresses))
    connection.run_cell("x = tf.constant(1.0)", {"tf": tf})
    _, victim = workers.process_ids
    real_responds = pod.responds

    def responds(address: str) -> bool:
        answer = real_responds(address)
        if address == connection.pod.addresses[-1]:
            pod.responds = real_responds  # later calls only ask
            os.kill(victim, signal.SIGSTOP)
            os.waitpid(victim, os.WUNTRACED)  # the worker may run on for a moment
        return answer

    pod.responds = responds
    print("true", flush=True)


if __name__ == "__main__":
    main()
