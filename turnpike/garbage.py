"""How a process that serves collects its garbage: seldom, and never what it was started with.

Python's collector looks at all young objects each time 700 more were made than freed, and at all there are each time
the old ones grew by a quarter. For a process with many modules, tables and caches, which handles thousands of small
objects at once, that is much work, and it finds next to nothing: what is dropped is freed at once by the counts of
references.
"""

from __future__ import annotations

import gc

_YOUNG = 50_000
_MIDDLE = 20
_OLD = 50


def keep_what_is_there() -> None:
    """Leave all objects there are to themselves, and collect the coming ones seldom. Called once, when all is built."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
