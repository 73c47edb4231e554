"""The TPU of this very machine: why TensorFlow sees none."""

from __future__ import annotations

import os
import sys
from typing import Any

from tpunb.hardware.attempt import SIMULATE, Attempt
from tpunb.machine import Finding, look

__all__ = ["refuse_no_tpu_here"]


def refuse_no_tpu_here(tf: Any, attempt: Attempt) -> None:
    """Raises if TensorFlow sees no TPU of this machine, with the reason.

    Raises:
        ConnectError: It sees none.
    """
    held = _held_by_jax()
    attempt.say("looking for a TPU of this machine")
    with attempt.explained():
        found = tf.config.list_physical_devices("TPU")
    attempt.note(f"TensorFlow lists {len(found)} TPU devices")
    if found:
        return
    machine = look(os.environ)
    search = machine.search
    attempt.tried[:] = [*search.tried, *attempt.tried]
    chips = search.chips
    is_here = bool(chips.files or chips.unknown or chips.on_bus) or search.lacks_devices
    if not is_here:
        raise attempt.error(
            f"TensorFlow {tf.__version__} sees no TPU on this machine, nor any sign of one.",
            f"{SIMULATE} With a TPU, run this on its own machine.",
        )
    # JAX in this process holds the TPU: of other processes none is in the way.
    findings = [held] if held is not None else list(_in_the_way(machine.findings))
    if findings:
        first = findings[0]
        for finding in findings:
            attempt.note(finding.message)
        raise attempt.error(
            f"TensorFlow {tf.__version__} sees no TPU here. {first.message}", first.mend
        )
    raise attempt.error(
        f"TensorFlow {tf.__version__} sees no TPU, though there is one on this machine.",
        "Restart the kernel and connect before anything else uses the TPU; `%tpu_doctor` shows "
        "what is installed and who holds the TPU.",
    )


def _in_the_way(findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if finding.stops]


def _held_by_jax() -> Finding | None:
    """JAX, if it has taken the TPU in this process; it is looked at, not asked."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends = getattr(bridge, "_backends", None)
    if not isinstance(backends, dict) or "tpu" not in backends:
        return None
    return Finding(
        "jax",
        "JAX holds the TPU in this very process.",
        "Restart the kernel and connect before JAX is used: one library at a time holds a TPU.",
    )
