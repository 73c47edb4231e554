"""This machine's TPU, and why TensorFlow may see none."""

from __future__ import annotations

import os
import sys
from typing import Any

from tpunb.connection.hardware.attempt import SIMULATE, Attempt
from tpunb.machine import Machine, look
from tpunb.machine.problems import Problem


def require_local_tpu(tf: Any, attempt: Attempt) -> None:
    """Raises, with the reason, if TensorFlow sees no TPU on this machine.

    Raises:
        ConnectError: It sees none.
    """
    held = _used_by_jax()
    attempt.say("looking for a TPU on this machine")
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
            f"TensorFlow {tf.__version__} sees no TPU on this machine, and nothing "
            "else indicates one.",
            f"{SIMULATE} With a TPU, run this on its own machine.",
        )
    # If JAX in this process uses the TPU, no other process can be the cause.
    problems = [held] if held is not None else _blocking(machine)
    if problems:
        first = problems[0]
        for problem in problems:
            attempt.note(problem.message)
        fix = first.fix
        if first.command and first.command not in fix:
            fix = f"{fix.rstrip('.')}: {first.command}"
        raise attempt.error(f"TensorFlow {tf.__version__} sees no TPU here. {first.message}", fix)
    raise attempt.error(
        f"TensorFlow {tf.__version__} sees no TPU, though there is one on this machine.",
        "Restart the kernel and connect before anything else uses the TPU; `%tpu_doctor` shows "
        "the installed versions and the process that holds the TPU.",
    )


def _blocking(machine: Machine) -> list[Problem]:
    """The problems that keep TensorFlow from this machine's TPU."""
    found = [problem for problem in machine.problems_for(local_tpu=True) if problem.stops]
    if os.environ.get("TPU_LOAD_LIBRARY", "").strip() == "0" and not found:
        found.append(
            Problem(
                "TPU_LOAD_LIBRARY",
                "TPU_LOAD_LIBRARY=0 keeps TensorFlow from this machine's TPU.",
                "Unset it and restart the kernel; or, on a slice of several hosts, connect to the "
                "TPU by its name: %tpu_connect NAME.",
            )
        )
    return found


def _used_by_jax() -> Problem | None:
    """A problem if JAX uses the TPU in this process; does not initialise JAX."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends = getattr(bridge, "_backends", None)
    if not isinstance(backends, dict) or "tpu" not in backends:
        return None
    return Problem(
        "jax",
        "JAX uses the TPU in this process.",
        "Restart the kernel and connect before JAX is used: only one library at a time can use a "
        "TPU.",
    )
