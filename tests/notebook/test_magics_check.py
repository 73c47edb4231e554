"""`%%tpu_check`, `%%tpu_run --check` and the messages of strictness in a notebook."""

from __future__ import annotations

import warnings

import pytest
from support.shell import Notebook

from tpunb.errors import TpuWarning
from tpunb.tensorflow.checks.rule_check import CheckError, CheckReport

pytestmark = pytest.mark.usefixtures("tf")

OPENING = [
    "%load_ext tpunb\nimport tensorflow as tf, numpy as np",
    "%tpu_connect --simulate 2",
    "x = tf.ones([8, 16])",
]
MASK = """
y = x * 2
for i in tf.range(2):
    tf.print(
        'sum',
        y)

z = tf.tensordot(tf.cast(y, tf.int64), tf.cast(y, tf.int64), 0)
"""


def checked(book: Notebook, body: str) -> CheckReport:
    report = book.good(f"%%tpu_check\n{body}").value
    assert isinstance(report, CheckReport)
    return report


def test_checking_builds_an_optimizer_completely(book: Notebook) -> None:
    """Variables that a trace creates need values even if the trace never runs."""
    book.good(
        "import keras\nwith strategy.scope():\n    w = tf.Variable(tf.ones([16, 2]))\n"
        "    optimizer = keras.optimizers.Adam()\nweights = [w]"
    )
    checked(book, "optimizer.apply_gradients(zip([w * 1.0], weights))\ny = tf.reduce_sum(x @ w)")
    shapes = {
        copy.numpy().shape
        for variable in book.names["optimizer"].variables
        for copy in getattr(variable.value, "values", ())
        if "momentum" in variable.path
    }
    assert shapes == {(16, 2)}


def test_lines_and_reasons(book: Notebook) -> None:
    report = checked(book, MASK)
    assert [(problem.code, problem.line, problem.entry) for problem in report.errors] == [
        ("unsupported-op", 5, "23"),
        ("x64-op", 9, "25"),
    ]
    assert not report.ok
    assert "line 9: error x64-op" in str(report)
    assert "y" not in book.shell.user_ns
    assert "z" not in book.shell.user_ns


def test_the_report_under_a_name(book: Notebook) -> None:
    report = book.good("%%tpu_check -o report\ntf.range(tf.cast(x[0, 0], tf.int32))").value
    assert report is book.names["report"]
    error = book.run("report.raise_if_refused()").error
    assert isinstance(error, CheckError)
    assert error.code == "constant-size"


def test_a_batch_of_data(book: Notebook) -> None:
    book.good(
        "images, labels = np.ones([8, 3], 'float32'), np.ones([8], 'int64')\n"
        "data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)"
    )
    product = "tf.tensordot(labels, labels, 0) + tf.cast(images[0, 0], tf.int64)"
    for line in ("-d data --as images,labels", "--data images,labels --as images,labels"):
        report = book.good(f"%%tpu_check {line}\nassert images.shape[1:] == 3\n{product}").value
        assert [(problem.code, problem.line) for problem in report.errors] == [("x64-op", 3)]
    assert book.good("%%tpu_check -d data\nimages, labels = batch\nimages + 1.0").value.ok
    assert "there is no 'dta' in the notebook; did you mean 'data'?" in str(
        book.run("%%tpu_check -d dta\nbatch").error
    )


def test_a_cell_that_compiles(book: Notebook) -> None:
    report = checked(book, "y = x * 2\ny @ tf.transpose(y)")
    assert report == CheckReport()
    assert report.headline == "Compiles for a TPU."
    assert "was not asked" in str(report), "no TPU type was named for the compiler"
    assert "<table" not in report._repr_html_()


def test_a_check_runs_nothing_and_keeps_no_trace(book: Notebook) -> None:
    book.good("with strategy.scope():\n    v = tf.Variable(1.0)\nseen = []")
    checked(book, "v.assign_add(1.0)\nseen.append(1)\nx + v")
    assert book.good("float(v.numpy()), seen").value == (1.0, [])
    assert book.good("%%tpu_run\nv.assign_add(1.0)").error is None
    assert book.good("float(v.numpy())").value == 2.0
    assert "1" in book.good("%tpu_status").text


def test_figures(book: Notebook) -> None:
    book.good("a, w = tf.ones([4, 100]), tf.ones([100, 1000])")
    report = checked(book, "h = a * 1.0\nh @ w")
    assert report.ok
    warnings_by_code = {problem.code: problem for problem in report.warnings}
    assert set(warnings_by_code) == {"small-batch", "padding", "float32"}
    assert {problem.line for problem in report.warnings} == {3}
    assert "fills 50% of the 8 rows" in warnings_by_code["small-batch"].reason
    assert "wastes 62% of the multiply-adds" in warnings_by_code["padding"].reason
    assert "[4, 100] × [100, 1000]" in warnings_by_code["padding"].reason
    assert "100% of the 0.4 million" in warnings_by_code["float32"].reason


def test_html_is_escaped(book: Notebook) -> None:
    report = checked(book, "tf.strings.join(['<script>alert(1)</script>', '2'])")
    assert "<script" not in report._repr_html_()
    assert report.errors


def test_errors_of_the_cell_itself(book: Notebook) -> None:
    ran = book.run("%%tpu_check\ny = x * 2\ny @ y")
    assert "In the cell, line 3" in ran.text
    assert "Traceback" not in ran.text
    assert type(ran.error).__name__ == "ValueError"
    assert "Line 2" in book.run("%%tpu_check\ny = = x").text


def test_check_before_running(book: Notebook) -> None:
    ran = book.run("%%tpu_run --check\ny = tf.strings.as_string(x)")
    assert isinstance(ran.error, CheckError)
    assert "line 2" in ran.text or any("line 2" in shown["text/plain"] for shown in ran.shown)
    assert "y" not in book.shell.user_ns
    assert "Compiles for a TPU." in book.good("%%tpu_run --check\ny = x * 2").plain
    with warnings.catch_warnings():
        warnings.simplefilter("error", TpuWarning)  # the check's warning is not repeated
        wide = "tf.constant(1.5, tf.float64)"
        ran = book.good(f"%%tpu_run --check\ny = {wide} * tf.cast(x[0, 0], tf.float64)")
    assert ran.plain.count("is computed in float64") == 1
    assert "y" in book.shell.user_ns


def test_a_refused_run_shows_the_line_the_cause_and_the_fix_once(book: Notebook) -> None:
    ran = book.run("%%tpu_run\ny = x * 2\nz = tf.zeros([tf.cast(y[0, 0], tf.int32)])")
    assert type(ran.error).__name__ == "InvalidArgumentError"
    assert "---->   3 z = tf.zeros" in ran.text
    assert ran.text.count("Known error 27") == 1
    assert "must be a compile-time constant" in str(ran.error)


def test_a_data_dependent_size_is_a_warning_in_runs_and_checks(book: Notebook) -> None:
    cell = "z = tf.boolean_mask(x, x > 0)"
    report = checked(book, cell)
    assert report.ok
    assert [problem.code for problem in report.warnings] == ["dynamic-shape"]
    with pytest.warns(TpuWarning, match="pads it to its bound"):
        book.good(f"%%tpu_run\n{cell}")
    book.good("%tpu_connect --simulate 2 --lenient dynamic-shape")
    book.good(f"%%tpu_run\n{cell}")


def test_lenient_rules(book: Notebook) -> None:
    book.good("%tpu_connect --simulate 2 --lenient constant-size")
    assert book.run("%%tpu_run\ntf.zeros([tf.cast(x[0, 0], tf.int32)])").error is None
    assert book.run("%%tpu_run\ntf.strings.as_string(x)").error is not None
    book.good("%tpu_connect --simulate 2 --lenient")
    assert book.run("%%tpu_run\ntf.strings.as_string(x)").error is None
    ran = book.run("%tpu_connect --simulate 2 --lenient dynamic")
    assert "Did you mean 'dynamic-shape'?" in ran.text


def test_only_a_virtual_tpu_can_check(book: Notebook) -> None:
    book.good("import tpunb\nsingle = tf.distribute.OneDeviceStrategy('CPU:0')")
    ran = book.run("tpunb.check(tf.abs, x, strategy=single)")
    assert isinstance(ran.error, CheckError)
    assert "virtual TPU" in ran.text


STEP = """
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y)){}
total = ctx.all_reduce("sum", tape.gradient(loss, w))
w.assign_sub(0.1 * total)
"""


def test_an_undivided_loss(book: Notebook) -> None:
    book.good(
        "with strategy.scope():\n    w = tf.Variable(tf.ones([3, 1]))\n"
        "parts = np.random.rand(8, 3).astype('float32'), np.ones([8, 1], 'float32')\n"
        "data = tf.data.Dataset.from_tensor_slices(parts).batch(4, drop_remainder=True)"
    )
    line = "%%tpu_check -d data --as x,y --compare\n"
    report = book.good(line + STEP.format("")).value
    assert report.ok
    warning = report.warnings[0]
    assert (warning.code, warning.line) == ("undivided-loss", 4)
    assert "2.0 times" in warning.reason
    assert "`num_replicas`" in warning.fix
    assert report.comparison.factor == 2.0
    report = book.good(line + STEP.format(" / num_replicas")).value
    assert not report.warnings
    assert "On 2 replicas, the gradients equal" in str(report)
    assert "On 2 replicas, the gradients equal" in report._repr_html_()
    assert (book.shell.user_ns["w"].numpy() == 1).all()
    book.good("n, unused = 2, 2")
    known = book.good(line + STEP.format(" / num_replicas + 0.0 * unused")).value
    assert known.comparison.factor == 1.0
    kept = book.good(line + STEP.format(" / n")).value
    assert kept.comparison.factor == 2.0
    assert "a number in your code stands for it" in str(kept)
    refused = book.good(line + "tf.zeros([tf.cast(x[0, 0], tf.int32)])").value
    assert "so it was not run" in str(refused)
    alone = book.good("%%tpu_check --compare\ntf.matmul(tf.ones([2, 3]), w)").value
    assert "name its data with -d" in str(alone)
    plain = book.good("%%tpu_check -d data --as x,y\n" + STEP.format("")).value
    assert plain.comparison is None
    assert "Not checked: whether the loss is divided by the number of replicas (`--compare`)." in (
        str(plain)
    )
    assert "Not checked" not in str(book.good("%%tpu_check -d data --as x,y\nx + 1").value)
