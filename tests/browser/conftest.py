"""Chromium for the widget tests, and the front ends that it opens."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hosting import HERE, SCREENSHOTS, FakeComm, Hosted
from jupyter import Book, Server, serving
from support.patience import PATIENCE
from support.tiers import thorough

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
VIEWPORT = {"width": 1100, "height": 900}
MISSING = "The browser tests need {}: .ci/run installs it, and no widget was tested here."


def missing(what: str) -> str:
    """Fail in CI, and warn elsewhere."""
    message = MISSING.format(what)
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(message, stacklevel=2)
    return message


try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    missing("playwright")
    collect_ignore_glob = ["test_*.py"]


class Browser:
    """Debian's Chromium, run by Playwright, and a page that tests use in turn.

    It lives until the last test of this folder, not for the whole session. While Playwright runs,
    the thread has a running event loop, which would disturb the IPython shells of other tests.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._chromium: Any = None
        self._page: Any = None

    def new_page(self) -> Any:
        """Open an empty page that shares nothing with others; `page.watch` records its messages."""
        page = self._running().new_context(viewport=VIEWPORT).new_page()
        page.context.set_default_timeout(PATIENCE * 1000)
        page.watch = Watch(page)
        return page

    def used_page(self) -> Any:
        """Reset the page of earlier tests: this takes a fifth of a new page's time."""
        if self._page is None:
            self._page = self.new_page()
            self._page.expose_binding("toKernel", lambda _, message: self._page.received(message))
        self._page.set_viewport_size(VIEWPORT)
        self._page.mouse.move(0, 0)
        self._page.goto("about:blank")
        self._page.watch.forget()
        return self._page

    def give_up_page(self) -> None:
        """Close the page after a failure, so that later tests start with a clean page."""
        if self._page is not None:
            self._page.context.close()
            self._page = None

    def close(self) -> None:
        self._open.close()
        self._chromium = self._page = None

    def _running(self) -> Any:
        if self._chromium is None:
            executable = next(filter(None, map(shutil.which, BROWSERS)), None)
            if executable is None:
                pytest.skip(missing("chromium"))
            expect.set_options(timeout=PATIENCE * 1000)
            playwright = self._open.enter_context(sync_playwright())
            launch = playwright.chromium.launch
            self._chromium = launch(executable_path=executable, args=FLAGS)
            self._open.callback(self._chromium.close)
        return self._chromium


BROWSER = Browser()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        BROWSER.give_up_page()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Close the browser after the last test that uses it."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path.parent != item.path.parent:
            BROWSER.close()


class Watch:
    """A page's log messages and the addresses of its requests."""

    def __init__(self, page: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._logged)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def forget(self) -> None:
        self.complaints.clear()
        self.requests.clear()

    def _logged(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    @property
    def foreign(self) -> list[str]:
        """The requests that left the machine."""
        local = ("http://127.0.0.1", "ws://127.0.0.1", "file:", "data:", "blob:", "about:")
        return [url for url in self.requests if not url.startswith(local)]


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Open an empty page; tests with `host` reuse a page. `page.watch` records its messages."""
    if "host" in request.fixturenames:
        yield BROWSER.used_page()
        return
    page = BROWSER.new_page()
    yield page
    page.context.close()


@pytest.fixture
def host(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[], Any]], Hosted]]:
    """Return a function that creates a widget and shows it on a page without Jupyter."""
    import comm

    monkeypatch.setattr(comm, "create_comm", lambda *args, **kwargs: FakeComm(*args, **kwargs))
    shown: dict[str, Hosted] = {}
    page.received = lambda message: shown[message["id"]].inbox.append(message)
    page.goto(f"file://{HERE / 'host.html'}")

    def show(make: Callable[[], Any]) -> Hosted:
        hosted = Hosted(page, make(), f"w{len(shown)}")
        shown[hosted.name] = hosted
        hosted.mount()
        return hosted

    yield show
    assert page.watch.complaints == []
    assert page.watch.foreign == []


@pytest.fixture
def screenshot(page: Any, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """Return a function that saves a picture of the page, or of a part, under the test's name."""

    def save(part: Any = None, name: str = "") -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        stem = "-".join(filter(None, [request.node.name.replace("[", "-").rstrip("]"), name]))
        path = SCREENSHOTS / f"{stem}.png"
        (part or page).screenshot(path=str(path))
        return path

    return save


AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
AXE = """async (tags) => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const found = await axe.run(document.body, { runOnly: { type: "tag", values: tags } });
  return found.violations.flatMap((rule) => rule.nodes.map((node) =>
    `${rule.id}: ${node.html.slice(0, 160)}: ${node.failureSummary.split("\\n")[1].trim()}`));
}"""


@pytest.fixture
def axe(page: Any) -> Callable[[], list[str]]:
    """Return a function that lists the page's violations of WCAG 2.2 AA, as axe-core finds them."""
    try:
        import axe_playwright_python
    except ImportError:
        pytest.skip(missing("axe-playwright-python"))
    script = Path(axe_playwright_python.__file__).with_name("axe.min.js")

    def violations() -> list[str]:
        if not page.evaluate("'axe' in window"):
            page.evaluate(script.read_text())
        return list(page.evaluate(AXE, AXE_RULES))

    return violations


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a Jupyter server with JupyterLab and Notebook 7."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(params=["lab", *thorough(["notebook"])])
def book(
    page: Any, server: Server, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Book]]:
    """Return a function that opens a notebook of cells in a front end and runs them."""

    def open_book(*cells: str, run: bool = True) -> Book:
        name = f"{request.node.originalname}-{request.param}.ipynb".replace("test_", "")
        server.write(name, *cells)
        opened = Book(page, server, request.param, name)
        opened.open()
        if run:
            opened.run_all()
        return opened

    yield open_book
    server.end_sessions()
    assert page.watch.foreign == []
    assert [text for text in page.watch.complaints if "tpunb" in text.lower()] == []
