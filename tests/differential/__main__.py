"""Search for random programs that the virtual TPU gets wrong.

    cd tests && python -m differential --seeds 0:2000 --processes 2

A seed determines a program. The program runs twice: on the virtual TPU, and in plain eager
TensorFlow with a thread for each replica. If the results differ, the smallest program that shows
the difference is printed as source text, and saved if `--save` names a folder. If a process
crashes, its seeds are printed.

With `--optimizer`, both runs are on the virtual TPU: with TensorFlow's graph optimizer (grappler)
and without it, first with oneDNN off and then on. The expressions of `optimizer.py` are compared
first.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SEEDS_PER_PROCESS = 25
"""Each process then ends, to free the memory of its traces."""


def main() -> int:
    """Run the command; return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", default="0:100", help="first:last, excluding the last")
    parser.add_argument("--processes", type=int, default=1, help="number of processes at a time")
    parser.add_argument("--seconds", type=float, default=60, help="time limit of a program")
    parser.add_argument("--strict", action="store_true", help="look for crashes and numbers only")
    parser.add_argument("--optimizer", action="store_true", help="compare TensorFlow's optimizer")
    parser.add_argument("--save", type=Path, help="folder for the programs that differ")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    if options.worker:
        return _look(range(first, last), options)
    shares = [
        range(k, min(k + SEEDS_PER_PROCESS, last)) for k in range(first, last, SEEDS_PER_PROCESS)
    ]
    settings = ({"TF_ENABLE_ONEDNN_OPTS": "0"}, {"TF_ENABLE_ONEDNN_OPTS": "1"})
    pending = list(itertools.product(settings if options.optimizer else [{}], shares))
    found = False
    running: list[tuple[range, subprocess.Popen[bytes]]] = []
    while pending or running:
        while pending and len(running) < options.processes:
            setting, seeds = pending.pop(0)
            running.append((seeds, _start(seeds, options, setting)))
        seeds, process = running.pop(0)
        code = process.wait()
        found |= code != 0
        if code not in {0, 1}:
            _say(f"# the process of seeds {seeds.start}:{seeds.stop} ended with {code}\n")
    return int(found)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _start(
    seeds: range, options: argparse.Namespace, setting: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-X", "faulthandler", "-m", "differential", "--worker"]
    command += [f"--seeds={seeds.start}:{seeds.stop}", f"--seconds={options.seconds}"]
    command += ["--strict"] if options.strict else []
    command += ["--optimizer"] if options.optimizer else []
    command += [f"--save={options.save}"] if options.save else []
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", **os.environ}
    return subprocess.Popen(command, env={**environment, **setting})


def _look(seeds: range, options: argparse.Namespace) -> int:
    import faulthandler

    from differential.compare import compare, compare_optimizer
    from differential.engine import start
    from differential.generator import generate
    from differential.optimizer import differences
    from differential.shrink import shrink

    start()
    check = functools.partial(compare, strict=options.strict)
    found = 0
    if options.optimizer:
        check = compare_optimizer
        for special, varying in itertools.product((False, True), repeat=2):
            for text in differences(special=special, varying=varying):
                found = 1
                _say(f"# {text}\n")
    for seed in seeds:
        # If a program hangs or crashes, its seed stays on the screen.
        sys.stderr.write(f"seed {seed}\r")
        faulthandler.dump_traceback_later(options.seconds * 4, exit=True)
        # Programs without AutoGraph run twice as fast, so half of the programs are without it.
        if finding := check(generate(seed, autograph=seed % 2 == 0)):
            finding = shrink(finding, check, options.seconds)
            found = 1
            _say(f"# seed {seed}\n{finding}\n")
            if options.save:
                options.save.mkdir(parents=True, exist_ok=True)
                (options.save / f"seed_{seed}.py").write_text(f"# seed {seed}\n{finding}")
    faulthandler.cancel_dump_traceback_later()
    return found


if __name__ == "__main__":
    sys.exit(main())
