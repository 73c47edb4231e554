"""The documentation page with a record."""

from __future__ import annotations

import collections
from pathlib import Path

from peer_tests.record import Record

_BEGIN, _END = "<!-- record -->", "<!-- /record -->"


def put(record: Record, page: Path) -> None:
    """Replace the page's record."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}\n{written(record)}\n{_END}{after}", encoding="utf-8")


def shown(page: Path) -> str:
    """The record on the page."""
    _, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    return rest.partition(_END)[0].strip("\n")


def written(record: Record) -> str:
    """The record as Markdown: the total, and tables of the files and of the exceptions."""
    failing = {name: len(record.exceptions_of(name)) for name in record.passed}
    passed = sum(record.passed.values())
    lines = [
        f"{passed:,} of {passed + sum(failing.values()):,} pass.",
        "",
        "| file | run | passed |",
        "| --- | --- | --- |",
        *(
            f"| {name} | {count + failing[name]:,} | {count:,} |"
            for name, count in record.passed.items()
        ),
        "",
        "| test that does not pass | combinations | reason |",
        "| --- | --- | --- |",
    ]
    for group in record.exceptions:
        combinations = collections.Counter(map(_method, group.tests))
        lines += [f"| {name} | {count} | {group.reason} |" for name, count in combinations.items()]
    return "\n".join(lines)


def _method(test: str) -> str:
    """A test's file and method, without its combination."""
    file, _, method = test.split(".")
    return f"{file} `{method.partition('_test_')[0]}`"
