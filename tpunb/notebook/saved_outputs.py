"""Leaves out of comparisons what no second run of a notebook can print."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

_LOGS = re.compile(
    # What TensorFlow logs through Python's logging, with its deprecations' second and
    # third line, ...
    r"^(?:WARNING:(?:tensorflow|absl):.*(?:\nInstructions for updating:\n.*)?"
    r"|(?:INFO|DEBUG):(?:tensorflow|absl):.*"
    # ... and its C++ parts, with the time and a thread's number.
    r"|[IWEF]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ .*"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] .*"
    r"|WARNING: All log messages before absl::InitializeLog.*)(?:\n|\Z)",
    re.MULTILINE,
)
# A TPU's worker has another address every time.
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}:8470\b")
_SAME = "ADDRESS:8470"
_PLAIN = "text/plain"


def compare_without_logs(cell: Any) -> None:
    """Lets a cell of nbval compare what its program prints, and not TensorFlow's log.

    The log has dates, addresses and numbers of sessions, and depends on the release.
    """
    compare = cell.compare_outputs

    def compare_outputs(test: Any, ref: Any, *args: Any, **kwargs: Any) -> Any:
        return compare(comparable(test), comparable(ref), *args, **kwargs)

    cell.compare_outputs = compare_outputs


def comparable(outputs: Sequence[Any]) -> list[Any]:
    """A cell's outputs (as in nbformat) without TensorFlow's log and without a TPU's address.

    Streams that hold only log are left out.
    """
    kept = []
    for output in outputs:
        output = copy.deepcopy(output)
        if output.output_type == "stream":
            text = _LOGS.sub("", output.text)
            if not text.strip() and text != output.text:
                continue
            output.text = _ADDRESS.sub(_SAME, text)
        elif isinstance(plain := output.get("data", {}).get(_PLAIN), str):
            output.data[_PLAIN] = _ADDRESS.sub(_SAME, plain)
        kept.append(output)
    return kept
