"""Programs that differ only in names and lines have the same fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support.patience import PATIENCE
from tensorflow.compiler.xla.service import hlo_pb2

from tpunb._util.deadline import Deadline
from tpunb.compiler.ask import fingerprint as fingerprints
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.fingerprint import Fingerprint, of_hlo, renamed
from tpunb.tensorflow.compiler.prepare import function_for

TINY = (Path(__file__).parent / "tiny.hlo.pb").read_bytes()
X = tf.TensorSpec([8, 8])


def fingerprint(fn: Any, *specs: Any) -> Fingerprint:
    settings = Settings(lambda places: next(iter(places), None), Deadline(PATIENCE))
    (prepared,) = function_for(fn, specs, settings, None).lowered(1).prepared
    assert prepared.fingerprint is not None
    return prepared.fingerprint


def layer(name: str, times: float = 2.0, size: int = 8) -> Any:
    def call(x: Any) -> Any:
        with tf.name_scope(name):
            return tf.nn.relu(x @ tf.ones([size, size])) * times

    call.__name__ = name
    return call


def test_names_and_lines_do_not_count() -> None:
    first, second = fingerprint(layer("first"), X), fingerprint(layer("second_1"), X)
    assert first.digest == second.digest
    assert "first/Relu" in first.names
    assert [name.replace("first", "second_1") for name in first.names] == list(second.names)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: layer("first", times=3.0)(x),
        lambda x: layer("first")(x) + 0.5,
        lambda x: tf.nn.relu(tf.ones([8, 8]) @ x) * 2.0,  # the operands are swapped
        lambda x: tf.nn.elu(x @ tf.ones([8, 8])) * 2.0,
        lambda x: (layer("first")(x), x),
    ],
)
def test_other_computations_have_other_fingerprints(other: Any) -> None:
    assert fingerprint(other, X).digest != fingerprint(layer("first"), X).digest


@pytest.mark.parametrize("spec", [tf.TensorSpec([16, 8]), tf.TensorSpec([8, 8], tf.bfloat16)])
def test_sizes_and_types_count(spec: tf.TensorSpec) -> None:
    def double(x: Any) -> Any:
        return x + x

    assert fingerprint(double, spec).digest != fingerprint(double, X).digest


def test_ids_of_instructions_and_computations_do_not_count() -> None:
    def numbered(begin: int) -> bytes:
        """Return two computations, the second of which calls the first."""
        module = hlo_pb2.HloModuleProto(name=f"m{begin}", entry_computation_id=begin + 9)
        inner = module.computations.add(id=begin + 5, root_id=begin + 1, name=f"c{begin}")
        inner.instructions.add(id=begin + 1, opcode="parameter", name=f"p.{begin}")
        outer = module.computations.add(id=begin + 9, root_id=begin + 2)
        outer.instructions.add(id=begin + 1, opcode="parameter")
        outer.instructions.add(
            id=begin + 2,
            opcode="call",
            operand_ids=[begin + 1],
            called_computation_ids=[begin + 5],
        )
        return module.SerializeToString()

    first, second = of_hlo(numbered(3)), of_hlo(numbered(700))
    assert first is not None
    assert second is not None
    assert first.digest == second.digest
    assert first.names[0] == "p.3"  # without another name, the compiler uses the instruction's


@pytest.mark.parametrize(
    "others",
    [
        ("b/CrossReplicaSum/0-1_2-3", "b/CrossReplicaSum/0-2_1-3"),
        ("b/CrossReplicaSum/all", "b/AllToAll/all"),
        ("b/ResizeBilinear/10", "b/ResizeBilinear/11"),
    ],
)
def test_the_operation_behind_a_placeholder_counts(others: tuple[str, str]) -> None:
    """Placeholders are all barriers, which only their names tell apart."""

    def barrier(name: str) -> bytes:
        module = hlo_pb2.HloModuleProto()
        instruction = module.computations.add(id=1, root_id=1).instructions.add(id=1)
        instruction.opcode, instruction.metadata.op_name = "opt-barrier", name
        return module.SerializeToString()

    first, second = (of_hlo(barrier(name)) for name in others)
    elsewhere = of_hlo(barrier(others[0].replace("b/", "another/scope/")))
    assert first is not None
    assert second is not None
    assert elsewhere is not None
    assert first.digest != second.digest
    assert first.digest == elsewhere.digest


def test_invalid_or_large_modules_have_no_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_hlo(b"\xff\xff no module") is None
    assert of_hlo(TINY) is not None
    monkeypatch.setattr(fingerprints, "_MOST_BYTES", len(TINY) - 1)
    assert of_hlo(TINY) is None


TEXT = 'ROOT %add.3 = f32[] add(%a, %b), metadata={op_type="AddV2" op_name="NAMED" id=3}'


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        ("a/add", ["a/mul", "a/add"], ["b/mul", "b/add"], "b/add"),
        ("a/mul;a/add", ["a/mul", "a/add"], ["b/mul", "b/add"], "b/mul;b/add"),
        ("a/unknown", ["a/mul", "a/add"], ["a/mul", "a/add"], "a/unknown"),  # no name changes
        ("", ["a/add"], ["b/add"], ""),
        ("call/a/add", ["call", "a/add"], ["run", "b/add"], "run/b/add"),
        ("call/a/add;a", ["call", "a/add", "a"], ["run", "b/add", "b"], "run/b/add;b"),
        ("call/a/sub", ["call", "a/add"], ["run", "b/add"], None),
        ("a/unknown", ["a/mul", "a/add"], ["b/mul", "b/add"], None),
        ("a/add", ["a/add"], ["b/mul", "b/add"], None),
        ("a/add", ["a/add", "a/add"], ["b/1", "b/2"], None),  # ambiguous
        ("a/mul", ["a/add", "a/add", "a/mul"], ["b/1", "b/2", "b/mul"], "b/mul"),
    ],
)
def test_the_text_gets_the_names_of_the_current_program(
    name: str, before: list[str], after: list[str], expected: str | None
) -> None:
    text = renamed(TEXT.replace("NAMED", name), tuple(before), tuple(after))
    assert text == (None if expected is None else TEXT.replace("NAMED", expected))
