"""The catalogue of TPU types."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.errors import AcceleratorTypeError
from tpunb.tpu.types import Accelerator, accelerator, accelerator_types

GIB = 2**30

# name: chips, devices, hosts, mesh with cores, wraps, GiB per device
TYPES = {
    "v2-8": (4, 8, 1, [2, 2, 1, 2], "", 8),
    "v2-32": (16, 32, 4, [4, 4, 1, 2], "", 8),
    "v2-256": (128, 256, 32, [8, 16, 1, 2], "y", 8),
    "v2-512": (256, 512, 64, [16, 16, 1, 2], "xy", 8),
    "v3-8": (4, 8, 1, [2, 2, 1, 2], "", 16),
    "v3-32": (16, 32, 4, [4, 4, 1, 2], "", 16),
    "v3-1024": (512, 1024, 128, [16, 32, 1, 2], "y", 16),
    "v3-2048": (1024, 2048, 256, [32, 32, 1, 2], "xy", 16),
    "v4-8": (4, 4, 1, [2, 2, 1, 1], "", 32),
    "v4-16": (8, 8, 2, [2, 2, 2, 1], "", 32),
    "v4-64": (32, 32, 8, [2, 4, 4, 1], "", 32),
    "v4-8192": (4096, 4096, 1024, [16, 16, 16, 1], "xyz", 32),
    "v5e-1": (1, 1, 1, [1, 1, 1, 1], "", 16),
    "v5e-4": (4, 4, 1, [2, 2, 1, 1], "", 16),
    "v5e-8": (8, 8, 1, [2, 4, 1, 1], "", 16),
    "v5e-16": (16, 16, 2, [4, 4, 1, 1], "", 16),
    "v5e-32": (32, 32, 4, [4, 8, 1, 1], "", 16),
    "v5e-64": (64, 64, 8, [8, 8, 1, 1], "", 16),
    "v5e-128": (128, 128, 16, [8, 16, 1, 1], "y", 16),
    "v5e-256": (256, 256, 32, [16, 16, 1, 1], "xy", 16),
    "v5p-8": (4, 4, 1, [2, 2, 1, 1], "", 95),
    "v5p-17920": (8960, 8960, 2240, [16, 20, 28, 1], "xyz", 95),
    "v6e-1": (1, 1, 1, [1, 1, 1, 1], "", 32),
    "v6e-8": (8, 8, 1, [2, 4, 1, 1], "", 32),
    "v6e-16": (16, 16, 4, [4, 4, 1, 1], "", 32),
    "v6e-256": (256, 256, 64, [16, 16, 1, 1], "xy", 32),
    "tpu7x-4": (4, 8, 1, [2, 2, 1, 2], "", 96),
    "tpu7x-8": (8, 16, 2, [2, 2, 2, 2], "", 96),
    "tpu7x-9216": (9216, 18432, 2304, [16, 24, 24, 2], "xyz", 96),
    "8 cores": (8, 8, 1, [2, 4, 1, 1], "", 0),
    "1 core": (1, 1, 1, [1, 1, 1, 1], "", 0),
    "7 cores": (7, 7, 1, [1, 7, 1, 1], "", 0),
    "12 cores": (12, 12, 2, [3, 4, 1, 1], "", 0),
    "13 cores": (13, 13, 13, [1, 13, 1, 1], "", 0),
    "128 cores": (128, 128, 16, [8, 16, 1, 1], "", 0),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_as_documented(name: str) -> None:
    acc = accelerator(name)
    wraps = "".join(axis for axis, wrap in zip("xyz", acc.wraps, strict=True) if wrap)
    assert acc.name == name
    assert (
        acc.num_chips,
        acc.num_devices,
        acc.num_hosts,
        acc.topology_mesh_shape,
        wraps,
        acc.hbm_bytes / GIB,
    ) == TYPES[name]


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("V5E-8", "v5e-8"),
        ("  v3-8\n", "v3-8"),
        ("v5litepod-8", "v5e-8"),
        ("v5LitePod-16", "v5e-16"),
        ("v5lite-4", "v5e-4"),
        ("v7x-8", "tpu7x-8"),
        ("TPU7x-8", "tpu7x-8"),
        (8, "8 cores"),
        ("8", "8 cores"),
        (" 16 ", "16 cores"),
        ("8cores", "8 cores"),
        ("1", "1 core"),
        (1024, "1024 cores"),
    ],
)
def test_spellings(spec: str | int, name: str) -> None:
    assert accelerator(spec).name == name


def check_layout(acc: Accelerator) -> None:
    """Check that hosts tile the mesh, and that every core has exactly one place."""
    assert math.prod(acc.mesh) == acc.num_chips
    assert acc.num_hosts * acc.devices_per_host == acc.num_devices
    coordinates = acc.device_coordinates()
    assert len(coordinates) == acc.num_hosts
    assert all(len(host) == acc.devices_per_host for host in coordinates)
    places = {tuple(core) for host in coordinates for core in host}
    assert len(places) == acc.num_devices
    assert all(
        0 <= place < size
        for core in places
        for place, size in zip(core, acc.topology_mesh_shape, strict=True)
    )


@pytest.mark.parametrize("name", accelerator_types())
def test_the_layout_of_every_type(name: str) -> None:
    acc = accelerator(name)
    assert acc.name == name
    check_layout(acc)
    assert acc.chips_per_host <= 8


@given(st.integers(1, 1024))
def test_the_layout_of_any_number_of_cores(cores: int) -> None:
    acc = accelerator(cores)
    assert acc.num_devices == cores
    assert accelerator(acc.name) == acc
    if cores % 8 == 0:
        assert acc.devices_per_host == 8
    check_layout(acc)


def test_the_order_of_devices() -> None:
    coordinates = accelerator("v3-8").device_coordinates()
    assert coordinates == [
        [
            [0, 0, 0, 0],
            [0, 0, 0, 1],
            [1, 0, 0, 0],
            [1, 0, 0, 1],
            [0, 1, 0, 0],
            [0, 1, 0, 1],
            [1, 1, 0, 0],
            [1, 1, 0, 1],
        ]
    ]
    hosts = accelerator("v3-32").device_coordinates()
    assert [host[0] for host in hosts] == [[0, 0, 0, 0], [2, 0, 0, 0], [0, 2, 0, 0], [2, 2, 0, 0]]


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("v5e-9", "Did you mean v5e-8 or v5e-16?"),
        ("v5e_9", "Did you mean v5e-8 or v5e-16?"),
        ("v3_8", "Did you mean v3-8?"),
        ("V3 8", "Did you mean v3-8?"),
        ("v38", "Did you mean v3-8?"),
        ("v3\u20138", "Did you mean v3-8?"),
        ("tpu-v5litepod/8", "Did you mean v5e-8?"),
        ("v5e-0", "Did you mean v5e-1?"),
        ("v5e--8", "Did you mean v5e-1?"),
        ("v5e-512", "Did you mean v5e-256?"),
        ("v5p-4", "it counts TensorCores, 2 a chip"),
        ("v3-4", "Did you mean v3-8?"),
        ("v3-16", "Did you mean v3-8 or v3-32?"),
        ("v4-9", "TensorCores, 2 a chip, which act as one core"),
        ("v5e8", "v5e-8"),
        ("v5e", "lacks a size"),
        ("v5-8", "v5e-8"),
        ("v9-8", "Did you mean v"),
        ("tpu7-8", "tpu7x-8"),
        ("v7-8", "tpu7x-8"),
        ("", "There is no TPU type ''"),
        ("-1", "no TPU of -1 cores"),
        (0, "no TPU of 0 cores"),
        (1025, "1 to 1024 cores"),
        (10**30, "There is no TPU of 1000"),
        pytest.param(10**5000, "so many cores", id="huge"),
        ("v2-64", "Did you mean v2-32 or v2-128?"),
        pytest.param("9" * 5000, "There is no TPU type", id="long"),
        (True, "not True"),
        (None, "not None"),
        (8.0, "not 8.0"),
        ([8], "not a list"),
        ("٨", "There is no TPU type"),
    ],
)
def test_unknown_types_have_a_fix(spec: object, part: str) -> None:
    with pytest.raises(AcceleratorTypeError) as caught:
        accelerator(spec)  # type: ignore[arg-type]
    assert part in str(caught.value)
    assert "tpu7x" in caught.value.fix
    assert len(str(caught.value)) < 400


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.binary(), st.booleans()))
def test_other_values_raise_our_type_error(spec: object) -> None:
    try:
        described = accelerator(spec)  # type: ignore[arg-type]
    except AcceleratorTypeError:
        return
    assert isinstance(described, Accelerator)


@given(
    st.sampled_from(["v2", "v3", "v4", "v5e", "v5litepod", "v5p", "v6e", "tpu7x"]), st.integers()
)
def test_any_size(family: str, size: int) -> None:
    try:
        described = accelerator(f"{family}-{size}")
    except AcceleratorTypeError:
        return
    assert described.name in accelerator_types()


@pytest.mark.parametrize(
    ("name", "merged"),
    [
        ("v2-8", False),
        ("v3-8", False),
        ("v4-8", True),
        ("v5p-8", True),
        ("v5e-8", False),
        ("tpu7x-8", False),
        ("8", False),
    ],
)
def test_chips_with_merged_cores(name: str, merged: bool) -> None:
    assert accelerator(name).is_merged == merged
