"""What a TPU refuses, found before a replica function runs.

`lint` and `lowering` look, `source_lines` leads from a node to a line of Python,
`examination` puts them together.
"""

from __future__ import annotations
