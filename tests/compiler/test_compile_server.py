"""`tpunb compile --serve`, with the TPU's own compiler and with files that misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from counterparts.children import environment
from support.patience import PATIENCE

from tpunb.cli.compile_requests import schema

FILE = """
import tensorflow as tf
import numbers_of_mine
print("the user's own output")

def step(x): return tf.nn.relu(x) * numbers_of_mine.FACTOR
def large(x): return x @ x
def x(size): return tf.TensorSpec([size, size])
def prints(x):
    import os
    os.write(1, b"not a report")
    return x + 1.0
def moves(x):
    import os
    os.chdir("/")
    return x + 1.0
def leaves(x):
    import sys
    sys.exit(0)
def vanishes(x):
    import os
    os._exit(0)
def forks(x):
    import os
    os.fork()
    return x + 2.0
def noted():
    import os, pathlib
    pathlib.Path("noted").write_text(str(os.getpid()))
    os.rename("noted", "hanging")
def hangs(x):
    noted()
    while True: pass
def hangs_in_c(x):
    noted()
    return sum(range(10 ** 14))  # without Python's lock for others
"""
Ask = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of a user."""
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "numbers_of_mine.py").write_text("FACTOR = 2.0\n")
    return tmp_path


@pytest.fixture
def ask(folder: Path) -> Iterator[Ask]:
    """Ask one server about the functions of the file; a text is sent as it is."""
    command = [sys.executable, "-m", "tpunb", "compile", "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, cwd=folder, text=True, env=environment()
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def answer(function: str = "", line: str = "", **fields: Any) -> Any:
            request = {"source": f"mine.py::{function}", "for": "v5e-8", "args": "x(8)", **fields}
            assert server.stdin is not None
            assert server.stdout is not None
            print(line or json.dumps(request), file=server.stdin, flush=True)
            read = json.loads(server.stdout.readline())
            jsonschema.validate(read, schema()["answer"])
            return read

        yield answer
        server.stdin.close()
        assert server.stdout.read() == ""
        assert server.wait() == 0


@pytest.mark.usefixtures("libtpu")
def test_one_process_answers_all_requests(ask: Ask, folder: Path) -> None:
    first = ask("step", id="a")
    assert (first["id"], first["verdict"], first["seen"]) == ("a", "fits", False)
    (program,) = first["programs"]
    assert program["compiler"]["libtpu"]
    assert "alive on the device are not counted" in program["not_counted"][0]

    again = ask("step", id="b")
    assert (again["id"], again["seen"]) == ("b", True)
    assert again["programs"] == first["programs"]
    assert ask("step", fresh=True)["seen"] is False
    assert ask("large", args="x(60000)")["verdict"] == "does-not-fit"

    assert "not JSON" in ask(line="nonsense")["error"]["message"]
    assert "longer than" in ask(line="x" * (1 << 21))["error"]["message"]
    assert ask("absent")["exit_code"] == 64
    assert ask("step", **{"for": "v9-1"})["exit_code"] == 64

    (folder / "numbers_of_mine.py").write_text("FACTOR = undefined\n")
    broken = ask("step")
    assert (broken["exit_code"], broken["error"]["line"]) == (65, 1)
    (folder / "numbers_of_mine.py").write_text("FACTOR = 3.0\n")
    assert ask("step")["seen"] is False


@pytest.mark.usefixtures("libtpu")
def test_code_of_a_user_does_no_harm(ask: Ask) -> None:
    assert ask("moves")["verdict"] == "fits"
    assert ask("prints")["verdict"] == "fits"
    assert ask("leaves")["error"]["message"] == "SystemExit: 0"
    assert "ended with exit code 0" in ask("vanishes")["error"]["message"]
    if sys.version_info < (3, 12):  # later releases warn of a fork beside threads
        assert ask("forks")["verdict"] == "fits"
    assert ask("step")["verdict"] == "fits"


@pytest.mark.usefixtures("libtpu")
def test_a_function_that_hangs_is_ended_by_its_own_time_limit(
    ask: Ask,
) -> None:
    answer = ask("hangs", timeout=1)
    assert answer["exit_code"] == 65
    assert "took longer than 6 seconds" in answer["error"]["message"]
    assert ask("step")["verdict"] == "fits"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere C code may keep Python's lock")
@pytest.mark.parametrize("function", ["hangs", "hangs_in_c"])
def test_a_function_that_hangs_ends_with_a_killed_server(folder: Path, function: str) -> None:
    command = [sys.executable, "-m", "tpunb", "compile", "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, cwd=folder, text=True, env=environment()) as server:
        assert server.stdin is not None
        request = {"source": f"mine.py::{function}", "for": "v5e-8", "args": "x(8)"}
        print(json.dumps(request), file=server.stdin, flush=True)
        worker = wait_for(lambda: (folder / "hanging").read_text("utf-8"))
        server.kill()
    wait_for(lambda: not Path("/proc", worker).exists())


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return a condition's result when it is true."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            if result := condition():
                return result
        time.sleep(0.05)
    raise AssertionError("it does not become true")


@pytest.mark.usefixtures("libtpu")
def test_the_search_in_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "compile-server.md").read_text(encoding="utf-8")
    train, search = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in search.splitlines() if line.strip()]) <= 30
    smaller = train.replace("12, 4096", "2, 256")
    all_settings = "[32, 64, 128, 256], [False, True], [(8, 1), (4, 2)]"
    fewer = search.replace(all_settings, "[8], [True], [(4, 2)]")
    assert smaller != train
    assert fewer != search
    (tmp_path / "train.py").write_text(smaller)
    python = os.environ.get("TPUNB_COMPILER_PYTHON")
    if not python:
        pytest.skip("JAX is not installed here")
    command = [python, "-c", fewer]
    out = subprocess.check_output(command, cwd=tmp_path, text=True, env=environment())
    assert "batch=8 remat=True mesh=(4, 2)" in out
    assert "best: (" in out
