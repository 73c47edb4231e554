"""Compare the time estimate with a published training step of Llama 3 8B on eight chips of v6e.

    cd tests && LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=98304 python -m verdicts.decoders

Prints a row of the table in `docs/compiler-accuracy.md`, after half an hour. Needs a Python
with JAX. The flag gives the kernels the memory for tiles that they had in that run.

The program follows vlasenkoalexey/tpu_performance_autoresearch_wiki, `wiki/experiments/
llama3_8B_autoresearch_optimization/jax`: weights in float32 that are sharded over all chips, products
in bfloat16, a scan over the layers whose bodies are computed again for the gradients, and AdamW.
JAX's splash attention and a loss in pieces stand for Tokamax's kernels.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as masks,
)
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tpunb
from verdicts.printed import say_row

MESH = AbstractMesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
Weights = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The sizes of a model, and its batch."""

    vocabulary: int
    layers: int
    wide: int
    batch: int
    length: int = 8192
    features: int = 4096
    heads: int = 32
    groups: int = 8
    size: int = 128
    chunk: int = 1024

    def shapes(self) -> dict[str, tuple[tuple[int, ...], P]]:
        """Return the shape of each weight, and the axes that are sharded."""
        queries, keys = self.heads * self.size, self.groups * self.size
        first, second = P(None, "fsdp"), P(None, None, "fsdp")
        inner = {
            "norm1": ((self.features,), first),
            "norm2": ((self.features,), first),
            "q": ((queries, self.features), second),
            "k": ((keys, self.features), second),
            "v": ((keys, self.features), second),
            "o": ((self.features, queries), first),
            "gate": ((self.wide, self.features), second),
            "up": ((self.wide, self.features), second),
            "down": ((self.features, self.wide), first),
        }
        scanned = {name: ((self.layers, *shape), spec) for name, (shape, spec) in inner.items()}
        table = self.vocabulary, self.features
        return scanned | {
            "words": (table, P("fsdp")),
            "head": (table, P(None, "fsdp")),
            "norm": ((self.features,), P("fsdp")),
        }


LLAMA = Decoder(vocabulary=128256, layers=32, wide=14336, batch=3)
SECONDS = 3 * 8192 / 6529
"""6,529 tokens a second on each chip, for three sequences of 8192."""


def normed(x: Any, weight: Any) -> Any:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (wide * scale * weight).astype(x.dtype)


def times(x: Any, weight: Any) -> Any:
    return lax.dot_general(x, weight.astype(jnp.bfloat16), (((x.ndim - 1,), (1,)), ((), ())))


def rotated(x: Any) -> Any:
    """Rotary positions of `[batch, heads, length, size]`."""
    half = x.shape[-1] // 2
    frequencies = 500000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x.shape[2])[:, None] * frequencies
    cosine, sine = (jnp.tile(fn(angles), 2).astype(x.dtype) for fn in (jnp.cos, jnp.sin))
    turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cosine + turned * sine


def attention(model: Decoder) -> Callable[..., Any]:
    """JAX's splash attention, on each chip for its own sequences."""
    mask = masks.MultiHeadMask([masks.CausalMask((model.length, model.length))] * model.heads)
    sizes = splash.BlockSizes(
        block_q=2048,
        block_kv=1024,
        block_kv_compute=1024,
        block_q_dkv=2048,
        block_kv_dkv=2048,
        block_kv_dkv_compute=2048,
        use_fused_bwd_kernel=True,
    )
    kernel = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)
    return jax.shard_map(
        jax.vmap(kernel), mesh=MESH, in_specs=P("fsdp"), out_specs=P("fsdp"), check_vma=False
    )


def layer(model: Decoder, attend: Callable[..., Any], x: Any, w: Weights) -> tuple[Any, None]:
    def heads(kind: str, number: int) -> Any:
        split = times(inner, w[kind]).reshape(*x.shape[:2], number, model.size)
        return split.transpose(0, 2, 1, 3)

    inner = normed(x, w["norm1"])
    q, k = rotated(heads("q", model.heads)), rotated(heads("k", model.groups))
    k, v = (
        jnp.repeat(each, model.heads // model.groups, 1) for each in (k, heads("v", model.groups))
    )
    found = attend(q * model.size**-0.5, k, v).transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    x = x + times(found, w["o"])
    inner = normed(x, w["norm2"])
    return x + times(jax.nn.silu(times(inner, w["gate"])) * times(inner, w["up"]), w["down"]), None


def cross_entropy(model: Decoder, x: Any, labels: Any, head: Any) -> Any:
    """The loss, a piece of the words at a time, whose logits are computed again for gradients."""

    @jax.checkpoint
    def piece(total: Any, part: Any) -> tuple[Any, None]:
        hidden, right = part
        logits = times(hidden, head).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, right[..., None], -1)[..., 0]
        return total + jnp.sum(jax.nn.logsumexp(logits, -1) - chosen), None

    pieces = x.shape[1] // model.chunk
    parts = (
        x.reshape(x.shape[0], pieces, model.chunk, -1).swapaxes(0, 1),
        labels.reshape(x.shape[0], pieces, model.chunk).swapaxes(0, 1),
    )
    total, _ = lax.scan(piece, jnp.float32(0), parts)
    return total / labels.size


def step(
    model: Decoder, attend: Callable[..., Any] | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a training step, and its arguments' shapes.

    Args:
        model: The sizes.
        attend: Attention for `[batch, heads, length, size]`; None for splash attention.
    """
    attend = attend or attention(model)

    def loss(weights: Weights, tokens: Any, labels: Any) -> Any:
        scanned = {name: w for name, w in weights.items() if name not in ("words", "head", "norm")}
        x = weights["words"].astype(jnp.bfloat16)[tokens]
        x = lax.with_sharding_constraint(x, NamedSharding(MESH, P("fsdp")))
        body = jax.checkpoint(
            functools.partial(layer, model, attend),
            policy=jax.checkpoint_policies.nothing_saveable,
        )
        x, _ = lax.scan(body, x, scanned)
        return cross_entropy(model, normed(x, weights["norm"]), labels, weights["head"])

    def train_step(
        weights: Weights, first: Weights, second: Weights, tokens: Any, labels: Any
    ) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, tokens, labels)

        def update(weight: Any, mean: Any, square: Any, gradient: Any) -> Any:
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient * gradient
            return weight - 1e-5 * mean / (jnp.sqrt(square) + 1e-8), mean, square

        updated = {
            name: update(weights[name], first[name], second[name], gradients[name])
            for name in weights
        }
        return value, *({name: each[place] for name, each in updated.items()} for place in range(3))

    weights = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, spec))
        for name, (shape, spec) in model.shapes().items()
    }
    ids = jax.ShapeDtypeStruct(
        (8 * model.batch, model.length), jnp.int32, sharding=NamedSharding(MESH, P("fsdp"))
    )
    compiled = jax.jit(train_step, donate_argnums=(0, 1, 2))
    return compiled, (weights, weights, weights, ids, ids)


def main() -> None:
    """Print the row."""
    fn, args = step(LLAMA)
    program = tpunb.compile(fn, *args, tpu="v6e-8", speed=True, timeout=3600)
    say_row("Llama 3 8B", "v6e-8", program, SECONDS)


if __name__ == "__main__":
    main()
