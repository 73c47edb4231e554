"""The cost of live training curves for the kernel, against livelossplot, which redraws them.

``python -m benchmarks.curves`` prints JSON: the seconds of one update with two metrics, for tpunb
and for livelossplot, at 10,000 points a line, in one process. Both send to a front end, through
ipykernel's comm and session if ipykernel is installed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

_POINTS = 10_000
_UPDATES = 20_000
_BATCH = 50
_REDRAWS = 5


def main() -> None:
    """Measure both and print JSON."""
    with _kernel():
        measured = {**ours(), **peer()}
    print(json.dumps(measured), file=sys.__stdout__)


def ours() -> dict[str, float]:
    """Return the seconds that an update takes from the training loop.

    `ours` is the mean. It includes the time in which the sending thread holds Python's lock.
    `sent` is the number of messages.
    """
    from tpunb.display.widgets.curves import CurvesWidget
    from tpunb.training.history import History

    history = History()
    widget = CurvesWidget(history)
    sent = _counted(widget)
    for step in range(_POINTS):
        history.append(step, loss=1 / (step + 1), accuracy=0.5)
    times = []
    for batch in range(_UPDATES // _BATCH):
        first = _POINTS + batch * _BATCH
        began = time.perf_counter()
        for step in range(first, first + _BATCH):
            history.append(step, loss=1 / (step + 1), accuracy=0.5)
        times.append((time.perf_counter() - began) / _BATCH)
        # A training step computes outside of Python, so other threads can run.
        time.sleep(0.001)
    widget.finish()
    widget.close()
    return {"ours": statistics.fmean(times), "median": statistics.median(times), "sent": sent()}


def peer() -> dict[str, float]:
    """Return the seconds of one update of livelossplot, which redraws with matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    from livelossplot import PlotLosses

    plot = PlotLosses()
    times = []
    with redirect_stdout(StringIO()):
        for step in range(_POINTS):
            plot.update({"loss": 1 / (step + 1), "accuracy": 0.5})
        for step in range(_REDRAWS):
            began = time.perf_counter()
            plot.update({"loss": 1 / (_POINTS + step), "accuracy": 0.5})
            plot.send()
            times.append(time.perf_counter() - began)
    return {"peer": statistics.median(times)}


def _counted(widget: Any) -> Callable[[], int]:
    """Count a widget's messages from now on, and return a function that returns the count."""
    count = 0
    send = widget.send

    def counting(*args: Any) -> None:
        nonlocal count
        count += 1
        send(*args)

    widget.send = counting
    return lambda: count


@contextmanager
def _kernel() -> Iterator[None]:
    """Provide a kernel's session and sockets within a block, without a connected front end."""
    try:
        from ipykernel.kernelapp import IPKernelApp
    except ImportError:
        yield
        return
    app = IPKernelApp.instance()
    app.initialize(
        [
            "--log-level=ERROR",
            "--quiet",
            "--HistoryManager.enabled=False",
            "--IPKernelApp.capture_fd_output=False",
        ]
    )
    app.kernel.set_parent([], {"header": {"msg_id": "benchmark", "session": "", "username": ""}})
    try:
        yield
    finally:
        app.close()


if __name__ == "__main__":
    main()
