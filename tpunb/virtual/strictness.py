"""The rules of the virtual TPU: what it refuses or warns of, because a TPU does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tpunb.errors import TpunbError, nearest

REFUSED: Mapping[str, str] = {
    "eager-run": "`strategy.run` outside of a `tf.function` raises NotImplementedError.",
    "unsupported-op": (
        "An operation without a TPU kernel (Python, tables, strings, printing, sparse and ragged "
        "tensors) stops the compilation, unless `tf.config.set_soft_device_placement(True)` was "
        "called: then it runs on the host (see host-op)."
    ),
    "unsupported-type": "A core can neither hold nor compute a string or complex128 tensor.",
    "constant-size": (
        "A size, an axis or a number of elements must be a constant when the program is compiled."
    ),
    "list-size": "Memory cannot be reserved for a loop or TensorArray without a bound.",
    "compile": "A function that XLA cannot compile for any other reason does not run.",
    "dynamic-batch": (
        "A batch whose size is not fixed (without `drop_remainder=True`), or images and sequences "
        "of any size, are padded to a bound: TensorFlow cannot compile some operations for sizes "
        "that are only bounded."
    ),
    "x64-op": (
        "Matrix products of 64-bit integers, the gradient of max-pooling and stateful random "
        "numbers in float64 do not compile."
    ),
    "memory": (
        "A tensor, or all variables together, larger than a core's memory end the compilation "
        "with RESOURCE_EXHAUSTED. Tensors too large for this machine are refused too."
    ),
    "scope": (
        "A variable made outside of the strategy's scope stays on the host: a core gets its "
        "value, but what the replicas assign to it is not kept in sync."
    ),
    "unknown-rank": "`strategy.run` refuses an input of unknown rank.",
    "gather-shapes": "`gather` needs the same shape on all replicas.",
    "collective-branch": (
        "A collective under a condition that replicas disagree about, such as "
        "`if replica_id == 0:`, hangs: the replicas wait for each other."
    ),
}
"""The rules that raise: what a TPU does, by the name by which the rule is switched off."""

WARNED_OF: Mapping[str, str] = {
    "host-op": (
        "With soft device placement an operation without a TPU kernel runs on the host, and the "
        "cores wait for it in every step."
    ),
    "dynamic-shape": (
        "The result of `tf.where` with one argument, `tf.boolean_mask` or `tf.unique` has a size "
        "that depends on the data: padded to its bound, all of it computed, and fragile. Later "
        "operations may be refused, or crash the compiler."
    ),
    "bounded-shape": (
        "The same for a size with a known bound only, such as the size of `x[:n]` with a tensor n."
    ),
    "unchecked": (
        "Nothing is known: TensorFlow's compiler crashed or took too long, and the function runs "
        "without its verdict."
    ),
    "seed": (
        "XLA ignores the seeds of random operations with a state (`tf.random.uniform`, "
        "`tf.nn.dropout`), and `tf.random.set_seed` too: their numbers do not repeat."
    ),
    "float64": "float64 is emulated with float32: slowly, and with less precision than on a CPU.",
}
"""The rules that warn."""

RULES: Mapping[str, str] = {**REFUSED, **WARNED_OF}
"""All rules; the catalogue of errors has the causes and the fixes."""

UNCHECKED = "It runs here; whether a TPU compiles it is not known."
"""The advice if nothing is known of a function."""


class RuleError(TpunbError, ValueError):
    """A rule that does not exist."""


@dataclasses.dataclass(frozen=True, slots=True)
class Strictness:
    """The rules that hold.

    Attributes:
        off: The names of the rules that do not hold.
    """

    off: frozenset[str] = frozenset()

    @classmethod
    def of(cls, strict: bool | Mapping[str, bool] | Strictness) -> Strictness:
        """Return the rules that a user passes as `strict`.

        Args:
            strict: True for all rules, False for none, or a mapping from names of rules to whether
                they hold; the other rules hold.

        Raises:
            RuleError: The rule does not exist.
        """
        if isinstance(strict, Strictness):
            return strict
        if isinstance(strict, Mapping):
            for name in strict:
                _refuse_unknown(name)
            return cls(frozenset(name for name, holds in strict.items() if not holds))
        return cls() if strict else cls(frozenset(RULES))

    def holds(self, name: str) -> bool:
        """Return whether a rule holds."""
        return name not in self.off

    @property
    def any(self) -> bool:
        """True if any rule holds."""
        return len(self.off) < len(RULES)


def _refuse_unknown(name: object) -> None:
    if name in RULES:
        return
    near = nearest(str(name), RULES, most=1)
    fix = f"Did you mean {near[0]!r}?" if near else f"The rules are {', '.join(RULES)}."
    raise RuleError(f"There is no rule {name!r}.", fix=fix)
