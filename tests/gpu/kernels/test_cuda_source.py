"""Kernels in CUDA C++: compiled, kept, launched; and what is said where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.kernels import cuda_source
from engine.kernels.cuda_source import CudaKernel, KernelError, available, compile_source

_DOUBLE = """
extern "C" __global__ void twice(const float* x, float* y, int count, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = FACTOR * factor * x[i];
}
"""


def test_a_cpu_has_none() -> None:
    assert not available(torch.device("cpu"))


def test_without_nvrtc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_source, "_nvrtc", lambda: None)
    with pytest.raises(KernelError, match="NVRTC is not installed"):
        compile_source(_DOUBLE, "double.cu", {}, {})


@pytest.mark.gpu
def test_it_is_compiled_once_and_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_source, "SOURCES", tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "double.cu").write_text(_DOUBLE)
    x, y = torch.randn(1_000, device="cuda"), torch.empty(1_000, device="cuda")
    CudaKernel("double.cu", "twice", {"FACTOR": 2}, 0)((8, 1), 128, x, y, 1_000, 0.5)
    assert torch.equal(x, y)
    monkeypatch.setattr(cuda_source, "compile_source", None)
    CudaKernel("double.cu", "twice", {"FACTOR": 2}, 0)((8, 1), 128, x, y, 1_000, 1.0)
    assert torch.equal(2 * x, y)


@pytest.mark.gpu
def test_a_source_that_is_wrong_is_told_by_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_source, "SOURCES", tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "double.cu").write_text(_DOUBLE)
    with pytest.raises(KernelError, match="FACTOR"):
        CudaKernel("double.cu", "twice", {}, 0)
    (tmp_path / "double.cu").write_text(_DOUBLE.replace("FACTOR", "1"))
    with pytest.raises(KernelError, match="no kernel thrice"):
        CudaKernel("double.cu", "thrice", {}, 0)
