"""The verdicts on functions whose batch is not fixed: a dataset without `drop_remainder=True`.

On a TPU with several replicas such a batch is a bounded size. libtpu by itself gets it from
TensorFlow's own operation, without any code of `tpunb`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from verdicts import documented
from verdicts.compare import Itself, Ours, alone, verdicts_on
from verdicts.specs import Entry

TPU = "v5e-8"
_INEXPRESSIBLE = "#stablehlo.bounds<"
"""In the message on tensors with several bounded sizes, which libtpu's input does not have."""


def open_places(entry: Entry) -> list[int]:
    """The arguments that have the batch of the first one; none if that has no sizes."""
    _, specs = entry
    if not specs or not specs[0].shape.rank or specs[0].shape[0] is None:
        return []
    rows = specs[0].shape[0]
    return [k for k, spec in enumerate(specs) if spec.shape.rank and spec.shape[0] == rows]


def _opened(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def _padded(spec: tf.TensorSpec) -> tf.TensorSpec:
    """The type of what TensorFlow pads an argument to: it has two rows at least."""
    return tf.TensorSpec([max(2, spec.shape[0]), *spec.shape[1:]], spec.dtype)


def itself(entry: Entry, compiler: Callable[[bytes], dict[str, Any]]) -> Itself:
    """TensorFlow's own HLO of a function with a bounded batch, compiled by libtpu itself."""
    fn, specs = entry
    places = open_places(entry)

    def bounded(*values: Any) -> Any:
        tensors, sizes = list(values[: len(specs)]), values[len(specs) :]
        for place, size in zip(places, sizes, strict=True):
            tensors[place] = xla.set_dynamic_dimension_size(tensors[place], 0, size)
            tensors[place].set_shape(_opened(specs[place]).shape)
        return fn(*tensors)

    sizes = [tf.TensorSpec([], tf.int32) for _ in places]
    specs = tuple(_padded(one) if k in places else one for k, one in enumerate(specs))
    try:
        lowered = tf.function(bounded, jit_compile=True)
        module = lowered.experimental_get_compiler_ir(*specs, *sizes)(stage="hlo_serialized")
    except Exception as error:
        return Itself(refused=f"TensorFlow: {type(error).__name__}: {error}")
    return alone(module, compiler)


def ours(entry: Entry) -> Ours:
    """The verdicts of the package on a function of a dataset's batch, with its size."""
    from tpunb.virtual.dataset_sizes import DatasetBatch

    fn, specs = entry
    places = open_places(entry)
    element = tuple(_opened(one) if k in places else one for k, one in enumerate(specs))

    def of_batch(batch: Any) -> Any:
        return fn(*batch)

    dataset = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=element)
    batch = DatasetBatch(element, tuple(specs), dataset)
    return verdicts_on(of_batch, batch, tpu=TPU)


def difference(name: str, mine: Ours, own: Itself) -> str:
    """Return the undocumented difference in a sentence; empty if all agree."""
    lowers = not own.refused.startswith("TensorFlow")
    unknown = "crashed" in own.refused or _INEXPRESSIBLE in own.refused
    wrong = [] if bool(mine.rules) is not lowers else ["rules"]
    if unknown:
        wrong += [] if mine.unknown else ["compile"]
    else:
        verdicts = {"compile": mine.compile, "check": mine.check}
        wrong += [kind for kind, codes in verdicts.items() if bool(codes) is not bool(own.refused)]
    if wrong and name not in documented.OPEN_BATCHES:
        reason = own.refused.partition("\n")[0][:300] or "compiles"
        return f"{', '.join(wrong)}: {mine} against libtpu: {reason}"
    if not wrong and name in documented.OPEN_BATCHES:
        return "is documented as different, and is not"
    far = abs(mine.peak - own.peak) > 0.01 * max(mine.peak, own.peak)
    if mine.peak and own.peak and far and not own.otherwise:
        return f"a peak of {mine.peak} and not {own.peak} bytes"
    return ""
