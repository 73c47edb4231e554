"""``python -m benchmarks``: a table of ratios; ``--json`` for programs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.report import Result, table

_CORES = (8, 32, 128)
_MODELS = ("mlp", "guide")
_KINDS = ("notebook", "displays", "loops", "keras", "training", "strictness", "compiler")
_PEERS = {"mirrored": "MirroredStrategy", "one": "one device"}
_LIMITS = {"load_ext": ("%load_ext tpunb", 0.1), "connect": ("connecting to v5e-8", 0.5)}


def main() -> int:
    """Runs the cases that the command line chooses."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each case (default 3)")
    parser.add_argument(
        "--cores", type=int, nargs="+", default=_CORES, help="sizes for training (8 32 128)"
    )
    parser.add_argument("--only", choices=_KINDS, help="only the cases of one kind")
    parser.add_argument(
        "--timeout", type=float, default=900, help="seconds for one measurement (default 900)"
    )
    args = parser.parse_args()
    results = []
    for result in _results(args):
        results.append(result)
        if not args.json:
            print(table([result]).split("\n")[1], file=sys.stderr, flush=True)
    print(json.dumps([r.as_dict() for r in results], indent=1) if args.json else table(results))
    return 0


def _results(args: argparse.Namespace) -> Iterator[Result]:
    kinds = _KINDS if args.only is None else (args.only,)
    if "notebook" in kinds:
        yield from _notebook(args)
    if "displays" in kinds:
        yield from _displays(args)
    if "loops" in kinds:
        yield from _loops(args)
    if "keras" in kinds:
        yield from _keras(args)
    if "compiler" in kinds:
        yield from _compiler(args)
    for cores in args.cores:
        for model in _MODELS if "training" in kinds else ():
            yield from _training(model, cores, args)
        for model in (*_MODELS, "lstm") if "strictness" in kinds else ():
            yield from _strictness(model, cores, args)


def _notebook(args: argparse.Namespace) -> Iterator[Result]:
    for case, (name, limit) in _LIMITS.items():
        ours = tuple(_run(args, "notebook", case)["ours"] for _ in range(args.repeats))
        yield Result(name, ours, "limit", (limit,) * args.repeats, wanted=1.0)
    rounds = [_run(args, "notebook", "tpu_run") for _ in range(args.repeats)]
    yield Result(
        "%%tpu_run, a step of about 1 ms",
        tuple(each["ours"] for each in rounds),
        "by hand",
        tuple(each["peer"] for each in rounds),
        wanted=1.05,
    )


def _displays(args: argparse.Namespace) -> Iterator[Result]:
    """An update of live curves, against a limit and against livelossplot in the same process."""
    rounds = [_run(args, "curves") for _ in range(args.repeats)]
    ours = tuple(each["ours"] for each in rounds)
    yield Result("an update of live curves", ours, "limit", (2e-5,) * args.repeats, wanted=1.0)
    peers = tuple(each["peer"] for each in rounds)
    yield Result("an update of live curves", ours, "livelossplot", peers, wanted=1 / 5000)


def _loops(args: argparse.Namespace) -> Iterator[Result]:
    """Steps of under a millisecond in loops, each kind in turns with the others."""
    times = {name: tuple(each) for name, each in _run(args, "loops").items()}
    for name, ours, peer, wanted in (
        ("a run of 1000 steps", "ours", "best", 1 / 0.98),
        ("a run of 1000 steps", "ours", "single", 1 / 1.3),
        ("the same with two curves", "plotted", "ours", 1.01),
    ):
        label = {"best": "by hand, best", "single": "by hand, one by one", "ours": "without"}
        yield Result(name, times[ours], label[peer], times[peer], wanted)


def _keras(args: argparse.Namespace) -> Iterator[Result]:
    """A batch of `fit` with live curves, against none and against others' callbacks."""
    rounds = [_run(args, "keras_curves") for _ in range(args.repeats)]
    ours = tuple(each["ours"] for each in rounds)
    for peer in ("without", "livelossplot", "fastprogress"):
        if all(isinstance(each.get(peer), float) for each in rounds):
            peers = tuple(each[peer] for each in rounds)
            wanted = 1.01 if peer == "without" else 1.0
            yield Result("a batch of fit with LiveCurves", ours, peer, peers, wanted)


def _compiler(args: argparse.Namespace) -> Iterator[Result]:
    """Estimates of the TPU's own compiler: spread from low to high; the median is the middle."""
    for name, (*ours, best) in _run(args, "compiler", "roofline").items():
        peer = "measured" if name.startswith("scatter") else "roofline"
        yield Result(f"estimate of {name}", tuple(ours), peer, (best,) * 3)
    for tpu in ("v2-8", "v3-8"):
        *ours, real = _run(args, "compiler", "resnet", tpu)
        yield Result(f"estimate of ResNet-50, {tpu}", tuple(ours), "measured", (real,) * 3, 1.15)


def _training(model: str, cores: int, args: argparse.Namespace) -> Iterator[Result]:
    """First and steady step against each peer, taken in turns."""
    times: dict[str, list[dict[str, float]]] = {"virtual": [], **{peer: [] for peer in _PEERS}}
    for _ in range(args.repeats):
        for strategy, measured in times.items():
            measured.append(_run(args, "training", strategy, str(cores), model))
    for peer, name in _PEERS.items():
        for phase in ("first", "steady"):
            yield Result(
                f"{model}, {cores} cores, {phase} step",
                tuple(each[phase] for each in times["virtual"]),
                name,
                tuple(each[phase] for each in times[peer]),
                _wanted(peer, phase, cores),
            )


def _strictness(model: str, cores: int, args: argparse.Namespace) -> Iterator[Result]:
    """First and steady step with all rules against the same without any."""
    pairs = [
        [_run(args, "training", name, str(cores), model) for name in ("virtual", "lenient")]
        for _ in range(args.repeats)
    ]
    for phase, wanted in (("first", 1.3), ("steady", 1.0)):
        yield Result(
            f"{model}, {cores} cores, strict, {phase} step",
            tuple(strict[phase] for strict, _ in pairs),
            "lenient",
            tuple(lenient[phase] for _, lenient in pairs),
            wanted,
        )


def _wanted(peer: str, phase: str, cores: int) -> float | None:
    if peer != "mirrored":
        return None
    return 0.25 if phase == "first" and cores >= 128 else 1.0


def _run(args: argparse.Namespace, module: str, *words: str) -> dict[str, Any]:
    """A measurement in a fresh process."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=args.timeout, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


if __name__ == "__main__":
    raise SystemExit(main())
