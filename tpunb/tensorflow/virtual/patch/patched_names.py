"""The names that `install` replaces in TensorFlow, one line each, with their replacements."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpunb._util.patching import attribute, construct_as_subclass, contents, redirected
from tpunb.errors import TpunbError
from tpunb.tensorflow.virtual import private_names as private
from tpunb.tensorflow.virtual.copies.copy_views import classes_on_cores
from tpunb.tensorflow.virtual.patch.device_names import TPUNames, translated_property
from tpunb.tensorflow.virtual.patch.resolver_in_force import InstalledTPUClusterResolver
from tpunb.tensorflow.virtual.private_names import is_flat
from tpunb.tensorflow.virtual.replica_call import call_on_replicas
from tpunb.tensorflow.virtual.replicate.options import CallOptions
from tpunb.tensorflow.virtual.resolver import VirtualTPUClusterResolver, virtual_topology
from tpunb.tensorflow.virtual.runtime.devices import replica_devices, virtual_devices
from tpunb.tensorflow.virtual.runtime.tensorflow_state import initialized_tpu_systems
from tpunb.tensorflow.virtual.strategy import LoopOfV1Error
from tpunb.virtual.installation import Installation, set_tpu_variables
from tpunb.virtual.strictness import Strictness

# The public name has a copy of the function.
_RAW_ALL_TO_ALL = inspect.getclosurevars(tf.raw_ops.AllToAll).nonlocals["f"]


def make_changes(
    installation: Installation, strategies: Mapping[type, type], undo: contextlib.ExitStack
) -> None:
    """Make all changes; `undo` undoes them, even if only some were made.

    Args:
        installation: The virtual TPU.
        strategies: The strategy that replaces each of TensorFlow's strategies.
        undo: Receives a context manager that undoes each change.
    """
    replacements = Replacements(installation)
    undo.enter_context(contents(initialized_tpu_systems()))
    _change_classes(replacements, strategies, undo)
    _change_functions(replacements, undo)
    _change_device_names(installation, undo)
    if installation.environment:
        set_tpu_variables(installation.accelerator, undo)


def _change_classes(
    replacements: Replacements, strategies: Mapping[type, type], undo: contextlib.ExitStack
) -> None:
    stand_in = InstalledTPUClusterResolver
    undo.enter_context(
        construct_as_subclass(private.TPUClusterResolver, stand_in, stand_in.__init__)
    )
    for original, virtual in strategies.items():
        undo.enter_context(
            construct_as_subclass(original, virtual, replacements.make_strategy(virtual))
        )
    undo.enter_context(attribute(private.TPUStrategyV1, "__init__", _refuse_strategy_of_v1))
    _change_sessions(replacements, undo)


def _refuse_strategy_of_v1(*_: Any, **__: Any) -> None:
    """Refuse TensorFlow 1's strategy, which would look for a TPU's devices."""
    raise LoopOfV1Error(
        "A virtual TPU has no tf.compat.v1.distribute.experimental.TPUStrategy.",
        fix="Write tf.compat.v2.distribute.TPUStrategy(resolver), without steps_per_run.",
    )


def _change_sessions(replacements: Replacements, undo: contextlib.ExitStack) -> None:
    session = private.BaseSession
    open_session, list_devices = vars(session)["__init__"], vars(session)["list_devices"]

    @functools.wraps(open_session)
    def initialise(self: Any, target: Any = "", *args: Any, **kwargs: Any) -> None:
        open_session(self, replacements.session_target(self, target), *args, **kwargs)

    @functools.wraps(list_devices)
    def listed(self: Any) -> list[Any]:
        return replacements.session_devices(self, list_devices(self))

    undo.enter_context(attribute(session, "__init__", initialise))
    undo.enter_context(attribute(session, "list_devices", listed))


def _change_functions(replacements: Replacements, undo: contextlib.ExitStack) -> None:
    config, remote, util = private.config, private.remote, private.tpu_strategy_util
    for function, answer in (
        (remote.connect_to_cluster, replacements.connect_to_cluster),
        (remote.connect_to_remote_host, replacements.connect_to_remote_host),
        # Called by initialize_tpu_system, shutdown_tpu_system and TPUClusterResolver.connect.
        (util.initialize_tpu_system_impl, replacements.initialize_tpu_system),
        (util.shutdown_tpu_system_impl, replacements.shutdown_tpu_system),
        (private.tpu.split_compile_and_replicate, replacements.run_on_replicas),
        (private.tpu_ops.gen_tpu_ops.all_to_all, replacements.all_to_all),
        (_RAW_ALL_TO_ALL, replacements.all_to_all),
        (private.tpu.initialize_system, replacements.initialize_system),
        (private.tpu.shutdown_system, replacements.shutdown_system),
        (config.list_logical_devices, replacements.list_logical_devices),
        (config.list_physical_devices, replacements.list_physical_devices),
        (config.get_visible_devices, replacements.list_physical_devices),
        (config.get_device_details, replacements.get_device_details),
        # Called by tf.device, and throughout TensorFlow.
        (private.ops.device, replacements.place),
        # OneDeviceStrategy("/TPU:0") and similar strategies ask it for the full name.
        (private.device_util.canonicalize, replacements.place),
    ):
        undo.enter_context(redirected(function, answer))


def _change_device_names(installation: Installation, undo: contextlib.ExitStack) -> None:
    tpu = installation.names.tpu
    for owner, name in (
        (private.EagerTensor, "device"),
        (private.EagerTensor, "backing_device"),
        (private.SymbolicTensor, "device"),
        (private.BaseResourceVariable, "device"),
        (private.distribute_values.DistributedVariable, "device"),
        *((variable_class, "device") for variable_class in classes_on_cores()),
    ):
        answer = translated_property(_inherited(owner, name), tpu)
        undo.enter_context(attribute(owner, name, answer))
    for name in ("worker_devices", "parameter_devices"):
        original = _inherited(private.TPUExtended, name)
        answer = translated_property(original, lambda names: tuple(map(tpu, names)))
        undo.enter_context(attribute(private.TPUExtended, name, answer))


def _inherited(owner: type, name: str) -> Any:
    """Return a descriptor itself, from the class that has it."""
    return next(vars(base)[name] for base in owner.__mro__ if name in vars(base))


# Behavior of the names while a virtual TPU is installed, including names of TensorFlow 1.


class ComputationError(TpunbError, ValueError):
    """A TensorFlow 1 call for a TPU that the virtual TPU cannot answer."""


def _tensors(result: Any) -> Any:
    """Return a computation's tensors as a list or a nest; a number if it has none."""
    parts = tf.nest.flatten(result)
    effects = [part for part in parts if isinstance(part, tf.Operation)]
    with tf.control_dependencies(effects):
        tensors = [
            None if part is None or isinstance(part, tf.Operation) else tf.identity(part)
            for part in parts
        ]
        if all(part is None for part in tensors):
            return tf.constant(0)
    return (
        [part for part in tensors if part is not None]
        if is_flat(result)
        else tf.nest.pack_sequence_as(result, tensors)
    )


_Original = Callable[..., Any]


class Replacements:
    """The replacements of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._names: TPUNames = installation.names
        self._remote: weakref.WeakSet[Any] = weakref.WeakSet()

    def connect_to_cluster(
        self, original: _Original, cluster_spec_or_resolver: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Skip the connection if the virtual TPU is meant, because it is here already."""
        if not self._is_meant(cluster_spec_or_resolver):
            original(cluster_spec_or_resolver, *args, **kwargs)
            return
        if not tf.executing_eagerly():
            raise ValueError(
                "`tf.config.experimental_connect_to_cluster` can only be called in eager mode."
            )
        if isinstance(cluster_spec_or_resolver, InstalledTPUClusterResolver):
            cluster_spec_or_resolver.connected()
        elif isinstance(cluster_spec_or_resolver, tf.train.ClusterSpec):
            self._names.job = "worker"

    def _is_meant(self, cluster: Any) -> bool:
        if isinstance(cluster, tf.train.ClusterSpec):
            addresses = {a for job in cluster.jobs for a in cluster.job_tasks(job)}
            return bool(addresses & self._installation.addresses)
        return isinstance(cluster, VirtualTPUClusterResolver)

    def connect_to_remote_host(
        self, original: _Original, remote_host: Any = None, job_name: str = "worker"
    ) -> None:
        """Connect to a host, unless it is the empty address that a resolver gives on a TPU VM."""
        if remote_host == "":
            return
        original(remote_host, job_name)

    def initialize_tpu_system(
        self,
        original: _Original,
        cluster_resolver: Any = None,
        tpu_cluster_resolver_cls: Any = None,
    ) -> Any:
        """Return the topology, with TensorFlow's own log lines and bookkeeping.

        Inside a tf.function it is the serialized topology, as a tensor.
        """
        del original
        private.logging.info("Deallocate tpu buffers before initializing tpu system.")
        resolver = self._resolver(cluster_resolver, tpu_cluster_resolver_cls)
        systems = initialized_tpu_systems()
        if resolver._tpu in systems:
            private.logging.warning(
                "TPU system %s has already been initialized. Reinitializing the TPU can cause "
                "previously created variables on TPU to be lost.",
                resolver._tpu,
            )
        private.logging.info("Initializing the TPU system: %s", resolver._tpu)
        topology = virtual_topology(resolver.accelerator)
        serialized = topology.serialized()
        if not tf.executing_eagerly():
            return tf.constant(serialized)
        private.logging.info("Finished initializing TPU system.")
        resolver.set_tpu_topology(serialized)
        systems[resolver._tpu] = topology
        return topology

    def shutdown_tpu_system(
        self,
        original: _Original,
        cluster_resolver: Any = None,
        tpu_cluster_resolver_cls: Any = None,
    ) -> None:
        """Forget that the system was initialised, with TensorFlow's own log lines."""
        del original
        resolver = self._resolver(cluster_resolver, tpu_cluster_resolver_cls)
        systems = initialized_tpu_systems()
        if resolver._tpu not in systems:
            private.logging.warning(
                "You are shutting down a TPU system %s that has not been initialized.",
                resolver._tpu,
            )
        private.logging.info("Shutting down the TPU system: %s", resolver._tpu)
        if not tf.executing_eagerly():
            raise RuntimeError(
                "initialize_tpu_system is not supported within tf.functions.  You should call "
                "initialize_tpu_system outside of your tf.function. "
            )
        private.logging.info("Finished shutting down TPU system.")
        systems.pop(resolver._tpu, None)

    def run_on_replicas(
        self, original: _Original, computation: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Answer TensorFlow 1's `tpu.rewrite`, `replicate`, `shard` and `batch_parallel`.

        Returns:
            As `split_compile_and_replicate` does, a placeholder for the compilation, and the
                results of each replica: a list of tensors, the nest that the computation returns,
                or an operation if it returns no tensors.

        Raises:
            ComputationError: There are more replicas than cores, or there is an infeed queue.
        """
        if not kwargs.get("use_tpu", True):
            return original(computation, *args, **kwargs)
        parameters = ("inputs", "infeed_queue", "device_assignment")
        arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
        if arguments.get("infeed_queue") is not None:
            raise ComputationError(
                "A virtual TPU has no infeed.",
                fix="Pass the batch as an input, or use tf.distribute.TPUStrategy with a dataset.",
            )
        # Without inputs, a single replica runs.
        inputs = arguments.get("inputs") or [[]]
        rows = [[tf.nest.map_structure(tf.convert_to_tensor, row)] for row in inputs]
        options = self._options(arguments.get("device_assignment"), len(rows))
        results = call_on_replicas(lambda row: _tensors(computation(*row)), rows, options)
        # A single tensor means that the computation returned only operations.
        grouped = [tf.group(result) if tf.is_tensor(result) else result for result in results]
        return tf.no_op(), grouped

    def _options(
        self, assignment: tf.tpu.experimental.DeviceAssignment | None, replicas: int
    ) -> CallOptions:
        installation = self._installation
        cores = replica_devices(virtual_devices(installation.accelerator), assignment)
        if replicas > len(cores):
            raise ComputationError(
                f"There are inputs for {replicas} replicas, and cores for {len(cores)}.",
                fix="Give inputs for fewer replicas, or install a larger TPU.",
            )
        return CallOptions(
            cores=[list(devices) for devices in cores[:replicas]],
            assigned=assignment is not None,
            # TensorFlow 1's variables are outside any strategy's scope.
            strictness=Strictness(installation.strictness.off | {"scope"}),
            arithmetic=installation.arithmetic,
        )

    @staticmethod
    def all_to_all(original: _Original, *args: Any, **kwargs: Any) -> Any:
        """Raise a ValueError for arguments that do not fit, even outside a function.

        TensorFlow would only report that a single core has no kernel for the operation.
        """
        if tf.executing_eagerly():
            with tf.Graph().as_default():
                original(*args, **kwargs)
        return original(*args, **kwargs)

    def initialize_system(self, original: _Original, *args: Any, **kwargs: Any) -> Any:
        """Return the serialized topology as a tensor, as in TensorFlow 1."""
        del original, args, kwargs
        return tf.constant(virtual_topology(self._installation.accelerator).serialized())

    def shutdown_system(self, original: _Original, job: str | None = None) -> Any:
        """Return an operation that does nothing: for TensorFlow 1, nothing must be shut down."""
        del original, job
        return tf.no_op()

    @staticmethod
    def _resolver(cluster_resolver: Any, resolver_class: Any) -> VirtualTPUClusterResolver:
        if not hasattr(resolver_class, "tpu_hardware_feature"):
            raise TypeError(
                "tpu_cluster_resolver_cls is not tf.distribute.cluster_resolver.TPUClusterResolver."
            )
        resolver = resolver_class("") if cluster_resolver is None else cluster_resolver
        assert isinstance(resolver, resolver_class)  # TensorFlow asserts this, too
        return resolver  # type: ignore[no-any-return]

    def list_logical_devices(self, original: _Original, device_type: Any = None) -> list[Any]:
        """Return one CPU, the TPU's devices, and other devices such as GPUs."""
        return _listed(original, self._names.logical, device_type)

    def list_physical_devices(self, original: _Original, device_type: Any = None) -> list[Any]:
        """Return the CPU, the TPU's devices, and other devices such as GPUs."""
        return _listed(original, self._names.physical, device_type)

    def get_device_details(self, original: _Original, device: Any) -> dict[str, Any]:
        """Return no details for a TPU, because TensorFlow knows none."""
        return {} if getattr(device, "device_type", "").startswith("TPU") else original(device)

    def place(self, original: _Original, device: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function of a device's name, with a CPU's name for a TPU device."""
        if isinstance(device, tf.config.LogicalDevice) and device.device_type.startswith("TPU"):
            device = tf.config.LogicalDevice(self._names.cpu(device.name), "CPU")
        elif isinstance(device, str):
            device = self._names.cpu(device)
        return original(device, *args, **kwargs)

    def session_target(self, session: Any, target: Any) -> Any:
        """Return the target of a session; the TPU worker's address becomes this process."""
        if isinstance(target, bytes):
            target = target.decode()
        if isinstance(target, str) and target.rpartition("://")[2] in self._installation.addresses:
            self._remote.add(session)
            return ""
        return target

    def session_devices(self, session: Any, existing: list[Any]) -> list[Any]:
        """Return a session's devices: the worker's, or this machine's.

        Args:
            session: The session.
            existing: The existing devices.
        """
        return self._names.of_session(existing, remote=session in self._remote)

    def make_strategy(self, stand_in: type) -> Callable[..., None]:
        """Return an initializer of a strategy, with the virtual TPU as the default resolver."""

        def make(self: Any, tpu_cluster_resolver: Any = None, *args: Any, **kwargs: Any) -> None:
            resolver = tpu_cluster_resolver or InstalledTPUClusterResolver("")
            stand_in.__init__(self, resolver, *args, **kwargs)  # type: ignore[misc]

        return make


def _listed(original: _Original, tpu: Callable[[], list[Any]], device_type: Any) -> list[Any]:
    existing = original(device_type)
    # The other logical CPUs are the TPU.
    cpus = [device for device in existing if device.device_type == "CPU"][:1]
    others = [device for device in existing if device.device_type != "CPU"]
    mine = [d for d in tpu() if device_type is None or d.device_type == device_type]
    return [*cpus, *mine, *others]
