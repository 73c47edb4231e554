"""Compare the verdicts of `tpunb` with libtpu's own, on some 500 functions.

    cd tests && python -m verdicts [--processes 2] [NAMES]

`tpunb.compile` and `tpunb.check`, the latter with and without the compiler, judge each function. So
does libtpu itself, on TensorFlow's own lowering and without code of `tpunb`. A function that
compiles is judged again with a batch that is not fixed. The command prints the differences that
docs/compiler-accuracy.md does not explain, and fails if there are any. A name may be the beginning
of a name: `sizes` or `networks.keras`.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> int:
    """Run the command; return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="functions, or beginnings of their names")
    parser.add_argument("--processes", type=int, default=1, help="number of processes at a time")
    parser.add_argument(
        "--open", action="store_true", help="compare only functions whose batch is not fixed"
    )
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return _look(options)
    command = [sys.executable, "-X", "faulthandler", "-m", "verdicts", "--worker", *options.names]
    command += [f"--processes={options.processes}", *["--open"] * options.open]
    workers = [subprocess.Popen([*command, f"--part={part}"]) for part in range(options.processes)]
    return int({worker.wait() for worker in workers} != {0})


def _look(options: argparse.Namespace) -> int:
    from verdicts import documented, open_batches
    from verdicts.compare import Compiler, difference, itself, ours
    from verdicts.functions import FUNCTIONS
    from verdicts.printed import say

    chosen = tuple(options.names) or ("",)
    names = [name for name in FUNCTIONS if name.startswith(chosen)]
    compiler, differences = Compiler(), 0
    opened: collections.Counter[str] = collections.Counter()
    for name in names[options.part :: options.processes]:
        entry = FUNCTIONS[name]
        libtpu = itself(entry, compiler)
        if not options.open and (text := difference(name, ours(entry), libtpu)):
            differences += 1
            say(f"{name}: {text}")
        differs = libtpu.refused or name in documented.VERDICTS
        if differs or not open_batches.open_places(entry):
            continue
        libtpu = open_batches.itself(entry, compiler)
        opened[_outcome(libtpu.refused)] += 1
        if text := open_batches.difference(name, open_batches.ours(entry), libtpu):
            differences += 1
            say(f"{name}, batch not fixed: {text}")
    compiler.close()
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in opened.most_common())
    say(f"{len(names[options.part :: options.processes])} functions, {differences} differences")
    say(f"with a batch that is not fixed: {outcomes or 'none'}")
    return int(bool(differences))


def _outcome(refused: str) -> str:
    """The outcome of a function whose batch is not fixed, in a word or two."""
    if "crashed" in refused:
        return "crash the compiler"
    if refused.startswith("TensorFlow"):
        return "are not lowered"
    return "are refused by libtpu" if refused else "compile"


if __name__ == "__main__":
    sys.exit(main())
