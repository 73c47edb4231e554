"""JupyterLab and Notebook 7 for the tests: one server, and a page for each notebook."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from support.patience import PATIENCE

SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}

READY = """async () => {
  await window.jupyterapp.restored;
  const panel = window.jupyterapp.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  await panel.sessionContext.session.kernel.info;
}"""


class Server:
    """A Jupyter server that the tests share."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def write(self, name: str, *cells: str) -> None:
        """Write a notebook with these code cells."""
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(book, self.folder / name)

    def read(self, name: str) -> Any:
        return nbformat.read(self.folder / name, as_version=4)

    def end_sessions(self) -> None:
        """End the kernels, which outlive their pages."""
        for session in self._ask("GET", "sessions"):
            self._ask("DELETE", f"sessions/{session['id']}")

    def _ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            body = answer.read()
        return json.loads(body) if body else None


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Serve the notebooks in a folder, on this machine only."""
    settings = folder / ".settings"
    settings.mkdir()
    (settings / "overrides.json").write_text(json.dumps(SETTINGS))
    command = [
        *(sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser"),
        *(
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port=0",
            "--IdentityProvider.token=",
            "--ServerApp.password=",
        ),
        *(
            f"--ServerApp.root_dir={folder}",
            "--ServerApp.disable_check_xsrf=True",
            "--LabApp.news_url=",
        ),
        *(
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.extension_manager=readonly",
        ),
        *("--LabApp.expose_app_in_browser=True", "--JupyterNotebookApp.expose_app_in_browser=True"),
        f"--LabServerApp.app_settings_dir={settings}",
        f"--LabApp.app_settings_dir={settings}",
    ]
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(folder / ".config"),
        "JUPYTER_DATA_DIR": str(folder / ".data"),
        "JUPYTER_RUNTIME_DIR": str(folder / ".runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / ".user-settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".workspaces"),
        "IPYTHONDIR": str(folder / ".ipython"),
        "PYTHONUNBUFFERED": "1",
    }
    # Unset the variables of the tests: loading the extension must silence TensorFlow's log.
    for name in ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"):
        environment.pop(name, None)
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            assert process.stderr is not None
            yield Server(folder, address(process.stderr, output))
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def address(stderr: Any, log: Any) -> str:
    """Read the server's address from its output."""
    for line in stderr:
        log.write(line)
        log.flush()
        if found := re.search(rb"http://127\.0\.0\.1:\d+", line):
            return found[0].decode()
    raise AssertionError(f"JupyterLab did not start: {Path(log.name).read_text()}")


class Book:
    """A notebook that is open in a front end.

    Args:
        page: Chromium's page.
        server: The notebook's server.
        front_end: `"lab"` or `"notebook"`.
        name: The notebook's file.
    """

    def __init__(self, page: Any, server: Server, front_end: str, name: str) -> None:
        self.page, self.server, self.front_end, self.name = page, server, front_end, name

    def open(self) -> None:
        path = {"lab": f"lab/tree/{self.name}?reset", "notebook": f"notebooks/{self.name}"}
        self.page.goto(f"{self.server.url}/{path[self.front_end]}")
        self.page.wait_for_function(
            "window.jupyterapp?.shell?.currentWidget?.context !== undefined"
        )
        self.page.evaluate(READY)

    def run_all(self, *, wait: bool = True) -> None:
        """Run all cells, and wait for them if asked to."""
        run = "window.jupyterapp.commands.execute('notebook:run-all-cells')"
        self.page.evaluate(run if wait else f"void {run}")

    def run_cell(self, number: int) -> None:
        self.page.evaluate(
            """async (number) => {
              const panel = window.jupyterapp.shell.currentWidget;
              panel.content.activeCellIndex = number;
              await window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            number,
        )

    def save(self) -> Any:
        """Save the notebook as the user does, and return the file's content."""
        self.page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        return self.server.read(self.name)
