"""What the virtual TPU's strategies offer beside TensorFlow's own methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.units import counted
from tpunb.tpu.annotations import Annotations
from tpunb.virtual._tensorflow import deprecation
from tpunb.virtual.resolver import virtual_topology


class VirtualTPU:
    """Shared by the strategies of all three generations."""

    extended: Any
    num_replicas_in_sync: int

    def __repr__(self) -> str:
        """What it is: an address changes from run to run."""
        return f"<virtual TPUStrategy of {counted(self.num_replicas_in_sync, 'replica')}>"

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Runs `fn` on each replica; TensorFlow's own, which refuses pure eager execution."""
        if tf.executing_eagerly() and not self.extended.strictness.holds("eager-run"):
            fn = self.extended.in_graph(fn)
        return super().run(fn, args, kwargs, options)  # type: ignore[misc]

    @property
    def topology(self) -> tf.tpu.experimental.Topology:
        """The TPU system's topology, as `initialize_tpu_system` returns it."""
        return virtual_topology(self.extended.accelerator)

    @property
    def annotations(self) -> Annotations:
        """Which tensor and which variable lives on which logical device.

        Tensors are those that the replica functions traced so far annotate;
        variables are listed where a replica has several logical devices.
        """
        return self.extended.recorder.all()  # type: ignore[no-any-return]

    @deprecation.deprecated(None, "renamed to `run`")  # type: ignore[untyped-decorator]
    def experimental_run_v2(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """The name that `run` had until TensorFlow 2.2; TensorFlow 2.4 dropped it."""
        return self.run(fn, args=args, kwargs=kwargs, options=options)


class NumpyDatasets:
    """A method that TensorFlow 2.4 took from the strategies of TensorFlow 2."""

    extended: Any

    @deprecation.deprecated(  # type: ignore[untyped-decorator]
        "2020-09-30", "Please use tf.data.Dataset.from_tensor_slices instead"
    )
    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Makes a `tf.data.Dataset` of NumPy arrays, kept in variables on the host.

        Args:
            numpy_input: A nest of arrays of one length; each is cut along its
                first axis, a list of arrays is stacked.
            session: For TensorFlow 1's graphs, which initialise variables in one.
        """
        return self.extended.experimental_make_numpy_dataset(numpy_input, session=session)


class ModelParallelism:
    """Keeps the annotations that TensorFlow's methods make."""

    extended: Any

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """See `tf.distribute.TPUStrategy`; the annotation is kept and shown."""
        annotated = super().experimental_assign_to_logical_device(  # type: ignore[misc]
            tensor, logical_device_id
        )
        self.extended.recorder.tensor(tensor, annotated, device=logical_device_id)
        return annotated

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """See `tf.distribute.TPUStrategy`; the annotation is kept and shown."""
        annotated = super().experimental_split_to_logical_devices(  # type: ignore[misc]
            tensor, partition_dimensions
        )
        self.extended.recorder.tensor(tensor, annotated, tiling=partition_dimensions)
        return annotated

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """See `tf.distribute.TPUStrategy`; the annotation is kept and shown."""
        annotated = super().experimental_replicate_to_logical_devices(tensor)  # type: ignore[misc]
        self.extended.recorder.tensor(tensor, annotated)
        return annotated
