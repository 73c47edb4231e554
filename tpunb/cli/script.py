"""A Python script on a virtual TPU, unmodified, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PROCESS = "tpunb.cli.script_process"


def run_script(path: Path, arguments: Sequence[str], options: Mapping[str, Any]) -> int:
    """Run a script, and return its exit code; 128 more than the signal that ended it.

    Args:
        path: The script.
        arguments: Its arguments.
        options: Options of `tpunb.virtual.install_when_imported`.
    """
    command = [sys.executable, "-m", _PROCESS, json.dumps(dict(options)), str(path), *arguments]
    with subprocess.Popen(command) as process:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                continue  # the terminal has sent it to the script too, which decides
            return code if code >= 0 else 128 - code
