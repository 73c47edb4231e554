"""A notebook's shell with a Pod of its own workers, which is left in several ways.

Usage: leaving.py magic: with the magics, one after the other; prints what was left running.
       leaving.py crash: prints the workers and waits to be killed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

from counterparts.children import wait_until_gone
from IPython.core.interactiveshell import InteractiveShell

CONNECT = "--simulate 1 --local-workers --timeout 120"


def connected(shell: Any) -> list[int]:
    """The workers of a new Pod."""
    connection = shell.run_line_magic("tpu_connect", CONNECT)
    return list(connection.pod.local.process_ids)


def main(way: str) -> None:
    """Connects and leaves."""
    shell = InteractiveShell.instance(ipython_dir=tempfile.mkdtemp())
    shell.run_line_magic("load_ext", "tpunb")
    workers = connected(shell)
    if way == "crash":
        print(json.dumps(workers), flush=True)
        time.sleep(600)
    shell.run_line_magic("tpu_disconnect", "")
    left = wait_until_gone(workers, timeout=10)
    workers = connected(shell)
    shell.run_line_magic("unload_ext", "tpunb")
    print(json.dumps({"disconnect": left, "unload": wait_until_gone(workers, timeout=10)}))


if __name__ == "__main__":
    main(sys.argv[1])
