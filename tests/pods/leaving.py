"""A notebook's shell with a Pod of its own workers, which is left in several ways.

It leaves with the magics, one after the other, and prints what was left running; then it
prints the workers of another Pod and waits to be killed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

from counterparts.children import wait_until_gone
from IPython.core.interactiveshell import InteractiveShell

CONNECT = "--simulate 1 --local-workers --timeout 600"


def connected(shell: Any) -> list[int]:
    """The workers of a new Pod."""
    connection = shell.run_line_magic("tpu_connect", CONNECT)
    return list(connection.pod.local.process_ids)


def main() -> None:
    """Connects and leaves."""
    shell = InteractiveShell.instance(ipython_dir=tempfile.mkdtemp())
    shell.run_line_magic("load_ext", "tpunb")
    workers = connected(shell)
    shell.run_line_magic("tpu_disconnect", "")
    left = wait_until_gone(workers)
    workers = connected(shell)
    shell.run_line_magic("unload_ext", "tpunb")
    print(json.dumps({"disconnect": left, "unload": wait_until_gone(workers)}), flush=True)
    shell.run_line_magic("load_ext", "tpunb")
    print(json.dumps(connected(shell)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
