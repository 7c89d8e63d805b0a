"""The times of one request as its task learns them: attempts at replicas, and what these told at their ends."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.admission.prepared_request import PreparedRequest
from gateway.fleet.routing import Sent
from gateway.generation.delivery import Finished
from gateway.generation.request_state import Outcome
from protocol.requests import Done
from tracing.spans import RequestFacts
from waterfall.marks import DONE, FIRST_TOKEN, ROUTE, Marks
from waterfall.record import Attempt, Chosen, Record
from waterfall.writer import Entry


class TaskTrace:
    """Adds to the marks of a request what belongs to an attempt. `topped_up`: microseconds that raising the hold took
    while the request ran; `beside`: from when to when, in ns, its limits were asked beside that."""

    __slots__ = ("_attempts", "_heard", "_marks", "beside", "topped_up")

    def __init__(self, marks: Marks) -> None:
        self.topped_up = 0
        self.beside: tuple[int, int] | None = None
        self._marks = marks
        self._attempts: list[Attempt] = []
        self._heard = False
        """Whether the current attempt's first token has come."""

    def sent(self, attempt: Attempt) -> None:
        """An attempt was sent to its replica."""
        self._marks.mark(ROUTE)
        self._attempts.append(attempt)
        self._heard = False

    def tokens(self) -> None:
        """Output has come."""
        if not self._heard:
            self._heard = True
            self._marks.mark(FIRST_TOKEN)

    def done(self, done: Done) -> None:
        """The attempt is over, and this is what its replica told."""
        self._marks.mark(DONE)
        if done.timeline is not None and self._attempts:
            self._attempts[-1] = replace(self._attempts[-1], timeline=done.timeline)

    def entry(
        self, prepared: PreparedRequest, outcome: Outcome | None, output: int, *, streamed: bool, held: bool
    ) -> Entry:
        """What is written of it. Nothing here keeps the prompt in memory. `held`: whether it will be settled."""
        failure = None if outcome is None else outcome.failure
        payer, generation = prepared.payer, prepared.generation
        record = Record(
            received_at=self._marks.received_at,
            marks=(),
            attempts=tuple(self._attempts),
            status="" if outcome is None else outcome.status,
            code="" if failure is None else failure.code or "error",
            key=payer.key,
            model=prepared.model.name,
            lane=generation.lane,
            surface=generation.surface,
            prompt_tokens=len(prepared.prompt.tokens),
            output_tokens=output,
            streamed=streamed,
            topped_up=self.topped_up,
            limits=() if self.beside is None else self._marks.offsets_of(self.beside),
        )
        return Entry(prepared.request_id, payer.tenant_id, payer.project_id, self._marks, record, settles=held)


def chosen_by(sent: Sent) -> Chosen:
    """What is kept of why this replica was chosen."""
    choice, estimate = sent.choice, sent.choice.estimate
    return Chosen(
        choice.why,
        choice.others,
        held=estimate.held,
        tokens=sent.routed.tokens,
        wait=round(estimate.wait * 1e6),
        compute=round(estimate.compute * 1e6),
        fetch=round(estimate.fetch * 1e6),
        next_replica=choice.next_replica,
        next_us=round(choice.next_s * 1e6),
    )


def request_facts(prepared: PreparedRequest, status: int, finished: Finished | None, output: int) -> RequestFacts:
    """What a trace says of a request that was answered with this HTTP status. `output`: its tokens so far."""
    generation = prepared.generation
    usage = None if finished is None else finished.usage
    return RequestFacts(
        operation="chat" if generation.prompt is None else "text_completion",
        max_tokens=generation.max_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        seed=generation.seed,
        choices=generation.choices,
        finish_reasons=() if finished is None else finished.reasons,
        input_tokens=len(prepared.prompt.tokens) if usage is None else usage.prompt,
        output_tokens=output if usage is None else usage.output,
        cache_read=None if usage is None else sum(usage.read.values()),
        cache_write=None if usage is None else sum(usage.write.values()),
        reasoning=None if finished is None else finished.reasoning,
        http_status=status,
    )
