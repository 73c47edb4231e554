"""The TPU of this very machine: why TensorFlow sees none."""

from __future__ import annotations

import os
import sys
from typing import Any

from tpunb.hardware.attempt import SIMULATE, Attempt
from tpunb.machine import Finding, Machine, look

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
    findings = [held] if held is not None else _in_the_way(machine)
    if findings:
        first = findings[0]
        for finding in findings:
            attempt.note(finding.message)
        raise attempt.error(
            f"TensorFlow {tf.__version__} sees no TPU here. {first.message}", _mend(first)
        )
    raise attempt.error(
        f"TensorFlow {tf.__version__} sees no TPU, though there is one on this machine.",
        "Restart the kernel and connect before anything else uses the TPU; `%tpu_doctor` shows "
        "what is installed and who holds the TPU.",
    )


def _mend(finding: Finding) -> str:
    """What to do, and what to type for it."""
    if not finding.command or finding.command in finding.mend:
        return finding.mend
    return f"{finding.mend.rstrip('.')}: {finding.command}"


def _in_the_way(machine: Machine) -> list[Finding]:
    """What keeps TensorFlow from the TPU of this machine."""
    found = [finding for finding in machine.findings_for(local_tpu=True) if finding.stops]
    if os.environ.get("TPU_LOAD_LIBRARY", "").strip() == "0" and not found:
        found.append(
            Finding(
                "TPU_LOAD_LIBRARY",
                "TPU_LOAD_LIBRARY=0 keeps TensorFlow from this machine's TPU.",
                "Unset it and restart the kernel; or, on a slice of several hosts, connect to the "
                "TPU by its name: %tpu_connect NAME.",
            )
        )
    return found


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
