"""`%tpu_connect`, `%tpu_disconnect`, `%tpu_status` and `%tpu_topology` on an IPython shell."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counterparts.ports import mute, refusing
from IPython.core.error import UsageError
from support.shell import Notebook, Ran

import tpunb
from tpunb.display.widgets import frontend
from tpunb.errors import (
    AcceleratorTypeError,
    ComputationShapeError,
    ConnectError,
    NotConnectedError,
    TpunbError,
    VirtualDevicesError,
)
from tpunb.machine import chips
from tpunb.notebook.magics import TpuMagics
from tpunb.tensorflow.connection import hardware
from tpunb.virtual.installation import current

pytestmark = pytest.mark.usefixtures("tf")

OPENING = ["%load_ext tpunb"]
MADE = {"strategy", "resolver", "topology", "connection"}


@pytest.fixture
def book(book: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A shell with the extension, on a machine without a TPU."""
    monkeypatch.setattr(chips, "ROOT", tmp_path)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "*")
    yield book
    book.good("%unload_ext tpunb")
    assert current() is None


def refused(book: Notebook, line: str, kind: type[BaseException], words: str = "") -> Ran:
    """Run a line that must fail with a short message."""
    ran = book.run(line)
    assert type(ran.error) is kind, ran.text
    assert words in str(ran.error)
    assert "Traceback" not in ran.text
    assert len(ran.text.strip().splitlines()) <= 3
    if isinstance(ran.error, TpunbError):
        assert ran.error.fix
        assert str(ran.error) in ran.text
    return ran


def test_without_a_tpu_the_connection_is_virtual(book: Notebook) -> None:
    connection = book.good("connection = %tpu_connect\nconnection")
    assert repr(connection.value) == "<connection to virtual TPU v5e-8, 8 replicas>"
    assert "No TPU was found (no TPU device in /dev; TPU_NAME is not set;" in connection.plain
    assert "this is a virtual v5e-8" in connection.plain
    assert "<script" not in connection.shown[-1]["text/html"]
    # An assignment suppresses the connection's own display.
    assert connection.shown[0]["text/plain"].startswith("virtual TPU v5e-8 (simulated on CPU) · 8")
    strategy = book.names["strategy"]
    assert strategy.num_replicas_in_sync == 8
    assert connection.value.strategy is strategy
    assert connection.value.resolver is book.names["resolver"]
    assert connection.value.topology is book.names["topology"]
    assert isinstance(
        strategy, book.good("import tensorflow as tf; tf.distribute.TPUStrategy").value
    )


def test_a_failed_connection_leaves_the_open_connection(book: Notebook) -> None:
    connection = book.good("%tpu_connect --simulate 2").value
    ran = book.run("%tpu_connect --simulate v3-9")
    assert isinstance(ran.error, TpunbError)
    assert "The connection to virtual TPU 2 cores, 2 replicas, stays open." in ran.plain
    assert book.session.connection is connection
    assert book.names["connection"] is connection
    doctor = book.good("%tpu_doctor").value
    assert doctor.connected == "virtual TPU 2 cores, 2 replicas"
    assert doctor.next_step == "%tpu_status" or not doctor.ok


def test_the_last_error_belongs_to_its_connection(book: Notebook) -> None:
    book.good("%tpu_connect --simulate 2")
    assert book.run("%%tpu_run\n1 / 0").error is not None
    assert "ZeroDivisionError" in book.good("%tpu_status").plain
    book.good("%tpu_connect --simulate 4")
    assert "ZeroDivisionError" not in book.good("%tpu_status").plain


@pytest.mark.parametrize(
    "line", ["c = %tpu_connect --simulate v3-8", "%tpu_connect --simulate v3-8"]
)
def test_connecting_shows_each_fact_once(
    book: Notebook, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The introduction comes first, and the connection itself shows no more as a cell's value."""
    monkeypatch.setattr(frontend, "is_kernel", lambda: True)
    ran = book.good(line)
    introduction, topology = ran.shown[:2]
    assert introduction["text/plain"] == "virtual TPU v3-8 (simulated on CPU) · 8 replicas"
    assert introduction["text/html"].index("virtual TPU v3-8") < introduction["text/html"].index(
        "8 replicas"
    )
    assert topology.keys() == {"text/plain", "text/html"}
    assert topology["text/plain"].startswith("v3-8 · 4 chips · 8 cores")
    assert ran.text == ""
    again = book.good("connection")
    assert again.shown[-1].keys() == {"text/plain", "text/html"}
    assert "virtual TPU v3-8 (simulated on CPU)\n  replicas  8" in again.text


def test_a_terminal_has_the_connections_name_behind_its_out(book: Notebook) -> None:
    ran = book.good("%tpu_connect --simulate v3-8")
    assert ran.text == "<connection to virtual TPU v3-8, 8 replicas>\n"


def test_replicas_of_several_cores_are_described(book: Notebook) -> None:
    ran = book.good("%tpu_connect --simulate v3-8 --computation-shape 1,1,1,2")
    introduction, topology = ran.shown[:2]
    # The replicas are described below.
    assert introduction["text/plain"] == "virtual TPU v3-8 (simulated on CPU)"
    assert "4 replicas of 2 logical devices" in topology["text/plain"]
    assert "replica" not in introduction["text/html"]


@pytest.mark.parametrize(
    ("options", "replicas", "devices"),
    [
        ("--simulate", 8, 1),
        ("--simulate 3", 3, 1),
        ("--simulate v3-8 --computation-shape 1,1,1,2", 4, 2),
        ("--simulate v3-8 --computation-shape [1,1,1,2]", 4, 2),
        ("--simulate v3-8 --computation-shape '1, 1, 1, 2'", 4, 2),
        ('--simulate "V3-8" --timeout 5', 8, 1),
    ],
)
def test_options(book: Notebook, options: str, replicas: int, devices: int) -> None:
    connection = book.good(f"%tpu_connect {options}").value
    assert connection.strategy.num_replicas_in_sync == replicas
    assert connection.describe().logical_devices == devices
    result = connection.run_cell("replica_id", {})
    assert len(connection.strategy.experimental_local_results(result.value)) == replicas


def test_options_match_connect() -> None:
    parser = TpuMagics.tpu_connect.parser  # type: ignore[attr-defined]
    defaults = {action.dest: action.default for action in parser._actions}
    assert defaults.pop("name") == "strategy"
    parameters = inspect.signature(tpunb.connect).parameters
    only = {"replicas", "spmd", "at_once", "joined", "zone", "project"}
    shared = {name: p.default for name, p in parameters.items() if name not in only}
    assert defaults == shared
    assert list(defaults) == list(shared)
    assert "(default: 60)" in str(TpuMagics.tpu_connect.__doc__)


def test_the_option_as(book: Notebook) -> None:
    book.good("%tpu_connect --simulate 2 --as other")
    assert {"other", "resolver", "topology"} <= book.names.keys()
    assert "strategy" not in book.names
    ran = book.good("%tpu_connect --simulate 2 --as strategy")
    assert "Already connected" in ran.plain
    assert book.names["strategy"] is book.names["other"]
    book.good("%tpu_disconnect")
    assert not book.names.keys() & {*MADE, "other"}


@pytest.mark.parametrize("name", ["3x", "a.b", "class", "None", "''", "a-b"])
def test_the_option_as_needs_a_name(book: Notebook, name: str) -> None:
    refused(book, f"%tpu_connect --simulate 2 --as {name}", UsageError)
    assert not book.names.keys() & MADE


@pytest.mark.parametrize(
    ("value", "name"), [("v3-8", "v3-8"), (" 2 ", "2 cores"), ("V5LITEPOD-4", "v5e-4")]
)
def test_default_from_the_environment(
    book: Notebook, monkeypatch: pytest.MonkeyPatch, value: str, name: str
) -> None:
    monkeypatch.setenv("TPUNB_TPU", value)
    ran = book.good("%tpu_connect")
    assert ran.value.tpu == name
    assert "TPUNB_TPU requests this virtual TPU." in ran.plain
    refused(book, "%tpu_connect --require-tpu", ConnectError, "TPUNB_TPU")
    assert book.good("%tpu_connect --simulate 3").value.tpu == "3 cores"


def test_hardware_from_the_environment(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUNB_TPU", "grpc://127.0.0.1:1")
    refused(book, "%tpu_connect", ConnectError, "127.0.0.1:1")


def test_a_required_tpu(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = refused(book, "%tpu_connect --require-tpu", ConnectError, "This machine has no TPU")
    assert isinstance(ran.error, ConnectError)
    assert ran.error.tried[0] == "no TPU device in /dev"
    monkeypatch.setenv("TPUNB_REQUIRE_TPU", "1")
    refused(book, "%tpu_connect", ConnectError, "a TPU is required")
    refused(book, "%tpu_connect --simulate 2", ConnectError, "real TPU is required")
    monkeypatch.setenv("TPUNB_REQUIRE_TPU", "0")
    book.good("%tpu_connect --simulate 2")


WRONG = [
    ("--simulate v5e-9", AcceleratorTypeError, "v5e-8"),
    ("--simulate v3", AcceleratorTypeError, "v3-8"),
    ("--simulate 0", AcceleratorTypeError, "0 cores"),
    ("--simulate -3", AcceleratorTypeError, "-3 cores"),
    ("--simulate abc", AcceleratorTypeError, "abc"),
    ("--simulate ''", AcceleratorTypeError, ""),
    ("--simulate <b>", AcceleratorTypeError, "<b>"),
    ("v3-8", ConnectError, "--simulate v3-8"),
    ("8", ConnectError, "is a TPU type"),
    ("my-tpu --simulate v3-8", ConnectError, "not both"),
    ("--require-tpu --simulate v3-8", ConnectError, "real TPU is required"),
    ("--simulate v3-8 --computation-shape 1,1,1,3", ComputationShapeError, "2×2×1×2"),
    ("--simulate v3-8 --computation-shape 1,1,2", ComputationShapeError, "2×2×1×2"),
    ("--simulate v3-8 --computation-shape 1,1,1,1,1", ComputationShapeError, "four"),
    ("--simulate v3-8 --computation-shape 1,1,1,0", ComputationShapeError, "four positive"),
    ("--simulate v3-8 --computation-shape=-1,1,1,1", ComputationShapeError, "four positive"),
    ("--simulate v3-8 --computation-shape 1,1,1,a", UsageError, "1,1,1,2"),
    ("--simulate v3-8 --computation-shape ''", UsageError, "1,1,1,2"),
    ("--simulate v3-8 --computation-shape", UsageError, "--computation-shape needs a value"),
    ("--simulate v3-8 --at-once 2", UsageError, "unrecognized"),
    ("--simulate 2 --timeout x", UsageError, "invalid float"),
    ("--simulate 2 --timeout 0", ConnectError, "timeout"),
    ("--simulate 2 --timeout nan", ConnectError, "timeout"),
    ("--simulate 2 --timeout 1e300", ConnectError, "timeout"),
    ("--nothing", UsageError, "unrecognized"),
    ("a b", UsageError, "unrecognized"),
    ("--simulate 'v3-8", UsageError, "quotation"),
    ("local", ConnectError, "sees no TPU"),
    ("my-tpu --timeout 5", ConnectError, "TPU my-tpu"),
    ("grpc://127.0.0.1:1", ConnectError, "127.0.0.1:1"),
    ("grpc://127.0.0.1:99999", ConnectError, "is not an address"),
    ("grpc://127.0.0.1:port", ConnectError, "is not an address"),
    ("grpc://", ConnectError, "is not an address"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "words"), WRONG)
def test_impossible_requests(
    book: Notebook, options: str, kind: type[BaseException], words: str
) -> None:
    refused(book, f"%tpu_connect {options}", kind, words)
    assert not book.names.keys() & MADE


def test_an_impossible_request_leaves_the_connection(book: Notebook) -> None:
    connection = book.good("%tpu_connect --simulate 2").value
    for options in ("--simulate v5e-9", "local", "--simulate 2 --computation-shape 3,1,1,1"):
        assert book.run(f"%tpu_connect {options}").error is not None
    assert not connection.closed
    assert book.good("%%tpu_run\nreplica_id").error is None
    assert book.names["strategy"] is connection.strategy


def test_more_cores_than_the_process_has(book: Notebook) -> None:
    ran = refused(book, "%tpu_connect --simulate 1024", VirtualDevicesError, "Restart the kernel")
    assert "1024" in str(ran.error)
    book.good("%tpu_connect --simulate 2")
    book.good("%%tpu_run\nreplica_id")


def test_local_without_a_tpu(book: Notebook) -> None:
    error = book.run("%tpu_connect local").error
    assert isinstance(error, ConnectError)
    assert error.tried[-1] == "TensorFlow lists 0 TPU devices"
    assert "--simulate" in error.fix


def test_every_worker_is_tried(book: Notebook) -> None:
    with refusing() as dead, mute() as silent:
        line = f"%tpu_connect grpc://{dead},grpc://{silent} --timeout 0.5"
        ran = refused(book, line, ConnectError, "worker")
    assert isinstance(ran.error, ConnectError)
    attempts = "\n".join(ran.error.tried)
    assert dead in attempts
    assert silent in attempts


def test_connecting_to_the_same_tpu_again(book: Notebook) -> None:
    first = book.good("%tpu_connect").value
    ran = book.good("%tpu_connect")
    assert ran.value is first
    assert ran.plain.startswith("Already connected: the connection is used again.")
    # The same request in another form.
    assert book.good("%tpu_connect --simulate v5litepod-8 --timeout 9").value is first
    del book.names["strategy"]
    book.good("%tpu_connect")
    assert book.names["strategy"] is first.strategy


def test_connecting_to_another_tpu(book: Notebook) -> None:
    first = book.good("%tpu_connect --simulate 2 --as before").value
    ran = book.good("%tpu_connect --simulate 3")
    assert ran.plain.startswith("The connection to 2 cores is closed: models, variables")
    assert first.closed
    assert "before" not in book.names
    assert book.names["strategy"].num_replicas_in_sync == 3


def test_connecting_again_after_closing(book: Notebook) -> None:
    first = book.good("%tpu_connect --simulate 2").value
    first.close()
    assert "Not connected" in book.good("%tpu_status").plain
    ran = book.good("%tpu_connect --simulate 2")
    assert ran.value is not first
    assert "closed" not in ran.plain


def test_names_of_the_notebook_stay(book: Notebook) -> None:
    book.good("topology = [1, 2]\nresolver = 'mine'")
    ran = book.good("%tpu_connect --simulate 2")
    assert book.names["topology"] == [1, 2]
    assert book.names["resolver"] == "mine"
    assert "`topology` stays a list and `resolver` stays a str" in ran.plain
    assert "`connection.topology` and `connection.resolver`" in ran.plain
    assert book.names["connection"].topology is ran.value.topology
    book.good("del topology")
    ran = book.good("%tpu_connect --simulate 3")  # the notebook's own name is kept
    assert book.names["topology"] is ran.value.topology
    assert "`resolver` stays a str" in ran.plain
    assert "`topology`" not in ran.plain
    book.good("%tpu_disconnect")
    assert book.names.keys() & MADE == {"resolver"}


def test_a_new_connection_takes_over_the_names(book: Notebook) -> None:
    for count in (2, 3):
        ran = book.good(f"%tpu_connect --simulate {count}")
        assert "stays" not in ran.plain
        assert book.names["topology"] is ran.value.topology
    reconnected = book.good("%tpu_connect --simulate 3")
    assert "stays" not in reconnected.plain
    book.good("saved = topology\ntopology = 3")
    assert "`topology` stays an int" in book.good("%tpu_connect --simulate 3").plain
    book.good("topology = saved")
    assert "stays" not in book.good("%tpu_connect --simulate 3").plain


def test_a_connection_without_its_name(book: Notebook) -> None:
    book.good("connection, topology = 1, 2")
    ran = book.good("%tpu_connect --simulate 2")
    assert "after `tpu = %tpu_connect …`: `tpu.topology`." in ran.plain
    book.good("tpu = %tpu_connect --simulate 2")
    assert book.names["tpu"] is ran.value


def test_the_name_of_the_strategy(book: Notebook) -> None:
    book.good("strategy = 'greedy'")
    ran = book.good("%tpu_connect --simulate 2")
    assert "`strategy` was a str and is the strategy now: %tpu_connect --as NAME" in ran.plain
    assert book.names["strategy"] is ran.value.strategy
    book.good("import tensorflow as tf\nstrategy = tf.distribute.get_strategy()")
    assert "is the strategy now" not in book.good("%tpu_connect --simulate 2").plain
    ran = book.good("%tpu_connect --simulate 2 --as topology")
    assert book.names["topology"] is ran.value.strategy


def test_disconnect(book: Notebook) -> None:
    assert "There is no connection to close." in book.good("%tpu_disconnect").plain
    connection = book.good("%tpu_connect --simulate 2").value
    book.good("topology = 'mine'")
    assert book.good("%tpu_disconnect").shown == []
    assert connection.closed
    assert book.names.keys() & MADE == {"topology"}
    assert book.names["topology"] == "mine"
    assert "There is no connection to close." in book.good("%tpu_disconnect").plain
    refused(book, "%tpu_disconnect now", UsageError)


def test_disconnecting_after_closing(book: Notebook) -> None:
    book.good("%tpu_connect --simulate 2").value.close()
    assert "There is no connection to close." in book.good("%tpu_disconnect").plain
    assert not book.names.keys() & MADE


def test_a_cell_magic_below_the_first_line(book: Notebook) -> None:
    refused(book, "x = 1\n%%tpu_run\ny = 2", UsageError, "the first line of its cell")


@pytest.mark.parametrize(
    ("cell", "suggestion"),
    [
        ("%tpu_conect --simulate 2", "Did you mean `%tpu_connect`?"),
        ("%%tpu_rn\nx = 1", "Did you mean `%%tpu_run`?"),
        ("%tpu_connect --simulat 2", "did you mean --simulate?"),
        ("%tpu_connect simulate v3-8", "did you mean --simulate v3-8?"),
        ("%tpu_connect simulate", "simulate is an option: did you mean --simulate?"),
        ("%tpu_connect Simulate=2", "did you mean --simulate=2?"),
        ("%tpu_connect --simulate 4 timeout 2", "did you mean --simulate 4 --timeout 2?"),
        ("%%tpu_run steps 2\nx = 1", "did you mean --steps 2?"),
        ("%%tpu_run --step 2\nx = 1", "did you mean --steps?"),
    ],
)
def test_misspelled_words(book: Notebook, cell: str, suggestion: str) -> None:
    ran = book.run(cell)
    assert isinstance(ran.error, UsageError)
    assert suggestion in ran.text
    assert not book.names.keys() & MADE


def test_other_missing_magics_get_no_suggestion(book: Notebook) -> None:
    assert "Did you mean" not in book.run("%timit 1").text


def test_the_help_of_a_magic_starts_with_its_name(book: Notebook) -> None:
    tables = book.shell.magics_manager.magics
    for kind, name, title in (("cell", "tpu_run", "%%tpu_run"), ("line", "tpu_status", "%tpu_")):
        assert tables[kind][name].__doc__.split()[1].startswith(title)


@dataclasses.dataclass
class Fake:
    """A stand-in for hardware, which records what was done to it."""

    made: Any
    fails: bool = False
    tried: int = 0
    shut_down: list[Any] = dataclasses.field(default_factory=list)

    def connect(self, request: Any, progress: Any) -> Any:
        progress("initialising the TPU system")
        self.tried += 1
        if self.fails:
            raise ConnectError("the worker\nis gone")
        return self.made

    def disconnect(self, resolver: Any) -> None:
        self.shut_down.append(resolver)


@pytest.fixture
def fake(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> Fake:
    virtual = book.good("%tpu_connect --simulate 2").value
    book.good("%tpu_disconnect")
    hardware_fake = Fake((virtual.strategy, object(), virtual.topology, None))
    monkeypatch.setattr(hardware, "connect", hardware_fake.connect)
    monkeypatch.setattr(hardware, "disconnect", hardware_fake.disconnect)
    monkeypatch.setattr(hardware, "lost", lambda resolver: ())
    return hardware_fake


def test_hardware(book: Notebook, fake: Fake) -> None:
    ran = book.good("%tpu_connect local")
    assert repr(ran.value) == "<connection to TPU local, 2 replicas>"
    assert "TPU hardware" in ran.plain
    book.good("%tpu_disconnect")
    assert fake.shut_down == [fake.made[1]]


def test_reconnecting_to_the_same_hardware_does_not_shut_it_down(
    book: Notebook, fake: Fake
) -> None:
    first = book.good("%tpu_connect local").value
    second = book.good("%tpu_connect local --computation-shape 1,1,1,1").value
    assert first.closed
    assert second is not first
    assert fake.shut_down == [], "the new connection uses the same TPU system"
    book.good("%tpu_connect --simulate 2")
    assert len(fake.shut_down) == 1


def test_a_virtual_tpu_replaces_failing_hardware(
    book: Notebook, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.fails = True
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    # A warning, because `c = %tpu_connect` shows no summary.
    with pytest.warns(UserWarning, match="this is a virtual v5e-8"):
        ran = book.good("%tpu_connect")
    assert ran.value.tpu == "v5e-8"
    assert "The TPU found here cannot be used (the worker is gone)" in ran.plain
    with pytest.warns(UserWarning, match="this is a virtual v5e-8"):
        again = book.good("%tpu_connect")
    assert (again.value is ran.value, fake.tried) == (True, 2)
    assert "Already connected" in again.plain
    assert isinstance(book.run("%tpu_connect --require-tpu").error, ConnectError)
    assert isinstance(book.run("%tpu_connect my-tpu").error, ConnectError)
    fake.fails = False
    assert book.good("%tpu_connect").value.kind == "hardware"


def test_topology(book: Notebook) -> None:
    refused(book, "%tpu_topology", NotConnectedError)
    ran = book.good("%tpu_topology v4-32")
    assert ran.plain.startswith("v4-32 · 16 chips")
    assert ran.shown[0].keys() == {"text/plain", "text/html"}
    refused(book, "%tpu_topology v4-33", AcceleratorTypeError, "v4-32")
    refused(book, "%tpu_topology a b", UsageError)
    book.good("%tpu_connect --simulate v3-8 --computation-shape 1,1,1,2")
    assert "4 replicas of 2 logical devices" in book.good("%tpu_topology").plain
    book.good("%tpu_disconnect")
    refused(book, "%tpu_topology", NotConnectedError)


def test_status(book: Notebook) -> None:
    assert book.good("%tpu_status").shown[0]["text/plain"] == "Not connected: run %tpu_connect"
    book.good("%tpu_connect --simulate 2")
    plain = book.good("%tpu_status").plain
    assert plain.startswith("Connection to virtual TPU 2 cores, 2 replicas")
    assert "2 on 1 host\n" in plain
    assert "0 B on each core" in plain
    assert "last error" not in plain
    book.good("import tensorflow as tf\nwith strategy.scope(): v = tf.Variable(tf.zeros([256]))")
    book.good("%%tpu_run\nv + 1")
    bundle = book.good("%tpu_status").shown[0]
    assert "1 KiB on each core" in bundle["text/plain"]
    assert "cells traced   1" in bundle["text/plain"]
    assert "1 KiB" in bundle["text/html"]
    refused(book, "%tpu_status now", UsageError)


class Unusual:
    """An object that has every attribute and item."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __getitem__(self, index: int) -> int:
        return index


class Raising:
    @property
    def variables(self) -> Any:
        raise RuntimeError("not now")


def test_arithmetic(book: Notebook) -> None:
    """A TPU's arithmetic is shown, and applies to cells and loops of steps."""
    assert "arithmetic" not in book.good("%tpu_connect --simulate 2").plain
    assert "arithmetic" not in book.good("%tpu_status").plain
    row = "arithmetic  tpu: float32 factors rounded to bfloat16, sums in float32"
    assert row in book.good("%tpu_connect --simulate 2 --arithmetic tpu").plain
    assert row in re.sub(" {3,}", "  ", book.good("%tpu_status").plain)
    book.good("import tensorflow as tf\nx = tf.constant([[1.001, 3.0]])")
    square = "product = tf.matmul(x, x, transpose_b=True)"
    for line in ("%%tpu_run", "%%tpu_run -n 4 -k 2"):
        book.good(f"{line}\n{square}")
        values = book.good("[float(v[0, 0]) for v in strategy.experimental_local_results(product)]")
        assert values.value == [10.0, 10.0]
    book.good("%tpu_connect --simulate 2 --arithmetic cpu")
    assert book.good(f"%%tpu_run\n{square}\nproduct[0, 0] > 10.001").value.values[0]
    refused(book, "%tpu_connect --simulate 2 --arithmetic gpu", UsageError, "gpu")


def test_status_with_unusual_names(book: Notebook) -> None:
    book.good("%tpu_connect --simulate 2")
    book.names.update(u=Unusual(), r=Raising(), kind=Unusual)
    assert "0 B on each core" in book.good("%tpu_status").plain


INIT = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver("")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
tf.distribute.TPUStrategy(resolver).num_replicas_in_sync
"""


def test_tensorflows_names_until_disconnecting(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v3-8 --patch")
    assert book.good(INIT).value == 8
    assert "Already connected" in book.good("%tpu_connect --simulate v3-8 --patch").plain
    book.good("%tpu_disconnect")
    assert current() is None
    assert isinstance(book.run(INIT).error, ValueError)


def test_tensorflows_names_until_unloading(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v3-8 --patch")
    book.good("%unload_ext tpunb")
    assert current() is None


def test_tensorflows_names_with_another_connection(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v3-8 --patch")
    book.good("%tpu_connect --simulate 2 --patch")
    assert book.good(INIT).value == 2
    book.good("%tpu_connect --simulate 3")
    assert current() is None
