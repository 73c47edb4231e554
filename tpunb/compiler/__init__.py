"""What the TPU's own compiler makes of a function: verdict, memory, time.

`program` and `table` are its answer; `compile` asks for it.
"""

from __future__ import annotations
