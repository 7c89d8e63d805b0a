"""CUDA C++ kernels: compiled by NVRTC when first used, kept as cubin files, launched through the driver.

Where a kernel needs what neither Triton nor Gluon gives (the order of barriers among warps, fragments of matrix
instructions), it is written in CUDA C++ in `engine/kernels/cuda/`. NVRTC and the driver come with PyTorch's CUDA build,
so nothing has to be installed. Sources include only headers (`.cuh`) of that folder. Callers ask `available` first, and
take another kernel of the same bits where it says no.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOURCES = Path(__file__).with_name("cuda")
_HOPPER = 9
_ARCHITECTURE = "sm_90a"
_OPTIONS = ("--std=c++17", "-default-device", f"--gpu-architecture={_ARCHITECTURE}")
_SUCCESS = 0
_MOST_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEPENDENT_LAUNCH = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_TILED_BFLOAT16, _TILED_UINT8 = 9, 0  # CU_TENSOR_MAP_DATA_TYPE_…
_SWIZZLE_128B, _PROMOTE_L2_256B = 3, 3  # CU_TENSOR_MAP_…


class KernelError(Exception):
    """A kernel that cannot be compiled, loaded or launched."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute; its value has 64 bytes, of which a switch is the first int."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60)]


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


def available(device: torch.device) -> bool:
    """Whether kernels of this kind run on the device: a Hopper, with NVRTC and a driver."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return False
    return _nvrtc() is not None and _driver() is not None


@cache
def _nvrtc() -> ctypes.CDLL | None:
    major = (torch.version.cuda or "").partition(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def compile_source(source: str, name: str, defines: Mapping[str, int], headers: Mapping[str, str]) -> bytes:
    """The cubin of a source. `headers`: their text by name. Raises KernelError with the compiler's messages."""
    nvrtc = _nvrtc()
    if nvrtc is None:
        raise KernelError("NVRTC is not installed")
    options = [*_OPTIONS, *(f"-D{key}={value}" for key, value in defines.items())]
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), name.encode(), len(headers), _texts(headers.values()), _texts(headers)
    )
    compiled = nvrtc.nvrtcCompileProgram(program, len(options), _texts(options))
    read = ("nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    if compiled != _SUCCESS:
        read = ("nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
    size = ctypes.c_size_t()
    getattr(nvrtc, read[0])(program, ctypes.byref(size))
    result = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, read[1])(program, result)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if compiled != _SUCCESS:
        raise KernelError(f"{name} cannot be compiled:\n{result.value.decode(errors='replace')}")
    return result.raw


def _texts(texts: Collection[str]) -> Any:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _cache_folder() -> Path:
    """Where Triton keeps its kernels too."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache") / "cuda"


def _cubin(path: Path, defines: Mapping[str, int]) -> bytes:
    source = path.read_text()
    headers = {header.name: header.read_text() for header in sorted(path.parent.glob("*.cuh"))}
    said = repr((source, headers, sorted(defines.items()), _OPTIONS, torch.version.cuda))
    kept = _cache_folder() / f"{path.stem}-{hashlib.sha256(said.encode()).hexdigest()[:32]}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        pass
    cubin = compile_source(source, path.name, defines, headers)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(cubin)
        os.replace(file.name, kept)
    except OSError:
        pass  # It is compiled again at the next start.
    return cubin


def compile_kept(source: str, defines: Mapping[str, int]) -> None:
    """Compile a source of `engine/kernels/cuda/` where its cubin is not kept yet. Raises KernelError."""
    _cubin(SOURCES / source, defines)


def _checked(result: int, what: str) -> None:
    if result == _SUCCESS:
        return
    driver, said = _driver(), ctypes.c_char_p()
    assert driver is not None
    driver.cuGetErrorString(result, ctypes.byref(said))
    raise KernelError(f"{what}: {(said.value or b'unknown error').decode()}")


class CudaKernel:
    """The kernel `name`, declared extern "C" in the file `source` of `engine/kernels/cuda/`, on the current device.

    `defines` are macros of the source. `shared_bytes`: dynamic shared memory of a block. Raises KernelError.
    """

    def __init__(self, source: str, name: str, defines: Mapping[str, int], shared_bytes: int) -> None:
        driver = _driver()
        if driver is None:
            raise KernelError("no CUDA driver")
        torch.cuda.current_stream()  # makes the context
        self._driver, self._shared_bytes = driver, shared_bytes
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        cubin = _cubin(SOURCES / source, defines)
        _checked(driver.cuModuleLoadData(ctypes.byref(self._module), cubin), f"{source} cannot be loaded")
        found = driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _checked(found, f"{source} has no kernel {name}")
        allowed = driver.cuFuncSetAttribute(self._function, _MOST_SHARED_MEMORY, shared_bytes)
        _checked(allowed, f"{name}: {shared_bytes} bytes of shared memory")

    def __call__(self, grid: tuple[int, int], threads: int, *arguments: Argument, dependent: bool = False) -> None:
        """Launch on the current stream.

        Tensors are handed on as pointers, ints as int32, floats as fp32, bytes (`TensorMap`) as they are. `dependent`:
        the kernel may begin before the one in front of it has ended, and waits by itself (`griddepcontrol.wait`).
        """
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attribute = _Attribute(_DEPENDENT_LAUNCH, 0, 1)
        stream = torch.cuda.current_stream().cuda_stream
        launch = _Launch(
            grid[0], grid[1], 1, threads, 1, 1, self._shared_bytes, stream, ctypes.pointer(attribute), int(dependent)
        )
        _checked(self._driver.cuLaunchKernelEx(ctypes.byref(launch), self._function, pointers, None), "launch")


class TensorMap:
    """A matrix [rows, bytes of a row] that the tensor memory accelerator copies from, in boxes [`high`, 128 bytes].

    In shared memory its chunks of 16 bytes are swizzled (CU_TENSOR_MAP_SWIZZLE_128B), as `wgmma` reads them.
    """

    def __init__(self, data: torch.Tensor, high: int) -> None:
        driver = _driver()
        if driver is None:
            raise KernelError("no CUDA driver")
        kind, item = (_TILED_UINT8, 1) if data.itemsize == 1 else (_TILED_BFLOAT16, 2)
        # The driver wants it at a multiple of 64 bytes.
        self._memory = ctypes.create_string_buffer(128 + 64)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        rows, columns = data.shape
        made = driver.cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.address), kind, 2, ctypes.c_void_p(data.data_ptr()),
            (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(data.stride(0) * item),
            (ctypes.c_uint32 * 2)(128 // item, high), (ctypes.c_uint32 * 2)(1, 1),
            0, _SWIZZLE_128B, _PROMOTE_L2_256B, 0,
        )  # fmt: skip
        _checked(made, f"a tensor map of {rows} x {columns}")


Argument = torch.Tensor | int | float | TensorMap
_MapBytes = ctypes.c_byte * 128


def _value(argument: Argument) -> Any:
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, TensorMap):
        return _MapBytes.from_address(argument.address)
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)
