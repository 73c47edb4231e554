"""`install` makes TensorFlow's names refer to the virtual TPU; `uninstall` restores them."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client.session import BaseSession
from tensorflow.python.distribute import device_util
from tensorflow.python.distribute import tpu_strategy as imported_before
from tensorflow.python.framework.ops import device as device_before
from tensorflow.python.tpu import tpu_strategy_util

import tpunb
from tpunb.errors import ConnectError, VirtualDevicesError
from tpunb.tensorflow.virtual.patch import patched_names
from tpunb.virtual import install, installed, uninstall
from tpunb.virtual.installation import current, failure

TPUClusterResolver = tf.distribute.cluster_resolver.TPUClusterResolver
TPUStrategy = tf.distribute.TPUStrategy
VARIABLES = ("COLAB_TPU_ADDR", "TPU_NAME", "XRT_TPU_CONFIG", "TPU_ACCELERATOR_TYPE", "TPUNB_TPU")
ADDRESS = "10.0.0.2:8470"
CORE = "/job:localhost/replica:0/task:0/device:CPU:{}"
REMOTE = "/job:worker/replica:0/task:0/device:TPU:{}"
LOCAL = "/job:localhost/replica:0/task:0/device:TPU:{}"

MADE_LATE = ("_abc_", "__annotations__")
"""Attributes that Python adds to classes on use."""

TOUCHED = (
    "tensorflow.python.eager",
    "tensorflow.python.framework",
    "tensorflow.python.distribute",
    "tensorflow.python.tpu",
    "tensorflow.python.client",
    "tensorflow.python.ops.resource_variable_ops",
    "tensorflow._api.v2.config",
    "tensorflow._api.v2.distribute",
    "tensorflow._api.v2.tpu",
)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    uninstall()
    assert current() is None
    assert not os.environ.keys() & set(VARIABLES)


def names() -> dict[str, Any]:
    """Everything that `install` could replace, in all namespaces of TensorFlow."""
    contents: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(TOUCHED):
            continue
        for key, value in list(vars(module).items()):
            contents[f"{name}.{key}"] = value
            if isinstance(value, types.FunctionType):
                state = (value.__code__, value.__defaults__, value.__kwdefaults__)
                contents[f"{name}.{key}()"] = (*state, dict(value.__dict__))
            elif isinstance(value, type):
                members = {k: v for k, v in vars(value).items() if not k.startswith(MADE_LATE)}
                contents[f"{name}.{key}{{}}"] = members
    contents["systems"] = dict(tpu_strategy_util._INITIALIZED_TPU_SYSTEMS)
    return contents


def changed(before: dict[str, Any]) -> list[str]:
    after = names()
    return [key for key, value in before.items() if not _same(value, after.get(key))]


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return all(value is second[key] for key, value in first.items())
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return all(a is b or _same(a, b) for a, b in zip(first, second, strict=True))
    return first is second


def start(tpu: Any = "") -> Any:
    """Run the cells that start every TPU notebook."""
    resolver = TPUClusterResolver(tpu)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return TPUStrategy(resolver)


# Restoring.


def test_uninstall_restores_every_name() -> None:
    before = names()
    install("v3-8", environment=True)
    start().run(tf.function(lambda: tf.constant(1)))
    touched = changed(before)
    assert "tensorflow.python.framework.ops.device()" in touched
    assert "systems" in touched
    uninstall()
    assert changed(before) == []
    with pytest.raises(ValueError, match="Please provide a TPU Name"):
        TPUClusterResolver()


def test_a_failed_install_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names()

    def fail(*_: Any) -> None:
        raise AttributeError("a name that TensorFlow no longer has")

    monkeypatch.setattr(patched_names, "_change_device_names", fail)
    with pytest.raises(AttributeError, match="no longer has"):
        install("v3-8", environment=True)
    monkeypatch.undo()
    assert changed(before) == []
    assert current() is None


def test_uninstall_without_install() -> None:
    before = names()
    uninstall()
    assert changed(before) == []


def test_a_second_install_replaces_the_first() -> None:
    before = names()
    install("v3-8")
    install("v5e-4")
    assert start().num_replicas_in_sync == 4
    install("v5e-4")
    uninstall()
    assert changed(before) == []


def test_installed_for_a_block() -> None:
    with installed("v3-8") as outer:
        assert outer.name == "v3-8"
        with installed(2):
            assert len(tf.config.list_logical_devices("TPU")) == 2
        with pytest.raises(ZeroDivisionError), installed(2):
            raise ZeroDivisionError
        assert len(tf.config.list_logical_devices("TPU")) == 8
    assert current() is None


def test_default_type(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed() as tpu:
        assert tpu.name == "v5e-8"
    monkeypatch.setenv("TPUNB_TPU", "v2-8")
    with installed() as tpu:
        assert tpu.name == "v2-8"
    monkeypatch.delenv("TPUNB_TPU")


def test_too_few_devices_keep_the_installed_tpu() -> None:
    install("v3-8")
    with pytest.raises(VirtualDevicesError, match="already started"):
        install("v3-1024")
    assert start().num_replicas_in_sync == 8


def test_missing_devices_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    install("v3-8")
    monkeypatch.setattr("tpunb.tensorflow.virtual.runtime.devices._available", lambda needed: 1)
    with pytest.raises(VirtualDevicesError):
        TPUClusterResolver()
    assert isinstance(failure(), VirtualDevicesError)
    monkeypatch.undo()
    install("v3-8")
    assert failure() is None


def test_environment_variables_are_added_but_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed("v3-8", environment=True):
        assert os.environ["COLAB_TPU_ADDR"] == ADDRESS
        assert os.environ["TPU_ACCELERATOR_TYPE"] == "v3-8"
        resolver = TPUClusterResolver("grpc://" + os.environ["COLAB_TPU_ADDR"])
        assert resolver.master() == f"grpc://{ADDRESS}"
    assert "COLAB_TPU_ADDR" not in os.environ
    monkeypatch.setenv("TPU_NAME", "local")
    with installed("v3-8", environment=True):
        assert os.environ["TPU_NAME"] == "local"
    assert os.environ["TPU_NAME"] == "local"
    monkeypatch.delenv("TPU_NAME")


# Resolvers.


@pytest.mark.parametrize(
    ("tpu", "master"),
    [
        ("", f"grpc://{ADDRESS}"),
        (None, f"grpc://{ADDRESS}"),
        ("my-tpu", f"grpc://{ADDRESS}"),
        ("grpc://10.9.8.7:8470", "grpc://10.9.8.7:8470"),
        ("10.9.8.7:8470", "grpc://10.9.8.7:8470"),
        (["grpc://10.9.8.7:8470"], "grpc://10.9.8.7:8470"),
        ("local", ""),
    ],
)
def test_resolver_spellings(tpu: Any, master: str) -> None:
    install("v3-8")
    resolver = TPUClusterResolver(tpu=tpu, zone="us-central1-b", project="p")
    assert type(resolver) is not TPUClusterResolver
    assert isinstance(resolver, TPUClusterResolver)
    assert resolver.master() == resolver.get_master() == master
    workers = resolver.cluster_spec().as_dict()
    assert workers == ({"worker": [master.removeprefix("grpc://")]} if master else {})
    assert resolver.num_accelerators() == {"TPU": 8}
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 0, "")
    assert resolver.get_job_name() == "worker"
    assert resolver.tpu_hardware_feature is None
    tf.config.experimental_connect_to_cluster(resolver)
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    assert resolver.tpu_hardware_feature is not None
    np.testing.assert_array_equal(topology.mesh_shape, [2, 2, 1, 2])
    assert TPUStrategy(resolver).num_replicas_in_sync == 8


def test_address_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    install(2)
    monkeypatch.setenv("TPU_NAME", "local")
    assert TPUClusterResolver().master() == ""
    monkeypatch.delenv("TPU_NAME")


def test_nothing_is_installed_if_a_real_tpu_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUNB_REQUIRE_TPU", "1")
    with pytest.raises(ConnectError, match="TPUNB_REQUIRE_TPU requires a real TPU"):
        install("v3-8")
    assert current() is None


def test_pods_have_a_worker_for_each_host() -> None:
    install("v3-32")
    resolver = TPUClusterResolver("pod", coordinator_name="c", coordinator_address="10.0.0.9:1")
    addresses = [f"10.0.0.{host}:8470" for host in (2, 3, 4, 5)]
    assert resolver.cluster_spec().as_dict() == {"worker": addresses, "c": ["10.0.0.9:1"]}
    assert resolver.master(task_type="worker", task_id=3) == "grpc://10.0.0.5:8470"
    tf.config.experimental_connect_to_cluster(resolver)
    assert tf.config.list_logical_devices("TPU")[9].name.endswith("/task:1/device:TPU:1")


def test_metadata() -> None:
    install("v3-8")
    metadata = TPUClusterResolver("local").get_tpu_system_metadata()
    assert (metadata.num_cores, metadata.num_hosts, metadata.num_of_cores_per_host) == (8, 1, 8)
    listed = [str(device) for device in metadata.devices]
    assert f"_DeviceAttributes({LOCAL.format(7)}, TPU, 0, 0)" in listed


def test_a_resolver_after_uninstall_is_refused() -> None:
    install(2)
    stand_in = type(TPUClusterResolver())
    uninstall()
    with pytest.raises(RuntimeError, match="undone"):
        stand_in()


# Code blocks that look for a TPU.

BLOCKS = {
    "kaggle": """
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    assert tpu.master()
except ValueError:
    tpu = None
if tpu:
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
else:
    strategy = tf.distribute.get_strategy()
""",
    "keras": """
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.MirroredStrategy()
""",
    "colab": """
import os
tpu = tf.distribute.cluster_resolver.TPUClusterResolver(
    tpu="grpc://" + os.environ["COLAB_TPU_ADDR"])
tf.config.experimental_connect_to_host(tpu.master())
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.experimental.TPUStrategy(tpu)
assert tpu.cluster_spec().as_dict()["worker"]
""",
    "virtual machine": """
strategy = tf.distribute.get_strategy()
if tf.config.list_physical_devices("TPU"):
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_host(tpu.master())
    tf.tpu.experimental.initialize_tpu_system()
    strategy = tf.distribute.TPUStrategy()
""",
    "compat": """
tpu = tf.compat.v2.distribute.cluster_resolver.TPUClusterResolver("")
tf.compat.v2.config.experimental_connect_to_cluster(tpu.cluster_spec())
tf.compat.v1.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.compat.v2.distribute.experimental.TPUStrategy(tpu)
""",
    "private": """
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.distribute.cluster_resolver import TPUClusterResolver
from tensorflow.python.eager.remote import connect_to_cluster
tpu = TPUClusterResolver()
connect_to_cluster(tpu)
strategy = tpu_strategy.TPUStrategyV2(tpu)
""",
}


@pytest.mark.parametrize("block", BLOCKS)
def test_detection_takes_the_tpu_branch(block: str) -> None:
    install("v3-8", environment=True)
    names: dict[str, Any] = {"tf": tf}
    exec(BLOCKS[block], names)
    assert names["strategy"].num_replicas_in_sync == 8
    assert "TPU" in type(names["strategy"]).__name__


# Strategies.


@pytest.mark.parametrize("name", ["TPUStrategyV2", "TPUStrategy"])
def test_the_class_stays_the_class(name: str) -> None:
    kind = getattr(imported_before, name)
    install("v3-8")
    assert getattr(imported_before, name) is kind
    strategy = kind(TPUClusterResolver("local"))
    assert isinstance(strategy, kind)
    assert type(strategy).__name__ == name
    result = strategy.run(tf.function(lambda: tf.constant(2.0)))
    assert strategy.reduce("SUM", result, axis=None) == 16
    uninstall()
    assert isinstance(strategy, kind)
    assert strategy.reduce("SUM", strategy.run(tf.function(lambda: 1.0)), axis=None) == 8


def test_the_strategy_of_tensorflow_1_is_refused() -> None:
    resolver = TPUClusterResolver("local")
    install("v3-8")
    with pytest.raises(NotImplementedError, match=r"tf\.compat\.v2\.distribute\.TPUStrategy"):
        tf.compat.v1.distribute.experimental.TPUStrategy(resolver, steps_per_run=2)
    strategy = tf.compat.v2.distribute.experimental.TPUStrategy(TPUClusterResolver("local"))
    assert strategy.num_replicas_in_sync == 8
    with pytest.raises(NotImplementedError, match=r"strategy\.run"):
        strategy.extended.experimental_run_steps_on_iterator(lambda *_: None, None, 2)


def test_device_assignment_by_keyword() -> None:
    install("v3-8")
    topology = tf.tpu.experimental.initialize_tpu_system()
    assignment = tf.tpu.experimental.DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=4)
    strategy = TPUStrategy(TPUClusterResolver(), experimental_device_assignment=assignment)
    assert strategy.num_replicas_in_sync == 4


def test_subclasses_keep_their_methods() -> None:
    class Mine(TPUStrategy):  # type: ignore[misc]
        def __init__(self, resolver: Any, extra: int) -> None:
            super().__init__(resolver)
            self.extra = extra

        def more(self) -> int:
            return self.extra + self.num_replicas_in_sync

    install(2)
    strategy = Mine(TPUClusterResolver(), 5)
    assert strategy.more() == 7
    assert isinstance(strategy, Mine)
    assert strategy.reduce("SUM", strategy.run(tf.function(lambda: 1.0)), axis=None) == 2


def test_strictness_is_passed_on() -> None:
    def eager(strategy: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)

    with installed(2), pytest.raises(NotImplementedError, match="pure eager"):
        eager(start())
    with installed(2, strict={"eager-run": False}):
        assert eager(start()) == 2


def test_arithmetic_is_passed_on() -> None:
    x = tf.constant([[1.001]])

    @tf.function
    def square(strategy: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(tf.matmul, args=(x, x)), axis=None)

    with installed(1, arithmetic="tpu"):
        assert square(start())[0, 0] == 1
        assert TPUClusterResolver("").arithmetic == "tpu"
    with installed(1):
        assert square(start())[0, 0] > 1


def test_to_the_cpu_and_back() -> None:
    install("v3-8")
    first = start()
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1
    with tf.device("/CPU:0"):
        assert tf.add(1, 1).device == CORE.format(0)
    mirrored = tf.distribute.MirroredStrategy()
    assert mirrored.num_replicas_in_sync == 1
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        assert tf.Variable(1.0).device == CORE.format(0)
    with tf.distribute.OneDeviceStrategy("/TPU:2").scope():
        assert tf.Variable(1.0).device == REMOTE.format(2)
    for strategy in (first, start()):
        ones = strategy.run(tf.function(lambda: tf.ones([])))
        assert strategy.reduce("SUM", ones, axis=None) == 8


# The TPU system.


def test_initialise_and_shut_down(caplog: pytest.LogCaptureFixture) -> None:
    install("v3-8")
    resolver = TPUClusterResolver("local")
    for _ in range(2):
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    assert isinstance(topology, tf.tpu.experimental.Topology)
    systems = tpu_strategy_util.get_initialized_tpu_systems()
    assert list(systems) == ["local"]
    tf.tpu.experimental.shutdown_tpu_system(resolver)
    assert tpu_strategy_util.get_initialized_tpu_systems() == {}
    tf.tpu.experimental.shutdown_tpu_system(resolver)


def test_initialise_inside_a_function() -> None:
    install("v3-8")
    serialized = tf.function(lambda: tf.tpu.experimental.initialize_tpu_system())()
    topology = tf.tpu.experimental.Topology(serialized=serialized.numpy())
    np.testing.assert_array_equal(topology.mesh_shape, [2, 2, 1, 2])
    with pytest.raises(RuntimeError, match="not supported within"):
        tf.function(lambda: tf.tpu.experimental.shutdown_tpu_system())()


def test_other_connections_are_left_to_tensorflow() -> None:
    install(2)
    with pytest.raises(ValueError, match="ClusterSpec"):
        tf.config.experimental_connect_to_cluster("nonsense")
    with tf.Graph().as_default(), pytest.raises(ValueError, match="eager mode"):
        tf.config.experimental_connect_to_cluster(TPUClusterResolver())


# Devices.


def test_lists_before_and_after_connecting() -> None:
    install("v3-8")
    assert tf.config.list_logical_devices("TPU")[3].name == "/device:TPU:3"
    start("local")
    assert tf.config.list_logical_devices("TPU")[3].name == "/device:TPU:3"
    start("")
    listed = tf.config.list_logical_devices("TPU")
    assert [device.name for device in listed] == [REMOTE.format(core) for core in range(8)]
    assert {device.device_type for device in listed} == {"TPU"}
    kinds = [device.device_type for device in tf.config.list_logical_devices()]
    assert kinds == ["CPU", "TPU_SYSTEM", *["TPU"] * 8]
    assert len(tf.config.list_logical_devices("CPU")) == 1
    assert tf.config.experimental.list_logical_devices("GPU") == []


@pytest.mark.parametrize("function", ["list_physical_devices", "get_visible_devices"])
def test_physical_devices(function: str) -> None:
    install("v3-8")
    listed = getattr(tf.config, function)("TPU")
    assert [d.name for d in listed] == [f"/physical_device:TPU:{core}" for core in range(8)]
    kinds = [device.device_type for device in getattr(tf.config.experimental, function)()]
    assert kinds == ["CPU", "TPU_SYSTEM", *["TPU"] * 8]
    assert tf.config.experimental.get_device_details(listed[0]) == {}


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("/TPU:0", 0),
        ("TPU:1", 1),
        ("/tpu:2", 2),
        ("/device:TPU:3", 3),
        ("device:TPU:4", 4),
        ("/job:localhost/device:TPU:5", 5),
        (REMOTE.format(6), 6),
        (LOCAL.format(7), 7),
    ],
)
def test_device_spellings(name: str, core: int) -> None:
    install("v3-8")
    start("")
    for device in (tf.device, tf.compat.v1.device, device_before):
        with device(name):
            tensor = tf.constant([1.0]) + 1.0
        assert tensor.device == REMOTE.format(core)
        assert tensor.numpy() == 2
    uninstall()
    assert tensor.device == CORE.format(core + 1)


@pytest.mark.parametrize(
    "name", ["/job:worker", "/job:worker/task:0/cpu:0", "/device:TPU_SYSTEM:0"]
)
def test_the_worker_is_the_host(name: str) -> None:
    install("v3-8")
    with tf.device(name):
        assert tf.add(1.0, 1.0).device == CORE.format(0)


@pytest.mark.parametrize("name", ["/TPU:8", "/job:localhost/task:1/device:TPU:0", "/nonsense:0"])
def test_missing_devices_are_left_to_tensorflow(name: str) -> None:
    def ask() -> str:
        try:
            with tf.device(name):
                return str(tf.add(1.0, 1.0).device)
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            return str(error)

    expected = ask()
    install("v3-8")
    assert ask() == expected


def test_device_names_for_users_and_for_tensorflow() -> None:
    install("v3-8")
    strategy = start("local")
    cores = tuple(LOCAL.format(core) for core in range(8))
    assert strategy.extended.worker_devices == cores
    assert strategy.extended.parameter_devices == cores
    for core in cores[:2]:
        with tf.device(core):
            assert tf.ones([2]).device == core
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert [value.device for value in variable.values] == list(cores)
    assert variable.device == cores[0]
    # TensorFlow itself uses names to compare and to place.
    assert device_util.canonicalize("/TPU:1") == CORE.format(2)
    asking = {"__name__": "tensorflow.python.some.module", "value": variable.values[1]}
    assert eval("value.device", asking) == CORE.format(2)


def test_other_classes_than_resolvers_are_refused() -> None:
    install(2)
    for impl in (
        tpu_strategy_util.initialize_tpu_system_impl,
        tpu_strategy_util.shutdown_tpu_system_impl,
    ):
        with pytest.raises(TypeError, match="tpu_cluster_resolver_cls is not"):
            impl(TPUClusterResolver(), tpu_cluster_resolver_cls=None)


def test_devices_of_results() -> None:
    """Results are in a core's memory; to TensorFlow, the host's function computed them."""
    install("v3-8")
    strategy = start("local")
    cores = [LOCAL.format(core) for core in range(8)]
    step = tf.function(lambda x: strategy.run(tf.negative, args=(x,)))
    results = step(tf.ones([2])).values
    assert [result.backing_device for result in results] == cores
    assert {result.device for result in results} == {CORE.format(0)}
    assert [result.backing_device for result in step(results[3]).values] == cores
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert [copy.value().backing_device for copy in variable.values] == cores
    uninstall()
    assert results[1].backing_device == CORE.format(2)


def test_devices_of_a_session() -> None:
    """A worker's session lists the devices of recorded notebooks, a local session its own."""
    install("v3-8")
    name = "/job:tpu_worker/replica:0/task:0/device:{}:{}".format
    with tf.Graph().as_default(), tf.compat.v1.Session(TPUClusterResolver().master()) as session:
        assert isinstance(session, BaseSession)
        assert session.run(tf.constant(3)) == 3
        devices = session.list_devices()
        with tf.device(devices[3].name):
            assert tf.constant(1.0).device == LOCAL.format(2)
    names = [name("CPU", 0), *(name("TPU", core) for core in range(8)), name("TPU_SYSTEM", 0)]
    assert [device.name for device in devices] == names
    assert [device.device_type for device in devices] == ["CPU", *["TPU"] * 8, "TPU_SYSTEM"]
    assert [device.memory_limit_bytes for device in devices] == [-1, *[17179869184] * 9]
    assert len({device.incarnation for device in devices[1:9]}) == 8
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        local = [device.name for device in session.list_devices()]
    start("")  # the TPU is now on another machine
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        assert [device.name for device in session.list_devices()] == [CORE.format(0)]
    assert local == [
        CORE.format(0),
        *map(LOCAL.format, range(8)),
        LOCAL.format(0).replace("TPU:", "TPU_SYSTEM:"),
    ]
    uninstall()
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        assert len(session.list_devices()) > 9


def test_names_in_graphs() -> None:
    install("v3-8")
    seen = []

    @tf.function
    def function(x: Any) -> Any:
        with tf.device("/TPU:1"):
            y = x + 1.0
        seen.append(y.device)
        return y

    assert function(tf.constant(1.0)) == 2
    assert seen == [LOCAL.format(1)]


# Connections.


def test_a_patch_lasts_as_long_as_its_connection() -> None:
    before = names()
    with tpunb.connect(simulate="v3-8", patch=True) as connection:
        assert start().num_replicas_in_sync == 8
        with tpunb.connect(simulate=2, patch=True):
            connection.close()
            assert start().num_replicas_in_sync == 2
    assert changed(before) == []


def test_a_patch_keeps_the_installed_tpu() -> None:
    install("v3-8")
    tpunb.connect(simulate="v3-8", patch=True).close()
    assert start().num_replicas_in_sync == 8
    with tpunb.connect(simulate=2, patch=True):
        assert start().num_replicas_in_sync == 2
    assert start().num_replicas_in_sync == 8


@pytest.mark.parametrize("tpu", [None, "local", "grpc://10.0.0.2:8470"])
def test_connect_with_an_installed_tpu(tpu: str | None) -> None:
    install("v3-8", environment=True)
    connection = tpunb.connect(tpu)
    assert (connection.kind, connection.tpu) == ("virtual", "v3-8")
    assert "refer to a virtual v3-8" in connection.plan.notes[0]
    with pytest.raises(ConnectError, match="a real TPU is required"):
        tpunb.connect(tpu, require_tpu=True)
