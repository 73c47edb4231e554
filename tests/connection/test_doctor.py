"""`tpunb.doctor()`, `%tpu_doctor` and `tpunb doctor`: one report, three ways to get it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import output_of
from counterparts.machines import accel, lock_table, pci, process, vfio
from counterparts.metadata import MetadataServer, tpu_vm
from support.shell import Notebook

import tpunb
from tpunb import cli
from tpunb.compiler.ask import environment, libtpu
from tpunb.compiler.program import CompilerUnavailableError
from tpunb.connection import tpu_connection
from tpunb.connection.doctor import DoctorReport
from tpunb.machine import chips, software
from tpunb.machine import metadata_server as metadata
from tpunb.machine.setup import SHOWN

SECRETS = {
    "GOOGLE_API_KEY": "AIzaSyD-planted1234567890abcdefghijklmn",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "HF_TOKEN": "hf_plantedplantedplantedplantedplant",
    "KAGGLE_KEY": "0123456789abcdef0123456789abcdef",
    "OPENAI_API_KEY": "sk-proj-planted-planted-planted",
    "DB_PASSWORD": "correct horse battery staple",
    "COLAB_JUPYTER_TOKEN": "planted-jupyter-token",
}
"""Secrets in the environment, which must not be shown."""

HIDDEN = (
    *SECRETS.values(),
    "planted",
    "s3cr3t",
    "hunter2",
    "abcdefplant",
    "correct horse",
)
LEAKS = {
    **SECRETS,
    "TPU_NAME": "grpc://user:s3cr3t-of-the-tpu@10.0.0.2:8470",
    "https_proxy": "http://me:hunter2@proxy.example:3128",
    "XLA_FLAGS": "--xla_dump_to=/tmp/x --api_token=abcdefplant --y=" + SECRETS["HF_TOKEN"],
    "LIBTPU_INIT_ARGS": f"--a={SECRETS['KAGGLE_KEY']} --b={SECRETS['DB_PASSWORD']}",
    "TPU_CONFIG": json.dumps({"tpu_node_name": "n", "token": "planted-in-json"}),
    "GCE_METADATA_HOST": "user:s3cr3t-of-metadata@127.0.0.1",
    "KERAS_BACKEND": SECRETS["HF_TOKEN"],
    "TPUNB_TPU": "grpc://user:s3cr3t-default@host:1",
}


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without TPUs, about which nothing is known."""
    for name in (*SHOWN, "KAGGLE_URL_BASE"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(chips, "ROOT", root)
    monkeypatch.setattr(tpu_connection, "_opened", [])
    metadata.forget()
    yield root
    metadata.forget()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the installed versions, which a test may change."""
    versions = {"tensorflow-tpu": "2.20.0", "keras": "3.12.0"}
    monkeypatch.setattr("importlib.metadata.version", versions.get)
    monkeypatch.setattr(software, "unmet", lambda *_, **__: ())
    monkeypatch.setattr(software, "_pythons", lambda versions: ())
    monkeypatch.setattr(software, "is_importable", lambda module: False)
    # The tests themselves may have imported other versions.
    monkeypatch.setattr(software, "_imported", lambda module: None)
    return versions


KEYS = {
    "connect", "devices", "environment", "holding", "memory", "next", "ok", "platform", "problems", "software", "tpu", "tpunb",
}  # fmt: skip


def test_a_plain_machine(installed: dict[str, str]) -> None:
    report = tpunb.doctor()
    assert isinstance(report, DoctorReport)
    assert report.ok
    assert report.next_step == "%tpu_connect --simulate v5e-8"
    assert report.prospect.kind == "virtual"
    values_by_key = report.as_dict()
    assert values_by_key.keys() == KEYS
    assert json.loads(json.dumps(values_by_key)) == values_by_key
    assert values_by_key["tpu"]["found"] is None
    assert values_by_key["tpu"]["tried"][0] == "no TPU device in /dev"
    assert values_by_key["connect"]["says"] == "simulate a v5e-8, because no TPU was found"
    assert values_by_key["software"]["versions"] == installed
    text = str(report)
    assert text == repr(report)
    assert text.startswith("TPU doctor: no problems found\n\nWhere\n")
    assert text.endswith("Next\n  %tpu_connect --simulate v5e-8")
    # Names are in one column, values are in another, and lines are short enough.
    values = {line.index("3.12.0") for line in text.splitlines() if "keras" in line}
    values |= {line.index("2.20.0") for line in text.splitlines() if "tensorflow-tpu" in line}
    assert len(values) == 1
    assert max(map(len, text.splitlines())) <= 96


def test_problems_to_fix(bare: Path, installed: dict[str, str]) -> None:
    vfio(bare, [0], "0x0063")
    installed.clear()
    installed["tensorflow-cpu"] = "2.21.0"
    report = tpunb.doctor()
    assert not report.ok
    assert report.headline == "TPU doctor: 1 problem to fix first"
    assert report.next_step == 'pip uninstall -y tensorflow-cpu && pip install "tpunb[tpu]"'
    assert report.prospect.kind == "hardware"
    assert "currently blocked" in report.prospect.says
    assert "and simulate a v5e-8" in report.prospect.says
    installed.clear()
    nothing = tpunb.doctor()
    assert nothing.next_step == 'pip install "tpunb[tpu]"'
    assert nothing.prospect.kind == "error"
    assert "TensorFlow is not installed" in str(nothing)


def test_jax_users_need_not_install_tensorflow_first(
    bare: Path, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.clear()
    installed["jax"] = "0.10.2"
    error = CompilerUnavailableError("It is not installed.", fix="install it")
    monkeypatch.setattr(libtpu, "why_unavailable", lambda: None)
    for _ in range(2):
        report = tpunb.doctor()
        assert report.ok
        assert report.headline == "TPU doctor: no problems found"
        assert report.next_step == "%%tpu_compile --for v5e-8"
        assert "would fail: TensorFlow is not installed; for JAX, add --framework jax" in str(
            report
        )
        (known,) = [problem for problem in report.problems if problem.about == "tensorflow"]
        assert "JAX works without TensorFlow" in known.message
        assert "%tpu_connect" in known.message
        assert "%tpu_connect" not in known.fix
        assert "%%tpu_profile" in known.fix
        vfio(bare, [0], "0x0063")  # not on a TPU either
    monkeypatch.setattr(libtpu, "why_unavailable", lambda: error)
    report = tpunb.doctor()
    assert report.next_step == "tpunb compiler install"
    assert "Next, in a terminal (or in a cell, with ! before it)" in str(report)


def test_jax_alone_has_a_virtual_tpu_or_that_of_the_machine(
    bare: Path, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.clear()
    installed["jax"] = "0.10.2"
    monkeypatch.setattr("tpunb.connection.plan.framework_for", lambda *_: ("jax", ""))
    report = tpunb.doctor()
    assert (report.prospect.kind, report.prospect.says) == ("virtual", "simulate a v5e-8 for JAX")
    vfio(bare, [0], "0x0063")
    report = tpunb.doctor()
    assert report.prospect.kind == "hardware"
    assert "use the TPU of this machine (local) for JAX" in str(report)
    installed["jax"] = "0.6.2"  # too old for a virtual TPU; the compiler is another process
    (known,) = report.machine.software.problems(local_tpu=True)
    assert "%%tpu_compile" in known.message


@pytest.mark.parametrize(("jax", "older"), [("0.12.0.1", True), ("0.10.2", False), (None, False)])
def test_a_compiler_that_is_older_than_jax(
    jax: str | None,
    older: bool,
    bare: Path,
    installed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del bare
    installed |= {"jax": jax} if jax else {}
    found = environment.Environment(Path(), sys.executable, {"jax": "0.10.2"})
    monkeypatch.setattr(environment, "find", lambda: found)
    monkeypatch.delenv(libtpu.PYTHON, raising=False)
    rows = [problem for problem in tpunb.doctor().problems if problem.about == "compiler"]
    assert bool(rows) is older
    for row in rows:
        assert row.message == "The compiler has JAX 0.10.2, which is older."
        assert "tpunb compiler install --python python3.12" in row.fix
        assert not row.stops


def test_a_pinned_image_on_kaggle(
    bare: Path, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del bare, installed
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    rows = [problem for problem in tpunb.doctor().problems if problem.about == "device"]
    assert ['"docker_image" from kernel-metadata.json' in row.fix for row in rows] == [True]


def test_a_tpu_in_use(bare: Path, installed: dict[str, str]) -> None:
    accel(bare, 1)
    lock = bare / "tmp/libtpu_lockfile"
    lock.parent.mkdir()
    lock.touch()
    process(
        bare,
        4711,
        ["/opt/python3", "-m", "ipykernel_launcher", "--token=hunter2"],
        [str(bare / "dev/accel0")],
    )
    lock_table(bare, (4711, lock))
    report = tpunb.doctor()
    assert report.next_step.endswith("kill 4711")
    text = str(report)
    assert "process 4711 (a Jupyter kernel)" in text
    assert "Shut down that kernel in Jupyter" in text
    assert "hunter2" not in text + json.dumps(report.as_dict())


def test_the_next_step_names_its_place(bare: Path, installed: dict[str, str]) -> None:
    installed.clear()
    report = tpunb.doctor()
    where = "Next, in a terminal (or in a cell, with ! before it)"
    assert str(report).endswith(f'{where}\n  pip install "tpunb[cpu]"')
    assert f"{where}: <code" in report._repr_html_()


def test_a_variable_without_a_tpu(
    bare: Path, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leftover variable on a laptop must not lead to advice to install another TensorFlow."""
    installed.clear()
    installed["tensorflow-cpu"] = "2.21.0"
    monkeypatch.setenv("TPU_NAME", "local")
    report = tpunb.doctor()
    assert [problem.about for problem in report.problems] == ["TPU_NAME"]
    assert report.next_step.startswith("Unset TPU_NAME")


def test_the_metadata_server_is_asked_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accel(bare)
    with MetadataServer(tpu_vm()) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        tpunb.doctor()
        assert len(server.requests) == len(set(server.requests)) > 0


def test_a_worker_of_a_slice(
    bare: Path, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    accel(bare)
    # The TPU's own worker runs as it should, so the report does not suggest ending it.
    process(bare, 4711, ["tpu-runtime"], [str(bare / "dev/accel0")])
    with MetadataServer(tpu_vm("v3-32", workers=("10.0.0.2", "10.0.0.3"), worker=1)) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        report = tpunb.doctor()
    assert report.prospect.tpu == "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470"
    assert "v3-32, number 1 of 2 workers" in str(report)
    assert report.as_dict()["tpu"]["slice"]["workers"] == ["10.0.0.2", "10.0.0.3"]
    assert report.next_step == "%tpu_connect"
    assert report.ok
    assert "in use by" in str(report)


@pytest.mark.parametrize(
    ("variables", "kind", "message"),
    [
        ({"TPUNB_TPU": "v3-8"}, "virtual", "simulate a v3-8, which TPUNB_TPU names"),
        ({"TPUNB_TPU": "grpc://h:1"}, "hardware", "connect to grpc://h:1, which TPUNB_TPU names"),
        (
            {"TPU_NAME": "my-tpu"},
            "hardware",
            "connect to my-tpu, and simulate a v5e-8 if it cannot be used",
        ),
        ({"TPUNB_REQUIRE_TPU": "1"}, "error", "This machine has no TPU"),
        (
            {"TPUNB_TPU": "v3-8", "TPUNB_REQUIRE_TPU": "1"},
            "error",
            "TPUNB_TPU requests a virtual TPU",
        ),
    ],
    ids=["type", "address", "name", "required", "contradiction"],
)
def test_the_report_predicts_the_connection(
    installed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    kind: str,
    message: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    report = tpunb.doctor()
    assert report.prospect.kind == kind
    assert message in report.prospect.says
    assert report.ok is (kind != "error")
    assert ("would fail: " in str(report)) is (kind == "error")
    if kind == "error":
        assert report.problems[0].fix
        assert not report.problems[0].message.startswith("fail")
        assert report.next_step == report.problems[0].fix
    else:
        assert report.next_step == "%tpu_connect"


def test_secrets_are_not_shown(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in LEAKS.items():
        monkeypatch.setenv(name, value)
    accel(bare, 1)
    process(
        bare,
        4711,
        [f"/opt/{SECRETS['HF_TOKEN']}", "--key", SECRETS["GOOGLE_API_KEY"]],
        [str(bare / "dev/accel0")],
    )
    for omitted in ((), ("TPUNB_TPU",), ("TPUNB_TPU", "TPU_NAME")):
        for name in omitted:
            monkeypatch.delenv(name, raising=False)
        report = tpunb.doctor()
        cli.main(["doctor"])
        cli.main(["doctor", "--json"])
        out = capsys.readouterr()
        outputs = [
            str(report), report._repr_html_(), repr(vars(report)), repr(report.problems), json.dumps(report.as_dict()), report.next_step, report.headline,
            repr(report.machine), *report.machine.search.tried, *report.machine.search.notes, out.out, out.err,
        ]  # fmt: skip
        for output in outputs:
            for secret in HIDDEN:
                assert secret not in output
    assert "TPU_NAME" not in report.as_dict()["environment"]
    assert report.as_dict()["environment"]["https_proxy"] == "http://***@proxy.example:3128"


def test_variables_that_are_not_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", os.fsdecode(b"\xff-tpu"))
    monkeypatch.setenv("XLA_FLAGS", "--x " * 100)
    report = tpunb.doctor()
    for output in (str(report), report._repr_html_(), report.next_step):
        output.encode("ascii")  # some terminals support only ASCII
    assert json.dumps(report.as_dict(), ensure_ascii=False).encode()
    assert report.as_dict()["tpu"]["found"] == "?-tpu"


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html(bare: Path, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "<script>alert('x')</script>\" onload=\"y")
    pci(bare, "0x0063")
    page = tpunb.doctor()._repr_html_()
    table = Tags(page)
    assert set(table.tags) == {"div", "span", "table", "tbody", "tr", "th", "td", "code"}
    assert "<script>alert('x')</script>\" onload=\"y" in table.texts
    assert "TPU doctor: 1 problem to fix first" in table.texts
    assert "Software" in table.texts
    # Readable on light and dark pages.
    assert page.count("color:") == page.count("color:inherit") > 0


def test_the_command(installed: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tpunb.doctor()}\n"
    assert not captured.err
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    installed.clear()
    assert cli.main(["doctor", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["next"] == 'pip install "tpunb[cpu]"'
    assert "1 problem to fix first" in captured.err


def test_the_magic(tmp_path: Path) -> None:
    book = Notebook(tmp_path)
    try:
        book.good("%load_ext tpunb")
        ran = book.good("report = %tpu_doctor\nreport")
        assert isinstance(ran.value, DoctorReport)
        assert "TPU doctor:" in ran.plain
        assert json.loads(repr(book.good("%tpu_doctor --json").value)).keys() == KEYS
        assert repr(book.good("%tpu_doctor --last").value) == "No known error so far."
        book.run("raise RuntimeError('Please provide a TPU Name to connect to')")
        assert book.good("%tpu_doctor --last").value.code == "1"
        assert book.run("%tpu_doctor --wrong").error is not None
    finally:
        book.close()


ALONE = """
import sys, tpunb
report = tpunb.doctor()
str(report), report.as_dict()
print(sorted({"tensorflow", "numpy", "grpc", "IPython"} & set(sys.modules)))
"""


def test_the_report_imports_few_modules() -> None:
    assert output_of(ALONE) == "[]\n"


def test_a_slow_metadata_server_within_the_time_limit(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accel(bare)
    with MetadataServer(tpu_vm(), "trickles") as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        report = tpunb.doctor()
    assert report.machine.search.tpu == "local"
