"""Compare every joined operation with one replica at a time.

    cd tests && python -m joining --processes 2

Cases cover, for each rule, the types of the operation, its boolean and enumerated attributes,
ranks, sizes, and which inputs vary. Both results and gradients are compared. The exit code is 1 if
something differs, if an operation had no valid case, or if a rule was never used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

OPERATIONS_PER_PROCESS = 6
"""Each process then ends, to free the memory of its traces."""

MAX_SHOWN = 5
"""How many differences of an operation are printed."""


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("operations", nargs="*", help="all that have a rule by default")
    parser.add_argument("--cases", type=int, default=100, help="number of cases of each operation")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random cases")
    parser.add_argument("--processes", type=int, default=1, help="number of processes at a time")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return _check(options.operations, options.cases, options.seed)
    if not options.operations:
        from tpunb.tensorflow.virtual.replicate.joining_rules import operations

        options.operations = sorted(operations())
    names = options.operations
    pending = [
        names[k : k + OPERATIONS_PER_PROCESS] for k in range(0, len(names), OPERATIONS_PER_PROCESS)
    ]
    running: list[subprocess.Popen[bytes]] = []
    worst = 0
    while pending or running:
        while pending and len(running) < options.processes:
            command = [sys.executable, "-m", "joining", "--worker"]
            command += [f"--cases={options.cases}", f"--seed={options.seed}"]
            environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", **os.environ}
            running.append(subprocess.Popen([*command, *pending.pop(0)], env=environment))
        worst = max(worst, abs(running.pop(0).wait()))
    return int(worst > 0)


def _check(operations: list[str], cases: int, seed: int) -> int:
    from joining.running import check, start

    start()
    bad = 0
    for op in operations:
        findings = check([op], cases, seed, rounds=3)
        missing = "" if findings.joined[op] else ", NEVER JOINED"
        bad |= bool(findings.wrong or missing)
        counts = [counter[op] for counter in (findings.valid, findings.joined, findings.refused)]
        sys.stdout.write("{}: {} compared, {} joined, {} refused{}\n".format(op, *counts, missing))
        shown = findings.wrong[:MAX_SHOWN]
        sys.stdout.write("".join(f"  {line}\n" for line in shown))
        if len(findings.wrong) > len(shown):
            sys.stdout.write(f"  ... {len(findings.wrong)} in all\n")
        sys.stdout.flush()
    return bad


if __name__ == "__main__":
    sys.exit(main())
