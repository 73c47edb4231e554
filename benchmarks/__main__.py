"""``python -m benchmarks``: ratios, each against a peer or a limit."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import page, sizes
from benchmarks.models import MODELS
from benchmarks.report import MeasurementError, Result, table

_MOST = 600.0  # seconds for one measurement
_MEASURED = ("v2-8", "v3-8")
_LIMITS = {"load_ext": ("%load_ext tpunb", 0.1), "connect": ("connecting to v5e-8", 0.5)}


def main() -> int:
    """Run the cases that the command line chooses, and return 1 if a case fails."""
    args = _parsed()
    results: list[Result] = []
    failed = False
    for kind in KINDS if args.only is None else (args.only,):
        began = time.monotonic()
        found = []
        try:
            for result in KINDS[kind](args):
                found.append(result)
                _say(table([result]).split("\n")[1])
        except MeasurementError as error:
            _say(str(error))
            failed = True
        else:
            if args.write:
                page.put(kind, found)
        _say(f"{kind}: {time.monotonic() - began:.0f} s")
        results += found
    print(json.dumps([r.as_dict() for r in results], indent=1) if args.json else table(results))
    return int(failed)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each case (default 3)")
    parser.add_argument(
        "--cores",
        type=int,
        nargs="+",
        default=sizes.CORES,
        help="sizes for training",
    )
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="models for training"
    )
    parser.add_argument("--only", choices=tuple(KINDS), help="only the cases of one kind")
    parser.add_argument(
        "--timeout", type=float, default=45, help="seconds for a first step (default 45)"
    )
    return parser.parse_args()


def _notebook(args: argparse.Namespace) -> Iterator[Result]:
    for case, (name, limit) in _LIMITS.items():
        ours = tuple(_run("notebook", case)["ours"] for _ in range(args.repeats))
        yield Result(name, ours, "limit", (limit,) * args.repeats, wanted=1.0)
    rounds = [_run("notebook", "tpu_run") for _ in range(args.repeats)]
    yield Result(
        "%%tpu_run, a step of about 1 ms",
        tuple(each["ours"] for each in rounds),
        "by hand",
        tuple(each["peer"] for each in rounds),
        wanted=1.05,
    )


def _displays(args: argparse.Namespace) -> Iterator[Result]:
    """Measure an update of live curves, against a limit and against livelossplot."""
    rounds = [_run("curves") for _ in range(args.repeats)]
    ours = tuple(each["ours"] for each in rounds)
    yield Result("an update of live curves", ours, "limit", (2e-5,) * args.repeats, wanted=1.0)
    peers = tuple(each["peer"] for each in rounds)
    yield Result("an update of live curves", ours, "livelossplot", peers, wanted=1 / 5000)


def _loops(args: argparse.Namespace) -> Iterator[Result]:
    """Measure steps of less than a millisecond in loops. The kinds take turns."""
    del args
    times = {name: tuple(each) for name, each in _run("loops").items()}
    for name, ours, peer, title, wanted in (
        ("a run of 1000 steps", "ours", "hand", "by hand, best", 1 / 0.98),
        ("a run of 1000 steps", "ours", "single", "by hand, one by one", 1 / 1.3),
        ("a run with two curves", "plotted", "kept", "by hand, values kept, best", 1 / 0.98),
        ("a run with two curves", "plotted", "ours", "without curves", None),
    ):
        yield Result(name, times[ours], title, times[peer], wanted)


def _keras(args: argparse.Namespace) -> Iterator[Result]:
    """Measure a batch of `fit` with live curves, without them, and with other callbacks."""
    del args
    times = {name: tuple(each) for name, each in _run("keras_curves").items()}
    for peer in ("without", "livelossplot", "fastprogress"):
        if peer in times:
            wanted = 1.01 if peer == "without" else 1.0
            yield Result("a batch of fit with LiveCurves", times["ours"], peer, times[peer], wanted)


def _compiler(args: argparse.Namespace) -> Iterator[Result]:
    """Yield the estimates of the TPU's own compiler. Their median is the middle of a range."""
    del args
    # Run them at once: an estimate does not depend on the machine's load.
    with ThreadPoolExecutor() as threads:
        operations = threads.submit(_run, "compiler", "roofline")
        networks = {tpu: threads.submit(_run, "compiler", "resnet", tpu) for tpu in _MEASURED}
        for name, (*ours, best) in operations.result().items():
            peer = "measured" if name.startswith("scatter") else "roofline"
            yield Result(f"estimate of {name}", tuple(ours), peer, (best,) * 3)
        for tpu, network in networks.items():
            *ours, real = network.result()
            yield Result(
                f"estimate of ResNet-50, {tpu}", tuple(ours), "measured", (real,) * 3, 1.15
            )


def _jax(args: argparse.Namespace) -> Iterator[Result]:
    """Measure a virtual TPU for JAX, against limits and against JAX's own CPU device."""
    del args
    python = os.environ.get("TPUNB_COMPILER_PYTHON", sys.executable)
    times = {name: tuple(each) for name, each in _run("jax_devices", python=python).items()}
    for name, case, limit in (
        ("connecting, after JAX has started", "connect", 0.3),
        ("finding a verdict that is kept", "kept", 0.02),
    ):
        yield Result(name, times[case], "limit", (limit,) * len(times[case]), wanted=1.0)
    for name, case, wanted in (
        ("a first call, not judged", "first", 1.1),
        ("a later call", "later", 1.02),
    ):
        ours, peer = times[f"{case} ours"], times[f"{case} peer"]
        yield Result(name, ours, "on a CPU device", peer, wanted)
    steps = times["steps ours"], times["steps peer"]
    yield Result("a step of 1,000 in a cell", steps[0], "written by hand", steps[1], wanted=1.1)


def _training(args: argparse.Namespace) -> Iterator[Result]:
    return sizes.training(args.models, args.cores, repeats=args.repeats, timeout=args.timeout)


def _shared(args: argparse.Namespace) -> Iterator[Result]:
    """Measure steps whose replicas all get the same tensor, against one device."""
    for cores, wanted in ((8, 1.3), (32, 1.1), (128, 1.1)):
        times = _run("shared", "later", str(cores))
        ours, peer = (tuple(times[name]) for name in ("ours", "peer"))
        yield Result(f"one tensor for {cores} cores, later step", ours, "one device", peer, wanted)
    cores = 512
    firsts = [[_run("shared", "first", str(k)) for k in (cores, 1)] for _ in range(args.repeats)]
    ours, peer = zip(*firsts, strict=True)
    yield Result(f"one tensor for {cores} cores, first step", ours, "one device", peer, 2.5)


def _strictness(args: argparse.Namespace) -> Iterator[Result]:
    return sizes.strictness(repeats=args.repeats, timeout=args.timeout)


KINDS: Mapping[str, Callable[[argparse.Namespace], Iterator[Result]]] = {
    "training": _training,
    "shared": _shared,
    "notebook": _notebook,
    "displays": _displays,
    "loops": _loops,
    "keras": _keras,
    "strictness": _strictness,
    "compiler": _compiler,
    "jax": _jax,
}


def _run(module: str, *words: str, python: str = sys.executable) -> Any:
    """Return a measurement in a fresh process."""
    command = [python, "-m", f"benchmarks.{module}", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST, check=False)
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"{' '.join(command)} took more than {_MOST:g} s") from error
    if done.returncode:
        raise MeasurementError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    raise SystemExit(main())
