"""Programs as the TPU's own compiler compiles them: verdict, memory and time.

`program` and `table` are its answer; `compile` asks for it.
"""

from __future__ import annotations
