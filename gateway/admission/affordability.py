"""What a request can cost at most, and what is said to a client whose money does not cover it."""

from __future__ import annotations

from billing.budgets.windows import describe
from billing.money import format_amount, format_pico
from billing.reservation.decisions import InsufficientFunds
from gateway.admission.cache_leases import classes_of, needs_leases, readable_classes
from gateway.admission.prepared_request import PreparedRequest
from gateway.errors import Shortage, Unaffordable
from storage.database.public_ids import public_id
from storage.free_text import counted


def cost_bound(prepared: PreparedRequest, max_output: int) -> int:
    """The most that the request can cost, in pico-units, if each choice has at most `max_output` tokens."""
    generation, prompt_tokens = prepared.generation, len(prepared.prompt.tokens)
    plan, price, lane, output = prepared.plan, prepared.price, generation.lane, max_output * generation.choices
    if not needs_leases(plan):
        return price.bound(prompt_tokens, output, lane=lane)
    reads = readable_classes(price, lane)
    return price.bound(prompt_tokens, output, classes_of(plan, price, lane), reads=reads, lane=lane)


def affordable_tokens(error: InsufficientFunds, prepared: PreparedRequest) -> int:
    """The `max_tokens` that can be paid for."""
    prompt = cost_bound(prepared, 0)
    token = cost_bound(prepared, 1) - prompt
    left = error.affordable_pico - prompt
    return left // token if token and left > 0 else 0


def unaffordable(error: InsufficientFunds, prepared: PreparedRequest, fits: int) -> Unaffordable:
    """The error that says what is needed, what there is, and the `max_tokens` that would fit."""
    prompt_tokens, max_output = len(prepared.prompt.tokens), prepared.held_output
    needed, left = format_amount(error.needed_pico), format_amount(error.affordable_pico)
    resets_at = None if error.resets_at is None else error.resets_at.isoformat().replace("+00:00", "Z")
    names = {"project": prepared.payer.project, "key": prepared.payer.key}
    window = error.window
    budget = None if window is None else describe(window.scope, window.span, names.get(window.scope) or window.subject)
    whose = "The balance" if budget is None else budget[0].upper() + budget[1:]
    advice = (
        f"max_tokens of at most {fits} would fit."
        if fits
        else f"{whose} does not cover the prompt's {counted(prompt_tokens, 'token')}."
    )
    limit = "" if budget is None else f" under {budget}"
    until = f" It begins anew at {resets_at}." if resets_at else ""
    if error.elsewhere_pico:
        elsewhere = format_amount(error.elsewhere_pico)
        until = f" {elsewhere} {error.currency} more can be used for other models or projects only."
    return Unaffordable(
        f"This request of {prompt_tokens} prompt and at most {max_output} output tokens may cost {needed} "
        f"{error.currency}; {left} {error.currency} can be spent{limit}. {advice}{until}",
        Shortage(
            scope=error.scope,
            budget=None if error.budget_id is None else public_id("budget", error.budget_id),
            needed=format_pico(error.needed_pico),
            affordable=format_pico(error.affordable_pico),
            currency=error.currency,
            affordable_max_tokens=fits,
            resets_at=resets_at,
            elsewhere=format_pico(error.elsewhere_pico),
        ),
    )
