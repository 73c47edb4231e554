"""Looks for random programs that the virtual TPU gets wrong.

    cd tests && python -m differential --seeds 0:2000 --processes 2

Each program is random, comes from its seed, and is run twice: on the virtual TPU, and as
plain eager TensorFlow with a thread for each replica. Where the two differ, the smallest
program that shows it is printed as source text, and saved if `--save` names a folder. A
process that crashes is a finding of its own: it says at which seed.

With `--optimizer`, it runs on the virtual TPU both times, with TensorFlow's optimizer of graphs
(grappler) and without, first with oneDNN off and then on. The expressions of `optimizer.py` are
compared first.
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

SHARE = 25
"""Seeds for one process, which is then left: what it has traced takes memory."""


def main() -> int:
    """Runs the command; gives 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", default="0:100", help="first:last, without the last")
    parser.add_argument("--processes", type=int, default=1, help="how many at a time")
    parser.add_argument("--seconds", type=float, default=60, help="time limit of a program")
    parser.add_argument("--strict", action="store_true", help="look for crashes and numbers only")
    parser.add_argument("--optimizer", action="store_true", help="compare TensorFlow's optimizer")
    parser.add_argument("--save", type=Path, help="a folder for what is found")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    if options.worker:
        return _look(range(first, last), options)
    shares = [range(k, min(k + SHARE, last)) for k in range(first, last, SHARE)]
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
    compared = functools.partial(compare, strict=options.strict)
    found = 0
    if options.optimizer:
        compared = compare_optimizer
        for special, varying in itertools.product((False, True), repeat=2):
            for text in differences(special=special, varying=varying):
                found = 1
                _say(f"# {text}\n")
    for seed in seeds:
        # A program that hangs or crashes leaves its seed behind.
        sys.stderr.write(f"seed {seed}\r")
        faulthandler.dump_traceback_later(options.seconds * 4, exit=True)
        # Where AutoGraph has nothing to write, there is time for twice as many.
        if finding := compared(generate(seed, autograph=seed % 2 == 0)):
            finding = shrink(finding, compared, options.seconds)
            found = 1
            _say(f"# seed {seed}\n{finding}\n")
            if options.save:
                options.save.mkdir(parents=True, exist_ok=True)
                (options.save / f"seed_{seed}.py").write_text(f"# seed {seed}\n{finding}")
    faulthandler.cancel_dump_traceback_later()
    return found


if __name__ == "__main__":
    sys.exit(main())
