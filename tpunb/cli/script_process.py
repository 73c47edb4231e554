"""The process of a script: it installs the virtual TPU, and runs the script as `python` does."""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpunb.connection.dry_report import save_dry_report
from tpunb.notebook.kernels.specs import DRY_REPORT_VARIABLE
from tpunb.virtual import install_when_imported


def _run(options: dict[str, Any], path: str, arguments: Sequence[str]) -> None:
    if report := os.environ.pop(DRY_REPORT_VARIABLE, ""):
        atexit.register(save_dry_report, report)
    install_when_imported(options.pop("tpu"), environment=True, required=True, **options)
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:])
