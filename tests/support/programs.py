"""Invented compiled programs, of every kind that a display must show."""

from __future__ import annotations

import dataclasses

from tpunb.compiler.program import TpuProgram
from tpunb.errors.code_problems import Problem, SourceLine
from tpunb.tpu.compiled_program import (
    Buffer,
    CodeLine,
    Communication,
    CoreGroups,
    MemoryOverProgram,
    MemoryOwner,
    MeshAxis,
    ProgramMemory,
    Share,
    StepTime,
    Transfer,
)

GIB = 2**30
MIB = 2**20
CELL = "<tpu_run 1f2e3d4c>"
HOSTILE = "<img src=x onerror=alert(1)></script>"

SOURCE = """\
images, labels = batch
with tf.GradientTape() as tape:
    features = tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME"))
    pooled = tf.reduce_mean(features, [1, 2])
    logits = tf.matmul(pooled, weights)
    loss = tf.nn.compute_average_loss(losses(labels, logits))
gradients = tape.gradient(loss, [kernel, weights])
optimizer.apply_gradients(zip(gradients, [kernel, weights]))"""


def place(line: int) -> SourceLine:
    return SourceLine(CELL, line)


LINES = tuple(
    CodeLine(place(number), text) for number, text in enumerate(SOURCE.splitlines(), start=2)
)

TIME = StepTime(
    low=0.11,
    high=0.174,
    matmul=0.62,
    memory_bound=0.3,
    collectives_fraction=0.06,
    by_line=(
        Share(LINES[2].text, place(4), 0.0636, 0.46),
        Share(LINES[6].text, place(8), 0.0415, 0.3),
        Share(LINES[4].text, place(6), 0.0166, 0.12),
        Share(LINES[7].text, place(9), 0.0166, 0.12),
    ),
    by_layer=(
        Share("conv1", None, 0.08, 0.58, bytes=3 * GIB),
        Share("predictions", None, 0.03, 0.22, bytes=GIB),
    ),
    by_operation=(
        Share("Conv2D", None, 0.06, 0.44),
        Share("Relu", None, 0.02, 0.14),
        Share("MatMul", None, 0.016, 0.12),
    ),
    collectives=(Share("all-reduce 97.5 MiB", None, 0.0083, 0.06, bytes=2 * 97 * MIB),),
    not_counted=("Gathers are not in the compiler's estimate.",),
)

MEMORY = ProgramMemory(
    peak=int(3.4 * GIB),
    available=int(15.48 * GIB),
    data_sheet=16 * GIB,
    arguments=175 * MIB,
    variables=98 * MIB,
    outputs=MIB,
    temporaries=int(3.2 * GIB),
    code=4 * MIB,
    largest=(
        Buffer((128, 112, 112, 64), "f32", 784 * MIB, 392 * MIB, "Conv2D", "conv1/Conv2D",
               place(4), "conv1", "temporary", "{3,0,2,1:T(8,128)}"),
        Buffer((128, 224, 224, 3), "f32", 73 * MIB, 73 * MIB, "argument", "images", None, "",
               "argument"),
        Buffer((2048, 1000), "f32", 8 * MIB, 8 * MIB, "variable", "weights", None, "", "variable"),
    ),
    padding=(
        Buffer((4, 128, 128, 9, 18), "f32", 512 * MIB, int(40.5 * MIB), "OneHot", "one_hot",
               place(6), ""),
    ),
    by_line=(
        Share(LINES[2].text, place(4), memory=2 * GIB),
        Share(LINES[6].text, place(8), memory=GIB),
    ),
    by_layer=(Share("conv1", memory=2 * GIB), Share("pool1", memory=256 * MIB)),
)  # fmt: skip

FITS = TpuProgram(
    "v3-8",
    8,
    examples=1024,
    memory=MEMORY,
    time=TIME,
    lines=LINES,
    compile_seconds=17.3,
    notes=("A loop's body is counted once for each of its 10 turns.",),
)
MESH = (MeshAxis("data", 4), MeshAxis("model", 2))
ALONG_MODEL = CoreGroups(((0, 1), (2, 3), (4, 5), (6, 7)), ("model",))
ALONG_DATA = CoreGroups(((0, 2, 4, 6), (1, 3, 5, 7)), ("data",))
COMMUNICATION = Communication(
    MESH,
    8,
    (ALONG_MODEL, ALONG_DATA, CoreGroups((), ("data", "model")), CoreGroups(known=False)),
    (
        Transfer("all-gather", MIB, 8 * MIB, 1, 2, 16.0, place(6), 0.004, 0.03),
        Transfer("reduce-scatter", MIB // 4, MIB, 0, 1, 1.0, place(8), 0.002, 0.015),
        Transfer("all-reduce", 4, 7, 2, 1, 0.5, None, 0.001, 0.007),
        Transfer("all-to-all", MIB, MIB, 3, 1, 1.0, place(4), 0.001, 0.007),
    ),
)
COMMUNICATING = dataclasses.replace(FITS, communication=COMMUNICATION)
UNTIMED = dataclasses.replace(FITS, time=None)
TOO_LARGE = TpuProgram(
    "v2-8",
    8,
    examples=1024,
    errors=(
        Problem(
            "memory",
            "It needs 9.1 GiB of a core's 7.48 GiB.",
            "Take a smaller batch.",
            4,
            CELL,
        ),
    ),
    memory=dataclasses.replace(
        MEMORY, peak=int(9.1 * GIB), available=int(7.48 * GIB), data_sheet=8 * GIB,
        temporaries=int(8.9 * GIB),
    ),
    lines=LINES,
    largest_batch=832,
)  # fmt: skip
REFUSED = TpuProgram(
    "v5e-8",
    8,
    errors=(
        Problem("unsupported-op", "StringJoin has no kernel.", "Do it in the input.", 6, CELL),
        Problem("float64", "complex128 is no type of a TPU's.", "Take complex64."),
    ),
    lines=LINES,
)
UNKNOWN = TpuProgram("v6e-8", 8, unknown="the compiler crashed.", lines=LINES)
OVER = MemoryOverProgram(
    1200,
    (0, 400, 800, 1100),
    (
        MemoryOwner("arguments and variables", None, (GIB // 4,) * 4),
        MemoryOwner(LINES[2].text, place(4), (0, GIB, 2 * GIB, 0)),
        MemoryOwner(LINES[4].text, place(6), (0, 0, GIB, GIB)),
        MemoryOwner("", None, (MIB, MIB, MIB, MIB)),
    ),
)
DRAWN = dataclasses.replace(FITS, memory=dataclasses.replace(MEMORY, over_program=OVER))
ALL = (DRAWN, FITS, COMMUNICATING, UNTIMED, TOO_LARGE, REFUSED, UNKNOWN)


def hostile() -> TpuProgram:
    """Return a program with hostile text in every field that data can reach."""
    line = CodeLine(SourceLine(f"{HOSTILE}.py", 1), HOSTILE)
    share = Share(HOSTILE, line.place, 0.1, 0.5, GIB, GIB)
    buffer = Buffer((8,), HOSTILE, GIB, MIB, HOSTILE, HOSTILE, line.place, HOSTILE, "temporary")
    return TpuProgram(
        HOSTILE,
        8,
        errors=(Problem(HOSTILE, HOSTILE, HOSTILE, 1, f"{HOSTILE}.py"),),
        memory=dataclasses.replace(
            MEMORY,
            largest=(buffer,),
            padding=(buffer,),
            by_line=(share,),
            by_layer=(share,),
            over_program=MemoryOverProgram(3, (0,), (MemoryOwner(HOSTILE, line.place, (GIB,)),)),
        ),
        time=dataclasses.replace(
            TIME,
            by_line=(share,),
            by_layer=(share,),
            by_operation=(share,),
            collectives=(share,),
            not_counted=(HOSTILE,),
        ),
        lines=(line,),
        notes=(HOSTILE,),
        communication=Communication(
            (MeshAxis(HOSTILE, 8),),
            8,
            (CoreGroups(((0, 1),), (HOSTILE,)),),
            (Transfer(HOSTILE, GIB, GIB, 0, line=line.place),),
        ),
    )


def huge(lines: int = 20_000, layers: int = 5_000) -> TpuProgram:
    """Return a program of many lines, layers and tensors."""
    code = tuple(CodeLine(SourceLine("model.py", n), f"x = layer_{n}(x)") for n in range(1, lines))
    shares = tuple(Share(line.text, line.place, 1e-6, 1 / lines, memory=MIB) for line in code)
    named = tuple(Share(f"layer_{n}", None, 1e-6, 1 / layers, memory=MIB) for n in range(layers))
    buffers = MEMORY.largest[:1] * layers
    return TpuProgram(
        "v5p-128",
        64,
        memory=dataclasses.replace(
            MEMORY, largest=buffers, padding=buffers, by_line=shares, by_layer=named
        ),
        time=dataclasses.replace(TIME, by_line=shares, by_layer=named, by_operation=named),
        lines=code,
    )
