"""Reading recordings, here with events of a TPU's profiler."""

from __future__ import annotations

from typing import Any

import pytest

from tpunb.training import profile_reader
from tpunb.training.profile_reader import read_profile

MS = 10**9
"""A millisecond in picoseconds."""


@pytest.fixture
def space(tf: Any) -> Any:
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    return XSpace()


def add(space: Any, plane: str, line: str, *events: tuple[Any, ...]) -> None:
    """Add events to a line: name, start and length in milliseconds, and values."""
    plane_found = next((candidate for candidate in space.planes if candidate.name == plane), None)
    plane_found = space.planes.add(name=plane) if plane_found is None else plane_found
    new_line = plane_found.lines.add(name=line, timestamp_ns=1_700_000_000_000_000_000)
    for name, start, length, *values in events:
        number = len(plane_found.event_metadata) + 1
        plane_found.event_metadata[number].name = name
        event = new_line.events.add(
            metadata_id=number, offset_ps=int(start * MS), duration_ps=int(length * MS)
        )
        for key, value in (values[0] if values else {}).items():
            stat = len(plane_found.stat_metadata) + 1
            plane_found.stat_metadata[stat].name = key
            event.stats.add(metadata_id=stat, int64_value=value)


def test_a_tpu_computes_while_the_host_waits(space: Any) -> None:
    add(space, "/device:TPU:0", "Steps", ("0", 0, 10), ("1", 12, 8))
    add(
        space,
        "/device:TPU:0",
        "XLA Ops",
        ("%while.1 = (f32[]) while(...)", 0, 4),
        ("%fusion.12 = f32[8]{0} fusion(...)", 1, 2),
        ("%all-reduce.3 = f32[8]{0} all-reduce(...)", 4, 1),
        ("%fusion.12 = f32[8]{0} fusion(...)", 16, 4),
    )
    add(space, "/device:TPU:0", "XLA Modules", ("jit_step", 0, 20))
    add(space, "/host:CPU", "thread", ("IteratorGetNextOp::DoCompute", 3, 9.5))
    add(space, "/host:CPU", "python", ("MatMul:MatMul", 0, 20), ("train", 0, 1, {"step_num": 0}))
    profile = read_profile(space, 0.020)
    assert profile.device == "TPU"
    first, second = profile.steps
    assert (first.name, second.name) == ("0", "1")
    times = (first.seconds, first.device, first.input_wait, first.collectives, first.host)
    # Waits have priority over collectives, and computation over both.
    assert times == pytest.approx((0.010, 0.004, 0.006, 0, 0))
    times = (second.seconds, second.device, second.input_wait, second.host)
    assert times == pytest.approx((0.010, 0.004, 0.0025, 0.0035)), (
        "the step starts at the end of the first step"
    )
    fusion, loop, reduction = profile.operations
    assert (fusion.name, fusion.kind, fusion.calls) == ("fusion.12", "fusion", 2)
    assert loop.seconds == pytest.approx(0.002), "the loop's body is not counted"
    assert reduction.kind == "all-reduce"
    assert sum(operation.share for operation in profile.operations) == pytest.approx(1)


def run_function(space: Any, *parts: tuple[str, float, float]) -> None:
    """Add a thread with the operations of a function that runs from 0 to 100 ms."""
    run = {"id": 1, "_p": 2}
    add(space, "/host:CPU", "python", ("FunctionRun", 0, 100, run))
    add(space, "/host:CPU", "step", ("ExecutorState::Process", 0, 100, {"_c": 2}), *parts)


def test_functions_of_a_pipeline_on_any_thread(space: Any) -> None:
    run_function(space)
    add(
        space, "/host:CPU", "tf_data", ("InstantiatedCapturedFunction::Run", 0, 1, {"id": 7}),
    )  # fmt: skip
    add(
        space,
        "/host:CPU",
        "pool",
        ("ExecutorState::Process", 2, 4, {"id": 7}),
        ("FunctionRun", 3, 1, {"id": 8, "_p": 9}),
        ("ExecutorState::Process", 10, 4, {"id": 1}),
        ("dense/MatMul/replica_3:MatMul", 11, 1),
    )
    add(
        space,
        "/host:CPU",
        "other",
        ("ExecutorState::Process", 5, 3, {"id": 8, "_c": 9}),
        ("decode:DecodeJpeg", 6, 1),
        ("IteratorGetNextOp::DoCompute", 6, 2),
        ("ExecutorState::Process", 10, 4, {"id": 1}),
        ("StatefulPartitionedCall/dense/MatMul/replica_1:MatMul", 11, 1),
        ("x/_3:_Send", 13, 9),
    )
    profile = read_profile(space, 0.1)
    assert [(operation.name, operation.calls) for operation in profile.operations] == [
        ("dense/MatMul", 2)
    ]
    assert profile.whole.device == pytest.approx(0.001), "both run at the same time"
    assert profile.input_wait == 0, "this iterator is in a pipeline"


def test_functions_that_run_across_the_ends_of_a_recording(space: Any) -> None:
    """The profiler has no start of the first function, and only parts of the second."""
    run_function(space, ("relu:Relu", 3, 1))
    add(space, "/host:CPU", "ahead", ("svd:Svd", 0, 1), ("mul:Mul", 1, 1))
    add(space, "/host:CPU", "late", ("ExecutorState::Process", 90, 4, {"id": 5}), ("b:Svd", 91, 1))
    assert [operation.kind for operation in read_profile(space, 0.1).operations] == ["Relu"]


def test_empty_and_oversized_recordings(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_profile(space, 1.0).steps == ()
    run_function(space, *[("a:MatMul", place, 1) for place in range(10)])
    monkeypatch.setattr(profile_reader, "MOST_EVENTS", 6)
    profile = read_profile(space, 1.0)
    assert profile.operations[0].calls == 4, "the function's start and its part use two events"
    assert any("Only the first" in note for note in profile.notes)
