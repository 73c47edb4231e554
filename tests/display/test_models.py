"""Models as trees: layers, variables, the places of copies, and the copies that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from IPython.core.formatters import MimeBundleFormatter
from support.strategies import strategy_of

import tpunb
from tpunb.display.describe.connection import device_of
from tpunb.display.describe.model_description import (
    LayerNode,
    ModelVariable,
    describe_model,
    is_model,
)
from tpunb.display.draw.model_tree import devices_phrase
from tpunb.display.draw.static_forms import mimebundle
from tpunb.notebook.displays import Displays


@pytest.fixture(scope="module")
def strategy(tf: Any) -> Any:
    return strategy_of(4)


DEVICES = tuple(f"CPU:{number}" for number in range(8))


def variable(name: str = "kernel", differs: tuple[int, ...] | None = (), **facts: Any) -> Any:
    return ModelVariable(name, "float32", (4, 3), True, DEVICES, differs, **facts)


def tree() -> LayerNode:
    dense = LayerNode("dense", "Dense", "[None, 3]", (variable(), variable("bias", (3, 5))))
    norm = ModelVariable("moving_mean", "bfloat16", (3,), False, ("CPU:0",))
    return LayerNode(
        "<script>",
        "Sequential",
        "[None, 3]",
        (),
        (dense, LayerNode("norm", "BatchNormalization", "[None, 3]", (norm,))),
        omitted=2,
    )


def test_a_model_as_text_and_html() -> None:
    forms = mimebundle(tree())
    assert forms["text/plain"] == (
        "Sequential <script> · [None, 3] · 27 parameters, 102 B · 3 not trainable · copies ≠\n"
        "  Dense dense · [None, 3] · 24 parameters, 96 B · copies ≠\n"
        "      kernel  float32  [4, 3]  12  CPU:0 to 7  8 copies, equal\n"
        "      bias    float32  [4, 3]  12  CPU:0 to 7  8 copies: replica 3, 5 ≠ replica 0\n"
        "  BatchNormalization norm · [None, 3] · 3 parameters, 6 B · 3 not trainable\n"
        "      moving_mean (not trainable)  bfloat16  [3]  3  CPU:0\n"
        "  and 2 more"
    )
    page = str(forms["text/html"])
    assert "<script>" not in page
    assert page.count("<details open>") == 3
    assert page == mimebundle(tree())["text/html"]


def test_layers_are_folded_unless_their_copies_differ() -> None:
    equal = tuple(LayerNode(f"l{n}", "Dense", variables=(variable(),)) for n in range(9))
    odd = LayerNode("odd", "Dense", variables=(variable(differs=(1,)),))
    page = str(mimebundle(LayerNode("m", "Model", layers=(*equal, odd)))["text/html"])
    assert (page.count("<details open>"), page.count("<details>")) == (2, 9)
    text = str(mimebundle(LayerNode("m", "Model", layers=equal * 40))["text/plain"])
    assert text.endswith("and 521 more")


@pytest.mark.parametrize(
    ("devices", "phrase"),
    [
        (("TPU:0",), "TPU:0"),
        (("TPU:0", "TPU:1"), "TPU:0, TPU:1"),
        (("TPU:0", "TPU:0", "TPU:0"), "TPU:0"),
        (("TPU:0", "TPU:1", "TPU:2"), "TPU:0 to 2"),
        (("core 8", "core 9", "core 10"), "cores 8 to 10"),
        (("TPU:0", "TPU:2", "TPU:4", "TPU:6", "TPU:8"), "TPU:0, TPU:2, … TPU:8"),
        (("TPU:1", "task 1 TPU:0", "task 1 TPU:1"), "TPU:1, task 1 TPU:0, task 1 TPU:1"),
    ],
)
def test_short_names_of_devices(devices: tuple[str, ...], phrase: str) -> None:
    assert devices_phrase(devices) == phrase


def test_a_keras_model(tf: Any, strategy: Any) -> None:
    keras = pytest.importorskip("keras")
    with strategy.scope():
        shared = keras.layers.Dense(4, name="shared")
        model = keras.Sequential(
            [
                keras.Input((4,)),
                shared,
                keras.layers.BatchNormalization(name="norm"),
                shared,
                keras.Sequential([keras.layers.Dense(2, name="inner")], name="nested"),
            ]
        )
    model.build((None, 4))
    described = describe_model(model)
    assert is_model(model)
    assert is_model(shared)
    assert not is_model(shared.kernel)
    names = [(node.type_name, node.name) for node in described.layers]
    assert ("Dense", "shared") in names
    assert ("BatchNormalization", "norm") in names
    kernel = described.layers[0].variables[0]
    assert (kernel.name, kernel.dtype, kernel.shape, kernel.trainable) == (
        "kernel",
        "float32",
        (4, 4),
        True,
    )
    assert kernel.devices[0] == "CPU:1"
    placed = describe_model(model, {device_of("/device:CPU:1"): 7}).layers[0].variables[0]
    assert placed.devices[0] == "core 7"
    assert len(kernel.devices) == strategy.num_replicas_in_sync
    assert kernel.differs == ()
    assert sum(v.parameters for v in described.all_variables()) == model.count_params()
    assert [node.name for node in described.layers if node.layers] == ["nested"]


def test_different_copies_and_a_layer_without_a_strategy(tf: Any, strategy: Any) -> None:
    keras = pytest.importorskip("keras")
    with strategy.scope():
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
    layer.kernel.value.values[2].assign(np.ones((3, 2), np.float32))
    kernel, bias = describe_model(layer).variables
    assert (kernel.differs, bias.differs) == ((2,), ())
    alone = keras.layers.Dense(2)
    assert describe_model(alone).variables == ()
    alone.build((None, 3))
    assert [
        (variable.differs, len(variable.devices)) for variable in describe_model(alone).variables
    ] == [
        (None, 1),
        (None, 1),
    ]


def test_models_and_variables_have_displays(tf: Any, strategy: Any) -> None:
    keras = pytest.importorskip("keras")
    displays = Displays(lambda: None)
    formatter = MimeBundleFormatter()
    for module, name, function in displays.formatters():
        formatter.for_type_by_name(module, name, function)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name="two")
    bundle = formatter(model)
    forms = bundle[0] if isinstance(bundle, tuple) else bundle
    assert forms["text/plain"].startswith("Sequential two · 10 parameters")
    assert formatter(model) == formatter(model)
    bundle = formatter(model.layers[0].kernel)
    kernel = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "float32 [4, 2] · all 4 replicas equal" in kernel["text/plain"]


def test_show_displays_a_model(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keras = pytest.importorskip("keras")
    shown: list[Any] = []
    monkeypatch.setattr("tpunb.notebook.displays.display", shown.append)
    layer = keras.layers.Dense(2, name="alone")
    layer.build((None, 3))
    assert tpunb.show(layer) is None
    assert "8 parameters, 32 B" in repr(shown[0])
