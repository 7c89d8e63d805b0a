"""Triton kernels for NVIDIA GPUs. Each module states which PyTorch expression its kernels compute."""
