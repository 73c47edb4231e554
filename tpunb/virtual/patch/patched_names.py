"""What `install` changes in TensorFlow, one line for each."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any

import tensorflow as tf

from tpunb.virtual import _tensorflow as private
from tpunb.virtual import tensorflow_strategies
from tpunb.virtual.patch.device_names import translated_property
from tpunb.virtual.patch.import_hook import set_tpu_variables
from tpunb.virtual.patch.patch_tools import attribute, construct_as_subclass, contents, redirected
from tpunb.virtual.patch.replacements import Replacements
from tpunb.virtual.patch.resolver import InstalledTPUClusterResolver
from tpunb.virtual.patch.state import Installation
from tpunb.virtual.tensorflow_state import initialized_tpu_systems
from tpunb.virtual.variable_copies import classes_on_cores

_GENERATIONS = (
    (private.TPUStrategyV2, tensorflow_strategies.TPUStrategyV2),
    (private.TPUStrategy, tensorflow_strategies.TPUStrategy),
    (private.TPUStrategyV1, tensorflow_strategies.TPUStrategyV1),
)

# The public name has a copy of the function.
_RAW_ALL_TO_ALL = inspect.getclosurevars(tf.raw_ops.AllToAll).nonlocals["f"]


def make_changes(installation: Installation, undo: contextlib.ExitStack) -> None:
    """Makes all changes; `undo` undoes those that were made."""
    replacements = Replacements(installation)
    undo.enter_context(contents(initialized_tpu_systems()))
    _change_classes(replacements, undo)
    _change_functions(replacements, undo)
    _change_device_names(installation, undo)
    if installation.environment:
        set_tpu_variables(installation.accelerator, undo)


def _change_classes(replacements: Replacements, undo: contextlib.ExitStack) -> None:
    stand_in = InstalledTPUClusterResolver
    undo.enter_context(
        construct_as_subclass(private.TPUClusterResolver, stand_in, stand_in.__init__)
    )
    for original, virtual in _GENERATIONS:
        undo.enter_context(
            construct_as_subclass(original, virtual, replacements.make_strategy(virtual))
        )
    _change_sessions(replacements, undo)


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
        # What initialize_tpu_system, shutdown_tpu_system and TPUClusterResolver.connect call.
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
        # tf.device calls it, and so does TensorFlow everywhere.
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
        *((kind, "device") for kind in classes_on_cores()),
    ):
        answer = translated_property(_inherited(owner, name), tpu)
        undo.enter_context(attribute(owner, name, answer))
    for name in ("worker_devices", "parameter_devices"):
        original = _inherited(private.TPUExtended, name)
        answer = translated_property(original, lambda names: tuple(map(tpu, names)))
        undo.enter_context(attribute(private.TPUExtended, name, answer))


def _inherited(owner: type, name: str) -> Any:
    """A descriptor itself, from the class that has it."""
    return next(vars(base)[name] for base in owner.__mro__ if name in vars(base))
