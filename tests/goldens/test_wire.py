"""What gateway and replica send each other: tags, fields by position, and bytes."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from protocol import frames
from protocol.adapters import AdapterPart, DropAdapter, ResidentAdapter, WantAdapter
from protocol.frames import MAX_FRAME_BYTES, ToGateway, ToReplica, encode, read_from_gateway, read_from_replica
from protocol.replicas import (
    Capacity,
    Dial,
    Drain,
    Fence,
    Fenced,
    Forget,
    Heartbeat,
    Hello,
    LayerGroup,
    Layout,
    Load,
    Purge,
    RemoteService,
    Scope,
    SentPrefix,
    ServedModel,
    TierLimit,
    TierLoad,
)
from protocol.requests import (
    Abort,
    Ack,
    Began,
    Counts,
    Credit,
    Done,
    Generate,
    Lost,
    Miss,
    PromptLogprobs,
    PromptRead,
    Refusal,
    Retain,
    Route,
    Sampling,
    Segment,
    TokenLogprob,
    Tokens,
)
from tests.goldens import golden

COUNTS = Counts(
    prompt=60, computed=10, read_hbm=20, read_dram=14, read_nvme=16, output=7, recomputed=3, drafted=5, accepted=4
)
SAMPLING = Sampling(
    max_tokens=9,
    temperature=0.5,
    top_p=0.75,
    seed=11,
    stop_tokens=(2, 3),
    top_k=40,
    min_p=0.125,
    presence_penalty=0.25,
    frequency_penalty=-0.25,
    repetition_penalty=1.5,
    logit_bias={7: -1.5},
    min_tokens=1,
    logprobs=2,
    prompt_logprobs=0,
)
TO_REPLICA: list[Any] = [
    Dial(version=5, gateway="g", proof=b"proof", epoch="g-1"),
    Scope(
        scope="s", root=b"root", data_key=b"key", limits=(TierLimit(tier="dram", reserve=1, limit=2),), retention=1.5
    ),
    Forget(scope="s"),
    Purge(scope="s", keys=(b"a", b"b")),
    Generate(
        id="r1",
        attempt=2,
        segments=(Segment(until=3, scope="s"),),
        tokens=[5, 6, 7],
        sampling=SAMPLING,
        credit=8,
        flow="f",
        sub_flow="sf",
        weight=3,
        lane="batch",
        deadline=12.5,
        emitted=([1], [], [2, 3], []),
        grammar='{"regex":"a"}',
        read=False,
        store="hbm",
        retain=(Retain(tokens=2, until=99.5),),
        choices=4,
        claim=b"claim",
        sent_at=11.5,
        stopped=(2,),
        counted=Counts(prompt=3, computed=1, read_hbm=2),
        delivered=2,
        route=Route(names=b"12345678", expected=3, leased=2, until=99.5),
    ),
    Generate(id="r2", attempt=1, segments=(), tokens=[], sampling=Sampling(max_tokens=1), credit=0),
    Credit(id="r1", delivered=3, limit=4),
    AdapterPart(name="d1@p1", offset=1, total=3, content=b"ab"),
    AdapterPart(name="d1@p1", offset=0, total=0, error="it is not here"),
    DropAdapter(name="d1@p1"),
    Abort(id="r1", why="stop", choice=1),
    Ack(id="r1", sequence=17),
    RemoteService(replica="r-0", epoch=4, service={"standard/f": 6}),
    Fence(epoch="g-0"),
    Drain(drain=False),
]
TO_GATEWAY: list[Any] = [
    WantAdapter(name="d1@p1"),
    Hello(
        version=5,
        oldest=1,
        replica="r-0",
        epoch=4,
        challenge=b"c",
        model=ServedModel(name="m", digest="d", text_digest="t", dtype="float32", vocabulary=600),
        layout=Layout(
            block_tokens=64,
            groups=(
                LayerGroup(
                    kind="window", layers=(0, 1), kv_heads=2, head_dim=8, window=128, dtype="bfloat16", block_bytes=4096
                ),
            ),
        ),
        capacity=Capacity(blocks=(10,), context_tokens=512, running=8),
        journal="j",
        since=3,
        numerics="backend=x",
        foreign="llamacpp",
    ),
    Began(id="r1", attempt=2, counts=COUNTS, misses=(Miss(start=1, end=2, cause="evicted"),)),
    PromptLogprobs(id="r1", attempt=2, start=1, logprobs=(TokenLogprob(logprob=-0.5, top=((3, -0.25),)),)),
    Tokens(id="r1", attempt=2, start=6, tokens=[8], choice=1, logprobs=(TokenLogprob(logprob=-1.5),)),
    Tokens(id="r1", attempt=2, start=0, tokens=[8], prompt=PromptRead(COUNTS, (Lost(0, 64, "late"),))),
    Done(
        id="r1",
        attempt=2,
        reason="stop",
        counts=COUNTS,
        sequence=17,
        delivered=6,
        error="e",
        replayed=True,
        refusal=Refusal(whose="flow", wait_s=2.5),
        reasons=("stop", "length"),
        invalid="grammar",
        claim=b"claim",
    ),
    Done(id="r2", attempt=1, reason="length", counts=Counts(), sequence=18),
    Heartbeat(
        steps=1,
        running=2,
        waiting={"batch": 3},
        memory=(TierLoad(tier="hbm", group=0, free=1, referenced=2, cached=3, total=6),),
        service={"batch/f": 4},
        cache=b"digest",
        metrics={"turnpike_engine_steps_total": 5.0},
        adapters=(ResidentAdapter(name="d1@p1", hour=3600, milliseconds=5, ready=True),),
    ),
    Fenced(epoch="g-0", requests=(("r1", 2),)),
    Load(queued={"batch": 7}, decodes=2, prefixes=(SentPrefix(names=b"12345678", leased=1, until=9.5),)),
]


def fields(kind: Any) -> list[str]:
    """Each field of a struct by its position: name, type and default."""
    return [
        f"{field.encode_name}: {type_name(field.type)}{_default(field)}"
        for field in inspect.type_info(kind).fields  # type: ignore[attr-defined]
    ]


def _default(field: inspect.Field) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f" = {field.default_factory()!r}"
    return "" if field.default is msgspec.NODEFAULT else f" = {field.default!r}"


def type_name(kind: inspect.Type) -> str:
    """A type without the name of any class: what lies inside a struct is written out."""
    match kind:
        case inspect.StructType():
            inner = ", ".join(f"{field.encode_name}: {type_name(field.type)}" for field in kind.fields)
            return f"[{inner}]" if kind.array_like else f"{{{inner}}}"
        case inspect.UnionType():
            return " | ".join(type_name(one) for one in kind.types)
        case inspect.LiteralType():
            return " | ".join(repr(value) for value in kind.values)
        case inspect.ListType() | inspect.VarTupleType():
            return f"({type_name(kind.item_type)})*"
        case inspect.TupleType():
            return f"({', '.join(type_name(one) for one in kind.item_types)})"
        case inspect.DictType():
            return f"{{{type_name(kind.key_type)}: {type_name(kind.value_type)}}}"
    return type(kind).__name__.removesuffix("Type").lower()


def plain(value: Any) -> Any:
    """A decoded value as JSON can hold it."""
    if isinstance(value, bytes):
        return f"bytes {value.hex()}"
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def test_messages() -> None:
    messages = {}
    for way, union in (("to replica", ToReplica), ("to gateway", ToGateway)):
        for kind in get_args(union):
            assert kind.__struct_config__.array_like
            messages[f"{way}: {kind.__struct_config__.tag}"] = fields(kind)
    golden.check("wire_messages", messages)


def test_encoded_messages() -> None:
    examples = []
    for message in [*TO_REPLICA, *TO_GATEWAY]:
        frame = encode(message)
        examples.append([plain(msgspec.msgpack.decode(frame[4:])), frame.hex()])
    golden.check("wire_examples", examples)
    told = {type(message) for message in [*TO_REPLICA, *TO_GATEWAY]}
    assert told == {*get_args(ToReplica), *get_args(ToGateway)}, "a message without an example"


@pytest.mark.parametrize(("read", "messages"), [(read_from_gateway, TO_REPLICA), (read_from_replica, TO_GATEWAY)])
async def test_messages_are_read_back(read: Any, messages: list[Any]) -> None:
    reader = asyncio.StreamReader()
    for message in messages:
        reader.feed_data(encode(message))
    reader.feed_eof()
    assert [await read(reader) for _ in messages] == messages
    assert await read(reader) is None


def test_how_a_link_opens() -> None:
    golden.check(
        "wire_greeting",
        {
            "version": frames.VERSION,
            "oldest": frames.OLDEST_VERSION,
            "largest frame": MAX_FRAME_BYTES,
            "proof": frames.link_proof(b"k" * 32, b"c" * 16, "gateway").hex(),
        },
    )
