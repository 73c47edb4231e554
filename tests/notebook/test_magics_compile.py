"""`%%tpu_compile` on a real shell; except in one test, a fake stands in for libtpu."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.shell import Notebook

from tpunb._util.child_process import ChildLostError
from tpunb._util.interrupts import Stopped
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.answers import Compiled, Refused
from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.ask.partial_answers import CompilationStopped
from tpunb.compiler.program import CompilerUnavailableError, TpuProgram, TpuPrograms
from tpunb.tensorflow.cells.pipeline import speed as pipeline_speed
from tpunb.training.input_speed import InputSpeed

pytestmark = pytest.mark.usefixtures("tf")

OPENING = [
    "%load_ext tpunb\nimport tensorflow as tf, numpy as np, tpunb",
    "%tpu_connect --simulate v3-8",
    "x, w = tf.ones([8, 16]), tf.ones([16, 4])",
]
GIB = 2**30
OUT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
    "required for HLO temporaries (16.06G) exceeds available HBM (15.48G)"
)
DENSE = "h = tf.nn.relu(x @ w)\ntf.reduce_sum(h)"


class FakeLibtpu:
    """A stand-in for libtpu's process.

    Attributes:
        answer: A function from a request to its answer.
        asked: The names of the requested targets.
    """

    def __init__(self) -> None:
        self.answer: Callable[[Any], Compiled | Refused] = lambda _: compiled(GIB)
        self.asked: list[str] = []

    def ask(self, prepared: Prepared, target: Any, **_: Any) -> Compiled | Refused:
        assert prepared.module
        self.asked.append(target.tpu.name)
        return self.answer(target)


def compiled(peak: int) -> Compiled:
    """Return an answer without a program."""
    return Compiled(peak, peak // 2, 0, 0, 0, "", False)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeLibtpu:
    libtpu_fake = FakeLibtpu()
    monkeypatch.setattr(libtpu, "ask", libtpu_fake.ask)
    monkeypatch.setattr(libtpu, "start", lambda **_: None)
    monkeypatch.setattr(libtpu, "why_unavailable", lambda: None)
    return libtpu_fake


def program_of(book: Notebook, body: str = DENSE, options: str = "") -> TpuProgram:
    program = book.good(f"%%tpu_compile {options}\n{body}").value
    assert isinstance(program, TpuProgram)
    return program


def test_a_cell_is_compiled_and_not_run(book: Notebook, fake: FakeLibtpu) -> None:
    book.good("with strategy.scope():\n    v = tf.Variable(1.0)\nseen = []")
    program = program_of(book, "v.assign_add(1.0)\nseen.append(1)\nh = x @ w")
    assert program.ok
    assert fake.asked == ["v3-8"]
    assert book.good("float(v.numpy()), seen").value == (1.0, [])
    assert "h" not in book.names
    assert [(line.place.line, line.text) for line in program.lines] == [
        (2, "v.assign_add(1.0)"),
        (3, "seen.append(1)"),
        (4, "h = x @ w"),
    ]
    assert book.session.connection.program is program
    assert book.good("%tpu_status").text.count("error") == 0


def test_the_display_is_the_same_in_every_run(book: Notebook, fake: FakeLibtpu) -> None:
    first, second = (book.good(f"%%tpu_compile\n{DENSE}").shown for _ in range(2))
    assert first == second
    (bundle,) = first
    assert "Compiles and fits: 1 GiB of 15.48 GiB a core (6%)." in bundle["text/plain"]
    assert "Compiles and fits" in bundle["text/html"]


def test_several_types(book: Notebook, fake: FakeLibtpu) -> None:
    fake.answer = lambda target: compiled(GIB) if "v3" in target.topology else Refused("")
    programs = book.good(f"%%tpu_compile --for v3-8,v5e-8 --for v2-8 -o made\n{DENSE}").value
    assert isinstance(programs, TpuPrograms)
    assert [row.fits for row in programs.rows()] == [True, False, False]
    assert book.names["made"] is programs
    assert "v5e-8  8      no" in str(programs)


def test_a_program_that_does_not_fit(book: Notebook, fake: FakeLibtpu) -> None:
    fake.answer = lambda _: Refused(OUT_OF_MEMORY)
    program = program_of(book)
    assert [problem.code for problem in program.errors] == ["memory"]
    assert "Does not fit" in str(program)
    assert "v3-8" in fake.asked


def test_a_smaller_batch_that_fits_is_suggested(book: Notebook, fake: FakeLibtpu) -> None:
    book.good("data = tf.data.Dataset.from_tensors(tf.ones([64, 16])).repeat(3)")
    # At both optimization efforts, and for the list of tensors.
    refusals = iter([Refused(OUT_OF_MEMORY)] * 3)
    fake.answer = lambda _: next(refusals, compiled(GIB))
    program = program_of(book, "tf.reduce_sum(batch @ w)", "-d data")
    assert "A batch of 32 (4 a replica) fits: 1 GiB a core." in program.errors[0].fix
    assert "64 fit on a v3-32: 1 GiB a core." in program.errors[0].fix


def test_the_batch_of_the_data(book: Notebook, fake: FakeLibtpu) -> None:
    book.good("data = tf.data.Dataset.from_tensors((tf.ones([32, 16]), tf.ones([32]))).repeat(3)")
    body = "tf.reduce_sum(a @ w) + tf.reduce_sum(b)"
    assert program_of(book, body, "-d data --as a,b").examples == 32
    assert "global batch 32" in str(program_of(book, body, "-d data --as a,b"))


@pytest.mark.parametrize("data", ["ds", "strategy.experimental_distribute_dataset(ds)"])
def test_endless_data_have_a_first_batch(book: Notebook, fake: FakeLibtpu, data: str) -> None:
    book.good("ds = tf.data.Dataset.from_tensors(tf.ones([16])).repeat().batch(16, True)")
    book.good(f"endless = {data}")
    assert program_of(book, "batch @ w", "-d endless").examples == 16
    assert book.good("%%tpu_check -d endless\nbatch @ w").value.ok


def test_a_refusal_before_libtpu_has_its_line(book: Notebook, fake: FakeLibtpu) -> None:
    program = program_of(book, "y = x * 2\ntf.strings.as_string(y)")
    assert {problem.line for problem in program.errors} == {3}
    assert fake.asked == []
    assert "3 ✗" in program._repr_html_()


def test_an_optimizers_variables_belong_to_the_replicas(book: Notebook, fake: FakeLibtpu) -> None:
    book.good(
        "with strategy.scope():\n"
        "    model = tf.keras.Sequential([tf.keras.layers.Input((16,)), tf.keras.layers.Dense(4)])\n"
        "    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)"
    )
    body = (
        "with tf.GradientTape() as tape:\n"
        "    loss = tf.reduce_mean(model(x))\n"
        "gradients = tape.gradient(loss, model.trainable_variables)\n"
        "optimizer.apply_gradients(zip(gradients, model.trainable_variables))"
    )
    program = program_of(book, body)
    assert program.ok
    assert not [note for note in program.notes if "strategy.run" in note], (
        "the step is a single program"
    )


def test_an_interrupt_leaves_the_notebook_usable(book: Notebook, fake: FakeLibtpu) -> None:
    def interrupted(_: Any) -> Compiled:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the interrupt comes first")

    fake.answer = interrupted
    ran = book.run(f"%%tpu_compile\n{DENSE}")
    assert isinstance(ran.error, Stopped)
    assert "while compiling for v3-8; nothing was run" in ran.text
    assert "Traceback" not in ran.text
    fake.answer = lambda _: compiled(GIB)
    assert program_of(book).ok


@pytest.mark.parametrize("kind", ["cell", "function"])
def test_an_interrupt_keeps_the_finished_types(book: Notebook, fake: FakeLibtpu, kind: str) -> None:
    def answer(target: Any) -> Compiled:
        if target.tpu.name == "v6e-8":
            raise KeyboardInterrupt
        return compiled(GIB)

    fake.answer = answer
    if kind == "cell":
        ran = book.run(f"%%tpu_compile --for v3-8,v5e-8,v6e-8,v5p-8 -o made\n{DENSE}")
        assert [program.tpu for program in book.names["made"]] == ["v3-8", "v5e-8"]
        assert book.session.connection.program is book.names["made"]
    else:
        ran = book.run("tpunb.compile(tf.nn.relu, x, tpu=['v3-8', 'v5e-8', 'v6e-8', 'v5p-8'])")
    assert isinstance(ran.error, CompilationStopped)
    assert "while compiling for v6e-8. v3-8 and v5e-8 are known" in ran.text
    assert "Traceback" not in ran.text
    assert [row.count("yes") for row in ran.shown[0]["text/plain"].splitlines()[1:]] == [1, 1]
    assert fake.asked == ["v3-8", "v5e-8", "v6e-8"]


def test_the_input_is_measured_with_the_program(
    book: Notebook, fake: FakeLibtpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[Any, Any]] = []

    def speed(data: Any, program: Any) -> InputSpeed:
        measured.append((data, program))
        return InputSpeed(480.0, 30.0, 3.0, "2 processors")

    monkeypatch.setattr(pipeline_speed, "input_speed", speed)
    book.good("ds = tf.data.Dataset.from_tensor_slices(tf.ones([64, 16])).batch(16)")
    ran = book.good("%%tpu_compile -d ds --input -o made\ny = tf.nn.relu(batch)")
    assert measured == [(book.names["ds"], ran.value)]
    assert ran.value is book.names["made"]
    assert "the input delivers 480 examples/s" in ran.shown[0]["text/plain"]
    fake.asked.clear()
    ran = book.run("%%tpu_compile -d it --input\ny = batch")
    assert "there is no 'it'" in ran.text
    ran = book.run("it = iter(ds)\n") or book.run("")
    ran = book.run("%%tpu_compile -d it --input\ny = batch")
    assert "cannot be read from its start again" in ran.text
    assert fake.asked == []
    assert "name it with -d" in book.run("%%tpu_compile --input\ny = x").text


MODEL = (
    "with strategy.scope():\n"
    "    model = tf.keras.Sequential([tf.keras.layers.Input((16,)), tf.keras.layers.Dense(4)])\n"
    "    model.compile('sgd', 'mse', steps_per_execution=4)\n"
    "many = [np.zeros((6400, size), 'float32') for size in (16, 4)]"
)


@pytest.mark.parametrize(
    ("call", "batch"),
    [
        ("model.fit(*many)", 32),
        ("history = model.fit(*many, batch_size=640, epochs=3, verbose=0, shuffle=False)", 640),
        ("model.evaluate(*many, 64)", 64),
        ("rows = many[0][:320]\nmodel.predict(rows, batch_size=None)", 32),
        ("model.fit(tf.data.Dataset.from_tensor_slices((*many,)).batch(80, True))", 80),
        ("model.train_on_batch(many[0][:16], many[1][:16])", 16),
    ],
)
def test_the_batch_of_keras_loops(book: Notebook, fake: FakeLibtpu, call: str, batch: int) -> None:
    book.good(MODEL)
    program = program_of(book, call)
    assert (program.tpu, program.replicas, program.examples) == ("v3-8", 8, batch)
    assert {"history", "rows"}.isdisjoint(book.names)
    assert program_of(book, call, "--for v5e-8").examples == batch


def test_keras_loops_take_no_further_data(book: Notebook, fake: FakeLibtpu) -> None:
    book.good(MODEL)
    ran = book.run("%%tpu_compile -d many\nmodel.fit(*many)")
    assert "takes its batch from its last call, not from -d" in ran.text


def test_a_call_needs_no_connection_if_the_type_is_named(book: Notebook, fake: FakeLibtpu) -> None:
    book.good("def step(x, w):\n    return tf.nn.relu(x @ w)")
    book.good("%tpu_disconnect")
    program = program_of(book, "step(np.ones((8, 16), 'float32'), w)", "--for v5e-1")
    assert program.tpu == "v5e-1"
    assert "Name one, as in %%tpu_compile --for" in book.run("%%tpu_compile\nstep(x, w)").text
    assert "There is no connection" in book.run("%%tpu_compile --for v5e-1\nx @ w").text
    book.good("data = tf.data.Dataset.from_tensors(tf.ones([8, 16]))")
    fed = book.run("%%tpu_compile --for v5e-1 -d data\nstep(batch, w)")
    assert "There is no connection" in fed.text


def test_a_crash_gives_no_verdict(book: Notebook, fake: FakeLibtpu) -> None:
    def crash(_: Any) -> Compiled:
        raise ChildLostError("the compiler crashed.")

    fake.answer = crash
    program = program_of(book)
    assert not program.ok
    assert "Not known whether it compiles: the compiler crashed." in str(program)


def test_without_the_compiler(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    error = CompilerUnavailableError("It is not installed.", fix="pip install it")
    monkeypatch.setattr(libtpu, "why_unavailable", lambda: error)
    ran = book.run(f"%%tpu_compile\n{DENSE}")
    assert isinstance(ran.error, CompilerUnavailableError)
    assert "Try: pip install it" in ran.text
    assert "Traceback" not in ran.text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--timeout 0", "is not a positive number of seconds"),
        ("-o 1x", "-o takes a Python name"),
        ("-d nothing", "there is no 'nothing'"),
        ("--largest-batch", "needs data"),
        ("--for v9-8", "v9-8"),
    ],
)
def test_wrong_options(book: Notebook, fake: FakeLibtpu, line: str, message: str) -> None:
    ran = book.run(f"%%tpu_compile {line}\nx")
    assert ran.error is not None
    assert message in ran.text
    assert "Traceback" not in ran.text


def test_the_topology_shows_the_programs_memory(book: Notebook, fake: FakeLibtpu) -> None:
    assert "usable" not in book.good("%tpu_topology").plain
    program_of(book)
    line = "the compiled program needs 1 GiB of 15.48 GiB usable a core"
    assert line in book.good("%tpu_topology").plain
    book.good(f"%%tpu_compile --for v5e-8\n{DENSE}")
    assert "usable" not in book.good("%tpu_topology").plain, "the program is for another type"


@pytest.mark.skipif(libtpu.why_unavailable() is not None, reason="libtpu is not installed here")
def test_the_real_compiler(book: Notebook) -> None:
    book.good("x, w = tf.ones([1024, 2048]), tf.ones([2048, 2048])")
    program = program_of(book, "h = tf.nn.relu(x @ w)\nctx.all_reduce('sum', tf.reduce_sum(h))")
    assert program.ok
    assert program.memory is not None
    names = {tensor.node for tensor in program.memory.largest if tensor.kind == "argument"}
    assert {"x", "w"} <= names
    assert [share.line.line for share in program.memory.by_line if share.line] == [2]
    assert "f32[2048,2048]  argument w" in str(program)
    book.good("def squared(h):\n    return tf.linalg.matmul(h, h, transpose_b=True)")
    program = program_of(book, "h = tf.nn.relu(x @ w)\nlarge = squared(h)\ntf.reduce_sum(large)")
    assert ["return" in share.name for share in program.memory.by_line if share.line].count(
        True
    ) == 1
    assert re.search(r"another cell\n +2 .* return tf.linalg.matmul", str(program))
    book.good(
        "def huge(h):\n    z = tf.tile(h, [4096, 1])\n    return tf.sort(z, 1) + tf.cumsum(z, 1)"
    )
    large = program_of(book, "h = tf.nn.relu(x @ w)\ntf.reduce_sum(huge(h))")
    assert [problem.line for problem in large.errors] == [3]
    assert re.search(r"another cell\n(.*\n)* +[23] .* GiB", str(large)), large
    book.good("def refused(a):\n    return a @ tf.transpose(a)")
    assert [
        problem.line for problem in program_of(book, "refused(tf.cast(x, tf.int64))").errors
    ] == [2]
    book.good("a = tf.ones([4, 4], tf.int64)")
    refused = program_of(book, "x[0, 0]\na @ a")
    assert [problem.line for problem in refused.errors] == [3]


def test_recorded_verdicts_answer_a_cell_without_a_compiler(
    book: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {"peak": GIB, "arguments": 0, "outputs": 0, "aliased": 0, "code": 0, "text": ""}
    raw |= {"bounded": False}
    monkeypatch.setattr(libtpu, "_answered", lambda request, deadline: raw)
    monkeypatch.setattr(libtpu, "_releases", lambda deadline: {"libtpu": "0.0.52"})
    monkeypatch.setattr(libtpu, "start", lambda **_: libtpu.require())
    monkeypatch.setattr(libtpu, "why_unavailable", lambda: None)
    options = f"--recorded {tmp_path / 'recorded'}"
    assert "recorded" not in program_of(book, options=options).label
    missing = CompilerUnavailableError("It is not here.", fix="Install it.")
    monkeypatch.setattr(libtpu, "why_unavailable", lambda: missing)
    program = program_of(book, options=options)
    assert program.label == "v3-8 (recorded)"
    assert book.good("print(connection.program)").text.startswith("TPU v3-8 (recorded)")
    other = book.run(f"%%tpu_compile {options}\nx * 3.0")
    assert "NotRecordedError" in other.text
    assert "which has 1 verdict. It is not here." in other.text
    assert "It is not here." in book.run(f"%%tpu_compile\n{DENSE}").text


def test_a_stopped_search_for_a_batch_keeps_the_batch(book: Notebook, fake: FakeLibtpu) -> None:
    book.good("data = tf.data.Dataset.from_tensors(tf.ones([64, 16])).repeat(4)")
    peaks = iter([GIB, 8 * GIB])

    def answer(_: Any) -> Compiled:
        peak = next(peaks, None)
        if peak is None:
            raise KeyboardInterrupt
        return compiled(peak)

    fake.answer = answer
    ran = book.run("%%tpu_compile --largest-batch -d data\nbatch @ w")
    assert isinstance(ran.error, CompilationStopped)
    (program,) = ran.error.programs
    assert program.largest_batch is not None
    assert f"fits: {program.largest_batch}" in str(ran.error).replace(",", "")


def test_the_largest_batch_of_a_call_is_found_by_a_function(
    book: Notebook, fake: FakeLibtpu
) -> None:
    book.good("%tpu_disconnect")
    book.good("def step(x): return x @ w")
    ran = book.run("%%tpu_compile --largest-batch --for v5e-8\nstep(x)")
    assert 'Call tpunb.largest_batch(step, x, tpu="v5e-8").' in ran.text


def test_a_quick_largest_batch_is_a_power_of_two(book: Notebook, fake: FakeLibtpu) -> None:
    book.good("data = tf.data.Dataset.from_tensors(tf.ones([48, 16])).repeat(4)")
    sizes = iter([GIB, GIB, 4 * GIB, 8 * GIB])
    fake.answer = lambda _: (
        compiled(next(sizes)) if fake.asked[3:] == [] else Refused(OUT_OF_MEMORY)
    )
    book.good("%%tpu_compile --largest-batch quick -o program -d data\nbatch @ w")
    program = book.shell.user_ns["program"]
    each = program.largest_batch // program.replicas
    assert each & (each - 1) == 0
    assert "the largest power of two" in str(program)
