"""The documentation's site builds without warnings, and every link in it has a target."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from generated_pages import PYODIDE
from live_displays import LIVE
from support.patience import PATIENCE

import tpunb

pytest.importorskip("furo", reason='the site needs pip install -e ".[docs]"')
pytest.importorskip("sphinx_copybutton", reason='the site needs pip install -e ".[docs]"')

ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """The links of a page, the files that it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        targets = [values[name] for name in ("href", "src", "srcset") if name in values]
        self.links += targets
        if tag in {"script", "link", "iframe", "img", "source"}:
            self.loaded += targets


read = functools.cache(Page)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going"]
    command += ["-c", str(ROOT / "docs"), "-d", str(out / "doctrees"), str(ROOT), str(out / "html")]
    # No proxy listens there, so any download fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    process = subprocess.run(command, env={**os.environ, **nowhere}, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    return out / "html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    paths = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    path = next(paths, None)
    if path is None:
        pytest.skip("the search runs in Chromium: .ci/run installs it")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def python_page(site: Path, chromium: Any) -> Iterator[Any]:
    """Open the page that runs Python, once Python has started."""
    if not PYODIDE.is_dir():
        pytest.skip("make check gets Pyodide from npm, and found none")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium.new_page() as page:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}/"
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.set_default_timeout(PATIENCE * 1000)
        page.goto(f"{host}docs/browser.html")
        page.locator("#tpunb-browser fieldset:enabled").wait_for()
        yield page
        assert [url for url in requests if not url.startswith(host)] == []
        server.shutdown()


@pytest.fixture
def gallery(site: Path, chromium: Any) -> Iterator[Any]:
    """Open the gallery with all its displays; `faults` has the page's errors and requests elsewhere."""
    with chromium.new_page(viewport={"width": 1300, "height": 20_000}) as page:
        page.faults = []
        page.on("console", lambda message: page.faults.append(message.text))
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("request", lambda request: page.faults.append(request.url))
        page.goto((site / "docs" / "gallery.html").as_uri())
        for name in LIVE:
            page.locator(f"[data-display={name}].alive").wait_for()
        yield page
        local = ("file:", "data:", "blob:")
        assert [fault for fault in page.faults if not fault.startswith(local)] == []


def is_missing(page: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    path = page.parent / unquote(parts.path) if parts.path else page
    if not path.is_file():
        return True
    return path.suffix == ".html" and unquote(parts.fragment) not in read(path).anchors


def enabled(html: str) -> Iterator[tuple[str, str]]:
    """Yield the trait and the value of each choice that is not disabled."""
    choices = re.findall(r'<button [^>]*data-trait="(\w+)" value="([^"]*)"([^>]*)>', html)
    for trait, options in re.findall(r'<select [^>]*data-trait="(\w+)">(.*?)</select>', html):
        choices += [(trait, *option) for option in re.findall(r'value="([^"]*)"([^>]*)>', options)]
    for trait, value, rest in choices:
        if "disabled" not in rest:
            yield trait, value.removesuffix(".0")  # as JavaScript writes a number


def test_every_link_has_a_target(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    missing = [
        f"{page.relative_to(site)}: {link}"
        for page in pages
        for link in read(page).links
        if is_missing(page, link)
    ]
    assert missing == []
    assert {"index.html", "search.html"} <= {page.name for page in pages}


def test_nothing_is_loaded_from_other_sites(site: Path) -> None:
    loaded = {link for page in site.rglob("*.html") for link in read(page).loaded}
    elsewhere = {link for link in loaded if urlsplit(link).netloc}
    assert {link for link in elsewhere if not link.startswith("https://github.com/tpunb/")} == set()


def test_the_navigation_groups_pages_by_kind(site: Path) -> None:
    index = (site / "docs" / "README.html").read_text(encoding="utf-8")
    captions = re.findall(r'class="caption-text">([^<]+)<', index)
    kinds = ["Tutorials", "How-to guides", "Real TPUs", "Reference", "Explanation"]
    assert captions == [*kinds, "Course", "Project"]


def test_the_site_has_all_notebooks_and_images(site: Path) -> None:
    for folder in (
        "notebooks",
        "notebooks/course",
        "notebooks/course/solutions",
        "notebooks/puzzles",
    ):
        sources = {path.stem for path in (ROOT / folder).glob("*.ipynb")}
        assert {path.stem for path in (site / folder).glob("*.html")} == sources
    pictures = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert {path.name for path in (site / "docs" / "images").iterdir()} == pictures
    quickstart = (site / "notebooks" / "00_quickstart.html").read_text(encoding="utf-8")
    assert "TPU v3-8" in quickstart  # the saved output, not only the code


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("tpunb.connect", "docs/api/"),
        ("TpuProgram", "docs/api/"),
        ("raise_if_unfit", "docs/api/"),
        ("jax", "docs/README.html"),
        ("tensorflow", "docs/README.html"),
        ("out of memory", "docs/errors.html"),
        ("colab", "docs/hardware.html"),
    ],
)
def test_the_search_finds_what_a_reader_needs_first(
    query: str, place: str, site: Path, chromium: Any
) -> None:
    with chromium.new_page() as page:
        page.goto(f"{(site / 'search.html').as_uri()}?q={query}")
        first = page.locator("#search-results li > a").first
        assert first.get_attribute("href").startswith(place)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 700, 1400])
def test_pages_fit_the_window(width: int, scheme: str, site: Path, chromium: Any) -> None:
    size = {"width": width, "height": 900}
    with chromium.new_page(viewport=size, color_scheme=scheme) as page:
        for name in ("README", "gallery", "magics", "errors", "api/connecting", "api/compiling"):
            page.goto((site / "docs" / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            shown = page.locator(f":not([data-display]) > img.only-{scheme}").all()
            assert all(picture.is_visible() for picture in shown)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_displays_follow_the_theme(theme: str, gallery: Any) -> None:
    gallery.evaluate(f"document.body.dataset.theme = '{theme}'")
    for name in LIVE:
        display = gallery.locator(f"[data-display={name}]")
        assert not display.locator("> img").first.is_visible()
        paper = "getComputedStyle(node.querySelector('.tpunb')).backgroundColor"
        assert display.evaluate(f"(node) => {paper}") == gallery.evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )


def test_displays_answer_without_a_kernel(gallery: Any) -> None:
    topology = gallery.locator("[data-testid=tpunb-topology]")
    topology.locator("[data-trait=plane]").select_option("2")
    topology.and_(gallery.locator("[data-plane='2']")).wait_for()
    topology.locator("[data-part]").first.click()
    assert topology.get_attribute("data-selected") == "8"
    values = gallery.locator("[data-display=replicas] [data-testid=tpunb-replicas]")
    values.get_by_title("['loss']").click()
    values.and_(gallery.locator("[data-section='0']")).wait_for()
    step = gallery.locator("[data-display=step]")
    step.get_by_text("All 13 lines").click()
    assert step.get_by_text("All 13 lines").is_visible()
    curves = gallery.locator("[data-display=curves] [data-testid=tpunb-curves]")
    curves.get_by_role("button", name="Log").click()
    curves.and_(gallery.locator("[data-scale=log]")).wait_for()


@pytest.mark.parametrize("name", ["topology", "replicas", "replicas-difference"])
def test_every_control_has_its_view(name: str, site: Path) -> None:
    """A control that is not disabled leads to a view that the page has."""
    script = (site / "_static" / "live" / f"{name}.js").read_text(encoding="ascii")
    data = json.loads(gzip.decompress(base64.b64decode(script.split('"')[3])))
    traits, views = data["traits"], data["views"]
    first = ",".join(str(data["state"][trait]).removesuffix(".0") for trait in traits)
    assert views[first] == data["state"]["html"]
    found = 0
    for key, html in views.items():
        for trait, value in enabled(html):
            values = dict(zip(traits, key.split(","), strict=True)) | {trait: value}
            found += 1
            assert ",".join(values[each] for each in traits) in views
    assert found > len(views) > 10


def test_each_display_has_its_code_and_a_notebook() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    before = [part.rpartition("</picture>")[2] for part in text.split("<picture>")[:-1]]
    assert len(before) > len(LIVE)
    for part in before:
        assert re.search(r"^```(python|text)\n(tpunb|%%?tpu|x = )", part, re.MULTILINE)
        (notebook,) = re.findall(r"\(https://colab.*/blob/main/([^)]+)\)", part)
        assert (ROOT / notebook).is_file()


def test_python_runs_in_the_browser(python_page: Any) -> None:
    output = python_page.locator("output")
    assert tpunb.__version__ in python_page.locator("#tpunb-browser [role=status]").inner_text()
    python_page.get_by_label("Llama 3 8B on v5e-8").check()
    python_page.get_by_role("button", name="Show").click()
    assert "Does not fit: 17.83 GiB a core" in output.inner_text()
    python_page.get_by_label("Llama 3 8B on v6e-8").check()
    python_page.get_by_role("button", name="Show").click()
    assert re.search(r"v5e-8.*no\b", table := output.locator("table").first.inner_text())
    assert re.search(r"v6e-8.*yes\b", table)
    boxes = python_page.locator("fieldset [type=checkbox]")
    for box in boxes.all():
        box.check()
    python_page.get_by_role("button", name="Show").click()
    assert output.locator("table").first.locator("tbody tr").count() == boxes.count() >= 5
    own = ROOT / "tests" / "browser" / "attention.tpuprogram"
    python_page.get_by_label("Your own").set_input_files(own)
    output.get_by_text("378.9 MiB more").first.wait_for()
    error = 'jit("step")\nRESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\n"17G"'
    python_page.get_by_label("Error").fill(error)
    python_page.get_by_role("button", name="Explain").click()
    assert "Known error 30" in output.inner_text()
    for code, shown in (('tpunb.draw.chip("v5e-8")', "A chip of v5e-8"), ("1 / 0", "ZeroDivision")):
        python_page.get_by_label("Python", exact=True).fill(code)
        python_page.get_by_role("button", name="Run").click()
        assert shown in output.inner_text()


def test_other_sites_can_link_to_every_public_name(site: Path) -> None:
    """`objects.inv` is what intersphinx reads."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        names = InventoryFile.load(file, "", posixpath.join)
    documented = {name for kind in names if kind.startswith("py:") for name in names[kind]}
    public = {f"tpunb.{name}" for name in tpunb.__all__}
    assert public - documented == set()


def test_pages_have_what_readers_look_for(site: Path) -> None:
    page = (site / "docs" / "api" / "connecting.html").read_text(encoding="utf-8")
    assert f"tpunb {tpunb.__version__}" in page  # the version
    assert "sidebar-logo" in page
    assert "blob/main/tpunb/connection/connect.py#L" in page  # the source
    assert "copybutton.js" in page
    quickstart = (site / "notebooks" / "00_quickstart.html").read_text(encoding="utf-8")
    assert "https://colab.research.google.com/github/tpunb/tpunb/blob/main/" in quickstart


def test_known_errors_keep_their_addresses(site: Path) -> None:
    from tpunb.errors.catalogue import ENTRIES

    for entry in ENTRIES.values():
        file, _, anchor = entry.page.removeprefix("https://tpunb.github.io/tpunb/").partition("#")
        assert anchor in read(site / file).anchors
