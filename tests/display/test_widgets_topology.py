"""The live topology in the kernel: accepted values and views."""

from __future__ import annotations

import gc
import html
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.patience import calls
from support.topologies import assigned, described

import tpunb
from tpunb.display.describe.connection import (
    ConnectionDescription,
    cores_by_device,
    device_of,
    memory_per_core,
)
from tpunb.display.describe.topology_description import group_shades
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.draw.topology.svg import drawing_phrases
from tpunb.display.widgets.topology import TopologyWidget
from tpunb.errors import AcceleratorTypeError
from tpunb.tpu.types import accelerator, accelerator_types

# The oldest ipywidgets uses a deprecated feature of traitlets for every widget.
pytestmark = [
    pytest.mark.oldest,
    pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning"),
]


def parts(widget: TopologyWidget) -> list[tuple[str, str]]:
    """Return the replicas and the title of each part of the drawing."""
    found = re.findall(r'data-part="([^"]*)"><title>([^<]*)</title>', widget.html)
    return [(replicas, html.unescape(title)) for replicas, title in found]


@pytest.mark.parametrize("name", ["v5e-1", "v3-8", "v4-32", "tpu7x-16", "v5e-256"])
def test_every_core_has_a_title(name: str) -> None:
    topology = described(name)
    widget = TopologyWidget(name)
    assert f'data-cores="{topology.num_cores}" data-replicas="0"' in widget.html
    shown = parts(widget)
    assert [replicas for replicas, _ in shown] == [str(core) for core in range(topology.num_cores)]
    for core, (_, title) in enumerate(shown):
        x, y, z, slot = topology.coordinates[core]
        host, ordinal = topology.hosts[core], topology.ordinals[core]
        assert title.startswith(f"Core {core}\nchip ({x}, {y}, {z})")
        assert (f"core {slot} of it" in title) == (topology.cores_per_chip > 1)
        assert f"\nhost {host}\n" in title
        assert f"/task:{host}/device:TPU:{ordinal}" in title
        assert "replica" not in title.replace("replica:0", "")


def test_dots_have_a_title_for_each_host() -> None:
    shown = parts(TopologyWidget("v5p-17920"))
    assert len(shown) == 2240
    replicas, title = shown[-1]
    assert replicas == "8956 8957 8958 8959"
    assert title == "Cores 8956, 8957, 8958, 8959\nhost 2239\nHBM 95 GiB"


def test_replicas_and_idle_cores() -> None:
    topology = replace(
        described("v5e-4"), replicas=(40_000, 0, -1, -1), logical_devices=(0, 0, -1, -1)
    )
    shown = parts(TopologyWidget(topology))
    assert [replicas for replicas, _ in shown] == ["40000", "0", "", ""]
    assert ["in no replica" in title for _, title in shown] == [False, False, True, True]
    assert "replica 40000" in shown[0][1]
    assert "2 cores unassigned" in TopologyWidget(topology).html


def test_one_plane_is_drawn_alone() -> None:
    widget = TopologyWidget("v4-128", plane=2)
    planes = {z for (_, _, z, _) in described("v4-128").coordinates}
    assert 'data-trait="plane"' in widget.html
    assert all(re.search(r"chip \(\d+, \d+, 2\)", title) for _, title in parts(widget))
    assert len(parts(widget)) == 64 // len(planes)
    widget.plane = 9  # a plane that does not exist
    assert len(parts(widget)) == 64


def test_the_zoom_is_a_width() -> None:
    widget = TopologyWidget("v3-8", zoom=4)
    assert "width:calc(4 * min(100%, 196px))" in widget.html
    assert '<option value="4.0" selected>' in widget.html


def test_texts_match_the_static_form() -> None:
    widget = TopologyWidget(assigned("v3-8", 2))
    text = widget.static_bundle()["text/plain"]
    for line in drawing_phrases(widget.description):
        assert line in text
        assert line in widget.html
    assert repr(widget) == text


def test_the_static_form_equals_the_descriptions_display() -> None:
    topology = assigned("v4-32", 4)
    assert TopologyWidget(topology).static_bundle() == dict(mimebundle(topology))


def test_the_largest_topology_is_small_and_takes_few_calls() -> None:
    def create() -> int:
        widget = TopologyWidget(
            replace(
                described("v5p-17920"), replicas=tuple(range(8960)), logical_devices=(0,) * 8960
            )
        )
        bundle = widget.static_bundle()
        return len(widget.html) + sum(map(len, bundle.values()))

    assert create() < 550_000
    assert calls(create) < 1_000_000  # for 8960 cores


# Accepted values


def test_accepted_values(tf: Any) -> None:
    topology = described("v3-8")
    from tpunb.tensorflow.virtual.resolver import virtual_topology

    resolver_topology = virtual_topology(accelerator("v3-8"))
    assignment = tf.tpu.experimental.DeviceAssignment.build(
        resolver_topology, computation_shape=[1, 1, 1, 2], num_replicas=4
    )
    connection = ConnectionDescription("virtual", "", "v3-8", 8, 8, 1, topology=topology)
    for value in (topology, "v3-8", " V3-8", accelerator("v3-8"), connection):
        assert TopologyWidget(value).description == topology
    assert TopologyWidget(resolver_topology).description.coordinates == topology.coordinates
    assert TopologyWidget(assignment).description.num_logical_devices == 2
    assert TopologyWidget(8).description.num_cores == 8


@pytest.mark.parametrize(
    "value",
    [
        None,
        2.5,
        [],
        object(),
        TopologyWidget,
        SimpleNamespace(topology=None),
        SimpleNamespace(describe=lambda: None),
    ],
)
def test_values_without_a_topology(value: Any) -> None:
    with pytest.raises(TypeError, match=r"A topology is shown of a TPU type .* not of a"):
        TopologyWidget(value)


@pytest.mark.parametrize("value", ["v9-8", "", "<img src=x onerror=alert(1)>", -1, True, 10**6])
def test_unknown_types(value: Any) -> None:
    with pytest.raises(AcceleratorTypeError):
        TopologyWidget(value)


@pytest.mark.parametrize(
    "broken",
    [
        {"hosts": (0,)},
        {"replicas": ()},
        {"coordinates": ()},
        {"mesh": (1, 1, 1)},
        {"coordinates": ((0, 0, 0, 5), *[(0, 0, 0, 0)] * 3)},
        {"coordinates": ((0, 0, 0, -1), *[(0, 0, 0, 0)] * 3)},
    ],
)
def test_contradictory_descriptions(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="core"):
        TopologyWidget(replace(described("v5e-4"), **broken))


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="memory is a function or None, not a list"):
        TopologyWidget("v3-8", memory=[1])  # type: ignore[arg-type]
    for state in ({"zoom": 0.5}, {"colour": "heat"}, {"plane": -2}, {"selected": ["0"]}):
        with pytest.raises(Exception, match=next(iter(state))):
            TopologyWidget("v3-8", **state)


def test_the_description_can_be_replaced() -> None:
    widget = TopologyWidget("v5e-8", selected=[0, 6], plane=0, zoom=2)
    widget.description = "v5e-4"
    assert widget.description == described("v5e-4")
    assert len(parts(widget)) == 4
    assert widget.selected == [0]
    assert (widget.plane, widget.zoom) == (-1, 1)
    with pytest.raises(TypeError):
        widget.description = None
    with pytest.raises(ValueError, match="in full"):
        widget.description = replace(described("v3-8"), hosts=())
    assert widget.description == described("v5e-4")


# Memory


def phrases(widget: TopologyWidget) -> list[str]:
    """Return what the title of each core says about the variables on it."""
    return [title.splitlines()[-1] for _, title in parts(widget)]


def test_memory_is_read_when_it_is_shown() -> None:
    sizes = [0, 2**40, 3, 4]
    widget = TopologyWidget("v5e-4", memory=lambda: sizes)
    assert "variables" not in "".join(phrases(widget))
    widget.colour = "memory"
    assert phrases(widget) == [
        "variables 0 B · 0% of 16 GiB",
        "variables 1 TiB · 6400% of 16 GiB",
        "variables 3 B · less than 0.01% of 16 GiB",
        "variables 4 B · less than 0.01% of 16 GiB",
    ]
    sizes[:] = [1] * 4
    assert "<button" in widget.html
    assert 'data-trait="asked" value="1"' in widget.html
    widget.asked = 1
    assert phrases(widget) == ["variables 1 B · less than 0.01% of 16 GiB"] * 4


@pytest.mark.parametrize(
    ("memory", "error"),
    [
        (lambda: (1, 2), "ValueError: 2 sizes for 4 cores"),
        (lambda: "no", "ValueError"),
        (lambda: None, "sizes for 4 cores"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_memory_that_cannot_be_read(memory: Callable[[], Any], error: str) -> None:
    widget = TopologyWidget("v5e-4", memory=memory, colour="memory")
    assert '<span role="status">No answer: ' in widget.html
    assert error in widget.html
    assert len(parts(widget)) == 4


def test_without_a_source_of_memory_hosts_are_shown() -> None:
    widget = TopologyWidget("v5e-4", colour="memory")
    assert 'data-colour="host"' in widget.html
    assert 'value="memory"' not in widget.html


def test_a_connection(tf: Any) -> None:
    with tpunb.connect(simulate="v3-8") as connection:
        widget = TopologyWidget(connection, link="c")
        assert widget.link == "c"
        # Every core is a replica, as in the connection's strategy, and the static form is
        # unchanged.
        assert [title.splitlines()[4] for _, title in parts(widget)] == [
            f"replica {core}" for core in range(8)
        ]
        assert widget.static_bundle() == dict(mimebundle(connection.describe().topology))
        with connection.strategy.scope():
            variable = tf.Variable(tf.zeros([256]))
        widget.colour = "memory"
        assert phrases(widget) == ["variables 1 KiB · less than 0.01% of 16 GiB"] * 8
        del variable
    with_own_source = TopologyWidget(connection, memory=lambda: [7] * 8, colour="memory")
    assert phrases(with_own_source) == ["variables 7 B · less than 0.01% of 16 GiB"] * 8


def held(connection: Any) -> tuple[int, ...]:
    return memory_per_core(connection.strategy, connection.describe().topology)


def test_memory_per_core(tf: Any) -> None:
    gc.collect()
    with tpunb.connect(simulate="v3-8") as connection, tpunb.connect(simulate="v3-8") as other:
        assert held(connection) == (0,) * 8
        with connection.strategy.scope():
            mirrored = tf.Variable(tf.zeros([1024]))
            own = tf.Variable(
                tf.zeros([8], tf.bfloat16),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            scalar = tf.Variable(1, dtype=tf.int64)
        with other.strategy.scope():
            elsewhere = tf.Variable(tf.zeros([5]))
        free = tf.Variable(tf.zeros([5]))
        assert held(connection) == (4096 + 16 + 8,) * 8
        assert held(other) == (20,) * 8
        del mirrored, own, scalar, elsewhere, free
        gc.collect()
        assert held(connection) == held(other) == (0,) * 8


def test_memory_of_logical_devices(tf: Any) -> None:
    with tpunb.connect(simulate="v3-8", computation_shape=(1, 1, 1, 2)) as connection:
        with connection.strategy.scope():
            first = tf.Variable(tf.zeros([10]))
            with connection.strategy.extended.experimental_logical_device(1):
                second = tf.Variable(tf.zeros([3]))
        assert held(connection) == (40, 12) * 4
        del first, second
    with tpunb.connect(simulate="v3-8", computation_shape=(1, 1, 1, 2), spmd=True) as connection:
        with connection.strategy.scope():
            both = tf.Variable(tf.zeros([10]))
        assert held(connection) == (40,) * 8
        del both
    with tpunb.connect(simulate="v3-8", replicas=3) as connection:
        with connection.strategy.scope():
            few = tf.Variable(tf.zeros([10]))
        assert held(connection) == (40, 40, 40, 0, 0, 0, 0, 0)
        del few


def test_memory_of_a_model_and_its_optimizer(tf: Any) -> None:
    import keras

    with tpunb.connect(simulate="v5e-4") as connection:
        with connection.strategy.scope():
            model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
            model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
            model.optimizer.build(model.trainable_variables)
        held_now = held(connection)
        assert len(set(held_now)) == 1
        # Weights and momenta, 8 numbers each, and the optimizer's few scalars.
        assert 64 < held_now[0] <= 64 + 32


def test_cores_of_hardware() -> None:
    """The devices of a real TPU are identified by host and ordinal."""
    topology = described("v3-32")
    table = cores_by_device(SimpleNamespace(cluster_resolver=SimpleNamespace()), topology)
    for core, (host, ordinal) in enumerate(zip(topology.hosts, topology.ordinals, strict=True)):
        name = f"/job:worker/replica:0/task:{host}/device:TPU:{ordinal}"
        assert table[device_of(name)] == core
    assert device_of("") is None
    assert device_of("/job:worker/task:3") is None
    assert device_of("/device:TPU:2") == (0, "TPU", 2)


# Colours


@pytest.mark.parametrize(
    "name", [name for name in accelerator_types() if not name.startswith("v2")]
)
def test_neighbouring_hosts_differ(name: str) -> None:
    topology = described(name)
    if topology.num_chips > 600:
        return
    shades = group_shades(topology, topology.hosts, 8)
    at = {place[:3]: host for place, host in zip(topology.coordinates, topology.hosts, strict=True)}
    for (x, y, z), host in at.items():
        for near in ((x + 1, y, z), (x, y + 1, z), (x, y, z + 1)):
            if near in at and at[near] != host:
                assert shades[host] != shades[at[near]]


def test_neighbouring_replicas_differ() -> None:
    topology = replace(described("v3-128"), replicas=tuple(range(128)), logical_devices=(0,) * 128)
    shades = group_shades(topology, topology.replicas, 8)
    at = dict(zip(topology.coordinates, topology.replicas, strict=True))
    for (x, y, z, core), replica in at.items():
        for near in ((x, y, z, core + 1), (x + 1, y, z, core), (x, y + 1, z, core)):
            if near in at:
                assert shades[replica] != shades[at[near]]


def test_idle_cores_have_no_shade() -> None:
    topology = replace(
        described("v5e-16"),
        replicas=(*range(12), -1, -1, -1, -1),
        logical_devices=(*[0] * 12, -1, -1, -1, -1),
    )
    assert len(group_shades(topology, topology.replicas, 8)) == 12
