"""Compile a training step of known models for eight chips, and save the programs for the site.

    cd tests && python -m known_models [MODEL ...]

Needs a Python with JAX. The page "In your browser" opens the programs in `docs/programs`.

A step has one sequence of 2048 tokens on each chip, weights in float32 that are sharded over all
chips, products in bfloat16, layers that are computed again for the gradients, and AdamW. The sizes
are those of the models' published configurations; biases and norms of queries are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import jax
from verdicts.decoders import Decoder, step
from verdicts.printed import say

import tpunb

FOLDER = Path(__file__).parents[1] / "docs" / "programs"
TYPES = ("v5e-8", "v6e-8", "v5p-16")

decoder = functools.partial(Decoder, batch=1, length=2048)
MODELS = {
    "TinyLlama 1.1B": decoder(32000, 22, 5632, features=2048, groups=4, size=64),
    "Phi-3 mini 3.8B": decoder(32064, 32, 8192, features=3072, groups=32, size=96),
    "Yi 6B": decoder(64000, 32, 11008, groups=4),
    "Llama 2 7B": decoder(32000, 32, 11008, groups=32),
    "Mistral 7B": decoder(32768, 32, 14336),
    "Qwen2.5 7B": decoder(152064, 28, 18944, features=3584, heads=28, groups=4),
    "Llama 3 8B": decoder(128256, 32, 14336),
    "Llama 2 13B": decoder(32000, 40, 13824, features=5120, heads=40, groups=40),
    "Qwen2.5 14B": decoder(152064, 48, 13824, features=5120, heads=40),
    "Llama 3 70B": decoder(128256, 80, 28672, features=8192, heads=64),
}


def attend(q: Any, k: Any, v: Any) -> Any:
    """Causal attention for `[batch, heads, length, size]`; the queries are scaled."""
    moved = (each.swapaxes(1, 2) for each in (q, k, v))
    return jax.nn.dot_product_attention(*moved, scale=1.0, is_causal=True).swapaxes(1, 2)


def main() -> None:
    """Compile and save the programs of the named models, or of all; each takes some minutes."""
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or MODELS:
        train_step, arguments = step(MODELS[name], attend)
        for tpu in TYPES:
            program = tpunb.compile(train_step, *arguments, tpu=tpu, timeout=3600)
            say(program.headline)
            program = dataclasses.replace(program, text="")  # the HLO would be most of the file
            program.save(FOLDER / f"{name} on {tpu}.tpuprogram")


if __name__ == "__main__":
    main()
