"""Usage of counts: a table of cases, and identities that hold for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.usage import AUTOMATIC, Usage
from gateway.dialects.openai.chat_response import ChatWriter
from gateway.dialects.openai.common_response import ResponseIdentity
from gateway.dialects.openai.completion_usage import completion_usage
from gateway.errors import Interrupted
from gateway.generation.delivery import ChoiceDelta, Failed, Finished
from gateway.metering.billable_usage import Fault, MeteringTerms, pack, to_billing_counts, unpack, usage_of
from gateway.served_models.served_model import ServedModel
from protocol.requests import Counts

OPENAI = MeteringTerms("openai", 256, 1000)
ANTHROPIC = MeteringTerms("anthropic", 256, 1000)
COLD = Counts(prompt=1000, computed=1000, output=50)
WARM = Counts(prompt=1000, computed=360, read_hbm=512, read_dram=64, read_nvme=64, output=50)
SHORT = Counts(prompt=1000, computed=808, read_hbm=192, output=50)

CASES: list[tuple[Counts, MeteringTerms, int, Fault, Usage]] = [
    (COLD, OPENAI, 50, "none", Usage(1000, output=50)),
    (WARM, OPENAI, 50, "none", Usage(360, {"automatic": 640}, output=50)),
    (SHORT, OPENAI, 50, "none", Usage(1000, output=50)),
    (Counts(prompt=1000, computed=744, read_hbm=256), OPENAI, 0, "none", Usage(744, {"automatic": 256})),
    (WARM, ANTHROPIC, 50, "none", Usage(1000, output=50)),
    (WARM, OPENAI, 20, "client", Usage(360, {"automatic": 640}, output=20)),
    (WARM, OPENAI, 0, "client", Usage(360, {"automatic": 640})),
    (WARM, OPENAI, 70, "client", Usage(360, {"automatic": 640}, output=50)),
    (WARM, OPENAI, 0, "ours_before", Usage()),
    (COLD, OPENAI, 7, "ours_before", Usage()),
    (WARM, OPENAI, 20, "ours_after", Usage(360, {"automatic": 640}, output=20)),
    (Counts(), OPENAI, 0, "client", Usage()),
    (Counts(prompt=128, computed=128), OPENAI, 0, "client", Usage(128)),
    (Counts(prompt=1000, computed=1000, output=9, recomputed=500, drafted=8, accepted=3), OPENAI, 9, "none",
     Usage(1000, output=9)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_table(case: tuple[Counts, MeteringTerms, int, Fault, Usage]) -> None:
    counts, terms, delivered, fault, wanted = case
    assert usage_of(counts, terms, delivered, fault) == wanted


small = st.integers(0, 2000)
counts_ = st.builds(
    lambda computed, hbm, dram, nvme, output: Counts(
        prompt=computed + hbm + dram + nvme,
        computed=computed,
        read_hbm=hbm,
        read_dram=dram,
        read_nvme=nvme,
        output=output,
    ),
    small, small, small, small, small,
)  # fmt: skip
terms_ = st.builds(MeteringTerms, st.sampled_from(["openai", "anthropic"]), st.integers(0, 2000), small)
faults = st.sampled_from(["none", "client", "ours_before", "ours_after"])


@given(counts_, terms_, small, faults)
def test_identities(counts: Counts, terms: MeteringTerms, delivered: int, fault: Fault) -> None:
    counts.check()
    usage = usage_of(counts, terms, delivered, fault)
    assert usage.prompt == (0 if fault == "ours_before" else counts.prompt)
    assert usage.output <= min(delivered, counts.output)
    assert all(tokens >= 0 for tokens in usage.meters().values())
    assert not usage.write
    read = sum(usage.read.values())
    assert read in (0, counts.read)
    assert read == 0 or (read >= terms.read_min and terms.surface == "openai")
    assert Usage.from_meters(usage.meters()) == usage
    assert to_billing_counts(counts).prompt == counts.prompt
    assert unpack(pack(terms)) == terms


@given(counts_, small)
def test_openais_view_loses_nothing(counts: Counts, delivered: int) -> None:
    usage = usage_of(counts, OPENAI, delivered, "none")
    view = completion_usage(usage, 123, "USD")
    cached = view.prompt_tokens_details.cached_tokens
    read = {AUTOMATIC: cached} if cached else {}
    assert Usage(uncached=view.prompt_tokens - cached, read=read, output=view.completion_tokens) == usage
    assert view.total_tokens == view.prompt_tokens + view.completion_tokens
    assert view.prompt_tokens_details.cached_tokens <= view.prompt_tokens
    assert view.cost.amount == "0.000000000123"


def test_events_end_with_a_mark_or_an_error(model: ServedModel) -> None:
    identity = ResponseIdentity("chatcmpl-1", 1, "tiny", "req_1", "default")
    writer = ChatWriter(identity, model.tokenizer, logprobs=False, include_usage=True)
    end = Finished(("stop",), to_billing_counts(COLD), Usage(1000, output=50), 5, "USD")
    whole = writer.events([ChoiceDelta(0, "a")]) + writer.finished(end)
    assert whole.endswith(b"data: [DONE]\n\n")
    assert whole.count(b'"usage":null') == 3
    assert whole.count(b'"role":"assistant"') == 1
    failed = ChatWriter(identity, model.tokenizer, logprobs=False, include_usage=False).failed(
        Failed(Interrupted("oh"))
    )
    assert b"req_1" in failed
    assert b"[DONE]" not in failed
