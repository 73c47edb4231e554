"""docs/maintainers/jax-fidelity.md, as text and from its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jax_fidelity.compare import Row

PATH = Path(__file__).parents[2] / "docs" / "maintainers" / "jax-fidelity.md"

TPU = "v5e-8"

_TOP = """\
# JAX operations on a virtual TPU and on a TPU

Use this table to see whether a number of a [virtual TPU for JAX](../jax.md) is the number of a TPU. To make the rows again:

```bash
cd tests && python -m jax_fidelity   # in a Python with JAX; minutes
```

The command runs each operation on plain CPU devices and on a virtual {tpu}, and compares all bits of the results. "Refused"
is an error before anything runs. Where a TPU would run the operation, the error says that this machine cannot. The TPU's
own compiler gives the verdict. This page was made with JAX {jax}. The last column follows the documentation and the
sources of JAX and XLA, because no TPU was available.
"""

_HEAD = """\
| operation | numbers of CPU devices | verdict for a {tpu} | numbers on a TPU |
|---|---|---|---|
"""


def page_text(groups: Mapping[str, Sequence[Row]], jax: str) -> str:
    """Return the page.

    Args:
        groups: The rows of each group.
        jax: The release of JAX.
    """
    parts = [_TOP.format(tpu=TPU, jax=jax)]
    for title, rows in groups.items():
        lines = "".join(f"{line(row)}\n" for row in rows)
        parts.append(f"## {title}\n\n{_HEAD.format(tpu=TPU)}{lines}")
    return "\n".join(parts)


def rows_of(text: str) -> list[Row]:
    """Return the rows of a page's text."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [Row(*line.strip("| ").split(" | ")) for line in lines]
    return [row for row in rows if row.name != "operation"]


def line(row: Row) -> str:
    """Return a row as a line of a table."""
    return f"| {row.name} | {row.numbers} | {row.verdict} | {row.on_a_tpu} |"
