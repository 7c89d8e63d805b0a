"""Triton's interpreter, for kernels on a machine without a GPU (`tests/conftest.py` asks for it).

In fp32 and fp16 only: the interpreter's products and casts of bf16 and FP8 are wrong. Its products are numpy's, whose
bits depend on the number of rows, so that equal bits are only asserted on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

INTERPRETED = not torch.cuda.is_available()
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


def _make_quicker() -> None:
    """Leave out what the interpreter does over and over: more than half of what a kernel takes in it.

    It puts its own operations into Triton's modules at each launch and at each call of a function in a kernel; here
    they are put there once. It computes again in 64 bits whether integers overflow, for an assertion that is only made
    with `debug`. It makes a table of all types to look up one.
    """
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _function: interpreter._LangPatchScope()
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    of_scalar, of_pointer = cache(interpreter._get_np_dtype), np.dtype(np.uint64)

    def numpy_type(kind: tl.dtype) -> np.dtype[Any]:
        return of_pointer if isinstance(kind.scalar, tl.pointer_type) else of_scalar(kind.scalar)

    interpreter._get_np_dtype = numpy_type


if INTERPRETED:
    _patch = interpreter._patch_lang_tensor

    def _patch_with_index(tensor: Any, scope: Any) -> None:
        # Triton 3.6 makes an index of an array of one element by int(), which numpy 2.4 refuses.
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_with_index
    _make_quicker()
