"""Beginners' mistakes in a cell: each has one explanation, which names the fix."""

from __future__ import annotations

import linecache
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shell import Notebook
from support.tiers import thorough

from tpunb.errors import CellError, TpuWarning

pytestmark = pytest.mark.usefixtures("tf")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A shell connected to a virtual TPU of two cores, with all rules."""
    with Notebook(
        tmp_path_factory.mktemp("ipython"),
        "%load_ext tpunb\nimport tensorflow as tf, numpy as np, random",
        "%tpu_connect --simulate 2",
    ) as notebook:
        yield notebook


MISTAKES = {
    "if replica_id == 1:\n    raise ValueError('no')": (
        "Both branches of `if replica_id == 1` are traced, so `raise` runs at once",
        "`failed = replica_id == 1`, and in the next cell `if any(failed.values): raise …`",
    ),
    "if replica_id < 1:\n    x = 1\nelse:\n    assert False, 'no'": (
        "Both branches of `if replica_id < 1` are traced, so `assert` runs at once",
        "`failed = not (replica_id < 1)`",
    ),
    "for i in tf.range(2):\n    raise ValueError": (
        "A loop over tensors is traced, so `raise` runs once",
        "look at them in the next cell",
    ),
    "while True:\n    with tf.name_scope('x'):\n        assert replica_id < 1": (
        "`assert` needs a value",
        "`ok = replica_id < 1`, and in the next cell `assert all(ok.values)`",
    ),
    "v = tf.ones([3])\nv.numpy()": ("`.numpy()` cannot be used inside it", "`v.values[0].numpy()`"),
    "(replica_id + 1).numpy()": (
        "`.numpy()` cannot be used inside it",
        "`result.values[0].numpy()`",
    ),
    "x = max(replica_id, 1)": ("Python needs the value of a tensor here", "`tf.maximum`"),
    "if (x := replica_id) > 0:\n    x = 1": ("has `:=` (line 2)", "Assign on a line of its own"),
    "match 'a':\n    case _:\n        x = 0\nfor i in tf.range(3):\n    x += i": (
        "has `match` (line 2)",
        "`if` and `elif`",
    ),
    "x = [i for i in tf.range(3)]": ("the number of a tensor's rows", "`tf.unstack(x)`"),
    "x = replica_id * 1.5": ("integers do not become floats", "`tf.cast(replica_id, tf.float32)`"),
    "x = tf.ones([2]) + replica_id": ("integers do not become floats", "`tf.cast(replica_id,"),
    "x = replica_id / 2.5": ("integers do not become floats", "`tf.cast(replica_id,"),
    "x = 1.5 * tf.constant(1)": ("integers do not become", "`tf.cast(tf.constant(1), tf.float32)`"),
    "x = 2 * (tf.ones([2]) + replica_id)": ("integers do not", "`tf.cast(replica_id, tf.float32)`"),
    "d = tf.cast(1, tf.float64)\nx = d - tf.ones([2])": (
        "float64 and float32",
        "`tf.cast(d, tf.float",
    ),
    "replica_id += 0.5": ("integers do not become floats", "`tf.cast(replica_id, tf.float32)`"),
    "x = tf.ones([2])\nx[0] += 1": ("cannot be changed in place", "`tf.tensor_scatter_nd_update("),
    "strategy.run(lambda: 1)": (
        "The cell itself runs on every replica",
        "Leave `strategy.run` out",
    ),
    "strategy.gather(replica_id, 0)": ("The cell itself runs on every", "`ctx.all_gather("),
    "ctx.all_reduce('mean', replica_id)": (
        "The mean of integers",
        "tf.cast(replica_id, tf.float32)",
    ),
    "ctx.all_reduce('max', tf.ones([]))": (
        "'sum' or 'mean'",
        "`tf.reduce_max(ctx.all_gather(tf.ones([])[tf.newaxis], axis=0), axis=0)`",
    ),
    "ctx.all_reduce('avg', tf.ones([]))": (
        "'sum' or 'mean'",
        "`ctx.all_reduce('mean', tf.ones([]))`",
    ),
    "ctx.all_reduce(value=2.0, reduce_op='MIN')": ("'sum' or 'mean'", "`tf.reduce_min("),
    "x = round(tf.ones([]))": ("`round` does not round", "`tf.round(x)`"),
    "x = [10, 20][replica_id]": ("Python needs the value of a tensor here", "`tf.gather("),
    "x = (1.0, 2.0)[int(replica_id)]": ("Python needs the value of a tensor", "`tf.gather("),
    "x = {0: 1.0, 1: 2.0}[replica_id]": ("Python needs the value of a tensor", "`tf.gather("),
    "x = f'{replica_id:.2f}'": ("Text cannot hold the value of a tensor", "`print('x', x)`"),
    "x = '%d' % replica_id": ("Text cannot hold the value of a tensor", "`print('x', x)`"),
    "import math\nx = math.sin(tf.ones([]))": ("Python needs the value of a", "TensorFlow's"),
    "x = np.zeros(replica_id)": ("Python needs the value of a tensor here", "TensorFlow's"),
    "x = tf.ones([2]).mean()": ("`mean` is NumPy's", "`tf.reduce_mean(x)`"),
    "x = tf.ones([2]).reshape(1, 2)": ("`reshape` is NumPy's", "`tf.reshape(x, [2, -1])`"),
    "x = tf.ones([2, 3]).T": ("`T` is NumPy's", "`tf.transpose(x)`"),
    "x = tf.ones([2])\nx.assign_add(1)": ("a `tf.Variable` can", "Assign the new value to a name"),
    "x = 2 * replica_id\ny = tf.where(replica_id == 1, x, 0.0)": (
        "integers do not become floats",
        "`tf.cast(x, tf.float32)`",
    ),
    "x = 2 * replica_id\ny = ctx.all_reduce('sum', tf.where(replica_id == 1, 0.5, x))": (
        "integers do not become floats",
        "`tf.cast(x, tf.float32)`",
    ),
    "x = 2 * replica_id\ny = x[3]": ("a single number", "Write `x`. On every replica"),
    "x = ctx.allreduce('sum', 1.0)": ("`ctx` has no attribute `allreduce`", "`all_reduce`"),
    "x = tf.reduce_maen(tf.ones([2]))": ("`tf` has no attribute `reduce_maen`", "`reduce_mean`"),
    "x = tf.raw_ops.CollectivePermut(input=1)": (
        "`tf.raw_ops` has no attribute `CollectivePermut`",
        "`CollectivePermute`",
    ),
    "x = tf.ones([]).item()": ("`item` is NumPy's", "Write `x` instead of `x.item`"),
    "with strategy.scope():\n    v = 1": (
        "made once, outside the cell",
        "Move `with strategy.scope",
    ),
    "x = np.mean(tf.ones([3]))": ("NumPy needs the value of a tensor", "`tf.reduce_mean(x)`"),
    "x = np.mean(tf.ones([3]) == 1)": (
        "NumPy needs the value of a tensor",
        "Cast truth values: `tf.cast(tf.ones([3]) == 1, tf.float32)`",
    ),
    "x = ctx.all_reduce(tf.ones([]), 'sum')": (
        "takes the reduction first",
        "`ctx.all_reduce('sum', tf.ones([]))`",
    ),
    "x = ctx.all_reduce(tf.ones([]))": (
        "takes the reduction first",
        "`ctx.all_reduce('sum', tf.ones([]))`",
    ),
    "y = tf.ones([])\nx = ctx.all_reduce('mean', 'y')": (
        "'y' is a text",
        "Leave out the quotes: `ctx.all_reduce('mean', y)`",
    ),
    "x = ctx.all_gather(tf.ones([2]))": ("the axis along which", "`ctx.all_gather(x, axis=0)`"),
    "x = ctx.all_gather(replica_id, axis=0)": (
        "a single number has no axis",
        "`ctx.all_gather(tf.reshape(replica_id, [1]), axis=0)`",
    ),
    "x = ctx.all_gather([replica_id], axis=0)": (
        "A list means several tensors",
        "`ctx.all_gather(tf.stack([replica_id]), axis=0)`",
    ),
    "x = ctx.broadcast(1.0)": ("`ctx` has no attribute `broadcast`", "`all_reduce` and"),
    "x = ctx.all_reduce('mean', tf.where(replica_id == 1, replica_id, 0))": (
        "The mean of integers",
        "`ctx.all_reduce('mean', tf.cast(tf.where(replica_id == 1, replica_id, 0), tf.float32))`",
    ),
    "x = ctx.all_reduce('sum', replica_id == 1)": (
        "does not compute with truth values",
        "`tf.cast(replica_id == 1, tf.float32)`",
    ),
    "x = tf.reduce_mean(replica_id == 1)": (
        "does not compute with truth values",
        "`tf.cast(replica_id == 1, tf.float32)`",
    ),
    "x = tf.where(replica_id == 1, 2.0)": ("`tf.where` takes a condition", "`tf.where(condition,"),
    "x = tf.random.stateless_uniform([3], seed=7 + replica_id)": (
        "pair of integers",
        "`seed=[7, replica_id]`",
    ),
    "x = tf.random.stateless_uniform(3, seed=[7, replica_id])": ("shape of random", "`[3]`"),
}


@pytest.mark.parametrize("body", MISTAKES)
def test_each_mistake_has_one_explanation(book: Notebook, body: str) -> None:
    cause, fix = MISTAKES[body]
    other_magic = ("%%tpu_run -n 2", "%%tpu_check")[list(MISTAKES).index(body) % 2]
    for magic in ("%%tpu_run", other_magic):
        ran = book.run(f"{magic}\n{body}")
        assert isinstance(ran.error, CellError)
        assert cause in ran.error.message
        assert fix in ran.error.fix
        assert "In the cell, line" in ran.text
        assert "Known error" not in ran.text
        assert "symbolic" not in ran.text
        assert ran.text.count("Try: ") + ran.text.count("Did you mean ") == 1


STEP = "with tf.GradientTape() as tape:\n    loss = tf.reduce_sum(weights)\n"
UPDATES = {
    "sgd.minimize(loss, [weights])": ("no `minimize`", "`sgd.apply_gradients([(tape.gradient("),
    "sgd.apply_gradients((tape.gradient(loss, weights), weights))": (
        "takes a list of pairs",
        "`sgd.apply_gradients([(gradient, variable)])`",
    ),
    "sgd.apply_gradients([(weights, tape.gradient(loss, weights))])": ("list of pairs", "`sgd."),
    "sgd.apply_gradients(tape.gradient(loss, weights), weights)": ("list of pairs", "`sgd."),
    "loss = loss / 2\nsgd.apply_gradients([(tape.gradient(loss, weights), weights)])": (
        "The gradient is None",
        "inside `with tf.GradientTape() as tape:`",
    ),
    "with strategy.scope():\n    sgd.apply_gradients([(tape.gradient(loss, weights), weights)])": (
        "runs on every replica already",
        "Delete the line `with strategy.scope():`",
    ),
}


@pytest.mark.parametrize("update", UPDATES)
def test_mistakes_in_an_update(book: Notebook, update: str) -> None:
    book.good(
        "import keras\nwith strategy.scope():\n    weights = tf.Variable(tf.ones([2]))\n"
        "    sgd = keras.optimizers.SGD()"
    )
    ran = book.run(f"%%tpu_run\n{STEP}{update}")
    cause, fix = UPDATES[update]
    assert isinstance(ran.error, CellError), ran.text
    assert cause in ran.error.message
    assert fix in ran.error.fix


@pytest.mark.parametrize(
    "body",
    [
        "y = 1\nx = tf.reduce_sum(ctx.all_reduce('sum', images))",
        "y = ctx.all_reduce('sum', tf.size(images))\nx = ctx.all_gather(images, axis=0)",
    ],
)
def test_a_collective_of_unequal_shapes_shows_its_line(book: Notebook, body: str) -> None:
    book.good("uneven = tf.data.Dataset.from_tensor_slices(np.ones([3, 2], 'float32')).batch(4)")
    ran = book.run(f"%%tpu_run -d uneven --as images\n{body}")
    assert "same shape on all replicas" in str(ran.error)
    assert "---->   3" in ran.text
    assert "combine values of one shape, such as `tf.reduce_sum(x)`" in ran.text


def test_the_size_of_an_unequal_share(book: Notebook) -> None:
    book.good("uneven = tf.data.Dataset.from_tensor_slices(np.ones([3, 2], 'float32')).batch(4)")
    ran = book.run("%%tpu_run -d uneven --as images\nx = images.shape[0] * 2")
    assert isinstance(ran.error, CellError)
    assert "`tf.shape(x)[0]`" in ran.error.fix


def test_pairs_that_are_no_permutation_show_their_line(book: Notebook) -> None:
    permute = "tf.raw_ops.CollectivePermute(input=replica_id, source_target_pairs={})"
    ran = book.run(
        f"%%tpu_run\nx = {permute.format('[[0, 1], [1, 0]]')}\ny = {permute.format('[[1, 0], [1, 1]]')}"
    )
    assert "must be a permutation" in str(ran.error)
    assert "---->   3 y" in ran.text


def test_a_part_of_a_batch_without_its_name(book: Notebook) -> None:
    book.good("pictures = tf.data.Dataset.from_tensors(tf.ones([4]))")
    ran = book.run("%%tpu_run\ntf.reduce_sum(images)")
    assert "`%%tpu_run -d pictures --as images,...`" in ran.text
    assert "--as" not in book.run("%%tpu_run\npicture").text  # a slip of a known name


def test_an_assignment_instead_of_a_comparison(book: Notebook) -> None:
    assert "write `==`" in book.run("%%tpu_run\nx = tf.where(replica_id = 1, 2, 3)").text


REDUCED = ("avg", "max", "min", "prod")


@pytest.mark.parametrize(
    "value", ["s", "x", "s + 1.0", "2.0", *thorough(["x[0]", "tf.reduce_sum(x)"])]
)
def test_the_fix_for_a_reduction_works(book: Notebook, value: str) -> None:
    book.good("s, x = tf.constant(3.0), tf.ones([2, 2])")
    for name in REDUCED:
        error = book.run(f"%%tpu_run\ny = ctx.all_reduce({name!r}, {value})").error
        assert isinstance(error, CellError)
        (code,) = re.findall("`([^`]+)`", error.fix)
        book.good(f"%%tpu_run\ny = {code}")


def test_code_that_is_not_converted_runs_without_a_warning(book: Notebook) -> None:
    ran = book.good("%%tpu_run\n(x := replica_id)\nx")
    assert "AutoGraph" not in ran.text
    assert [int(value) for value in ran.value.values] == [0, 1]


def test_a_mean_of_integers_is_refused_with_our_message(book: Notebook) -> None:
    for body in ("m = replica_id", "m = replica_id > 0"):
        ran = book.run(f"%%tpu_run -r m=mean\n{body}")
        assert isinstance(ran.error, CellError)
        assert "`m = tf.cast(m, tf.float32)`, or `-r m=sum`" in ran.error.fix
        assert ".py" not in ran.text
    book.good("%%tpu_run -r m=mean\nm = tf.cast(replica_id, tf.float32)")


def test_keras_loops_belong_outside_of_a_cell(book: Notebook) -> None:
    book.good(
        "tf.random.set_seed(3)\n"
        "with strategy.scope():\n"
        "    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "x, y = np.ones([4, 2], 'float32'), np.ones([4, 1], 'float32')"
    )
    for magic, call in (
        ("%%tpu_run", "model.fit(x, y, verbose=0)"),
        ("%%tpu_check", "model.evaluate(x, y, verbose=0)"),
        ("%%tpu_run", "model.predict(x, verbose=0)"),
    ):
        ran = book.run(f"{magic}\n{call}")
        assert isinstance(ran.error, CellError)
        assert "runs on all replicas by itself" in ran.error.message
        assert "in a cell without a magic" in ran.error.fix
        assert "UserWarning" not in ran.text


def test_mismatched_shapes_are_reported_in_one_line(book: Notebook) -> None:
    book.good(
        "with strategy.scope():\n"
        "    dense = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])"
    )
    for body in ("dense(tf.ones([4, 3]))", "tf.ones([2, 3]) @ tf.ones([2, 3])"):
        ran = book.run(f"%%tpu_run\n{body}")
        message = ran.text.rstrip().split("\n\n")[-1]
        assert message.startswith("ValueError: ")
        assert "\n" not in message
        for noise in ("{{node", "DT_FLOAT", "x1b", "Arguments received"):
            assert noise not in message


@pytest.mark.parametrize(
    ("cell", "cause", "fix"),
    [
        ("%%tpu_run\nmath.sqrt(2.0)", "`math` is not defined", "`import math`"),
        ("%%tpu_run\npd.DataFrame()", "`pd` is not defined", "`import pandas as pd`"),
        ("%%tpu_run\nbatch * 2", "`batch` is not defined", "`%%tpu_run -d dataset`"),
        ("%%tpu_run\nnew += 1.0", "not defined before the cell assigns it", "such as `new = 0.0`"),
        (
            "%%tpu_run\nfor a, b in ds:\n    a",
            "cannot loop over `ds`",
            "`%%tpu_run -d ds --as a,b`",
        ),
        (
            "%%tpu_check\nfor i, a in enumerate(ds.take(2)):\n    a",
            "cannot loop over `ds`",
            "`%%tpu_run -d ds --as a`",
        ),
        ("%%tpu_run\nnext(iter(ds))", "`ds` is a dataset", "`%%tpu_run -d ds`"),
        ("%%tpu_run\nmodel.fit(ds, epochs=1)", "runs on all replicas by itself", "without a magic"),
        ("%%tpu_run -d ds,ds\n1", "Several datasets", "`tf.data.Dataset.zip((a, b))`"),
        ("%%tpu_run -d dense\n1", "A Layer holds no batches", "a tf.data.Dataset, an iterator"),
        ("%%tpu_run -d objects\n1", "of type object, which does not become", "Yield tensors"),
    ],
)
def test_mistakes_before_tracing(book: Notebook, cell: str, cause: str, fix: str) -> None:
    book.good(
        "ds = tf.data.Dataset.zip((tf.data.Dataset.range(4), tf.data.Dataset.range(4))).batch(4)\n"
        "objects = [{'a': object()}]\n"
        "class Layer(tf.Module): __call__ = print\n"
        "dense = Layer()"
    )
    ran = book.run(cell)
    assert isinstance(ran.error, CellError)
    assert cause in ran.error.message
    assert fix in ran.error.fix
    assert "Traceback" not in ran.text


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%tpu_run --as x,y\n1", "write -d DATASET --as x,y"),
        ("%%tpu_check --as x,y\n1", "write -d DATASET --as x,y"),
        ("%%tpu_run -d ds -r\n1", "-r needs a value: -r NAME=mean|sum"),
        ("%tpu_run x = 1", "Write `%%tpu_run` as the first line of a cell"),
    ],
)
def test_incomplete_options(book: Notebook, cell: str, message: str) -> None:
    ran = book.run(cell)
    assert message in ran.text
    assert "Traceback" not in ran.text


def test_strings_cannot_be_divided_among_replicas(book: Notebook) -> None:
    book.good("names = ['one', 'two']")
    ran = book.run("%%tpu_run -d names -n 1\nbatch")
    assert "A single text cannot be divided among 2 replicas" in str(ran.error)


def test_the_suggested_code_works(book: Notebook) -> None:
    book.good("%%tpu_run\nok = replica_id < 1\nfailed = replica_id == 1\nv = tf.ones([3])")
    assert isinstance(book.run("assert all(ok.values)").error, AssertionError)
    assert book.good("any(failed.values)").value
    assert book.good("v.values[0].numpy().tolist()").value == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("if len('a') == 1:\n    raise KeyError('mine')", KeyError),
        ("assert len('a') == 2, 'mine'", AssertionError),
        ("if replica_id == 1:\n    {}['mine']", KeyError),
        ("'mine'.numpy()", AttributeError),
    ],
)
def test_ordinary_python_errors_are_left_alone(
    book: Notebook, body: str, kind: type[Exception]
) -> None:
    ran = book.run(f"%%tpu_run\n{body}")
    assert type(ran.error) is kind
    assert "mine" in str(ran.error)


def test_a_refusal_is_explained_once(book: Notebook) -> None:
    ran = book.run("%%tpu_run\nx = tf.strings.length(tf.strings.as_string(replica_id))")
    # For programs that compare the message.
    assert "No registered 'StringLength' OpKernel" in str(ran.error)
    assert "StringLength works on strings, which TPUs do not have." in ran.text
    assert "No registered" not in ran.text
    assert ran.text.count("Known error 22") == 1
    assert "Known error 22" in book.good("%tpu_doctor --last").plain


def test_a_refusal_outside_of_cells_is_explained_once(book: Notebook) -> None:
    source = "tf.function(lambda: strategy.run(lambda: tf.strings.length('a')))()"
    ran = book.run(source)
    assert "Known error 22." in str(ran.error)
    assert "Cause:" not in ran.text


@pytest.mark.parametrize("options", ["", " -n 3"])
def test_copies_that_a_cell_leaves_different_are_warned_of(book: Notebook, options: str) -> None:
    book.good("with strategy.scope():\n    weights = tf.Variable(1.0)")
    body = "local = tf.cast(replica_id, tf.float32)\nweights.assign_sub(local)"
    with pytest.warns(TpuWarning, match="The copies of `weights` now differ") as caught:
        book.good(f"%%tpu_run{options}\n{body}")
    assert [warning.lineno for warning in caught] == [3]


def test_random_numbers_from_python_are_warned_of(book: Notebook) -> None:
    book.good("rng = np.random.default_rng(1)\ndef f(x):\n    return x")
    body = "np.random.seed(1)\nx = f(np.random.rand())\ny = random.random()\nrng.normal()"
    with pytest.warns(TpuWarning) as caught:
        book.good(f"%%tpu_run\n{body}")
    assert [warning.lineno for warning in caught] == [3, 4, 5]
    for warning, name in zip(
        caught, ("np.random.rand", "random.random", "rng.normal"), strict=True
    ):
        assert f"`{name}` draws while the cell is traced: all replicas and" in str(warning.message)
        assert (
            linecache.getline(warning.filename, warning.lineno)
            == f"{body.splitlines()[warning.lineno - 2]}\n"
        )
    assert book.good("%%tpu_run\ntf.random.normal([2]);").text == ""


@pytest.mark.parametrize("event", ["on_train_batch_end", "on_epoch_end"])
@pytest.mark.parametrize(("verbose", "separate"), [("1", True), ("'auto'", True), ("0", False)])
def test_a_warning_is_separate_from_the_progress_line_of_keras(
    book: Notebook, monkeypatch: pytest.MonkeyPatch, verbose: str, separate: bool, event: str
) -> None:
    monkeypatch.setattr(warnings, "showwarning", book.shell._tpunb_extension.warnings._show)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        text = book.good(
            "import tpunb.errors, warnings\n"
            f"def {event}():\n"
            "    warnings.warn('about the batch', tpunb.errors.TpuWarning)\n"
            "def fit(verbose):\n"
            "    print('1/9 loss: nan', end='')\n"
            f"    {event}()\n"
            f"fit({verbose})"
        ).text
    assert "about the batch" in text
    assert ("1/9 loss: nan\nWarning" in text) is separate


def test_a_warning_is_printed_without_a_path(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jupyter shows standard error in red, and a path inside tpunb helps nobody."""
    other_warnings: list[str] = []
    our_warnings = book.shell._tpunb_extension.warnings
    monkeypatch.setattr(
        our_warnings, "_before", lambda message, *_: other_warnings.append(str(message))
    )
    # Pytest has replaced the function.
    monkeypatch.setattr(warnings, "showwarning", our_warnings._show)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        drawn = book.good("%%tpu_run\nx = 1.0\nrandom.random() + x;").text
        nan = book.good("%%tpu_run -n 2 -p loss\nloss = tf.constant(float('nan'));").text
        book.good("import warnings; warnings.warn('theirs')")
    assert drawn.startswith("Warning, line 3 of the cell: `random.random` draws while")
    assert drawn.endswith("\n    random.random() + x;\n")
    assert "\nWarning: `loss` is not finite at step 1" in f"\n{nan}"
    assert "tpu_run" not in drawn + nan
    assert other_warnings == ["theirs"]


def test_a_traceback_names_the_cell_of_a_function(book: Notebook) -> None:
    book.good("%%tpu_run\ndef halved(x):\n    return x / 0")
    text = re.sub(r"\x1b\[[\d;]*m", "", book.run("halved(1)").text)
    assert "Cell In[" in text
    assert "line 3, in halved(x)" in text
    assert "tpu_run cell" not in text


def test_a_check_reports_problems_above_an_untraceable_line(book: Notebook) -> None:
    report = book.good(
        "%%tpu_check\na = tf.strings.as_string(replica_id)\nfor i in range(2):\n    a.numpy()"
    ).value
    assert [problem.line for problem in report.errors] == [2, 2, 4]
    assert ".numpy()" in report.errors[-1].reason
    assert isinstance(book.run("%%tpu_check\nb = tf.ones([2])\nb.numpy()").error, CellError)


def test_a_per_replica_value_has_no_elements(book: Notebook) -> None:
    book.good("%%tpu_run\na = tf.range(3) + replica_id")
    ran = book.run("a[0]")
    assert "Write `value.values[0]` for the value of replica 0." in " ".join(ran.text.split())
    assert book.good("a.values[0].numpy().tolist()").value == [0, 1, 2]


@pytest.mark.parametrize(
    "source",
    [
        *("a > 1", "-a", "abs(a)", "round(a)", "len(a)", "a[0] = 1", "f'{a:.2f}'", "'%.2f' % a"),
        *("range(a)", "[1][a]", "float(a)", "a + 1", "for one in a: pass"),
    ],
)
def test_a_per_replica_value_is_not_a_number(book: Notebook, source: str) -> None:
    book.good("%%tpu_run\na = replica_id")
    assert "Known error 33" in book.run(source).text


def test_missing_names_are_explained_by_the_magic_that_defines_them(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path)
    notebook.good("%load_ext tpunb")
    for name, explanation in (
        ("replica_id", "`%%tpu_run`"),
        ("strategy", "`%tpu_connect` makes `strategy`"),
        ("history", "`tpunb.history`"),
    ):
        ran = notebook.run(f"print({name})")
        assert isinstance(ran.error, NameError)
        assert ran.text.count(explanation) == 1
    notebook.good("%tpu_connect --simulate 2 --as tpu")
    assert "%tpu_connect" not in notebook.run("strategy").text  # this connection names it `tpu`
    assert "exists inside" in notebook.run("%%tpu_profile\nreplica_id + 1").text
    assert "makes" not in notebook.run("mine").text
    notebook.close()


@pytest.mark.parametrize(
    "line",
    [
        "%tpu_connect --help",
        "%tpu_connect --simulate v5e-8 -h",
        "%%tpu_run --help\nnever_run = 1",
        "%%tpu_check -h\nnever_run = 1",
        "%%tpu_compile --help\nnever_run = 1",
        "%%tpu_profile --help\nnever_run = 1",
        "%tpu_profile --help",
        "%tpu_status --help",
        "%tpu_topology --help",
        "%tpu_doctor --help",
        "%tpu_disconnect --help",
    ],
)
def test_help_shows_the_options_and_does_nothing_else(book: Notebook, line: str) -> None:
    ran = book.good(line)
    name = line.lstrip("%").split()[0]
    assert f"%{name}" in ran.text
    assert ran.value is None
    assert "never_run" not in book.names
