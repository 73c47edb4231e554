"""A notebook's shell with a Pod of its own workers, which is left in several ways.

It leaves with the magics, one after the other, and prints what was left running, and what the
shell shows of the Pod's values afterwards; then it prints the workers of another Pod and waits
to be killed.
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
    """The workers of a new Pod."""
    connection = book.good(f"%tpu_connect {CONNECT}").value
    return list(connection.pod.local.process_ids)


def main() -> None:
    """Connects and leaves."""
    book = Notebook(Path(tempfile.mkdtemp()))
    book.good("%load_ext tpunb")
    workers = connected(book)
    book.good(MAKE)
    book.good("%%tpu_run\ny = tf.range(3) + replica_id")
    book.good("%tpu_disconnect")
    left = wait_until_gone(workers)
    shown = [book.run(use).plain for use in USES]
    workers = connected(book)
    shown.append(book.run("%%tpu_run\nv + 1.0").plain)
    book.good("%unload_ext tpunb")
    gone = {"disconnect": left, "unload": wait_until_gone(workers)}
    print(json.dumps({**gone, "shown": shown}), flush=True)
    book.good("%load_ext tpunb")
    print(json.dumps(connected(book)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
