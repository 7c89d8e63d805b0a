"""Attacks a gateway's prompt cache from outside, as the audits of commercial APIs do: can one project tell what another
has sent?

The attacker sends the first 95 % of a prompt that a victim has sent, or a prompt that nobody has sent, and measures the
time to the first token. Source of the procedure: Gu et al., "Auditing Prompt Caching in Language Model APIs" (ICML
2025), arXiv 2502.07776. Beside the time, whatever the API says of caches is asked as an oracle.

Where it asks for more than one token it sends the whole prompt, whose answer is the victim's, and measures how quickly
the tokens follow the first: a replica that remembers the victim's answer would guess them.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import httpx
import msgspec
from msgspec import Struct, structs

from turnpike.command_line import CommandError
from turnpike.commands.audit.isolation_places import Place, alone_in, send_all
from turnpike.commands.audit.ks_test import KsTest, smaller

ALPHA = 1e-8
"""A difference is detected if it is less probable than this."""
SHARED = 0.95
MOSTLY = 0.5
"""The part of the victim's prompts that have to be read from where they should lie: some are computed where that seems
quicker, and the times of the others have to show it all the same."""
SYLLABLES = ("ba", "do", "fi", "gu", "ke", "lo", "mi", "nu", "pa", "re", "so", "ti", "vu", "wa", "ze", "cho")
_HIT, _MISS = 200, (404,)
_CHAT = "/v1/chat/completions"
_Told: TypeAlias = tuple[str, bool, str]
"""What was asked, whether the answer tells of the victim, and the answer."""


class _Answer(NamedTuple):
    """Seconds to the first token, or from it to the last of several, cached tokens by the usage, and the tier that they
    were read from."""

    seconds: float
    cached: int
    tier: str


class Oracle(Struct, frozen=True):
    """A question that the attacker asked while the victim's prompt lay in `place`. `leaks`: the answer tells of it."""

    name: str
    place: str
    leaks: bool
    answer: str


class Timing(Struct, frozen=True):
    """Times that the place measures, in seconds: of prompts that the victim had sent, and of new ones.

    `cached`: the most cached tokens that an answer told of. `there`: how many of the `looked` prompts of the victim
    that were asked for by itself were read from where they should lie.
    """

    place: str
    same_project: bool
    shared: tuple[float, ...] = ()
    new: tuple[float, ...] = ()
    cached: int = 0
    looked: int = 0
    there: int = 0

    @property
    def test(self) -> KsTest:
        """Whether shared prompts are answered sooner."""
        return smaller(self.shared, self.new)

    @property
    def detected(self) -> bool:
        """Whether the attacker can tell shared prompts from new ones, by time or by usage."""
        return self.test.p < ALPHA or self.cached > 0

    @property
    def in_place(self) -> bool:
        """Whether the prompts lay where they should."""
        return self.there >= MOSTLY * self.looked


class Report(Struct, frozen=True):
    """All findings. It is sound if no attack succeeds, and the control shows that one would be seen."""

    timings: tuple[Timing, ...]
    oracles: tuple[Oracle, ...]

    @property
    def leaks(self) -> bool:
        """Whether the attacker learned anything of another project."""
        return any(t.detected for t in self.timings if not t.same_project) or any(o.leaks for o in self.oracles)

    @property
    def has_power(self) -> bool:
        """Whether the same attack inside one project was seen by its times, at each place, with the prompts there."""
        return bool(self.timings) and all(self.has_power_at(timing.place) for timing in self.timings)

    def has_power_at(self, place: str) -> bool:
        """The same, at one place."""
        here = [timing for timing in self.timings if timing.place == place]
        controls = [timing for timing in here if timing.same_project]
        return bool(controls) and all(timing.test.p < ALPHA for timing in controls) and all(t.in_place for t in here)


class IsolationProbe:
    """Asks one gateway as two projects. `prompt_words`: the length of prompts."""

    def __init__(
        self, client: httpx.AsyncClient, model: str, victim: str, attacker: str, *, prompt_words: int, seed: int | None
    ) -> None:
        self._client = client
        self._model = model
        self._victim, self._attacker = victim, attacker
        self._words = prompt_words
        self._dice = random.Random(seed)  # noqa: S311  # prompts to measure with are no secret
        self.progress: Callable[[Timing], None] = lambda timing: None
        """Called after each sample with what was measured so far."""
        self.clock: Callable[[], float] = time.perf_counter
        """In seconds."""

    async def place(self, tier: str) -> Place:
        """Find out how a prompt comes to lie in this tier alone. Raises CommandError if it does not."""

        def victim() -> Callable[[], Awaitable[str]]:
            prompt = self._prompt()

            async def ask() -> str:
                return (await self._ask(self._victim, prompt)).tier

            return ask

        return await alone_in(tier, victim)

    async def time(self, place: Place, samples: int, *, same_project: bool, begun: Timing | None = None) -> Timing:
        """So many prompts that the victim had sent, and that lie in that place, and as many new ones, in random order.

        `begun`: what an audit that was interrupted has measured of them. New prompts are drawn for the others.
        """
        found = begun or Timing(place.name, same_project)
        while (left := samples - min(len(found.shared), len(found.new))) > 0:
            size = left if place.batch is None else min(left, place.batch)
            prompts = [self._prompt() for _ in range(min(size, samples - len(found.shared)))]
            await send_all([partial(self._ask, self._victim, prompt, place.output) for prompt in prompts], place.uses)
            await place.move()
            order = [True] * len(prompts) + [False] * min(size, samples - len(found.new))
            self._dice.shuffle(order)
            asked = iter(prompts)
            for is_shared in order:
                found = await self._sample(place, found, next(asked) if is_shared else None)
                self.progress(found)
            if not same_project and place.tier is not None and prompts:
                found = _looked(found, place, await self._ask(self._victim, prompts[-1]))
        return found

    async def _sample(self, place: Place, found: Timing, prompt: str | None) -> Timing:
        """One more time: of a prompt that the victim had sent, or of a new one."""
        key = self._victim if found.same_project else self._attacker
        answer = await self._ask(
            key, self._prompt() if prompt is None else self._sent_again(prompt, place), place.output
        )
        if prompt is None:
            found = structs.replace(found, new=(*found.new, answer.seconds))
        else:
            found = structs.replace(found, shared=(*found.shared, answer.seconds))
            if found.same_project and place.output == 1:  # what is remembered of outputs is no KV
                return _looked(found, place, answer)
        return structs.replace(found, cached=max(found.cached, answer.cached))

    async def oracles(self, place: Place) -> tuple[Oracle, ...]:
        """Ask whatever the API tells of caches, as the attacker, about a prompt that the victim has marked, and that
        lies in that place."""
        prompt, tag = self._prompt(), f"isolation-audit-{self._dice.randrange(10**9)}"
        marked = {"prompt_cache_options": {"mode": "implicit"}, "metadata": {"user": tag}}
        first = await self._post(self._victim, prompt, **marked)
        if first.status_code != _HIT:
            raise _refused(first)
        victims = first.json()["id"]
        for _ in range(place.uses - 1):
            await self._post(self._victim, prompt, **marked)
        await place.move()
        own = await self._get(self._victim, "/v1/caches")
        names = [entry["id"] for entry in own.json().get("data", ())] if own.status_code == _HIT else []
        found = [await self._only_if_cached(prompt), await self._compared(prompt, victims)]
        found += await self._lists(names, tag)
        unknown = await self._get(self._attacker, f"/v1/requests/{'0' * 32}/cache")
        foreign = await self._get(self._attacker, f"/v1/requests/{victims}/cache")
        alike = (foreign.status_code, _code(foreign)) == (unknown.status_code, _code(unknown))
        found.append(("explanation of another's request", not alike, str(foreign.status_code)))
        still = await self._get(self._victim, "/v1/caches")
        after = [entry["id"] for entry in still.json().get("data", ())] if still.status_code == _HIT else []
        gone = bool(set(names) - set(after))
        found.append(("another's caches after purges", gone, f"{len(names)} before, {len(after)} after"))
        return tuple(Oracle(name, place.name, leaks, answer) for name, leaks, answer in found)

    async def _only_if_cached(self, prompt: str) -> _Told:
        answer = await self._post(
            self._attacker,
            prompt,
            headers={"cache-control": "only-if-cached"},
            prompt_cache_options={"mode": "implicit"},
        )
        return "only-if-cached", answer.status_code == _HIT, str(answer.status_code)

    async def _compared(self, prompt: str, named: str) -> _Told:
        options = {"mode": "implicit", "comparison_response_id": named}
        answer = await self._post(self._attacker, prompt, prompt_cache_options=options)
        told = answer.json().get("prompt_cache_diagnostics") or {} if answer.status_code == _HIT else {}
        kind = str(told.get("type", answer.status_code))
        return "diagnostics against another's response", kind in ("cache_hit", "cache_miss"), kind

    async def _lists(self, names: Sequence[str], tag: str) -> list[_Told]:
        listed = await self._get(self._attacker, "/v1/caches")
        seen = {entry["id"] for entry in listed.json().get("data", ())} if listed.status_code == _HIT else set()
        found: list[_Told] = [("list of caches", bool(seen & set(names)), f"{len(seen)} listed")]
        for name in names[:1]:
            for method in ("GET", "PATCH", "DELETE"):
                answer = await self._client.request(method, f"/v1/caches/{name}", headers=_key(self._attacker))
                leaks = answer.status_code not in _MISS
                found.append((f"{method} of another's cache", leaks, str(answer.status_code)))
        purged = await self._client.delete("/v1/caches", params={"tag": tag}, headers=_key(self._attacker))
        deleted = purged.json().get("deleted", 0) if purged.status_code == _HIT else 0
        found.append(("purge by another's tag", deleted > 0, f"{deleted} purged"))
        return found

    # ------------------------------------------------ requests

    async def _ask(self, key: str, prompt: str, output: int = 1) -> _Answer:
        """Send a prompt for so many tokens."""
        body = self._body(prompt) | {"stream": True, "stream_options": {"include_usage": True}}
        body |= {"max_tokens": output, "min_tokens": output}
        began, first, last, cached = self.clock(), 0.0, 0.0, 0
        async with self._client.stream("POST", _CHAT, json=body, headers=_key(key)) as answer:
            if answer.status_code != _HIT:
                await answer.aread()
                raise _refused(answer)
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                last = self.clock() - began
                first = first or last
                usage = msgspec.json.decode(line[6:]).get("usage")
                if usage:
                    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        return _Answer(first if output == 1 else last - first, cached, _tier(answer.headers.get("cache-status", "")))

    async def _post(
        self, key: str, prompt: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        return await self._client.post(_CHAT, json=self._body(prompt) | more, headers={**_key(key), **(headers or {})})

    async def _get(self, key: str, path: str) -> httpx.Response:
        return await self._client.get(path, headers=_key(key))

    def _body(self, prompt: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        return {"model": self._model, "messages": messages, "max_tokens": 1, "temperature": 0}

    def _prompt(self, words: int | None = None) -> str:
        dice = self._dice
        return " ".join("".join(dice.choices(SYLLABLES, k=2)) for _ in range(words or self._words))

    def _sent_again(self, prompt: str, place: Place) -> str:
        """What the attacker sends of a prompt of the victim: its beginning, or all of it where the answer matters."""
        return prompt if place.output > 1 else self._beginning_alike(prompt)

    def _beginning_alike(self, prompt: str) -> str:
        words = prompt.split(" ")
        kept = int(len(words) * SHARED)
        return " ".join(words[:kept]) + " " + self._prompt(len(words) - kept or 1)


def _tier(cache_status: str) -> str:
    """The tier from which all that was cached was read, nothing for none or several."""
    tiers = re.findall(r"(\w+):[1-9]", cache_status.partition("detail=")[2])
    return str(tiers[0]) if len(tiers) == 1 else ""


def _looked(found: Timing, place: Place, answer: _Answer) -> Timing:
    """The victim has asked for its own prompt."""
    there = answer.tier == place.tier if place.tier is not None else answer.cached > 0
    return structs.replace(found, looked=found.looked + 1, there=found.there + there)


def _refused(answer: httpx.Response) -> CommandError:
    return CommandError(f"the gateway answered {answer.status_code} to the audit: {answer.text[:300]}")


def _key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""
