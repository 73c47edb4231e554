"""Leave a Pod of local workers in several ways from a notebook's shell.

Leaves with one magic after the other. Prints the workers that are still running, and what the
shell then shows of the Pod's values. Then prints the workers of another Pod and waits until it is
killed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from counterparts.children import wait_until_gone
from support.shell import Notebook

CONNECT = "--simulate 1 --local-workers --timeout 600"


MAKE = """
import tensorflow as tf
with strategy.scope():
    v = tf.Variable([1.0, 2.0])
"""

USES = ("y + 1", "v.numpy()", "v.assign([2.0, 1.0])", "[v, y]")


def connected(book: Notebook) -> list[int]:
    """Connect to a new Pod and return its workers' process IDs."""
    connection = book.good(f"%tpu_connect {CONNECT}").value
    return list(connection.pod.local.process_ids)


def main() -> None:
    """Connect and leave."""
    book = Notebook(Path(tempfile.mkdtemp()))
    book.good("%load_ext tpunb")
    workers = connected(book)
    book.good(MAKE)
    book.good("%%tpu_run\ny = tf.range(3) + replica_id")
    book.good("%tpu_disconnect")
    remaining = wait_until_gone(workers)
    shown = [book.run(use).plain for use in USES]
    workers = connected(book)
    shown.append(book.run("%%tpu_run\nv + 1.0").plain)
    book.good("%unload_ext tpunb")
    gone = {"disconnect": remaining, "unload": wait_until_gone(workers)}
    print(json.dumps({**gone, "shown": shown}), flush=True)
    book.good("%load_ext tpunb")
    print(json.dumps(connected(book)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
