"""Triton's interpreter, for kernels on a machine without a GPU (`tests/conftest.py` asks for it).

In fp32 and fp16 only: the interpreter's products and casts of bf16 and FP8 are wrong. Its products are numpy's, whose
bits depend on the number of rows, so that equal bits are only asserted on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.runtime import interpreter

INTERPRETED = not torch.cuda.is_available()
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

if INTERPRETED:
    _patch = interpreter._patch_lang_tensor

    def _patch_with_index(tensor: Any, scope: Any) -> None:
        # Triton 3.6 makes an index of an array of one element by int(), which numpy 2.4 refuses.
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_with_index
