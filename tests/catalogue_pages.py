"""Write the documentation's pages about known errors from the catalogue.

    cd tests && python -m catalogue_pages

`tpunb explain --all` prints the catalogue as one long page. The documentation has the same entries
on a page for each task, and an index by number. Run the command after a change to the catalogue.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from tpunb.cli.explain import errors_page
from tpunb.errors.catalogue import CHAPTERS, ENTRIES, Explanation

DOCS = Path(__file__).parents[1] / "docs"


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of entries.

    Attributes:
        file: Its name in the documentation's folder.
        title: Its heading.
        first: The code of the first entry of each chapter.
        start: The text above the entries.
    """

    file: str
    title: str
    first: tuple[str, ...]
    start: str

    @property
    def chapters(self) -> list[str]:
        """The names of its chapters in the catalogue."""
        return [name for name, entries in CHAPTERS.items() if entries[0].code in self.first]

    @property
    def entries(self) -> list[Explanation]:
        """Its entries, in their order."""
        return [entry for name in self.chapters for entry in CHAPTERS[name]]


PAGES = (
    Page(
        "errors-connecting.md",
        "Errors of connecting, of workers and of datasets",
        ("1", "12"),
        """\
Something stops you from connecting to a TPU, or from feeding it? Find the message here, with its cause and its fix.
[Connecting to a real TPU](hardware.md) describes the connection itself. To examine the machine, type:

```text
%tpu_doctor
```
""",
    ),
    Page(
        "errors-compiling.md",
        "Errors of compiling and running programs",
        ("22", "30", "59", "63"),
        """\
Here are the errors that TensorFlow, XLA, Pallas or the TPU raises for a program, each with its fix. To find
such errors before a run, check the program on a [virtual TPU](strictness.md):

```python
tpunb.check(train_step, tf.TensorSpec([8, 784]), strategy=strategy).raise_if_refused()
```
""",
    ),
    Page(
        "errors-jax.md",
        "Errors of JAX",
        ("74", "88", "103"),
        """\
JAX raises these errors on a TPU: when it starts, where its arrays are, and when it traces a
function. Pallas and the compiler have [their own page](errors-compiling.md). To find such errors without a TPU, compile the
function:

```python
tpunb.compile(step, params, batch, tpu="v5e-8").raise_if_refused()
```
""",
    ),
    Page(
        "errors-strategy.md",
        "Errors of the strategy and of Keras",
        ("32", "51"),
        """\
Find the error that `TPUStrategy` or Keras raises, and its fix. To run a notebook that was written
for Keras 2 without changing it, type:

```bash
tpunb run notebook.ipynb --tpu v3-8 --keras 2
```
""",
    ),
    Page(
        "performance.md",
        "Performance traps",
        ("P1",),
        """\
Training on a TPU is slow? These are the usual reasons, and the ways to avoid them. To see
where the time of a cell goes, profile it:

```text
%%tpu_profile
model.fit(dataset, steps_per_epoch=20)
```
""",
    ),
)

_INDEX = """\
# Known errors

Use this page to look up an error that users of TPUs meet, with its cause and its fix. In a
notebook with tpunb loaded, the cause and the fix appear below the error. Elsewhere, let tpunb find the
entry of an exception, of a traceback or of a number:

```python
try:
    model.fit(dataset)
except Exception as error:
    print(tpunb.explain(error))
    raise
```

```bash
tpunb explain < training.log   # or: tpunb explain 24
```

`tpunb explain --all` prints all entries as one page, with the patterns that identify their messages.

An entry keeps its number, and its address ends in the number: `errors.html#error-24`, `errors.html#trap-p5`.
`tpunb.explain(error).page` is the whole address.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its file name, starting with the index."""
    headings = [f"- [{page.title}](#{_slug(page.title)})" for page in PAGES]
    texts = {"errors.md": "\n".join([_INDEX, *headings, "", *_index()])}
    chapters = _chapters()
    for page in PAGES:
        body = [chapters[name].strip() + "\n" for name in page.chapters]
        if len(body) == 1:  # the heading would repeat the title
            body[0] = body[0].partition("\n\n")[2]
        texts[page.file] = "\n".join([f"# {page.title}\n", page.start, *_contents(page), *body])
    return texts


def _chapters() -> dict[str, str]:
    """Return the chapters of the whole catalogue's page by name, with their headings."""
    heading = re.compile(r"^### (\w+)\. .*", re.MULTILINE)
    whole = heading.sub(
        lambda match: f'<a id="{ENTRIES[match[1]].anchor}"></a>\n\n{_marked(match[0])}',
        errors_page(),
    )
    _, *parts = re.split(r"^(?=## )", whole, flags=re.MULTILINE)
    return {part.splitlines()[0].removeprefix("## "): part for part in parts}


def _index() -> Iterator[str]:
    for page in PAGES:
        yield f"## {page.title}\n"
        yield "| number | error |\n| --- | --- |"
        for entry in page.entries:
            number = f'<a id="{entry.anchor}"></a>{entry.code}'
            yield f"| {number} | [{_marked(entry.title)}]({page.file}#{entry.anchor}) |"
        yield ""


def _contents(page: Page) -> Iterator[str]:
    for entry in page.entries:
        yield f"- [{entry.code}. {_marked(entry.title)}](#{_anchor(entry)})"
    yield ""


def _marked(text: str) -> str:
    """Return a title with names like `__init__` as code: Markdown would print them in bold."""
    return re.sub(r"\S*__\S*", r"`\g<0>`", text)


def _anchor(entry: Explanation) -> str:
    """Return the anchor that GitHub gives to the heading of an entry."""
    return _slug(f"{entry.code}. {entry.title}")


def _slug(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
