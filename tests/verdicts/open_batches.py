"""Verdicts on functions whose batch is not fixed: a dataset without `drop_remainder=True`.

On a TPU with several replicas, such a batch has a bounded size. For libtpu itself, TensorFlow's own
operation sets the bound, without any code of `tpunb`.
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
"""In the message about tensors with several bounded sizes, which libtpu's input cannot express."""


def open_places(entry: Entry) -> list[int]:
    """The arguments with the same batch size as the first; none if the first has no sizes."""
    _, specs = entry
    if not specs or not specs[0].shape.rank or specs[0].shape[0] is None:
        return []
    rows = specs[0].shape[0]
    return [k for k, spec in enumerate(specs) if spec.shape.rank and spec.shape[0] == rows]


def _opened(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def _padded(spec: tf.TensorSpec) -> tf.TensorSpec:
    """The type of an argument that TensorFlow pads: it has at least two rows."""
    return tf.TensorSpec([max(2, spec.shape[0]), *spec.shape[1:]], spec.dtype)


def itself(entry: Entry, compiler: Callable[[bytes], dict[str, Any]]) -> Itself:
    """libtpu's verdict on TensorFlow's own HLO of a function with a bounded batch."""
    fn, specs = entry
    places = open_places(entry)

    def bounded(*values: Any) -> Any:
        tensors, sizes = list(values[: len(specs)]), values[len(specs) :]
        for place, size in zip(places, sizes, strict=True):
            tensors[place] = xla.set_dynamic_dimension_size(tensors[place], 0, size)
            tensors[place].set_shape(_opened(specs[place]).shape)
        return fn(*tensors)

    sizes = [tf.TensorSpec([], tf.int32) for _ in places]
    specs = tuple(_padded(spec) if k in places else spec for k, spec in enumerate(specs))
    try:
        lowered = tf.function(bounded, jit_compile=True)
        module = lowered.experimental_get_compiler_ir(*specs, *sizes)(stage="hlo_serialized")
    except Exception as error:
        return Itself(refused=f"TensorFlow: {type(error).__name__}: {error}")
    return alone(module, compiler)


def ours(entry: Entry) -> Ours:
    """The package's verdict on a function of a dataset's batch with a size."""
    from tpunb.tensorflow.checks.dataset_sizes import DatasetBatch

    fn, specs = entry
    places = open_places(entry)
    element = tuple(_opened(spec) if k in places else spec for k, spec in enumerate(specs))

    def of_batch(batch: Any) -> Any:
        return fn(*batch)

    dataset = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=element)
    batch = DatasetBatch(element, tuple(specs), dataset)
    return verdicts_on(of_batch, batch, tpu=TPU)


def difference(name: str, package: Ours, libtpu: Itself) -> str:
    """Return the undocumented difference in a sentence; empty if all agree."""
    lowers = not libtpu.refused.startswith("TensorFlow")
    unknown = "crashed" in libtpu.refused or _INEXPRESSIBLE in libtpu.refused
    wrong = [] if bool(package.rules) is not lowers else ["rules"]
    if unknown:
        wrong += [] if package.unknown else ["compile"]
    else:
        verdicts = {"compile": package.compile, "check": package.check}
        wrong += [
            kind for kind, codes in verdicts.items() if bool(codes) is not bool(libtpu.refused)
        ]
    if wrong and name not in documented.OPEN_BATCHES:
        reason = libtpu.refused.partition("\n")[0][:300] or "compiles"
        return f"{', '.join(wrong)}: {package} against libtpu: {reason}"
    if not wrong and name in documented.OPEN_BATCHES:
        return "is documented as different, and is not"
    far = abs(package.peak - libtpu.peak) > 0.01 * max(package.peak, libtpu.peak)
    if package.peak and libtpu.peak and far and not libtpu.otherwise:
        return f"a peak of {package.peak} bytes, not {libtpu.peak}"
    return ""
