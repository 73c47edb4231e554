"""Programs compiled by the TPU's own compiler: verdict, memory and time.

`compile` asks the compiler; `program` holds its answer.
"""

from __future__ import annotations
