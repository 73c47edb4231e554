"""The puzzles in JAX. `notebooks/puzzles/solutions` has the best known solutions."""

from __future__ import annotations

from typing import Any

from tpunb.teach.puzzles import right_results as right
from tpunb.teach.puzzles import shared_puzzles as shared
from tpunb.teach.puzzles.figures import MEMORY, SENT, TIME, other_than, runs_of
from tpunb.teach.puzzles.forms import OneFunction
from tpunb.teach.puzzles.jax_forms import Shardings
from tpunb.teach.puzzles.jax_programs import Jax, JaxOnEachCore, Spec
from tpunb.teach.puzzles.puzzle import Array, Limit, Puzzle
from tpunb.teach.puzzles.shared_puzzles import BATCH, FLOAT32, KIB, MIB

JAX = Jax()


def on_each_core(parts: tuple[Spec, ...], result: Spec) -> OneFunction:
    """Return the form of a function that each core runs on its own parts of the arguments."""
    return OneFunction(JaxOnEachCore(parts=parts, result=result))


def two_layers(x: Any, w1: Any, w2: Any) -> Any:
    """Return the result of two layers."""
    import jax

    return jax.nn.relu(x @ w1) @ w2


PUZZLES = (
    shared.mean(on_each_core((("core",),), ()), "core"),
    shared.variance(on_each_core((("core",),), ()), "core", "jax.lax.psum or jax.lax.pmean"),
    Puzzle(
        "neighbours",
        right.neighbours,
        {"x": BATCH},
        on_each_core((("core",),), ("core",)),
        SENT,
        best=2048,
        limits=(
            Limit(
                other_than("collective-permute"),
                0,
                "jax.lax.ppermute sends from core to core, without a group of all cores.",
            ),
            Limit(SENT, 4 * KIB, "Send only the row that the neighbour needs: x[-1:] or x[:1]."),
        ),
        hint="Look at the rows where one core's part ends and the next begins, and at both ends.",
        tolerance=FLOAT32,
    ),
    Puzzle(
        "half",
        right.product,
        {"x": Array((1024, 2048)), "w": Array((2048, 512))},
        on_each_core(((None, "core"), ("core",)), ("core",)),
        SENT,
        best=1835008,
        limits=(
            Limit(
                SENT,
                1792 * KIB,
                "An all-reduce is two steps: every core gets the sum of its part, then all parts. "
                "This puzzle needs only the first step.",
            ),
        ),
        hint="Core 0 keeps the first eighth of the rows, core 1 the next.",
        tolerance=FLOAT32,
    ),
    Puzzle(
        "vocabulary",
        right.cross_entropy,
        {
            "x": Array((1024, 64)),
            "w": Array((64, 32768), scale=4.0),
            "words": Array((1024,), "int32", below=32768),
        },
        on_each_core(((), (None, "core"), ()), ("core",)),
        SENT,
        best=7 * KIB,
        limits=(
            Limit(
                SENT,
                64 * KIB,
                "Send a few numbers for each word: the largest logit, the sum of exponentials, and "
                "the logit of the right word, which only one core has.",
            ),
        ),
        hint="Core i has the words from i * w.shape[1] on.",
        tolerance=FLOAT32,
    ),
    Puzzle(
        "ring",
        right.product,
        {"x": Array((4096, 1024)), "w": Array((1024, 2048))},
        on_each_core((("core",), (None, "core")), ("core",)),
        SENT,
        best=3.5 * MIB,
        limits=(
            Limit(other_than("collective-permute"), 0, "Pass the parts on with jax.lax.ppermute."),
        ),
        hint="After k steps, core i has the part of core i - k, whose columns begin elsewhere.",
        tolerance=FLOAT32,
    ),
    Puzzle(
        "shardings",
        two_layers,
        {
            "x": Array((2048, 16384), "bfloat16"),
            "w1": Array((16384, 262144), "bfloat16"),
            "w2": Array((262144, 16384), "bfloat16"),
        },
        Shardings(),
        MEMORY,
        best=2483027968,
        limits=(
            Limit(
                runs_of("all-reduce"),
                1,
                "Cut the axis over which w2's product adds up, and cut w1 so that this axis is "
                "already where it is needed.",
            ),
            Limit(
                other_than("all-reduce"),
                0,
                "The compiler moves an argument that is cut along another axis than its product "
                "needs. Which axis do the two weights share?",
            ),
        ),
    ),
    shared.padding(JAX, 24017920, "step"),
    shared.layers(JAX, 21295104, "jax.checkpoint computes them again instead of keeping them."),
    shared.logits(JAX, 47.34e-6, "jax.lax.map"),
    Puzzle(
        "donation",
        right.momentum,
        {name: Array((4096, 4096)) for name in ("weights", "speed", "gradients")},
        OneFunction(Jax(jitted=True)),
        MEMORY,
        best=192 * MIB,
        limits=(
            Limit(
                MEMORY,
                193 * MIB,
                "The step returns new weights beside the old. jax.jit can be told which arguments "
                "nobody needs afterwards.",
            ),
        ),
    ),
    shared.one_program(JAX, 68096),
    Puzzle(
        "kernel",
        right.scaled,
        {"x": Array((1024, 2048)), "y": Array((1024, 2048))},
        OneFunction(Jax(kernel=True)),
        TIME,
        best=35.64e-6,
        limits=(
            Limit(
                TIME,
                60e-6,
                "Each block costs the kernel some time of its own. Make the blocks larger.",
            ),
        ),
    ),
)
