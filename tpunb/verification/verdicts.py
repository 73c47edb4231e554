"""What `tpunb.compile` says of a program, for a claim, and how long the program takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tpunb._util.units import duration
from tpunb.compiler.compile import compile as compile_for_a_tpu
from tpunb.compiler.program import TpuProgram
from tpunb.errors import CompilerUnavailableError
from tpunb.verification.suite import NotRunError, Outcome, compared

_ROUNDS = 5

NO_SPEED = "a virtual TPU has the speed of this machine's CPU"
"""The reason why a virtual TPU cannot show a claim about time."""


def verdict_on(call: Any, *args: Any, tpu: str, speed: bool = False) -> TpuProgram:
    """Return what `tpunb.compile` says of a call.

    Args:
        call: The function.
        *args: Its arguments.
        tpu: The TPU type.
        speed: Whether to estimate the time.

    Raises:
        NotRunError: There is no verdict.
    """
    try:
        program = compile_for_a_tpu(call, *args, tpu=tpu, speed=speed, live_arrays=False)
    except CompilerUnavailableError as error:
        raise NotRunError(f"the compiler is not installed: {error.message}") from error
    if program.unknown or program.memory is None:
        raise NotRunError(f"the compiler has no verdict: {program.unknown or program.unsized}")
    return program


def within_the_estimate(program: TpuProgram, measure: Callable[[], float]) -> Outcome:
    """Compare a measured time with the range of the estimate.

    Args:
        program: The program, compiled with `speed=True`.
        measure: Returns the seconds of a call.

    Raises:
        NotRunError: There is no estimate.
    """
    if program.time is None:
        raise NotRunError("the compiler gives no figures to estimate the time from")
    found, low, high = measure(), program.time.low, program.time.high
    ratio = found / program.time.estimate
    return compared(
        low <= found <= high,
        f"{duration(low)} to {duration(high)}",
        f"{duration(found)}, {ratio:.2f} times the middle",
    )


def fastest(call: Callable[[], Any], wait: Callable[[Any], object], calls: int) -> float:
    """Return the seconds of a call in a loop of calls, in the fastest of some rounds.

    Args:
        call: Starts a call, and returns its result.
        wait: Waits for a result.
        calls: The number of calls in a round.
    """
    wait(call())  # traces and compiles

    def one_round() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            result = call()
        wait(result)
        return (time.perf_counter() - begin) / calls

    return min(one_round() for _ in range(_ROUNDS))
