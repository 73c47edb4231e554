"""Errors of compiled programs while a TPU loads and runs them."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Explanation, code_of_xla, page_of_xla

RUNNING = (
    Explanation(
        "63",
        "A TPU core halted",
        (
            r"Accelerator device halted prematurely",
            r"The program continuator has halted unexpectedly",
            r"Halt is unexpected, all pending programs will fail",
            r"\b[Cc]ore halted unexpectedly\b",
            code_of_xla("0200"),
        ),
        "The core stopped in the middle of a program: a check in the program failed, or the "
        "hardware did. The rest of the message says which. A program from JAX's persistent cache "
        "may be for other devices than those that run it.",
        "With a persistent cache, run once without it (`JAX_ENABLE_COMPILATION_CACHE=false`), and "
        "empty its folder (`JAX_COMPILATION_CACHE_DIR`) if that helps. "
        "`observed errors are: [Hardware]`, `[Network]` or `[Power]`: run the program again; if "
        "the error recurs, restart the TPU. `BoundsCheck` or `Semaphore`: correct the indices, or "
        "the waits for copies, in your Pallas kernel. `launch group`: use the same program, "
        "XLA_FLAGS and versions on all hosts. For any other, report it to "
        "https://github.com/openxla/xla.",
        (page_of_xla("0200"), "jax-ml/jax#38004"),
    ),
    Explanation(
        "64",
        "A program gets an array of another layout",
        (
            r"expected parameter \d+ of size \d+ [^\n]{1,300}but got buffer with incompatible size",
            code_of_xla("0102"),
        ),
        "The compiled program expects an array of another size or memory order than the array it "
        "got. The program and the array come from different versions, flags or TPU types.",
        "Compile again on the TPU that runs the program, with its libtpu and XLA_FLAGS: call the "
        "`jax.jit` function itself, not a saved or cached program (`jax.clear_caches()`).",
        (page_of_xla("0102"),),
    ),
)
