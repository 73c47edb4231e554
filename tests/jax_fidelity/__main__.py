"""Compare operations of JAX on a virtual TPU with plain CPU devices, and write the page.

    cd tests && python -m jax_fidelity [NAMES]

The command runs each operation on plain CPU devices and on a virtual TPU, whose programs the TPU's
own compiler judges. It writes docs/maintainers/jax-fidelity.md, and fails if numbers differ. With names of
operations, or beginnings of names, it prints their rows and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys

import jax

import tpunb
from jax_fidelity.compare import DIFFERENT, Row, compared, plain_results
from jax_fidelity.operations import GROUPS
from jax_fidelity.page import PATH, TPU, line, page_text
from tpunb.jax.compiler.judge import When

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu asks a metadata server otherwise
os.environ.setdefault("TPUNB_VERDICTS", "off")  # the page shows what the compiler says today


def main() -> int:
    """Run the command; return 1 if any numbers differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="operations, or beginnings of their names")
    parser.add_argument(
        "--unjudged", action="store_true", help="compare numbers only, and write nothing"
    )
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    rows = _rows(tuple(options.names) or ("",), "off" if options.unjudged else "wait")
    if not options.names and not options.unjudged:
        groups = {title: [rows[name] for name in group] for title, group in GROUPS.items()}
        PATH.write_text(page_text(groups, jax.__version__), encoding="utf-8")
    return int(any(each.numbers == DIFFERENT for each in rows.values()))


def _rows(beginnings: tuple[str, ...], judge: When) -> dict[str, Row]:
    """Return the rows of the operations whose names begin so, and print them."""
    every = {name: each for group in GROUPS.values() for name, each in group.items()}
    chosen = {name: each for name, each in every.items() if name.startswith(beginnings)}
    cpus = jax.devices("cpu")
    expected = {name: plain_results(operation, cpus) for name, operation in chosen.items()}
    connection = tpunb.connect(simulate=TPU, framework="jax", judge=judge)
    rows = {}
    for name, operation in chosen.items():
        rows[name] = compared(name, operation, connection, expected[name])
        sys.stdout.write(f"{line(rows[name])}\n")
        sys.stdout.flush()
    return rows


if __name__ == "__main__":
    sys.exit(main())
