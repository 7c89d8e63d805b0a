"""On a GPU: every request's logits have the same bits alone, in company, cold, warm and in small chunks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu.exactness import compare_runs
from engine.options import KvDtype, Quantize

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", ["llama-3.2-1b", "qwen3-tiny"])
@pytest.mark.parametrize(
    ("quantize", "kv_dtype"),
    [
        *(("none", "auto"), ("fp8", "auto"), ("none", "fp8"), ("fp8", "fp8")),
        *(("int4", "auto"), ("int4-g32", "fp8"), ("mxfp4", "auto"), ("nvfp4", "auto")),
    ],
)
def test_logits_have_the_same_bits(tmp_path: Path, shape: str, quantize: Quantize, kv_dtype: KvDtype) -> None:
    report = compare_runs(tmp_path, shape, quantize, 24, kv_dtype)
    assert report.different == {}
    assert report.compared > 4 * 500
