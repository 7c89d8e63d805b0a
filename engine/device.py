"""The machine that the model runs on: its device and floating-point type, its cores, its memory for weights."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import structlog
import torch

from engine.errors import StartError
from engine.options import Device, Dtype, Weights

logger = structlog.get_logger("engine.device")

_WEIGHTS_SHARE = 0.5
"""Packed weights are decoded on loading if the decoded ones take no more of the memory than this."""


def all_threads() -> int:
    """The largest power of two of the cores that this process may use, so that work is divided evenly."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 << (cores.bit_length() - 1)


def host_memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory(device: torch.device) -> int:
    """Bytes of the device's memory that nothing uses."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):  # not on Linux
        return host_memory() // 2


def empty_like_model(device: Device, dtype: Dtype) -> torch.Tensor:
    """An empty tensor whose device and dtype are the model's; new tensors are made like it. Raises StartError."""
    torch_device = _torch_device(device)
    if torch_device.type == "cpu":
        torch.set_num_threads(all_threads())
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    default = torch.bfloat16 if torch_device.type == "cuda" else torch.float32
    return torch.empty(0, device=torch_device, dtype=types.get(dtype, default))


def _torch_device(device: Device) -> torch.device:
    if device == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if device == "cuda":
        raise StartError("device: cuda was asked for, and no GPU is available")
    return torch.device("cpu")


def should_keep_packed(weights: Weights, decoded_bytes: Callable[[], int], device: torch.device) -> bool:
    """Whether packed weights (a few bits each) stay packed; `decoded_bytes` says how many bytes they take decoded.

    `weights` decides unless it is `auto`; then they are decoded if that takes at most half of the device's memory.
    """
    if weights != "auto":
        return weights == "packed"
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else host_memory()
    keep = decoded_bytes() > available * _WEIGHTS_SHARE
    if keep:
        logger.info("weights stay packed", decoded_bytes=decoded_bytes(), available_bytes=available)
    return keep


def return_freed_memory() -> None:
    """Return freed memory to the system. glibc would keep it, up to a tenth of what was loaded, for later requests."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
