"""Private attributes of TensorFlow and Keras: the modules that use them, and their existence.

If a release changes an attribute, a test fails with a sentence that names its purpose and module.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.strategies import strategy_of

from tpunb.tensorflow.virtual import private_names as private
from tpunb.tensorflow.virtual import strategy
from tpunb.tensorflow.virtual.input import distributed_datasets, iterators
from tpunb.tensorflow.virtual.replicate import trace

PACKAGE = Path(__file__).parents[2] / "tpunb"

ADAPTERS: dict[str, dict[str, dict[str, str]]] = {
    "tensorflow/virtual/graph/tensorflow_graphs.py": {
        "an operation": {
            "_set_attr": "marks what belongs to the host",
            "_add_control_input": "orders what prints",
            "_is_stateful": "finds what has side effects",
        },
        "a graph": {
            "_functions": "finds the functions that a graph calls",
            "_add_function": "lets a graph call a function",
            "_remove_function": "lets a graph call what has been redefined",
            "_add_function_recursive": "lets a graph call what another one calls",
            "_set_control_flow_context": "answers that a replica function is being traced",
            "_device_function_stack": "gives outside_compilation the devices around it",
        },
        "a called function": {"_cached_graph": "looks into functions that a graph calls"},
        "a concrete function": {"_attrs": "takes the request for XLA from a function"},
        "an atomic function": {"_bound_context": "finds the lines that made operations"},
        "the gradients": {"_registry": "forgets the gradients of examined functions"},
    },
    "tensorflow/virtual/runtime/tensorflow_state.py": {
        "the context": {
            "_context_handle": "tells whether devices can still be added",
            "_server_def": "forgets a cluster that could not be connected to",
            "_soft_device_placement": "tells soft placement that is unset from off",
        },
        "tf.distribute": {"_get_default_strategy": "examines models created outside of any scope"},
        "TPU systems": {"_INITIALIZED_TPU_SYSTEMS": "initializes a virtual TPU system"},
        "cancellation": {"_active_context": "lets an interrupt end a function"},
        "TPU functions": {"_pad_all_input": "pads inputs as a TPU does"},
        "a saver": {"_num_unique_tasks": "restores checkpoints on any number of workers"},
    },
    "tensorflow/virtual/input/datasets.py": {
        "datasets": {"_OptionsDataset": "sees through options to the batches"},
        "distribution of datasets": {"_RemoteDataset": "clones a dataset for each host"},
        "a batched dataset": {
            "_variant_tensor": "maps and clones datasets",
            "_input_dataset": "sees through a dataset to its inputs",
            "_batch_size": "warns of replicas without examples",
            "_drop_remainder": "warns of replicas without examples",
            "_apply_debug_options": "clones a dataset for each host",
            "_as_serialized_graph": "clones a dataset for each host",
            "_functions": "finds datasets that read files",
            "_inputs": "finds datasets that read files",
        },
        "a rebatched dataset": {"_batch_sizes": "finds how a batch is cut"},
    },
    "tensorflow/virtual/input/iterators.py": {
        "distributed input": {"_replace_per_replica_spec": "finds the type of a part"},
        "input workers": {"_worker_device_pairs": "finds the hosts and cores of a dataset"},
        "an iterator": {"_get_next_call_count": "counts calls for all cores as one"},
        "a distributed dataset": {
            "_cardinality": "makes an iterator's type once",
            "_element_spec": "finds the type of a part",
            "_enable_get_next_as_optional": "makes an iterator's type once",
            "_input_workers": "makes an iterator's type once",
            "_replica_order": "makes an iterator's type once",
        },
        "a distributed iterator": {"_iterators": "passes an iterator to a function"},
        "TensorFlow 1's iterators": {
            "_create_device_dataset": "keeps TensorFlow 1's iterators from tuning themselves",
        },
    },
    "tensorflow/virtual/input/distributed_datasets.py": {
        "a distributed dataset": {
            "_built": "leaves unreadable data to TensorFlow, which raises the error",
            "_cloned_datasets": "reads each host's part of a dataset",
        },
        "a dataset from a function": {"_datasets": "reads each host's part of a dataset"},
        "input workers": {"_worker_device_pairs": "finds the hosts and cores of a dataset"},
        "a distributed iterator": {
            "_cardinality": "tells the end of the data as TensorFlow does",
            "_element_spec": "tells the end of the data as TensorFlow does",
            "_input_workers": "finds the cores that get the parts",
            "_iterators": "takes batches whole",
            "_replica_order": "gives each replica its own part",
        },
        "distributed input": {"_create_per_replica": "groups the parts of a batch"},
    },
    "tensorflow/virtual/strategy.py": {
        "an extended strategy": {
            "_container_strategy": "finds the strategy",
            "_num_replicas_in_sync": "knows the replicas",
            "_tpu_function_cache": "traces a replica function once",
        },
        "input workers": {"_worker_device_pairs": "places input pipelines"},
    },
    "tensorflow/virtual/replicate/trace.py": {
        "a replica context": {
            "_replicated_vars": "gives a variable one handle for all replicas",
            "_outside_compilation_cluster": "marks what belongs to the host",
        },
    },
    "tensorflow/virtual/copies/copy_views.py": {
        "a distributed variable": {
            "_primary": "finds the first copy",
            "_handle_id": "knows a variable from others",
            "_is_mirrored": "keeps the copies of mirrored variables in one resource",
            "_get_on_device_or_primary": "says where a variable is",
            "_update_cross_replica": "sees updates through the strategy",
            "_gather_saveables_for_checkpoint": "sees checkpoints restore a variable",
            "_export_to_saved_model_graph": "reads a copy to save it",
        },
        "a variable": {
            "_distribute_strategy": "makes a copy that shares a resource",
            "_read_variable_op": "says that a copy is on its core",
            "_validate_shape": "makes a copy that shares a resource",
        },
        "a variable's handle": {
            "_distributed_container": "finds the variable that a copy belongs to",
            "_id": "tells variables that are arguments of a function apart",
        },
        "a replicated variable": {"_vars": "finds the copies of a variable"},
    },
    "tensorflow/virtual/copies/variable_copies.py": {
        "a variable": {"_handle_name": "names a copy's own resource"},
        "a variable's handle": {
            "_handle_data": "finds the type of a variable, gives a copy a resource of its own",
            "_unique_id": "gives a copy a resource of its own",
            "_parent_trackable": "saves a copy that has a resource of its own",
            "_distributed_container": "finds the variable that a copy belongs to",
        },
        "a replicated variable": {"_vars": "finds the copies of a variable"},
    },
    "machine/keras_internals.py": {
        "a model": {
            "_flatten_layers": "names the layers of a model",
            "_symbolic_build": "builds a model that is checked",
            "_compile_metrics": "finds metrics before the first batch",
        },
        "the metrics of a compiled model": {
            "_user_metrics": "finds metrics before the first batch"
        },
        "an optimizer": {"_learning_rate": "draws the learning rate"},
        "a callback's hook": {"_is_default": "skips hooks that do nothing"},
        "the variables of Keras's fit": {"epoch_iterator": "leaves out the data to validate with"},
        "the variables of tf_keras's fit": {"data_handler": "leaves out the data to validate with"},
        "Keras's epoch iterator": {"data_adapter": "warns of replicas without examples"},
        "tf_keras's data handler": {"_adapter": "warns of replicas without examples"},
        "a JAX trainer": {
            "_get_jax_state": "compiles a step of a model with the JAX backend",
            "_jax_state": "draws the learning rate within an epoch",
            "_jax_state_synced": "draws the learning rate within an epoch",
        },
    },
}
"""By module and object: each private attribute and its purpose in the module."""

NOT_OF_TENSORFLOW = {
    "_asdict": "named tuples",
    "_Environ": "os",
    "_actions": "argparse",
    "_cleanup_kernel": "nbclient",
    "_exit": "os",
    "_getframe": "sys",
    "_inst": "random",
    "_tpunb_batch": "an attribute that tpunb sets on a tensor",
}
CALLED: dict[type, list[str]] = {
    iterators.SettledIterator: ["_type_spec", "_get_next_no_partial_batch_handling"],
    iterators.SettledIteratorSpec: ["_component_specs", "_from_components", "_to_components"],
    **{
        kind: [name for name in vars(kind) if not name.startswith("__")]
        for kind in distributed_datasets._SETTLED.values()
    },
    strategy.VirtualTPUExtended: [
        "_broadcast_to",
        "_create_variable",
        "_distribute_datasets_from_function",
        "_experimental_distribute_dataset",
        "_experimental_run_steps_on_iterator",
        "_gather_to_implementation",
        "_get_input_workers",
        "_make_dataset_iterator",
        "_make_input_fn_iterator",
        "_tpu_function_creator",
        "_update",
    ],
    trace.ReplicaTracingContext: ["get_replicated_var_handle", "AddOp", "AddValue", "AddInnerOp"],
}
"""By class: methods of TensorFlow's classes that TensorFlow calls and tpunb overrides."""


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }


def defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines, including attributes of its own objects."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if getattr(node.value, "id", "") == "self" else []


@functools.cache
def private_uses() -> dict[str, set[str]]:
    """By module: the private attributes that it uses and that nothing in the package defines."""
    own_names = {name for tree in trees().values() for name in defined(tree)} | set(
        NOT_OF_TENSORFLOW
    )
    uses: dict[str, set[str]] = {}
    for module, tree in trees().items():
        if module.startswith("jax/"):  # `tpunb/jax/virtual/private_names.py` lists JAX's
            continue
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            if name.startswith("_") and not name.startswith("__") and name not in own_names:
                uses.setdefault(module, set()).add(name)
    return uses


def test_private_attributes_are_used_in_few_modules() -> None:
    elsewhere = {name: uses for name, uses in private_uses().items() if name not in ADAPTERS}
    assert not elsewhere, "Use the functions of a module in ADAPTERS, or add one there."
    assert len(ADAPTERS) <= 10


@pytest.mark.parametrize("module", ADAPTERS)
def test_each_attribute_is_listed(module: str) -> None:
    listed = {name for names in ADAPTERS[module].values() for name in names}
    assert not private_uses()[module] - listed, "Describe its purpose in ADAPTERS."
    used = {
        part.value if isinstance(part, ast.Constant) else getattr(part, "attr", None)
        for part in ast.walk(trees()[module])
    }
    assert not listed - used, "No longer used: remove it from ADAPTERS."


def test_members_of_enumerations_are_compared_by_value() -> None:
    """TensorFlow 1's VariableAggregation is another enumeration, whose members equal these."""

    def is_member(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and isinstance(getattr(tf_name(node.value), "__members__", None), Mapping)
        )

    by_identity = [
        f"tpunb/{module}, line {node.lineno}"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(how, (ast.Is, ast.IsNot)) for how in node.ops)
        and any(map(is_member, [node.left, *node.comparators]))
    ]
    assert not by_identity, "Compare by ==."


def tf_name(node: ast.Attribute) -> Any:
    """The object with a name such as tf.VariableAggregation; None if it is not TensorFlow's."""
    top, *names = ast.unparse(node).split(".")
    value: Any = tf if top == "tf" else None
    for name in names:
        value = getattr(value, name, None)
    return value


# Objects with private attributes.


@tf.function
def doubled(x: tf.Tensor) -> tf.Tensor:
    return tf.function(lambda y: y * 2.0)(x)


def concrete() -> Any:
    return doubled.get_concrete_function(tf.TensorSpec([2], tf.float32))


def distributed(make: str) -> Any:
    tpu = strategy_of(2)
    batches = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    if make == "function":
        return tpu.distribute_datasets_from_function(lambda _: batches)
    return tpu.experimental_distribute_dataset(batches)


def mirrored() -> Any:
    with strategy_of(2).scope():
        return tf.Variable([1.0])


def replicated() -> Any:
    parts = [tf.Variable(1.0), tf.Variable(1.0)]
    return private.TPUReplicatedVariable(variables=parts, name="parts")


def model() -> Any:
    keras_model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    keras_model.compile("sgd", "mse")
    return keras_model


def compiled_metrics() -> Any:
    keras_model = model()
    keras_model.compile("sgd", "mse", metrics=["mae"])
    return keras_model._compile_metrics


def jax_trainer() -> Any:
    """The names in the code of Keras's methods for JAX, which set attributes during training."""
    path = Path(inspect.getfile(keras.Model)).parents[1] / "backend" / "jax" / "trainer.py"
    names = {
        node.attr if isinstance(node, ast.Attribute) else getattr(node, "name", "")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    }
    return type("Trainer", (), dict.fromkeys(names - {""}))


def variables_of_fit(model: type) -> Any:
    """The local variables of `fit`, below the decorators that shorten tracebacks."""
    return SimpleNamespace(**dict.fromkeys(inspect.unwrap(model.fit).__code__.co_varnames))


def attributes_in(module: str, name: str) -> Any:
    """The attributes that a class sets on its objects."""
    tree = ast.parse(inspect.getsource(getattr(importlib.import_module(module), name)))
    return SimpleNamespace(**dict.fromkeys(defined(tree)))


def tf_keras_model() -> type:
    return importlib.import_module("tf_keras").Model


MAKE: dict[str, Callable[[], Any]] = {
    "an operation": lambda: concrete().graph.get_operations()[0],
    "a graph": lambda: concrete().graph,
    "a called function": lambda: next(iter(concrete().graph._functions.values())),
    "a concrete function": concrete,
    "an atomic function": lambda: concrete().inference_fn,
    "the gradients": lambda: private.ops.gradient_registry,
    "a handle": lambda: tf.Variable(1.0).handle,
    "the context": private.context.context,
    "tf.distribute": lambda: private.distribute_lib,
    "TPU systems": lambda: private.tpu_strategy_util,
    "cancellation": lambda: private.cancellation,
    "TPU functions": lambda: private.tpu,
    "a saver": lambda: private.MultiDeviceSaver({}),
    "datasets": lambda: private.dataset_ops,
    "distribution of datasets": lambda: private.dataset_distribution,
    "a batched dataset": lambda: tf.data.Dataset.range(4).batch(2),
    "a rebatched dataset": lambda: tf.data.Dataset.range(4).batch(2).rebatch([1, 1]),
    "distributed input": lambda: private.input_lib,
    "an iterator": lambda: iter(tf.data.Dataset.range(1)),
    "a distributed iterator": lambda: iter(distributed("dataset")),
    "TensorFlow 1's iterators": lambda: private.multi_device_iterator_ops,
    "a distributed dataset": lambda: distributed("dataset"),
    "a dataset from a function": lambda: distributed("function"),
    "input workers": lambda: distributed("dataset")._input_workers,
    "an extended strategy": lambda: strategy_of(2).extended,
    "a replica context": lambda: private.TPUReplicateContext("context", 2, pivot=None),
    "a distributed variable": mirrored,
    "a variable": lambda: tf.Variable(1.0),
    "a variable's handle": lambda: mirrored().values[0].handle,
    "a replicated variable": replicated,
    "a model": model,
    "the metrics of a compiled model": compiled_metrics,
    "an optimizer": lambda: model().optimizer,
    "a callback's hook": lambda: keras.callbacks.Callback.on_train_batch_end,
    "a JAX trainer": jax_trainer,
    "the variables of Keras's fit": lambda: variables_of_fit(keras.Model),
    "the variables of tf_keras's fit": lambda: variables_of_fit(tf_keras_model()),
    "Keras's epoch iterator": lambda: attributes_in(
        "keras.src.trainers.epoch_iterator", "EpochIterator"
    ),
    "tf_keras's data handler": lambda: attributes_in(
        "tf_keras.src.engine.data_adapter", "DataHandler"
    ),
}


@pytest.mark.parametrize(
    ("module", "owner"), [(module, owner) for module in ADAPTERS for owner in ADAPTERS[module]]
)
def test_this_release_has_the_attributes(module: str, owner: str) -> None:
    has = MAKE[owner]()
    missing = [
        f"TensorFlow {tf.__version__}: {owner} no longer has {name}, with which tpunb/{module} "
        f"{purpose}."
        for name, purpose in ADAPTERS[module][owner].items()
        if not hasattr(has, name)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("kind", CALLED, ids=lambda kind: kind.__name__)
def test_tensorflow_calls_the_overridden_methods(kind: type) -> None:
    theirs = [base for base in kind.__mro__ if not base.__module__.startswith("tpunb")]
    missing = [
        f"TensorFlow {tf.__version__} no longer calls {name}, which {kind.__name__} overrides."
        for name in CALLED[kind]
        if not any(name in vars(base) for base in theirs)
    ]
    assert not missing, "\n".join(missing)
