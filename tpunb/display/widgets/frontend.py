"""Detection of the front end that shows a cell's displays, and publishing to it.

This module never imports IPython. If there is a shell, IPython is imported already.
"""

from __future__ import annotations

import base64
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

VARIABLE = "TPUNB_WIDGETS"
"""The environment variable that sets whether displays are live: `always` or `never`."""

_has_widget = False
_SETTINGS = {"always": True, "1": True, "never": False, "0": False}


def shows_widgets() -> bool:
    """Return whether a person's front end that runs widgets shows the displays.

    Programs that execute notebooks (nbconvert, papermill, nbval) start the same kernels. They save
    a widget as a reference to state that ends with the kernel, so they get the static form.
    """
    setting = os.environ.get(VARIABLE, "").strip().lower()
    if setting in _SETTINGS:
        return _SETTINGS[setting]
    shell, environment = _shell(), os.environ
    # Signs of a front end that people use.
    return hasattr(shell, "kernel") and (
        # Jupyter Server's sessions: JupyterLab, Notebook 7 and front ends that are built on them.
        "JPY_SESSION_NAME" in environment
        or environment.get("SERVER_SOFTWARE", "").startswith("voila")
        or environment.get("KAGGLE_KERNEL_RUN_TYPE") == "Interactive"
        or _is_colab_or_vs_code(shell)
    )


def is_program() -> bool:
    """Return whether cells run in a kernel, and no front end with a person is detected."""
    return hasattr(_shell(), "kernel") and not shows_widgets()


def is_kernel() -> bool:
    """Return whether cells run in a kernel, so that outputs are kept in a notebook."""
    return hasattr(_shell(), "kernel")


def in_terminal() -> bool:
    """Return whether a person's terminal shows the standard error stream."""
    stream = sys.stderr
    return stream is not None and not hasattr(_shell(), "kernel") and stream.isatty()


def saves_static_forms() -> bool:
    """Return whether the page itself writes static forms into the file, so live forms can stay.

    JupyterLab and Notebook 7 do, by tpunb's saving.js. With other front ends a saved notebook would
    hold only the live form.
    """
    return "JPY_SESSION_NAME" in os.environ and not _is_colab_or_vs_code(_shell())


def widget_opened() -> None:
    """Record that the page has received a tpunb widget, and with it saving.js."""
    global _has_widget
    _has_widget = True


def can_pass() -> bool:
    """Return whether lines can be shown that the notebook's file does not get."""
    return _has_widget and shows_widgets() and saves_static_forms()


_ENDED = "the kernel ended while this ran"


def passing(saved: str, *, alive: bool = False) -> dict[str, Any]:
    """Return the metadata of an output that the notebook's file does not get: see saving.js.

    Args:
        saved: The plain text that the file gets instead; empty for no output at all.
        alive: Whether the output is about work that goes on. If the kernel ends, the page
            replaces the output by a line that says so.
    """
    metadata: dict[str, Any] = {"file": {"text/plain": saved} if saved else None}
    if alive:
        metadata["ended"] = f"{saved} · {_ENDED}" if saved else _ENDED.capitalize()
    return {"tpunb": metadata}


def _is_colab_or_vs_code(shell: Any) -> bool:
    return "google.colab" in sys.modules or "__vsc_ipynb_file__" in getattr(shell, "user_ns", {})


def cell_id() -> str | None:
    """Return the id of the running cell; None if the front end gives no id."""
    shell = _shell()
    try:
        cell = shell.get_parent()["metadata"]["cellId"]
    except (AttributeError, KeyError, TypeError):
        return None
    return str(cell)


def execution() -> int | None:
    """Return the number of the cell's run, as in `Out[7]`; None outside IPython."""
    count = getattr(_shell(), "execution_count", None)
    return count if isinstance(count, int) else None


def cell_number() -> int | None:
    """Return the number of the running cell, as in `In [7]`; None outside IPython.

    `execution_count` is one more while a cell runs, from IPython 9 on.
    """
    inputs = getattr(_shell(), "user_ns", {}).get("In", ())
    return len(inputs) - 1 if len(inputs) > 1 else None


def publish(
    data: dict[str, Any], metadata: dict[str, Any], *, display_id: str, update: bool
) -> None:
    """Show a bundle, or replace an earlier bundle by it.

    Args:
        data: The forms, by MIME type.
        metadata: The metadata of the forms.
        display_id: The display's own name.
        update: Whether to replace the bundle that was shown under that name.
    """
    shell = _shell()
    if shell is None:
        if update:
            return
        if in_marimo():
            sys.modules["marimo"].output.append(_Forms(data))
        else:
            sys.stdout.write(f"{data['text/plain']}\n")
        return
    transient = {"display_id": display_id}
    metadata = with_alternative_text(data, metadata)
    shell.display_pub.publish(encoded(data), metadata, transient=transient, update=update)


def for_terminal(data: dict[str, Any], values: str) -> dict[str, Any]:
    """Return a bundle with values below its text, where no notebook keeps the text.

    Args:
        data: The bundle.
        values: Text that differs from run to run; may be empty.
    """
    if is_kernel() or in_marimo() or not values:
        return data
    return {**data, "text/plain": f"{data['text/plain']}\n{values}"}


def with_alternative_text(data: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a bundle's metadata with the text of its picture for readers who do not see it.

    nbconvert's classic template takes the text from there; in nbconvert 7.17, its lab template does
    not.
    """
    if "image/png" not in data:
        return metadata
    return {**metadata, "image/png": {"alt": data["text/plain"].splitlines()[0]}}


def clear(display_id: str) -> None:
    """Remove the display of a name; the notebook's file does not get it either."""
    publish({}, passing("") if can_pass() else {}, display_id=display_id, update=True)


class _Forms:
    """A bundle as an object that displays it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        del include, exclude
        return encoded(self._data)


def in_marimo() -> bool:
    """Return whether cells run in marimo, which shows the value of a cell's last expression."""
    marimo = sys.modules.get("marimo")
    return marimo is not None and bool(marimo.running_in_notebook())


def thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Return a thread whose messages reach the page; marimo accepts only its own kind.

    Args:
        target: The function that the thread runs.
        name: The thread's name.
    """
    kind: type[threading.Thread] = sys.modules["marimo"].Thread if in_marimo() else threading.Thread
    return kind(target=target, name=name, daemon=True)


def encoded(data: dict[str, Any]) -> dict[str, Any]:
    """Return a bundle in the form for messages: bytes as base64."""
    return {
        kind: base64.b64encode(form).decode("ascii") if isinstance(form, bytes) else form
        for kind, form in data.items()
    }


def _shell() -> Any:
    """Return the shell that runs cells; None outside IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
