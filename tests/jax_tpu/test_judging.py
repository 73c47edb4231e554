"""The verdicts of the TPU's own compiler on programs of a virtual TPU."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tpunb
from tpunb._util import child_process
from tpunb.compiler.ask import libtpu as compiler
from tpunb.compiler.program import TpuProgram
from tpunb.jax.compiler import judge as judging

Connect = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("libtpu")


def too_large(x: Any) -> Any:
    """Sort 24 GiB, of which the result is one number."""
    return jnp.sort(jnp.broadcast_to(x[:, None, None], (8, 40_000, 20_000)), axis=1).sum()


def loss(w: Any, x: Any) -> Any:
    return (jnp.tanh(x @ w) ** 2).mean()


def test_a_step_is_judged_as_by_compile(connect: Connect) -> None:
    connection = connect(judge="wait")
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.device_put(np.ones((64, 256), "f"), NamedSharding(mesh, P("data")))
    w = jax.device_put(np.ones((256, 64), "f"), NamedSharding(mesh, P()))
    step = jax.jit(jax.grad(loss))
    step(w, x)
    step(w, x)
    (program,) = connection.programs
    compiled = tpunb.compile(step, w, x, tpu="v5e-8")
    assert (program.name, program.ok, program.tpu) == ("loss", True, "v5e-8")
    assert program.memory.peak == compiled.memory.peak
    assert [(each.kind, each.count, each.bytes) for each in program.collectives] == [
        ("all-reduce", 1, 4 * 256 * 64)
    ]
    assert {line.place.file for line in program.lines} == {__file__}


def test_jaxs_own_operations_are_not_judged(connect: Connect) -> None:
    connection = connect(judge="wait")
    x = jnp.ones((8, 8)) + 1
    jax.random.normal(jax.random.key(0), (8,))
    jnp.linalg.norm(x)
    assert connection.programs == ()


def test_large_operations_of_jax_are_judged(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "_LARGE", 2**20 / (15.75 * 2**30))
    connection = connect(judge="wait")
    jnp.ones((2**18,)) + 1
    assert [program.ok for program in connection.programs][:1] == [True]


def test_a_program_that_does_not_fit_raises_before_it_runs(connect: Connect) -> None:
    connection = connect(judge="wait")
    x = jnp.ones(8)
    call = jax.jit(lambda x: (too_large(x), x), donate_argnums=0)
    for _ in range(2):  # the second time, the verdict is known
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"^RESOURCE_EXHAUSTED: ") as caught:
            call(x)
        assert "of a core's 15.75 GiB" in str(caught.value)
        assert "\nTry: " in str(caught.value)
        assert not x.is_deleted()
    (program,) = connection.programs
    assert not program.ok


def test_live_arrays_count_beside_a_program(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect("v5e-1", judge="wait")
    held = jnp.ones((2**20,))  # 4 MiB
    x = jnp.ones((2**20,))
    usable = compiler.Target.hardware.fget
    limit = 15 * 2**20
    monkeypatch.setattr(
        compiler.Target,
        "hardware",
        property(
            lambda target: __import__("dataclasses").replace(usable(target), usable_bytes=limit)
        ),
    )
    jax.jit(lambda x: x * 2)(x)  # 8 MiB and 4 MiB
    monkeypatch.setitem(connection._virtual._namespace, "weights", held)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(lambda x: (x * 2, x * 3))(x)  # 12 MiB and 4 MiB
    assert "other arrays take 4 MiB of it:\n  weights: float32[1048576], 4 MiB" in str(caught.value)
    del held


def test_memory_stats_count_the_arrays_of_a_device(connect: Connect) -> None:
    connect("v5e-4", judge="off")
    devices = jax.devices()
    before = [device.memory_stats()["bytes_in_use"] for device in devices]
    x = jax.device_put(np.ones((256, 256), "f"), devices[2])
    after = [device.memory_stats() for device in devices]
    used = [stats["bytes_in_use"] - base for stats, base in zip(after, before, strict=True)]
    assert used == [0, 0, x.nbytes, 0]
    peak = after[2]["peak_bytes_in_use"]
    del x
    assert devices[2].memory_stats()["peak_bytes_in_use"] == peak


def test_a_call_of_an_exported_function_is_judged(connect: Connect) -> None:
    connection = connect(judge="wait")
    (size,) = export.symbolic_shape("n")
    arguments = jax.ShapeDtypeStruct((size, 8), jnp.float32)
    exported = export.export(jax.jit(lambda x: x @ x.T), platforms=["cpu", "tpu"])(arguments)

    def step(x: Any) -> Any:
        return exported.call(x).sum()

    assert float(jax.jit(step)(jnp.ones((16, 8)))) == 16 * 16 * 8
    (program,) = connection.programs
    assert (program.name, program.ok, program.unknown) == ("step", True, "")


def test_kept_verdicts_need_no_compiler(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: Any) -> Any:
        return jnp.cos(x).sum() * 3

    def programs() -> Any:
        connection = connect(judge="wait")
        jax.jit(step)(jnp.ones(16))
        return connection.programs

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the compiler is asked")

    found = []
    for _ in range(2):  # from the same line, as when a notebook runs again
        found.append(programs())
        monkeypatch.setattr(judging, "program_for", refuse)
    assert found[0] == found[1]


def test_an_interrupt_ends_the_wait_and_the_next_call_works(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(judge="wait")
    x, may_answer, original = jnp.ones(4), threading.Event(), judging.program_for

    def answer_later(*args: Any) -> TpuProgram:
        _thread.interrupt_main()
        assert may_answer.wait(600)
        return original(*args)

    monkeypatch.setattr(judging, "program_for", answer_later)
    call = jax.jit(lambda x: jnp.tan(x) + 5)
    with pytest.raises(KeyboardInterrupt):
        call(x)
    may_answer.set()
    np.testing.assert_allclose(call(x), np.tan(1.0) + 5, rtol=1e-6)
    assert [program.ok for program in connection.programs] == [True]


def test_later_verdicts_let_the_call_run(connect: Connect) -> None:
    connection = connect(judge="later")
    known = threading.Event()
    jax.jit(lambda x: jnp.exp(x) - 7)(jnp.ones(4))
    ((name, when_known),) = connection.judge.take_waiting()
    assert name == "<lambda>"
    when_known(lambda _: known.set())
    assert known.wait(600)
    assert [program.ok for program in connection.programs] == [True]


def test_a_missing_compiler_is_said_once(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiler.PYTHON, "/nowhere/python")
    connection = connect(judge="wait")
    (note,) = connection.notes
    assert note.startswith("Programs run, but are not judged: TPUNB_COMPILER_PYTHON names /nowhere")
    assert float(jax.jit(loss)(jnp.ones((4, 4)), jnp.ones((4, 4)))) > 0
    assert connection.programs == ()


def test_recorded_verdicts_answer_without_a_compiler(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    recording = connect(judge="wait", recorded=str(tmp_path))
    step = jax.jit(lambda x: jnp.sin(x) * 11)
    step(jnp.ones(8))
    (recorded,) = recording.programs
    monkeypatch.setattr(
        compiler,
        "why_unavailable",
        lambda: tpunb.errors.ConnectError("There is no compiler here.", fix="Install it."),
    )
    replaying = connect(judge="wait", recorded=str(tmp_path))
    step(jnp.ones(8))
    (replayed,) = replaying.programs
    assert replayed.memory == recorded.memory
    assert replayed.label == "v5e-8 (recorded)"


@pytest.mark.parametrize("request_number", range(4))
def test_a_compiler_that_is_ended_leaves_the_program_unjudged(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, request_number: int
) -> None:
    """It is ended at the first request, which asks for releases, or at a later one."""
    connection = connect(judge="wait")
    requests: list[str] = []
    exchange = child_process._exchange

    def exchange_or_kill(process: Any, request: Any) -> Any:
        if len(requests) == request_number:
            process.kill()
        requests.append("")
        return exchange(process, request)

    monkeypatch.setattr(child_process, "_exchange", exchange_or_kill)
    assert float(jax.jit(lambda x: x.sum() * 13)(jnp.ones(4))) == 52.0
    (program,) = connection.programs
    assert len(requests) >= 2
    assert ("SIGKILL" in program.unknown) == (0 < request_number < len(requests))
    monkeypatch.undo()
    assert tpunb.compile(lambda x: x.sum() * 14, jnp.ones(4), live_arrays=False).ok


def test_compile_says_that_the_compiler_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = child_process._exchange

    def kill(process: Any, request: Any) -> Any:
        process.kill()
        return exchange(process, request)

    monkeypatch.setattr(child_process, "_exchange", kill)
    program = tpunb.compile(lambda x: x.sum() * 15, jnp.ones(4), tpu="v5e-1")
    assert "SIGKILL" in program.unknown


def test_a_pmap_is_judged(connect: Connect) -> None:
    connection = connect("v5e-4", judge="wait")
    mean = jax.pmap(lambda x: jax.lax.pmean(x * 17, "i"), axis_name="i")
    np.testing.assert_array_equal(mean(np.arange(4.0, dtype="f")), [25.5] * 4)
    (program,) = connection.programs
    assert (program.ok, program.cores) == (True, 4)
    assert [each.kind for each in program.collectives] == ["all-reduce"]


def test_compile_asks_for_the_connected_type(connect: Connect) -> None:
    connect("v4-8", judge="off")
    assert tpunb.compile(lambda x: x * 19, jnp.ones(4)).tpu == "v4-8"


def test_options_of_the_tpus_compiler_reach_it(connect: Connect) -> None:
    connection = connect("v5e-1", judge="wait")

    def call(options: dict[str, str]) -> Any:
        return jax.jit(lambda x: x * 23, compiler_options=options)(jnp.ones(4))

    np.testing.assert_array_equal(call({"xla_tpu_scoped_vmem_limit_kib": "65536"}), [23.0] * 4)
    assert connection.programs[-1].ok
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_tpu_no_such_option"):
        call({"xla_tpu_no_such_option": "1"})


def test_compile_passes_the_options_of_a_jit_on() -> None:
    def compiled(**options: object) -> TpuProgram:
        function = jax.jit(lambda x: x * 29, compiler_options=options)
        return tpunb.compile(function, jnp.ones(4), tpu="v5e-1")

    assert compiled(xla_tpu_scoped_vmem_limit_kib=65536).ok
    refused = compiled(xla_tpu_no_such_option=True)
    assert refused.ok is False
    assert "without the dashes" in refused.errors[0].fix


def test_a_jit_of_jaxs_own_function_is_judged(connect: Connect) -> None:
    connection = connect("v5e-1", judge="wait")
    jax.jit(jnp.sort)(jnp.ones(8))
    assert [program.name for program in connection.programs] == ["sort"]
    jnp.sort(jnp.ones(8))
    assert len(connection.programs) == 1


def step_of_two(x: Any, y: Any) -> Any:
    return jnp.tanh(x @ x) @ x, y + 31


@pytest.mark.parametrize("judge", ["wait", "later"])
def test_a_compiled_program_answers_for_a_tpu(connect: Connect, judge: str) -> None:
    connection = connect("v5e-1", judge=judge)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (8,))]
    step = jax.jit(step_of_two, donate_argnums=1)
    compiled = step.lower(*arguments).compile()
    found = compiled.memory_analysis()
    memory = tpunb.compile(step, *arguments, live_arrays=False).memory
    assert found.peak_memory_in_bytes == memory.peak
    assert found.generated_code_size_in_bytes == memory.code
    assert found.argument_size_in_bytes == memory.arguments
    assert found.alias_size_in_bytes == memory.aliased > 0
    assert found.output_size_in_bytes == memory.outputs + memory.aliased
    assert compiled.as_text() == connection.programs[0].as_text()
    with pytest.warns(tpunb.errors.TpuWarning, match=r"^cost_analysis\(\) answers for the CPU"):
        compiled.cost_analysis()


def test_a_compiled_program_without_a_verdict_says_that_it_answers_for_a_cpu(
    connect: Connect,
) -> None:
    elsewhere = jax.jit(lambda x: x * 37).lower(jnp.ones(4)).compile()
    connect("v5e-1", judge="off")
    assert "HloModule" in elsewhere.as_text()  # of this machine's devices: no warning
    compiled = jax.jit(lambda x: x * 41).lower(jnp.ones(4)).compile()
    for name in ("as_text", "memory_analysis", "cost_analysis"):
        with pytest.warns(tpunb.errors.TpuWarning, match="for the CPU"):
            assert getattr(compiled, name)()
