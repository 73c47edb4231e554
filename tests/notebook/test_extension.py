"""Loading and unloading the extension `tpunb` on a real IPython shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from counterparts.children import run_code
from IPython.core.completer import provisionalcompleter
from support.shell import Notebook

import tpunb

pytestmark = pytest.mark.oldest

LINE_MAGICS = ("tpu_connect", "tpu_disconnect", "tpu_doctor", "tpu_status", "tpu_topology")
NAMED = (("builtins", "tuple"), ("builtins", "list"), ("builtins", "dict"))


def magics(book: Notebook) -> dict[str, dict[str, Any]]:
    return {kind: dict(table) for kind, table in book.shell.magics_manager.magics.items()}


def formatters(book: Notebook) -> tuple[dict[Any, Any], dict[Any, Any]]:
    formatter = book.shell.display_formatter.mimebundle_formatter
    return dict(formatter.deferred_printers), dict(formatter.type_printers)


def printers(book: Notebook) -> dict[Any, Any]:
    return dict(book.shell.display_formatter.formatters["text/plain"].type_printers)


def state(book: Notebook) -> Any:
    shell = book.shell
    return (
        magics(book),
        dict(shell.magics_manager.registry),
        formatters(book),
        printers(book),
        list(shell.Completer.custom_matchers),
        set(book.names),
        set(vars(shell)),
        {event: list(calls) for event, calls in shell.events.callbacks.items()},
    )


def test_unloading_undoes_loading(book: Notebook) -> None:
    book.good("import tpunb")  # loading binds this name, and unloading keeps it
    before = state(book)
    book.good("%load_ext tpunb")
    loaded = state(book)
    assert set(LINE_MAGICS) <= set(magics(book)["line"])
    assert "tpu_run" in magics(book)["cell"]
    book.good("%load_ext tpunb")
    book.good("[1], (2,), {3: 4}")
    book.good("%unload_ext tpunb")
    assert state(book) == before
    assert "not found" in book.run("%tpu_status").text
    book.good("%load_ext tpunb")
    assert set(loaded[0]["line"]) == set(magics(book)["line"])
    book.good("%unload_ext tpunb")
    assert state(book) == before


def test_loading_binds_the_package(book: Notebook) -> None:
    """Docs and messages write `tpunb.show(x)`, which must work in notebooks with only magics."""
    book.good("%load_ext tpunb")
    assert book.good("tpunb.accelerator('v3-8').name").value == "v3-8"
    book.good("%unload_ext tpunb")
    assert book.names["tpunb"] is tpunb  # the notebook may have imported it itself


def test_loading_keeps_the_users_name(book: Notebook) -> None:
    book.good("tpunb = 'mine'\n%load_ext tpunb")
    assert book.names["tpunb"] == "mine"
    book.good("%unload_ext tpunb")
    assert book.names["tpunb"] == "mine"


def test_unloading_after_containers_were_formatted(book: Notebook) -> None:
    before = formatters(book)
    book.good("%load_ext tpunb")
    for value in ("(1,)", "[1]", "{1: 1}"):
        assert book.good(value).shown[0].keys() == {"text/plain"}
    assert formatters(book)[1].keys() == {tuple, list, dict}
    book.good("%unload_ext tpunb")
    assert formatters(book) == before


def test_reloading(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    session = book.session
    book.good("%reload_ext tpunb")
    assert book.session is not session
    assert "Not connected" in book.good("%tpu_status").plain


@pytest.mark.usefixtures("tf")
def test_loading_twice_keeps_the_connection(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    book.good("%tpu_connect --simulate 2")
    connection = book.session.connection
    tpunb.load_ipython_extension(book.shell)
    assert book.session.connection is connection
    book.good("%reload_ext tpunb")
    assert connection.closed
    assert "strategy" not in book.names


@pytest.mark.usefixtures("tf")
def test_unloading_closes_the_connection(book: Notebook) -> None:
    book.good("import tpunb")
    before = set(book.names)
    book.good("%load_ext tpunb\n%tpu_connect --simulate 2 --as s")
    connection = book.session.connection
    book.good("resolver = 'mine'")
    book.good("%unload_ext tpunb")
    assert connection.closed
    assert set(book.names) - before == {"resolver"}
    tpunb.unload_ipython_extension(book.shell)  # nothing is loaded any more


def test_magics_of_the_user_are_kept(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    book.shell.register_magic_function(lambda line: "mine", "line", "tpu_status")
    book.good("%unload_ext tpunb")
    assert book.good("%tpu_status").value == "mine"
    assert not set(LINE_MAGICS) - {"tpu_status"} & set(magics(book)["line"])


def test_earlier_magics_come_back(book: Notebook) -> None:
    book.shell.register_magic_function(lambda line: "before", "line", "tpu_status")
    book.good("%load_ext tpunb")
    assert book.good("%tpu_status").value != "before"
    book.good("%unload_ext tpunb")
    assert book.good("%tpu_status").value == "before"


def before_bundle(value: Any, **_: Any) -> dict[str, str]:
    return {"text/plain": "before"}


def after_bundle(value: Any, **_: Any) -> dict[str, str]:
    return {"text/plain": "after"}


@pytest.mark.parametrize("met", [False, True])
@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_earlier_formatters_come_back(book: Notebook, kind: type, met: bool) -> None:
    formatter = book.shell.display_formatter.mimebundle_formatter
    formatter.for_type_by_name("builtins", kind.__name__, before_bundle)
    if met:
        assert formatter(kind()) == ({"text/plain": "before"}, {})
    book.good("%load_ext tpunb")
    book.good("[1], (2,), {3: 4}")
    book.good("%unload_ext tpunb")
    assert formatter(kind()) == ({"text/plain": "before"}, {})
    assert formatters(book) == ({}, {kind: before_bundle})


@pytest.mark.parametrize("met", [False, True])
@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_later_formatters_are_kept(book: Notebook, kind: type, met: bool) -> None:
    formatter = book.shell.display_formatter.mimebundle_formatter
    book.good("%load_ext tpunb")
    if met:
        formatter(kind())
    formatter.for_type(kind, after_bundle)
    book.good("%unload_ext tpunb")
    assert formatter(kind()) == ({"text/plain": "after"}, {})
    assert formatters(book) == ({}, {kind: after_bundle})


def test_the_users_formatters_of_tensorflow_are_kept(book: Notebook) -> None:
    name = ("tensorflow.python.tpu.topology", "Topology")
    formatter = book.shell.display_formatter.mimebundle_formatter
    book.good("%load_ext tpunb")
    formatter.for_type_by_name(*name, after_bundle)
    book.good("%unload_ext tpunb")
    assert formatters(book) == ({name: after_bundle}, {})


def test_the_extension_unloads_even_if_disconnecting_fails(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.good("import tpunb")
    before = state(book)
    book.good("%load_ext tpunb")

    def fail() -> None:
        raise RuntimeError("the TPU is gone")

    monkeypatch.setattr(book.session, "disconnect", fail)
    assert isinstance(book.run("%unload_ext tpunb").error, RuntimeError)
    assert state(book) == before
    tpunb.load_ipython_extension(book.shell)
    assert "Not connected" in book.good("%tpu_status").plain


LOADING = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
shell.run_line_magic("load_ext", "tpunb")
heavy = {"tensorflow", "numpy", "matplotlib", "PIL", "keras", "pandas", "ipywidgets", "grpc"}
slow = {"urllib.request", "http.client", "concurrent.futures", "multiprocessing", "tpunb.errors.catalogue"}
# Needed by the first magics, and a third of the time of loading.
later = {"tpunb.tpu.compiled_program", "tpunb.machine.software", "tpunb.machine.detect", "tpunb.cells.reading.source"}
found = (heavy | slow | later) & (set(sys.modules) - before)
assert not found, found
shell.run_line_magic("tpu_status", "")
assert "tensorflow" not in sys.modules
"""


def test_loading_imports_nothing_slow(tmp_path: Path) -> None:
    ran = run_code(LOADING, IPYTHONDIR=str(tmp_path))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", [*LINE_MAGICS, "tpu_run"])
def test_help(book: Notebook, name: str) -> None:
    book.good("%load_ext tpunb")
    mark = "%%" if name == "tpu_run" else "%"
    found = book.shell.object_inspect(mark + name)
    assert found["found"]
    text = found["docstring"]
    assert f"{mark}{name}" in text
    assert "Example" in text
    magic = book.shell.find_magic(name, "cell" if name == "tpu_run" else "line")
    for action in magic.parser._actions:
        for option in action.option_strings:
            assert option in text
        assert action.help


@pytest.mark.usefixtures("tf")
def test_the_package_loads_its_names_lazily() -> None:
    assert hasattr(tpunb, "history")  # the last run's history, if any
    for name in {*tpunb.__all__} - {"history"}:
        assert getattr(tpunb, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        tpunb.nothing  # noqa: B018


@pytest.mark.parametrize("use_jedi", [True, False])
@pytest.mark.usefixtures("tf")
def test_completion_offers_the_public_names(
    book: Notebook, use_jedi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {*tpunb._PUBLIC_MODULES}
    book.shell.user_ns["tpunb"] = tpunb
    completer = book.shell.Completer
    monkeypatch.setattr(completer, "use_jedi", use_jedi)
    with provisionalcompleter():
        found = {
            completion.text.rpartition(".")[2]
            for completion in completer.completions("tpunb.", len("tpunb."))
        }
    assert found == {name for name in tpunb.__all__ if name != "__version__"} | modules
    assert all(hasattr(tpunb, name) for name in found)
