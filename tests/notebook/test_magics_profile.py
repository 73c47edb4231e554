"""`%%tpu_profile` on a real shell; its shares must match the times that the run measures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.shell import Notebook

from tpunb.tensorflow.cells import profiling
from tpunb.tensorflow.cells.profiling import ProfileError
from tpunb.training.profile import Profile

pytestmark = pytest.mark.usefixtures("tf")

DATA = """
import time
STEPS = 10
data_sleeps = host_sleeps = 0.0

class HostWork(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        times.append(time.perf_counter())
    def on_train_batch_end(self, batch, logs=None):
        times.append(time.perf_counter())
        time.sleep(host_sleeps)

def batches():
    while True:
        time.sleep(data_sleeps)
        yield np.ones([16, 4], np.float32), np.ones([16, 1], np.float32)

dataset = tf.data.Dataset.from_generator(batches, output_signature=(
    tf.TensorSpec((16, 4), tf.float32), tf.TensorSpec((16, 1), tf.float32)))

def fit():
    "How long it takes; how long its steps take, and how much of that lies within batches."
    global times
    times = []
    began = time.perf_counter()
    model.fit(dataset, steps_per_epoch=STEPS, shuffle=False, verbose=0, callbacks=[HostWork()])
    in_batches = sum(times[1::2]) - sum(times[::2])
    return time.perf_counter() - began, times[-1] - times[0], in_batches
"""
MODEL = """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
fit()
"""


@pytest.fixture(scope="module")
def fitted(tf: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A shell with a traced model, on a virtual v3-8."""
    # With joined replicas, a sum over them would count as computation, not as a collective.
    with (
        pytest.MonkeyPatch.context() as patch,
        Notebook(
            tmp_path_factory.mktemp("ipython"),
            "%load_ext tpunb\nimport tensorflow as tf, numpy as np",
        ) as notebook,
    ):
        patch.setattr("tpunb.tensorflow.virtual.strategy.most_joined", lambda *_: 0)
        notebook.good("%tpu_connect --simulate v3-8")
        notebook.good(DATA + MODEL)
        yield notebook


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put temporary files in a folder of the test."""
    monkeypatch.setattr(profiling.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def profiled(book: Notebook, cell: str, line: str = "") -> Profile:
    profile = book.good(f"%%tpu_profile {line}\n{cell}").value
    assert isinstance(profile, Profile)
    return profile


def test_a_fit_that_waits_for_its_data(
    fitted: Notebook, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpunb.training.input_speed._latest", None)
    fitted.good("data_sleeps, host_sleeps = 0.3, 0.1")
    profile = profiled(fitted, "took = fit()")
    names = fitted.names
    took, in_steps, in_batches = names["took"]
    # A batch waits for its data, part of which is prepared while the host sleeps, and then
    # computes.
    least = names["STEPS"] * (names["data_sleeps"] - names["host_sleeps"]) / in_steps
    share = profile.all_steps.input_wait_share
    assert least - 0.2 <= share <= in_batches / in_steps + 0.2, profile
    # The clocks are read at different places. On a busy machine, time passes in between.
    assert profile.all_steps.seconds == pytest.approx(in_steps, rel=0.3)
    assert profile.whole.seconds == pytest.approx(took, rel=0.3)
    assert profile.all_steps.input_wait <= profile.whole.input_wait <= took - in_steps + in_batches
    assert profile.headline.startswith("On this machine, ")
    assert "tpunb.input_speed(dataset) measures the input alone" in profile.notes[-1]
    assert len(profile.steps) == names["STEPS"]
    assert profile.device == "CPU"
    assert "MatMul" in {operation.kind for operation in profile.operations}
    assert "PyFunc" not in {operation.kind for operation in profile.operations}
    assert list(folders.iterdir()) == []


def test_a_fit_that_does_not_wait(fitted: Notebook) -> None:
    """The data are ready, and the host is busy with other work."""
    fitted.good("data_sleeps, host_sleeps = 0.0, 0.2")
    profile = profiled(fitted, "took = fit()", "-o kept")
    names = fitted.names
    slept = names["STEPS"] * names["host_sleeps"]
    assert names["kept"] is profile
    assert slept <= profile.whole.host <= profile.whole.seconds
    assert profile.whole.input_wait <= names["took"][0] - slept


def test_a_prefetched_batch_does_not_count_as_a_wait(fitted: Notebook) -> None:
    """The data take a while, but the host is busy for longer."""
    fitted.good("data_sleeps, host_sleeps = 0.1, 0.3")
    profile = profiled(fitted, "fit()")
    assert profile.input_wait < 0.3


def test_a_custom_loop(fitted: Notebook) -> None:
    """The test measures the waits around `next`."""
    fitted.good("data_sleeps, waited = 0.2, 0.0")
    profile = profiled(
        fitted,
        "data = iter(dataset)\n"
        "began = time.perf_counter()\n"
        "for _ in range(8):\n"
        "    before = time.perf_counter()\n"
        "    next(data)\n"
        "    waited += time.perf_counter() - before\n"
        "    time.sleep(0.1)\n"
        "took = time.perf_counter() - began",
    )
    names = fitted.names
    assert profile.input_wait == pytest.approx(names["waited"] / names["took"], abs=0.2)
    assert profile.steps == ()


def test_marked_steps_and_operations_of_a_pipeline(fitted: Notebook) -> None:
    fitted.good("""
@tf.function
def step(x):
    return tf.reduce_sum(x @ x)

def mapped(i):
    big = tf.random.stateless_uniform([400, 400], [i, 1])
    return tf.linalg.svd(big, compute_uv=False)[:4, None] * tf.ones([1, 4])

# It computes ahead: before the profile begins, and after it ends.
batches_of_svd = tf.data.Dataset.range(100, output_type=tf.int32).map(mapped).prefetch(4)
step(next(iter(batches_of_svd)))
ahead = iter(batches_of_svd)
next(ahead)
""")
    profile = profiled(
        fitted,
        "data = iter(batches_of_svd)\n"
        "for number in range(5):\n"
        "    with tf.profiler.experimental.Trace('train', step_num=number, _r=1):\n"
        "        step(next(data))",
    )
    assert [step.name for step in profile.steps] == [f"train {number}" for number in range(5)]
    assert profile.step_kind == "step"
    kinds = {operation.kind for operation in profile.operations}
    assert "Svd" not in kinds, "the input pipeline's operations are not device time"
    assert profile.all_steps.input_wait > profile.all_steps.device


def test_a_cell_of_replicas(fitted: Notebook) -> None:
    fitted.good("x = tf.ones([256, 256])")
    ran = fitted.good(
        "%%tpu_profile\n%%tpu_run -n 3\ny = ctx.all_reduce('sum', x @ x * tf.cast(replica_id, x.dtype))"
    )
    profile = ran.value
    assert any(operation.kind == "AddN" for operation in profile.operations), profile
    assert profile.whole.collectives > 0
    assert profile.whole.seconds >= profile.whole.device
    assert profile.step_kind == "call of the cell"


def test_a_function_without_a_name(fitted: Notebook) -> None:
    fitted.good(
        "import functools\nx = tf.ones([256, 256])\nf = tf.function(functools.partial(tf.matmul, x))"
    )
    profile = profiled(fitted, "for _ in range(5): f(x)")
    assert profile.step_kind == "call of a tf.function"


def test_the_value_of_the_cell_is_shown(fitted: Notebook) -> None:
    ran = fitted.good("%%tpu_profile\nseen = 3\nseen + 4")
    assert ran.shown[0]["text/plain"] == "7"
    assert fitted.names["seen"] == 3
    assert len(fitted.good("%%tpu_profile\nseen;").shown) == 1


def test_the_profile_can_be_kept(fitted: Notebook, tmp_path: Path) -> None:
    profiled(fitted, "tf.ones([2]) + 1;", f"--keep {tmp_path / 'logs'}")
    assert len(list(tmp_path.glob("logs/plugins/profile/*/*.xplane.pb"))) == 1


def test_a_new_profile_can_start_after_an_error(fitted: Notebook, folders: Path) -> None:
    ran = fitted.run("%%tpu_profile\nx = 1\nx / 0")
    assert isinstance(ran.error, ZeroDivisionError)
    assert "line 3" in re.sub(r"\x1b\[[\d;]*m", "", ran.text)
    assert "run_profiled" not in ran.text
    assert "Line 2" in fitted.run("%%tpu_profile\nx = = 1").text
    ran = fitted.run("%%tpu_profile\nimport os, signal; os.kill(os.getpid(), signal.SIGINT)\nx = 2")
    assert isinstance(ran.error, KeyboardInterrupt)
    assert profiled(fitted, "x = 3").whole.seconds > 0
    assert list(folders.iterdir()) == []


def test_profiles_cannot_be_nested(fitted: Notebook) -> None:
    ran = fitted.run("%%tpu_profile\n%%tpu_profile\nx = 1")
    assert isinstance(ran.error, ProfileError)
    assert "Try: " in ran.text
    assert "Traceback" not in ran.text
    ran = fitted.run("%%tpu_profile\ntf.profiler.experimental.stop(save=False)")
    assert isinstance(ran.error, ProfileError)
    assert "stopped" in ran.text
    profiled(fitted, "x = 4")


def test_a_statement_in_the_line(fitted: Notebook, tmp_path: Path) -> None:
    ran = fitted.good(f"%tpu_profile --keep {tmp_path / 'logs'} -o kept seen = '{{4}}'; len(seen)")
    assert ran.shown[0]["text/plain"] == "3"  # an ordinary line magic would replace {4} by 4
    assert fitted.names["kept"] is ran.value
    assert len(list(tmp_path.glob("logs/plugins/profile/*/*.xplane.pb"))) == 1
    shown = fitted.good("found = %tpu_profile -(-3);").shown
    assert shown == []
    assert isinstance(fitted.names["found"], Profile)
    assert "takes a statement" in fitted.run("%tpu_profile -o kept").text
    of_run = fitted.run("%%tpu_profile -o kept -d train -n 20\nstep()").text
    assert "Write %%tpu_run -d train -n 20 as the second line, below %%tpu_profile." in of_run
    assert "unrecognized arguments: --bogus" in fitted.run("%%tpu_profile --bogus\n1").text
    assert "--kep" in fitted.run("%tpu_profile --kep logs 1 + 1").text
    assert "Line 1" in fitted.run("%tpu_profile x = = 1").text


def test_other_processes_are_not_recorded(fitted: Notebook) -> None:
    """The workers of a TPU are other processes, and a note says so."""
    from tpunb.notebook.profiled_cell import unrecorded_cores

    assert unrecorded_cores(None) == ()
    assert "other processes" not in str(profiled(fitted, "x = 1").notes)
    cores = [f"/job:worker/replica:0/task:{k // 8}/device:TPU:{k % 8}" for k in range(32)]
    strategy = SimpleNamespace(extended=SimpleNamespace(worker_devices=tuple(cores)))
    [note] = unrecorded_cores(SimpleNamespace(strategy=strategy))  # type: ignore[arg-type]
    assert note.startswith(
        "The 32 cores belong to other processes, and only this process is recorded"
    )


def test_wrong_options(fitted: Notebook) -> None:
    ran = fitted.run("%%tpu_profile -o 1x\nx = 5")
    assert "-o takes a Python name" in ran.text
    assert fitted.names.get("x") != 5
