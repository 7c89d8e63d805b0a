"""A request on its way through the gateway: who asks and pays, and all that is known of it once it is prepared."""

from __future__ import annotations

import time
from uuid import UUID

from msgspec import Struct, field

from billing.holds.records import Hold
from billing.prices import PriceVersion
from gateway.admission.cache_leases import LeaseRequest
from gateway.conversation.prompt import Prompt
from gateway.errors import NotAllowed
from gateway.fleet.router import Routed
from gateway.generation_request import GenerationRequest
from gateway.limits.limiter import Asked
from gateway.metering.billable_usage import MeteringTerms
from gateway.served_models.served_model import ServedModel
from prompt_cache.promise.directives import CachePlan
from prompt_cache.promise.lease_decisions import LeaseDecision
from prompt_cache.promise.prefix_keys import PromptKeys
from protocol.prefixes import PREFIX_ENDS, split_names
from protocol.requests import Generate, Reasoning, Retain, Sampling, Segment
from tenancy.rights.key_limits import NO_LIMITS, KeyLimits
from tenancy.rights.principals import Principal
from waterfall.marks import Marks

_SECOND = 1_000_000


class Payer(Struct, frozen=True):
    """Who asks and who pays. `project` is the project's name and `key` the key's public id, for messages; `limits` are
    the key's."""

    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    project: str
    key: str
    limits: KeyLimits = NO_LIMITS

    def check(self, model: str, lane: str | None = None) -> None:
        """Raise NotAllowed unless the key may use this served model, and this lane."""
        if not self.limits.allows_model(model):
            raise NotAllowed(f"This key may not use the model {model!r}.", path="$.model", code="model_not_allowed")
        if lane is not None and not self.limits.allows_lane(lane):
            raise NotAllowed(f"This key may not use the lane {lane!r}.", code="lane_not_allowed")

    @classmethod
    def of(cls, principal: Principal) -> Payer:
        """The payer of what a project's key asks. Raises NotAllowed for a principal without a project."""
        if principal.tenant_id is None or principal.project_id is None or principal.project is None:
            raise NotAllowed("An admin key cannot be used here: this needs the key of a project.")
        return cls(principal.tenant_id, principal.project_id, principal.id, principal.project, principal.public_id,
                   principal.limits)  # fmt: skip


class PreparedRequest(Struct, frozen=True, kw_only=True):
    """A request that may run once its money is held."""

    request_id: UUID
    payer: Payer
    generation: GenerationRequest
    model: ServedModel
    prompt: Prompt
    plan: CachePlan
    sampling: Sampling
    price: PriceVersion
    terms: MeteringTerms
    conversation: bytes
    """The key of what it continues, or may be continued by."""
    prefixes: bytes = b""
    """The names of its prompt's prefixes, by which the replica is chosen that has their KV."""
    held_output: int
    """Output tokens of each choice that the hold covers: all of them, or the first slice."""
    reasoning: Reasoning | None = None
    """What the replica is told of the output's reasoning."""
    keys: PromptKeys | None = None
    """The keys of its prompt's prefixes."""
    prediction: tuple[int, ...] = ()
    """The tokens that the client expects the output to have."""
    shortened: bool = False
    """Whether `sampling.max_tokens` is what could be paid for, less than there was room for."""
    leases: LeaseDecision | None = None
    """What the cache promises; None until its hold is taken, and for a request without a say in it."""
    lease_request: LeaseRequest | None = None
    """What it wished of leases, if these have a say in it."""
    receipt: bool = False
    """Whether its answer has a receipt."""
    marks: Marks = field(default_factory=Marks)
    """What has ended when, of what is done for it."""

    @property
    def routed(self) -> Routed:
        """What the choice of its replica depends on."""
        names, retained = split_names(self.prefixes), () if self.leases is None else self.leases.retained
        leased, until = max(retained, default=(0, 0))
        return Routed(
            key=self.conversation,
            tokens=len(self.prompt.tokens),
            names=names,
            ends=PREFIX_ENDS[: len(names)],
            lane=self.generation.lane,
            leased=leased,
            until=until / _SECOND,
            rows=self.generation.choices,
        )

    @property
    def asked(self) -> Asked:
        """What its limits are asked for."""
        return Asked(self.conversation, len(self.prompt.tokens), self.sampling.max_tokens * self.generation.choices)

    def message(
        self, hold: Hold, segments: tuple[Segment, ...], *, attempt: int, credit: int, deadline: float
    ) -> Generate:
        """The message that begins an attempt at a replica. `credit`: output tokens that may be sent at first;
        `deadline`: seconds since the Unix epoch, by this host's clock."""
        return Generate(
            id=str(hold.request_id),
            attempt=attempt,
            segments=segments,
            tokens=self.prompt.tokens,
            sampling=self.sampling,
            credit=credit,
            flow=str(self.payer.tenant_id),
            sub_flow=str(self.payer.key_id),
            lane=self.generation.lane,
            deadline=deadline,
            read=self.plan.read != "none",
            store=self.plan.store,
            choices=self.generation.choices,
            grammar=None if self.generation.grammar is None else self.generation.grammar.text,
            claim=hold.claim,
            retain=self._retained(),
            sent_at=time.time(),
            reasoning=self.reasoning,
            speculation="auto" if self.generation.speculation else "off",
            prediction=self.prediction,
            traceparent="" if self.marks.trace is None else self.marks.trace.header,
            adapter="" if self.model.adapter is None else self.model.adapter.wire_name,
        )

    def _retained(self) -> tuple[Retain, ...]:
        retained = () if self.leases is None else self.leases.retained
        return tuple(Retain(tokens, until / _SECOND) for tokens, until in retained)
