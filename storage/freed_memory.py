"""Returns memory that was freed to the operating system."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Return freed memory to the system. glibc would keep it for later requests of memory, and much of it for good."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
