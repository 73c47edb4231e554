"""A worker freezes while the process ends, just after it was asked whether it responds.

The argument says whose the workers are: the Pod's `own`, or `given` to it.
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
    """Makes a step, and leaves a worker that freezes at the end."""
    if sys.argv[1] == "own":
        connection = tpunb.connect(simulate=2, local_workers=2, timeout=600)
        workers = connection.pod.local
    else:
        workers = LocalWorkers(2, 1, timeout=600)
        connection = tpunb.connect(simulate=2, workers=list(workers.addresses))
    connection.run_cell("x = tf.constant(1.0)", {"tf": tf})
    _, victim = workers.process_ids
    asks = pod.responds

    def responds(address: str) -> bool:
        found = asks(address)
        if address == connection.pod.addresses[-1]:
            pod.responds = asks  # those who ask later only ask
            os.kill(victim, signal.SIGSTOP)
            os.waitpid(victim, os.WUNTRACED)  # it may go on for a while
        return found

    pod.responds = responds
    print("true", flush=True)


if __name__ == "__main__":
    main()
