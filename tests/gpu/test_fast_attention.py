"""`--attention fast` over the fused kernels: what a library is given of the blocks, and what comes of it.

With PyTorch's attention in Triton's interpreter as well; with cuDNN on a GPU.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention_backends.backend import AttentionKind
from engine.attention_backends.chooser import backends
from engine.attention_backends.cudnn import CudnnAttention
from engine.attention_backends.torch_attention import TorchAttention
from engine.execution.cuda.fast_prefill import FastPrefill
from engine.execution.cuda.runner import CudaRunner
from engine.kernels.gathered_kv import gather_kv, join_attention
from engine.kernels.paged_kv import PagedKv, Scores
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from tests.engine.conftest import Bench, Families, generate, write_model
from tests.gpu.execution.fused_bench import fused_bench, small_model
from tests.gpu.kernels.interpreter import DEVICE

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(200)]


def random(*shape: int, dtype: torch.dtype = torch.float32, device: Any = DEVICE) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, device=device).to(dtype)


def test_keys_and_values_are_copied_in_the_order_of_their_blocks() -> None:
    data = random(7, 2, 2, 3, 64, 16)
    blocks = torch.tensor([5, 0, 3], dtype=torch.int32, device=DEVICE)
    found = gather_kv(PagedKv(data, 1), blocks, data)
    for part in range(2):
        expected = data[blocks.long(), 1, part].transpose(1, 2).flatten(0, 1)
        assert torch.equal(found[part], expected)


@pytest.mark.parametrize("heads", [3, 8])
def test_the_attention_of_two_parts_of_the_keys_is_joined(heads: int) -> None:
    query, keys, values = random(5, heads, 16), random(40, heads, 16), random(41, heads, 16)[:40]
    scores = torch.einsum("qhd,khd->hqk", query, keys)

    def over(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        weights = scores[..., part].softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values[part]), scores[..., part].logsumexp(-1)

    (first, first_lse), (second, second_lse) = over(slice(13)), over(slice(13, None))
    whole, whole_lse = over(slice(None))
    output, lse = torch.empty_like(whole), torch.empty_like(whole_lse)
    join_attention(first, first_lse, second, second_lse, output, lse)
    assert torch.allclose(output, whole, atol=1e-5)
    assert torch.allclose(lse, whole_lse, atol=1e-5)
    join_attention(first, first_lse, second, second_lse, first, first_lse)  # in place
    assert torch.equal(first, output)


class Counting(TorchAttention):
    """Counts the rows of the chunks that it is given."""

    row_multiple = 16

    def __init__(self) -> None:
        self.rows: list[int] = []

    def prefill(self, *given: Any) -> None:
        self.rows.append(len(given[0]))
        super().prefill(*given)


def test_large_chunks_are_computed_by_the_library_and_others_by_our_kernels(tmp_path: Path) -> None:
    """Prompts in chunks, one of them short, beside decodes; a prefix that is read. All free memory is NaN."""
    folder, outputs = small_model(tmp_path / "model"), []
    library = Counting()
    for is_fast in (False, True):
        bench = fused_bench(folder, budget=96, running=2)
        runner = bench.engine.executor.runner
        assert isinstance(runner, CudaRunner)
        if is_fast:
            runner.prefill.fast = FastPrefill([library], [0], least_rows=30)
        runs = [bench.add(generate(str(number), [number, *PROMPT[: 20 + 90 * number]], 6)) for number in range(3)]
        bench.finish()
        again = bench.one(generate("again", [2, *PROMPT[:150]], 4))
        assert bench.counts("again").read == 128
        outputs.append([run.tokens for run in (*runs, again)])
    assert outputs[0] == outputs[1]
    layers = len(runner.model.layers)
    assert len(library.rows) >= 3 * layers
    assert min(library.rows) >= 32
    assert not any(rows % 16 for rows in library.rows)


# ------------------------------------------------------------ with cuDNN, on a GPU


HEADS, KV_HEADS, DIM = 32, 8, 128


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [100, 2_048, 8_192, 8_704])
@pytest.mark.parametrize("prefix", [0, 64, 1_000, 8_192, 8_704 * 3])
def test_cudnn_is_as_near_as_rounding_allows(rows: int, prefix: int) -> None:
    dtype, library = torch.bfloat16, CudnnAttention()
    assert library.unsupported(AttentionKind(dtype, HEADS, KV_HEADS, DIM, DEVICE)) is None
    query = random(rows, HEADS, DIM, dtype=dtype)
    data = random(KV_HEADS, prefix + rows, DIM, dtype=dtype), random(KV_HEADS, prefix + rows + 1, DIM, dtype=dtype)
    keys, values = data[0].transpose(0, 1), data[1].transpose(0, 1)[: prefix + rows]
    output, expected = torch.empty_like(query), torch.empty(rows, HEADS, DIM, device=DEVICE)
    library.prefill(query, keys, values, Scores(DIM**-0.5), output)
    some = [0, 1, rows // 2, rows - 2, rows - 1]
    group = HEADS // KV_HEADS
    for row in some:
        seen = prefix + row + 1
        score = torch.einsum("hd,khd->hk", query[row].double(), keys[:seen].double().repeat_interleave(group, 1))
        weights = (score * DIM**-0.5).softmax(-1)
        expected[row] = torch.einsum("hk,khd->hd", weights, values[:seen].double().repeat_interleave(group, 1)).float()
    assert (output[some].float() - expected[some]).abs().max() < 2e-2


@pytest.mark.gpu
def test_cudnn_sees_no_key_behind_those_that_it_is_given() -> None:
    """What lies there may be another request's NaN."""
    query = random(1_024, HEADS, DIM, dtype=torch.bfloat16)
    held = torch.full((2, KV_HEADS, 3_072, DIM), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    held[:, :, :2_040] = random(2, KV_HEADS, 2_040, DIM, dtype=torch.bfloat16)
    output = torch.empty_like(query)
    CudnnAttention().prefill(
        query, held[0].transpose(0, 1)[:2_040], held[1].transpose(0, 1)[:2_040], Scores(DIM**-0.5), output
    )
    assert output.isfinite().all()


@pytest.mark.gpu
def test_an_engine_answers_as_with_exact_attention(tmp_path: Path) -> None:
    """As near as a rounding of KV to 8 bits is: of that, other attention changes some."""
    folder = write_model(
        tmp_path / "model", num_hidden_layers=2, hidden_size=512, intermediate_size=1_024, head_dim=128,
        num_attention_heads=8, num_key_value_heads=2, vocab_size=4_096, max_position_embeddings=16_384,
    )  # fmt: skip
    prompt = [(7 * i * i + 3 * i) % 4_001 for i in range(9_000)]
    logits = {}
    for kv_dtype, attention in product(("auto", "fp8"), ("exact", "fast")):
        options = ReplicaOptions(
            folder, "unix:x", tmp_path / kv_dtype / attention, "r", b"", device="cuda", kv_memory=1 << 28,
            kv_dtype=kv_dtype, attention=attention, token_budget=4_200, max_running=8,  # type: ignore[arg-type]
        )  # fmt: skip
        engine = assemble(options).engine
        assert engine.executor.attention == (("cudnn",) if attention == "fast" else ())
        bench = Bench(engine)
        cold = bench.one(generate("cold", prompt, 8))
        bench.one(generate("warm", prompt, 8))
        assert bench.counts("warm").read == 8_960
        logits[kv_dtype, attention] = cold.logits[0].float()

    def distance(*pair: tuple[str, str]) -> float:
        first, second = (logits[one] for one in pair)
        return float((first - second).norm() / first.norm())

    rounding = distance(("auto", "exact"), ("fp8", "exact"))
    assert distance(("auto", "exact"), ("auto", "fast")) < 0.5 * rounding
    assert distance(("fp8", "exact"), ("fp8", "fast")) < 1.5 * rounding


@pytest.mark.gpu
def test_on_this_gpu_cudnn_is_at_hand() -> None:
    kind = AttentionKind(torch.bfloat16, HEADS, KV_HEADS, DIM, DEVICE)
    usable = [backend.name for backend in backends(last_resorts=True) if backend.unsupported(kind) is None]
    assert "cudnn" in usable
    assert usable[-2:] == ["torch-flash", "torch"]


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["mixtral", "gemma2", "gemma3", "gpt-oss"])
def test_families_that_our_kernels_do_not_compute(family_folders: Families, tmp_path: Path, family: str) -> None:
    """Windows, soft caps and sinks; prompts and decodes, by whatever is fastest for each kind of layer."""
    logits = []
    for attention in ("exact", "fast"):
        options = ReplicaOptions(
            family_folders(family), "unix:x", tmp_path / attention, "r", b"", device="cuda", dtype="float32",
            kv_memory=1 << 22, attention=attention, max_running=4, token_budget=128,  # type: ignore[arg-type]
        )  # fmt: skip
        engine = assemble(options).engine
        assert bool(engine.executor.attention) == (attention == "fast")
        logits.append(torch.stack(Bench(engine).one(generate("a", PROMPT, 8)).logits).float())
    assert (logits[0] - logits[1]).norm() < 1e-3 * logits[0].norm()
