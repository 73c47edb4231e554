"""The puzzles in JAX. `notebooks/puzzles/solutions` has the best known solutions."""

from __future__ import annotations

from typing import Any

from tpunb.puzzles import right_results as right
from tpunb.puzzles.figures import MEMORY, PADDING, SENT, TIME, other_than, runs_of
from tpunb.puzzles.forms import OnOneCore
from tpunb.puzzles.jax_forms import Jitted, OnEachCore, Shardings
from tpunb.puzzles.jax_programs import Jax
from tpunb.puzzles.pairs import AnySize, Packed
from tpunb.puzzles.puzzle import Array, Limit, Puzzle

JAX = Jax()
KIB, MIB = 2**10, 2**20


def two_layers(x: Any, w1: Any, w2: Any) -> Any:
    """Return the result of two layers."""
    import jax

    return jax.nn.relu(x @ w1) @ w2


PUZZLES = (
    Puzzle(
        "mean",
        "Send a thousandth: the mean over a batch of which each core has a part.",
        right.mean,
        {"x": Array((65536, 256), drifts=True)},
        OnEachCore((("core",),), ()),
        "v5e-8",
        SENT,
        best=1792,
        limits=(
            Limit(
                SENT,
                4 * KIB,
                "Each core can add up its own rows first. How many numbers are left to send?",
            ),
        ),
        hint="Every core has the same number of rows.",
    ),
    Puzzle(
        "variance",
        "One all-reduce, and no other collective.",
        right.variance,
        {"x": Array((65536, 256), drifts=True)},
        OnEachCore((("core",),), ()),
        "v5e-8",
        SENT,
        best=3584,
        limits=(
            Limit(
                runs_of("all-reduce"),
                1,
                "The second all-reduce waits for the mean. Which two sums give the variance "
                "without knowing the mean first?",
            ),
            Limit(other_than("all-reduce"), 0, "Use jax.lax.psum or jax.lax.pmean."),
            Limit(SENT, 8 * KIB, "Add up the rows on each core before you send."),
        ),
        hint="The variance of the whole batch is not the mean of the cores' variances.",
    ),
    Puzzle(
        "neighbours",
        "Only neighbours talk: a core needs one row from each side.",
        right.neighbours,
        {"x": Array((65536, 256), drifts=True)},
        OnEachCore((("core",),), ("core",)),
        "v5e-8",
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
    ),
    Puzzle(
        "half",
        "Half the communication: each core keeps an eighth of the product.",
        right.product,
        {"x": Array((1024, 2048)), "w": Array((2048, 512))},
        OnEachCore(((None, "core"), ("core",)), ("core",)),
        "v5e-8",
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
        tolerance=1e-4,
    ),
    Puzzle(
        "vocabulary",
        "The loss of a vocabulary of which each core has a part, without sending logits.",
        right.cross_entropy,
        {
            "x": Array((1024, 64)),
            "w": Array((64, 32768), scale=4.0),
            "words": Array((1024,), "int32", below=32768),
        },
        OnEachCore(((), (None, "core"), ()), ()),
        "v5e-8",
        SENT,
        best=10759,
        limits=(
            Limit(
                SENT,
                64 * KIB,
                "Send a few numbers for each word: the largest logit, the sum of exponentials, and "
                "the logit of the right word, which only one core has.",
            ),
        ),
        hint="Core i has the words from i * w.shape[1] on.",
    ),
    Puzzle(
        "ring",
        "A product with a matrix that no core ever has as a whole.",
        right.product,
        {"x": Array((512, 2048)), "w": Array((2048, 8192))},
        OnEachCore((("core",), (None, "core")), ("core",)),
        "v5e-8",
        MEMORY,
        best=23862784,
        limits=(
            Limit(
                MEMORY,
                32 * MIB,
                "Use one part of `w`, pass it on to the next core, and repeat. In a Python loop, "
                "the compiler may send all parts before it uses them. jax.lax.fori_loop keeps "
                "the order.",
            ),
            Limit(other_than("collective-permute"), 0, "Pass the parts on with jax.lax.ppermute."),
        ),
        hint="After k steps, core i has the part of core i - k, whose columns begin elsewhere.",
        tolerance=1e-4,
    ),
    Puzzle(
        "shardings",
        "Fit two layers of 16 GiB into a v5e-8, with one all-reduce.",
        two_layers,
        {
            "x": Array((2048, 16384), "bfloat16"),
            "w1": Array((16384, 262144), "bfloat16"),
            "w2": Array((262144, 16384), "bfloat16"),
        },
        Shardings(two_layers),
        "v5e-8",
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
    Puzzle(
        "padding",
        "Rotate a million points, and waste less than 5% of the memory on padding.",
        right.rotated,
        {"points": Array((1_000_000, 3)), "rotation": Array((3, 3))},
        Packed(JAX),
        "v5e-1",
        MEMORY,
        best=24017920,
        limits=(
            Limit(
                PADDING,
                0.05,
                "A tile has 4 or 8 rows and 128 columns, and an axis of 3 fills up to 4. "
                "An array with one axis has no rows to fill up.",
            ),
        ),
        hint="`step` has to return its result packed as `pack` packs it.",
    ),
    Puzzle(
        "layers",
        "The gradient of 16 layers, with less than half of the memory.",
        right.gradient_of_layers,
        {"weights": Array((16, 256, 256), scale=0.05), "x": Array((2048, 256))},
        OnOneCore(JAX),
        "v5e-1",
        MEMORY,
        best=38283264,
        limits=(
            Limit(
                MEMORY,
                50 * MIB,
                "The gradient needs the values inside of each layer. jax.checkpoint computes them "
                "again instead of keeping them.",
            ),
        ),
        tolerance=2e-2,
    ),
    Puzzle(
        "logits",
        "The loss of 2,048 words, without 64 MiB of logits.",
        right.cross_entropy,
        {
            "x": Array((2048, 64)),
            "w": Array((64, 8192), scale=4.0),
            "words": Array((2048,), "int32", below=8192),
        },
        OnOneCore(JAX),
        "v5e-1",
        TIME,
        best=113.8e-6,
        limits=(Limit(MEMORY, 16 * MIB, "Compute the loss of some words at a time: jax.lax.map."),),
    ),
    Puzzle(
        "donation",
        "A step of momentum that needs no memory for its results.",
        right.momentum,
        {name: Array((4096, 4096)) for name in ("weights", "speed", "gradients")},
        Jitted(JAX),
        "v5e-1",
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
    Puzzle(
        "one_program",
        "Batches of 1 to 64 rows, and one program for all.",
        right.mean_square,
        {"rows": Array((64, 256)), "w": Array((256,))},
        AnySize(JAX),
        "v5e-1",
        MEMORY,
        best=68096,
        limits=(),
        hint="Rows that only fill up must not count, and the mean is over the others.",
    ),
    Puzzle(
        "kernel",
        "A kernel that fits into VMEM, and wastes no time.",
        right.scaled,
        {"x": Array((1024, 2048)), "y": Array((1024, 2048))},
        OnOneCore(JAX, needs=("pallas_call",)),
        "v5e-1",
        TIME,
        best=33.4e-6,
        limits=(
            Limit(
                TIME,
                60e-6,
                "Each block costs the kernel some time of its own. Make the blocks larger.",
            ),
        ),
    ),
)
