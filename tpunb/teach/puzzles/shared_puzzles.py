"""The puzzles that JAX and TensorFlow share: one task each, with what a framework adds to it."""

from __future__ import annotations

from tpunb.teach.puzzles import right_results as right
from tpunb.teach.puzzles.figures import MEMORY, PADDING, SENT, TIME, other_than, runs_of
from tpunb.teach.puzzles.forms import AnySize, Form, OneFunction, Packed
from tpunb.teach.puzzles.framework import Framework
from tpunb.teach.puzzles.puzzle import Array, Limit, Puzzle

KIB, MIB = 2**10, 2**20
FLOAT32 = 5e-5
"""The rounding of float32, as a fraction of the largest number. Half the digits are too few."""
BATCH = Array((65536, 256), drifts=True)


def mean(form: Form, core: str) -> Puzzle:
    """Return the puzzle: a mean over a batch of which each core has a part."""
    few = f"Each {core} can add up its own rows first. How many numbers are left to send?"
    return Puzzle(
        "mean",
        right.mean,
        {"x": BATCH},
        form,
        SENT,
        best=1792,
        limits=(Limit(SENT, 4 * KIB, few),),
        hint=f"Every {core} has the same number of rows.",
        tolerance=FLOAT32,
    )


def variance(form: Form, core: str, all_reduce: str) -> Puzzle:
    """Return the puzzle: the variance of such a batch, with one call of `all_reduce`."""
    return Puzzle(
        "variance",
        right.variance,
        {"x": BATCH},
        form,
        SENT,
        best=3584,
        limits=(
            Limit(
                runs_of("all-reduce"),
                1,
                "The second all-reduce waits for the mean. Which two sums give the variance "
                "without knowing the mean first?",
            ),
            Limit(other_than("all-reduce"), 0, f"Use {all_reduce}."),
            Limit(SENT, 8 * KIB, f"Add up the rows on each {core} before you send."),
        ),
        hint=f"The variance of the whole batch is not the mean of the {core}s' variances.",
        tolerance=FLOAT32,
    )


def padding(framework: Framework, best: float, step: str) -> Puzzle:
    """Return the puzzle: a million points that `step` rotates without padding."""
    return Puzzle(
        "padding",
        right.rotated,
        {"points": Array((1_000_000, 3)), "rotation": Array((3, 3))},
        Packed(framework),
        MEMORY,
        best,
        limits=(
            Limit(
                PADDING,
                0.05,
                "A tile has 4 or 8 rows and 128 columns, and an axis of 3 fills up to 4. "
                "An array with one axis has no rows to fill up.",
            ),
        ),
        hint=f"`{step}` has to return its result packed as `pack` packs it.",
    )


def layers(framework: Framework, best: float, recompute: str) -> Puzzle:
    """Return the puzzle: a gradient that keeps few values; `recompute` says how."""
    kept = f"The gradient needs the values inside of each layer. {recompute}"
    return Puzzle(
        "layers",
        right.gradient_of_layers,
        {"weights": Array((16, 256, 256), scale=0.05), "x": Array((2048, 256))},
        OneFunction(framework),
        MEMORY,
        best,
        limits=(Limit(MEMORY, 50 * MIB, kept),),
        tolerance=2e-2,
    )


def logits(framework: Framework, best: float, mapping: str) -> Puzzle:
    """Return the puzzle: a loss without all logits at a time, by a function `mapping`."""
    parts = f"Compute the losses of some states at a time: {mapping}."
    return Puzzle(
        "logits",
        right.cross_entropy,
        {
            "x": Array((2048, 64)),
            "w": Array((64, 8192), scale=4.0),
            "words": Array((2048,), "int32", below=8192),
        },
        OneFunction(framework),
        TIME,
        best,
        limits=(Limit(MEMORY, 16 * MIB, parts),),
        tolerance=FLOAT32,
    )


def one_program(framework: Framework, best: float) -> Puzzle:
    """Return the puzzle: one program for batches of all sizes."""
    return Puzzle(
        "one_program",
        right.mean_square,
        {"rows": Array((64, 256)), "w": Array((256,))},
        AnySize(framework),
        MEMORY,
        best,
        hint="Rows that only fill up must not count, and the mean is over the others.",
    )
