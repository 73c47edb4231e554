"""The real `TPUStrategy`, on cores made of logical CPU devices."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb import framework
from tpunb._util.units import counted
from tpunb.errors import TpunbError
from tpunb.machine.resources import processors
from tpunb.machine.tested_releases import warn_if_newer
from tpunb.tensorflow.virtual.copies.copy_views import create_copy, watch_copies
from tpunb.tensorflow.virtual.copies.variable_copies import Copies, are_given_one_value, copies_of
from tpunb.tensorflow.virtual.graph.collectives import broadcast_from_first
from tpunb.tensorflow.virtual.input.datasets import (
    CLONED_FOR_EACH_HOST,
    can_be_read_once,
    cut_for,
    replicas_of_parts,
    without_tuning,
)
from tpunb.tensorflow.virtual.input.distributed_datasets import settled
from tpunb.tensorflow.virtual.input.iterators import UNTUNED
from tpunb.tensorflow.virtual.private_names import (
    TPUExtended,
    TPUStrategyV2,
    autograph_artifact,
    deprecation,
    device_util,
    distribute_lib,
    distribute_utils,
    distribute_values,
    enclosing_tpu_context,
    input_util,
    tensor_util,
)
from tpunb.tensorflow.virtual.replica_call import call_on_replicas
from tpunb.tensorflow.virtual.replica_context import VirtualReplicaContext
from tpunb.tensorflow.virtual.replicate.arguments import (
    check_ranks,
    checked_result,
    of_one_shape,
)
from tpunb.tensorflow.virtual.replicate.divergence import Divergence
from tpunb.tensorflow.virtual.replicate.options import (
    CallOptions,
    checked,
    most_joined,
)
from tpunb.tensorflow.virtual.replicate.padding import padded
from tpunb.tensorflow.virtual.replicate.trial import Trial, current_trial
from tpunb.tensorflow.virtual.replicate.without_chance import Examples
from tpunb.tensorflow.virtual.resolver import VirtualTPUClusterResolver, virtual_topology
from tpunb.tensorflow.virtual.runtime.devices import VirtualDevices, replica_devices
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.tpu.types import Accelerator, largest_memory
from tpunb.virtual import current_strategy
from tpunb.virtual.arithmetic import Arithmetic, arithmetic_of
from tpunb.virtual.strictness import Strictness


def current() -> Any:
    """Return the strategy whose scope is entered, or else the open connection's, or None."""
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else current_strategy.get()


class LoopOfV1Error(TpunbError, NotImplementedError):
    """A training loop of TensorFlow 1, or the strategy for it: a virtual TPU has neither."""


class VirtualTPU:
    """The common parts of the strategies of both generations."""

    extended: Any
    num_replicas_in_sync: int

    @property
    def _enable_packed_variable_in_eager_mode(self) -> bool:
        """False: TensorFlow must not pack the handles of a variable's copies into one.

        Here the copies share a resource, or the replica function takes a handle for each core.
        """
        return False

    @_enable_packed_variable_in_eager_mode.setter
    def _enable_packed_variable_in_eager_mode(self, enabled: bool) -> None:
        """Ignore the value, which TensorFlow's own code sets."""

    def __repr__(self) -> str:
        """Return a description without the address, which changes from run to run."""
        return f"<virtual TPUStrategy of {counted(self.num_replicas_in_sync, 'replica')}>"

    @autograph_artifact  # type: ignore[untyped-decorator]
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Run `fn` on each replica, by TensorFlow's method, which refuses pure eager execution."""
        if tf.executing_eagerly() and not self.extended.strictness.holds("eager-run"):
            fn = self.extended.in_graph(fn)
        try:
            return super().run(fn, args, kwargs, options)  # type: ignore[misc]
        except NotImplementedError as error:
            if tf.executing_eagerly() and "pure eager execution" in str(error):
                error.code = "eager-run"  # type: ignore[attr-defined]
            raise

    @property
    def topology(self) -> tf.tpu.experimental.Topology:
        """The TPU system's topology, as `initialize_tpu_system` returns it."""
        return virtual_topology(self.extended.accelerator)

    @autograph_artifact  # type: ignore[untyped-decorator]
    @deprecation.deprecated(None, "renamed to `run`")  # type: ignore[untyped-decorator]
    def experimental_run_v2(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Call `run` by the name that it had until TensorFlow 2.2; TensorFlow 2.4 dropped it."""
        return self.run(fn, args=args, kwargs=kwargs, options=options)


class NumpyDatasets:
    """A method that TensorFlow 2.4 removed from the strategies of TensorFlow 2."""

    extended: Any

    @deprecation.deprecated(  # type: ignore[untyped-decorator]
        "2020-09-30", "Please use tf.data.Dataset.from_tensor_slices instead"
    )
    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Return a `tf.data.Dataset` of NumPy arrays, kept in variables on the host.

        Args:
            numpy_input: A nest of arrays of one length. Each array is cut along its first axis; a
                list of arrays is stacked.
            session: A session of TensorFlow 1, whose graphs initialise variables in it.
        """
        return self.extended.experimental_make_numpy_dataset(numpy_input, session=session)


class VirtualTPUStrategy(VirtualTPU, NumpyDatasets, TPUStrategyV2):  # type: ignore[misc]
    """A `tf.distribute.TPUStrategy` whose TPU is made of virtual CPU cores.

    Everything that does not need a chip is TensorFlow's own: variables, input pipelines, `reduce`,
    `gather`, `scope`, and the refusal of code that a TPU refuses. A replica function is traced once
    and called for all replicas.

    Args:
        tpu: A TPU type such as `"v3-8"` or `"v5e-8"`, a number of cores, or a
            `VirtualTPUClusterResolver`.
        device_assignment: The cores that form each replica, from
            `tf.tpu.experimental.DeviceAssignment.build`; by default every core is a replica.
        spmd: Whether XLA's SPMD partitioner partitions tensors over a replica's logical devices.
        strict: The rules of a TPU that are enforced: all rules (True), none, or a mapping from a
            rule's name to whether it holds.
        arithmetic: `"tpu"` multiplies matrices as a TPU does: float32 numbers are rounded to
            bfloat16, and products are summed in float32. `"cpu"` multiplies in float32. The default
            is the value of `TPUNB_ARITHMETIC`, or `"cpu"`.
        at_once: The number of replicas that run at a time. It changes the memory that a step takes,
            and not its numbers. By default it is the number of processors.
        joined: Whether one operation does the work of all replicas, on their values joined in one
            tensor. This takes the memory of all replicas at once. By default, values are joined if
            they take a small part of the machine's memory, unless `at_once` is given.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ArithmeticNameError: The arithmetic does not exist.
        AtOnceError: `at_once` is less than one replica.
        VirtualDevicesError: TensorFlow has started with too few devices.
    """

    def __init__(
        self,
        tpu: str | int | VirtualTPUClusterResolver = DEFAULT_TPU,
        *,
        device_assignment: tf.tpu.experimental.DeviceAssignment | None = None,
        spmd: bool = False,
        strict: bool | Mapping[str, bool] | Strictness = True,
        arithmetic: str | None = None,
        at_once: int | None = None,
        joined: bool | None = None,
    ) -> None:
        warn_if_newer(tf.__version__)
        # TPUStrategyV2's own __init__ makes a TPUExtended, so its parent's __init__ is called.
        resolver = tpu if isinstance(tpu, VirtualTPUClusterResolver) else None
        resolver = resolver or VirtualTPUClusterResolver(tpu)
        super(TPUStrategyV2, self).__init__(
            VirtualTPUExtended(
                self,
                resolver,
                device_assignment,
                spmd,
                Strictness.of(strict),
                arithmetic=arithmetic_of(arithmetic),
                at_once=at_once,
                joined=joined,
            )
        )
        distribute_lib.distribution_strategy_gauge.get_cell("V2").set("TPUStrategy")


class VirtualTPUExtended(TPUExtended):  # type: ignore[misc]
    """`TPUExtended` with virtual cores instead of a chip's cores."""

    def __init__(
        self,
        strategy: VirtualTPUStrategy,
        resolver: VirtualTPUClusterResolver,
        device_assignment: tf.tpu.experimental.DeviceAssignment | None,
        spmd: bool,
        strictness: Strictness,
        *,
        arithmetic: Arithmetic = "cpu",
        at_once: int | None = None,
        joined: bool | None = None,
    ) -> None:
        super().__init__(
            strategy,
            tpu_cluster_resolver=resolver,
            device_assignment=device_assignment,
            use_spmd_for_xla_partitioning=spmd,
        )
        devices = resolver.devices
        self._tpu_devices = replica_devices(devices, device_assignment)
        self._host_device = devices.hosts[0]
        self._assign_input_workers(devices)
        self.accelerator = resolver.accelerator
        self.strictness = strictness
        # All eager runs of a function share one graph function, so that it is traced once.
        self.in_graph = functools.lru_cache(maxsize=64)(tf.function)
        memory, called = _memory(resolver.accelerator, self._tpu_devices.shape[1])
        self._options = CallOptions(
            cores=[list(cores) for cores in self._tpu_devices],
            strictness=strictness,
            assigned=device_assignment is not None,
            memory=memory,
            called=called,
            at_once=checked(at_once) or processors(),
            joined=most_joined(joined, at_once),
            arithmetic=arithmetic,
        )

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of products in replica functions that are traced from now on."""
        return self._options.arithmetic

    @property
    def has_model_parallelism(self) -> bool:
        """True if a replica has several logical devices."""
        return bool(self._tpu_devices.shape[1] > 1)

    @contextlib.contextmanager
    def computing(self, arithmetic: Arithmetic) -> Iterator[None]:
        """Use an arithmetic for replica functions that are traced inside."""
        before = self._options
        self._options = dataclasses.replace(before, arithmetic=arithmetic)
        try:
            yield
        finally:
            self._options = before

    @property
    def _num_replicas_in_sync(self) -> int:
        """The number of replicas, which is another one in a trial."""
        trial = self._trial
        return trial.replicas if trial is not None else int(super()._num_replicas_in_sync)

    @property
    def _trial(self) -> Trial | None:
        trial = current_trial.get()
        return trial if trial is not None and trial.strategy.extended is self else None

    def new_trial(self, replicas: int, examples: int | None) -> Trial:
        """Return a trial of a step on the first replicas."""
        devices = [logical[0] for logical in self._options.devices[:replicas]]
        together = Examples(examples, len(self._options.devices))
        return Trial(self._container_strategy(), devices, together)

    def _call_options(self) -> CallOptions:
        """Return the options of replicas that are traced now."""
        options, trial = self._options, self._trial
        if trial is None:
            return options
        return dataclasses.replace(
            options,
            cores=options.cores[: trial.replicas],
            divergence=trial.divergence,
            trial=trial,
            arithmetic="cpu",
        )

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        if isinstance(tensor, (float, int)) or enclosing_tpu_context() is None:
            return super()._broadcast_to(tensor, destinations)
        # TPUExtended sends N copies around and keeps the first.
        return broadcast_from_first(tensor, self._num_replicas_in_sync)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        copies = copies_of(getattr(var, "_primary", None))
        together = copies is not None and copies.are_together and tf.executing_eagerly()
        if copies is None or not together or not are_given_one_value(copies):
            return super()._update(var, fn, args, kwargs, group)
        return self._update_once(var, copies, fn, args, kwargs)

    def _update_once(self, var: Any, copies: Copies, fn: Any, args: Any, kwargs: Any) -> Any:
        """Change the copies that share a resource once; otherwise act as TPUExtended does."""
        updates: list[Any] = []
        for replica, copy in enumerate(var.values):
            if copies.first(replica) != replica:
                updates.append(updates[copies.first(replica)])
                continue
            own, named = (
                distribute_utils.select_replica(replica, arguments) for arguments in (args, kwargs)
            )
            with tf.device(copy.device), distribute_lib.UpdateContext(replica):
                update = fn(copy, *own, **named)
                updates.append(tf.identity(update) if tensor_util.is_tf_type(update) else update)
        if not all(map(tensor_util.is_tf_type, updates)):
            return distribute_utils.update_regroup(self, updates, group=True)
        return distribute_values.Mirrored(updates)

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: Any, options: Any
    ) -> Any:
        if isinstance(value, distribute_values.PerReplica) and self.strictness.holds(
            "gather-shapes"
        ):
            value = distribute_values.PerReplica(of_one_shape(value.values))
        return super()._gather_to_implementation(value, destinations, axis, options)

    @property
    def divergence(self) -> Divergence:
        """The record of the variables whose copies may differ."""
        return self._options.divergence

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        devices, cores = self._options.device_of_core, []
        firsts: dict[str, Any] = {}

        def create(**kwargs: Any) -> Any:
            cores.append(device_util.current())
            device = devices.get(cores[-1], cores[-1])
            copy = create_copy(next_creator, kwargs, device, firsts.get(device))
            firsts.setdefault(device, copy)
            return copy

        variable = super()._create_variable(create, **kwargs)
        if distribute_utils.is_distributed_variable(variable):
            watch_copies(variable, cores, self._options.divergence, next_creator)
        return variable

    def _experimental_run_steps_on_iterator(self, *_: Any, **__: Any) -> Any:
        raise LoopOfV1Error(
            "A virtual TPU does not run TensorFlow 1's experimental_run_steps_on_iterator.",
            fix="Loop over the batches: for batch in dataset: strategy.run(step, args=(batch,)).",
        )

    def _tpu_function_creator(
        self, fn: Callable[..., Any], options: tf.distribute.RunOptions | None
    ) -> Any:
        """Return the function that calls `fn` on every replica, replacing TPUExtended's."""
        options = options or tf.distribute.RunOptions()
        if tf.executing_eagerly() and fn in self._tpu_function_cache:
            return self._tpu_function_cache[fn]
        strategy = self._container_strategy()

        def replica_function(replica_id: tf.Tensor, args: Any, kwargs: Any) -> Any:
            with VirtualReplicaContext(strategy, replica_id_in_sync_group=replica_id):
                return checked_result(fn(*args, **kwargs))

        def tpu_function(args: Any, kwargs: Any) -> Any:
            numbers = tf.unstack(tf.constant([*range(strategy.num_replicas_in_sync)]))
            inputs = [
                [
                    number,
                    distribute_utils.select_replica(replica, args),
                    distribute_utils.select_replica(replica, kwargs or {}),
                ]
                for replica, number in enumerate(numbers)
            ]
            inputs = _prepared(inputs, options, self.strictness)
            how = self._call_options()
            if not _pads_dynamically(options):
                how = dataclasses.replace(how, pads=False)
            with strategy.scope():
                return distribute_utils.regroup(call_on_replicas(replica_function, inputs, how))

        if not tf.executing_eagerly():
            return tpu_function
        compiled = tf.function(tpu_function, autograph=False)
        self._tpu_function_cache[fn] = compiled
        return compiled

    # Input.

    def _assign_input_workers(self, devices: VirtualDevices) -> None:
        """Assign an input pipeline to each host, which feeds the first core of its replicas."""
        host_of = {
            core: host
            for host, cores in zip(devices.hosts, devices.cores, strict=True)
            for core in cores
        }
        fed: collections.OrderedDict[str, list[str]] = collections.OrderedDict()
        for core in self._tpu_devices[:, 0]:
            fed.setdefault(host_of[core], []).append(core)
        self._device_input_worker_devices = fed
        self._host_input_worker_devices = collections.OrderedDict(
            (host, [host] * len(cores)) for host, cores in fed.items()
        )

    def _get_input_workers(self, options: Any) -> Any:
        workers = super()._get_input_workers(options)
        return type(workers)(
            tuple(
                (self._options.device_for(host), fed) for host, fed in workers._worker_device_pairs
            )
        )

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        untuned = without_tuning(dataset)
        if options is None and self._hosts_are_on_one_device() and can_be_read_once(untuned):
            distributed = self._distribute_once(untuned)
        else:
            with CLONED_FOR_EACH_HOST:
                distributed = super()._experimental_distribute_dataset(untuned, options)
        framework.tensorflow().data_arrives(self._num_replicas_in_sync, dataset, distributed)
        return settled(distributed)

    def _hosts_are_on_one_device(self) -> bool:
        """Return whether several hosts of equal size are one device."""
        fed = self._device_input_worker_devices
        devices = {self._options.device_for(host) for host in fed}
        alike = len(set(map(len, fed.values()))) == 1
        return len(fed) > 1 and alike and len(devices) == 1

    def _distribute_once(self, dataset: tf.data.Dataset) -> Any:
        """Distribute a dataset as the hosts would, with one input pipeline for all."""
        fed = self._device_input_worker_devices
        cores = list(itertools.chain.from_iterable(fed.values()))
        order = replicas_of_parts(len(fed), len(cores) // len(fed))
        device = self._options.device_for(next(iter(fed)))
        workers = super()._get_input_workers(None)
        return input_util.get_distributed_dataset(
            cut_for(dataset, len(cores)),
            type(workers)(((device, [cores[replica] for replica in order]),)),
            self._container_strategy(),
            replica_order=sorted(range(len(order)), key=order.__getitem__),
        )

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        untuned = _untuned(dataset_fn)
        return settled(super()._distribute_datasets_from_function(untuned, options))

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        # TensorFlow 1's: closing a session waits for the tuning of each of its iterators.
        with CLONED_FOR_EACH_HOST, UNTUNED:
            return super()._make_dataset_iterator(without_tuning(dataset))

    def _make_input_fn_iterator(
        self,
        input_fn: Any,
        replication_mode: Any = tf.distribute.InputReplicationMode.PER_WORKER,
    ) -> Any:
        with UNTUNED:
            return super()._make_input_fn_iterator(_untuned(input_fn), replication_mode)


def _untuned(dataset_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function whose datasets do not tune themselves."""

    def untuned(context: Any) -> Any:
        return without_tuning(dataset_fn(context))

    return untuned


def _prepared(
    inputs: list[Any], options: tf.distribute.RunOptions, strictness: Strictness
) -> list[Any]:
    """Return the replicas' arguments, checked and padded according to the options of the run."""
    if not options.experimental_enable_dynamic_batch_size:
        return inputs
    if strictness.holds("unknown-rank"):
        check_ranks(inputs[0])
    if _pads_dynamically(options):
        return inputs
    return padded(inputs, to_power_of_two=bool(options.experimental_bucketizing_dynamic_shape))


def _pads_dynamically(options: tf.distribute.RunOptions) -> bool:
    """Return whether XLA pads arguments of open sizes, unnoticed by the function."""
    # Some programs pass the class of the options instead of an instance, which TensorFlow allows.
    padder = getattr(options.experimental_xla_options, "enable_xla_dynamic_padder", True)
    return bool(options.experimental_enable_dynamic_batch_size and padder)


def _memory(accelerator: Accelerator, cores: int) -> tuple[int, str]:
    """Return a replica's memory in bytes, and the name of the cores that have it.

    A plain number of cores has the memory of the TPU type with the most: no TPU has more.
    """
    size = (accelerator.hbm_bytes or largest_memory()) * cores
    name = accelerator.name if accelerator.hbm_bytes else "the largest TPU"
    return size, f"a core of {name}" if cores == 1 else f"a replica of {cores} cores of {name}"
