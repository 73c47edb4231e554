"""Try the wheel in a clean environment for each Python and each extra, and record the results.

    cd tests && python -m wheel_matrix WHEEL [--python 3.11] [--extra cpu]

The command needs uv, and the Pythons 3.10 to 3.13 on the path or among pyenv's. It makes each environment
in a temporary folder, installs the wheel, runs a short job, uninstalls the wheel, and deletes the
environment: 3 GB at most. It writes results.tsv and the table in docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import datetime
import glob
import shutil
import sys
import tempfile
import time
from pathlib import Path

from wheel_matrix.environment import Environment, Failed
from wheel_matrix.results import OK, REFUSED, Result, record
from wheel_matrix.rows import EVERY, PYTHONS, WITHOUT_WHEEL, Row, rows

TENSORFLOWS = ("tensorflow-cpu", "tensorflow", "tensorflow-tpu")


def main() -> int:
    """Run the command; return 1 if an environment fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("wheel", type=Path, help="the wheel, from make dist")
    parser.add_argument("--python", choices=PYTHONS, nargs="+", default=PYTHONS)
    parser.add_argument("--extra", nargs="+", help="only these extras, such as cpu,demo")
    options = parser.parse_args()
    if shutil.which("uv") is None:
        parser.error("uv is not on the path: pip install uv")
    results = []
    for python in options.python:
        for row in rows(python):
            if options.extra is None or row.extra in options.extra:
                results.append(_tried(python, row, options.wheel.resolve()))
                record(results[-1])
                sys.stdout.write(f"{results[-1]}\n")
                sys.stdout.flush()
    return int(not all(each.fine for each in results))


def _tried(python: str, row: Row, wheel: Path) -> Result:
    """Return what a new environment shows."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        environment = Environment(_interpreter(python), Path(folder))
        result = _result(environment, python, row, wheel)
        versions = environment.versions()
        size = environment.size()
    tensorflow = next((versions[name] for name in TENSORFLOWS if name in versions), "")
    return Result(
        python=python,
        extra=row.extra,
        beside=row.beside,
        tensorflow=tensorflow,
        jax=versions.get("jax", ""),
        libtpu=versions.get("libtpu", ""),
        result=result,
        seconds=f"{time.monotonic() - start:.0f}",
        mib=f"{size / 2**20:.0f}",
        date=datetime.date.today().isoformat(),
    )


def _result(environment: Environment, python: str, row: Row, wheel: Path) -> str:
    """Return `OK`, or why not."""
    requirement = f"{wheel}[{row.extra}]" if row.extra else str(wheel)
    try:
        environment.install(requirement, *filter(None, [row.beside]))
    except Failed as error:
        missing = WITHOUT_WHEEL.get((python, row.extra))
        return f"{REFUSED}: no {missing}" if missing and missing in str(error) else error.line
    try:
        for command in (*EVERY, *row.commands):
            environment.run(*command)
        environment.run("pip", "uninstall", "--quiet", "--yes", "tpunb")
    except Failed as error:
        return error.line
    left = environment.left()
    return f"left: {', '.join(left)}" if left else OK


def _interpreter(version: str) -> str:
    """Return the path of a Python."""
    pyenv = sorted(glob.glob(str(Path.home() / f".pyenv/versions/{version}.*/bin/python3")))
    found = [*pyenv, shutil.which(f"python{version}")]
    if not (path := next(filter(None, found), None)):
        raise SystemExit(f"There is no Python {version} on the path.")
    return path


if __name__ == "__main__":
    sys.exit(main())
