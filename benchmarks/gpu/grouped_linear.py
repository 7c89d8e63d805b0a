"""A product of experts for few tokens, tried: `python -m benchmarks.gpu.grouped_linear [--json OUT]`.

The kernel is `engine.kernels.linear_hopper` with a list of tiles on the device: each entry is an expert and up to
`high` of its rows, which lie next to each other. Its bits are compared with the library's grouped product and with our
linear kernel for each expert, and it is timed beside the library, at experts drawn at random for each token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from benchmarks.gpu.kernels import DEVICE, Report, graph_us
from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs
from engine.kernels.linear import linear

SHAPES = {
    "Qwen3-30B-A3B gate_up": (128, 1_536, 2_048, 8),
    "Qwen3-30B-A3B down": (128, 2_048, 768, 8),
    "Mixtral gate_up": (8, 28_672, 4_096, 2),
    "Mixtral down": (8, 4_096, 14_336, 2),
}
"""Experts, outputs, inputs, experts of a token."""
TOKENS = (1, 4, 8, 16, 32, 64, 128)
BYTES_A_MICROSECOND = 4.4e6
"""What an H200's memory gives at best."""
_TALL, _PARTS, _HELD, _PROGRAMS = 64, 4, 110 << 10, 2
"""Outputs of a tile; pieces of 128 bytes of a row that are fetched together; bytes in flight of a program; programs of
a multiprocessor."""


@gluon.jit
def _fetch(
    weight, x, plan, w_smem, x_smem, full, empty,
    TILES: gl.constexpr, OUTPUTS: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    TALL: gl.constexpr = weight.block_type.shape[0]
    SIZE: gl.constexpr = (weight.block_type.nbytes + x.block_type.nbytes) * PARTS
    WIDE: gl.constexpr = weight.block_type.shape[1]
    wait_for_inputs()
    i = 0
    for tile in range(gl.program_id(0), gl.load(plan) * TILES, gl.num_programs(0)):
        entry = plan + 4 + tile // TILES * 4
        output, row = gl.load(entry) * OUTPUTS + tile % TILES * TALL, gl.load(entry + 1)
        for step in range(0, STEPS):
            stage = i % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
            mbarrier.expect(ready, SIZE)
            for part in gl.static_range(PARTS):
                place = (step * PARTS + part) * WIDE
                tma.async_copy_global_to_shared(weight, [output, place], ready, w_smem.index(stage * PARTS + part))
                tma.async_copy_global_to_shared(x, [row, place], ready, x_smem.index(stage * PARTS + part))
            i += 1


@gluon.jit
def _multiply(
    y, plan, y_row, w_smem, x_smem, full, empty, TILES: gl.constexpr, OUTPUTS: gl.constexpr,
    STEPS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, TALL: gl.constexpr, HIGH: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HIGH, 16])
    m = gl.arange(0, HIGH, gl.SliceLayout(0, S))
    wait_for_inputs()
    i = 0
    for tile in range(gl.program_id(0), gl.load(plan) * TILES, gl.num_programs(0)):
        entry = plan + 4 + tile // TILES * 4
        row, count = gl.load(entry + 1), gl.load(entry + 2)
        total = gl.zeros((TALL, HIGH), gl.float32, S)
        for _ in range(0, STEPS):
            stage = i % STAGES
            mbarrier.wait(full.index(stage), (i // STAGES) & 1)
            at = stage * PARTS
            following = warpgroup_mma(w_smem.index(at), x_smem.index(at).permute((1, 0)), total, is_async=True)
            for part in gl.static_range(1, PARTS):
                following = warpgroup_mma(
                    w_smem.index(at + part), x_smem.index(at + part).permute((1, 0)), following, is_async=True
                )
            total = warpgroup_mma_wait(0, deps=(following,))
            mbarrier.arrive(empty.index(stage), count=1)
            i += 1
        n = tile % TILES * TALL + gl.arange(0, TALL, gl.SliceLayout(1, S))
        place = y + (row + m).to(gl.int64)[None, :] * y_row + n[:, None]
        gl.store(place, total.to(y.dtype.element_ty), mask=(n < OUTPUTS)[:, None] & (m < count)[None, :])


@gluon.jit
def _grouped(
    weight, x, y, plan, y_row,
    OUTPUTS: gl.constexpr, INPUTS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    TALL: gl.constexpr = weight.block_type.shape[0]
    HIGH: gl.constexpr = x.block_type.shape[0]
    WIDE: gl.constexpr = x.block_type.shape[1]
    STEPS: gl.constexpr = INPUTS // (WIDE * PARTS)
    TILES: gl.constexpr = (OUTPUTS + TALL - 1) // TALL
    let_next_begin()
    w_smem = gl.allocate_shared_memory(weight.dtype, [STAGES * PARTS, TALL, WIDE], weight.layout)
    x_smem = gl.allocate_shared_memory(x.dtype, [STAGES * PARTS, HIGH, WIDE], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _multiply,
                (y, plan, gl.to_tensor(y_row), w_smem, x_smem, full, empty,
                 TILES, OUTPUTS, STEPS, STAGES, PARTS, TALL, HIGH),
            ),
            (_fetch, (weight, x, plan, w_smem, x_smem, full, empty, TILES, OUTPUTS, STEPS, STAGES, PARTS)),
        ],
        [1],
        [40],
    )  # fmt: skip


def _boxes(matrix: torch.Tensor, high: int) -> TensorDescriptor:
    block = [high, 64]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    return TensorDescriptor(matrix, list(matrix.shape), [matrix.stride(0), 1], block, layout)


def grouped_linear(
    x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, plan: torch.Tensor, high: int
) -> torch.Tensor:
    """Rows [pairs, inputs] in order of their experts · [experts, outputs, inputs]ᵀ → `y` [pairs, outputs]. `plan`: see
    `plan_tiles`."""
    experts, outputs, inputs = weight.shape
    stages = _HELD // ((_TALL + high) * 128 * _PARTS)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    _grouped[(_PROGRAMS * processors,)](
        _boxes(weight.view(experts * outputs, inputs), _TALL), _boxes(x, high), y, plan, y.stride(0),
        OUTPUTS=outputs, INPUTS=inputs, STAGES=stages, PARTS=_PARTS, num_warps=4, maxnreg=96, **LAUNCH,
    )  # fmt: skip
    return y


def plan_tiles(counts: list[int], high: int) -> torch.Tensor:
    """Words of 32 bits in fours: (number of entries, 0, 0, 0), then for each (expert, first row, rows, 0)."""
    entries, begin = [], 0
    for expert, count in enumerate(counts):
        entries += [(expert, begin + at, min(high, count - at), 0) for at in range(0, count, high)]
        begin += count
    return torch.tensor([(len(entries), 0, 0, 0), *entries], dtype=torch.int32, device=DEVICE).flatten()


def trial(name: str, tokens: int) -> Report:
    """Differing numbers and µs for one shape and number of tokens."""
    experts, outputs, inputs, top = SHAPES[name]
    weight = torch.randn(experts, outputs, inputs, device=DEVICE).to(torch.bfloat16) * 0.05
    chosen = torch.stack([torch.randperm(experts, device=DEVICE)[:top] for _ in range(tokens)]).flatten()
    counts = torch.bincount(chosen, minlength=experts)
    ends = counts.cumsum(0).to(torch.int32)
    x = torch.randn(tokens * top, inputs, device=DEVICE).to(torch.bfloat16)
    library = torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)
    alone, begin = 0, 0
    for expert, end in enumerate(ends.tolist()):
        if end > begin:
            alone += int((linear(x[begin:end].contiguous(), weight[expert]) != library[begin:end]).sum())
        begin = end
    touched = int((counts > 0).sum())
    report: Report = {
        "experts": touched,
        "floor_us": touched * outputs * inputs * 2 / BYTES_A_MICROSECOND,
        "library_us": graph_us(lambda _: torch._grouped_mm(x, weight.transpose(1, 2), offs=ends), 6),
        "library_differs_from_linear": alone,
    }
    for high in (8, 16, 32, 64):
        plan, y = plan_tiles(counts.tolist(), high), torch.full_like(library, float("nan"))
        differing = int((grouped_linear(x, weight, y, plan, high) != library).sum())
        took = graph_us(lambda _: grouped_linear(x, weight, y, plan, high), 6)
        report[f"high {high}"] = {"differing": differing, "us": took}
    return report


def main() -> None:
    """Print, and write with `--json`, each trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    report: Report = {}
    for name in SHAPES:
        for tokens in TOKENS:
            report[f"{name}, {tokens} tokens"] = trial(name, tokens)
            print(f"{name}, {tokens} tokens: {report[f'{name}, {tokens} tokens']}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
