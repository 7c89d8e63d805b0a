"""Attacks a gateway's prompt cache from outside, as the audits of commercial APIs do: can one project tell what another
has sent?

The attacker sends the first 95 % of a prompt that a victim has sent, or a prompt that nobody has sent, and measures the
time to the first token. Source of the procedure: Gu et al., "Auditing Prompt Caching in Language Model APIs" (ICML
2025), arXiv 2502.07776. Beside the time, whatever the API says of caches is asked as an oracle.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from turnpike.command_line import CommandError
from turnpike.commands.audit.ks_test import KsTest, smaller

ALPHA = 1e-8
"""A difference is detected if it is less probable than this."""
SHARED = 0.95
SYLLABLES = ("ba", "do", "fi", "gu", "ke", "lo", "mi", "nu", "pa", "re", "so", "ti", "vu", "wa", "ze", "cho")
_HIT, _MISS = 200, (404,)
_CHAT = "/v1/chat/completions"


class Oracle(Struct, frozen=True):
    """A question that the attacker asked. `leaks`: the answer tells of the victim."""

    name: str
    leaks: bool
    answer: str


class Timing(Struct, frozen=True):
    """Times to the first token, in seconds: of prompts that the victim had sent, and of new ones. `cached`: the most
    cached tokens that an answer told of."""

    name: str
    same_project: bool
    shared: tuple[float, ...]
    new: tuple[float, ...]
    cached: int

    @property
    def test(self) -> KsTest:
        """Whether shared prompts are answered sooner."""
        return smaller(self.shared, self.new)

    @property
    def detected(self) -> bool:
        """Whether the attacker can tell shared prompts from new ones, by time or by usage."""
        return self.test.p < ALPHA or self.cached > 0


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
        """Whether the same attack inside one project was seen by its times."""
        controls = [timing for timing in self.timings if timing.same_project]
        return bool(controls) and all(timing.test.p < ALPHA for timing in controls)


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

    async def time(
        self,
        name: str,
        samples: int,
        *,
        same_project: bool,
        between: Callable[[], Awaitable[None]] | None = None,
        begun: Timing | None = None,
    ) -> Timing:
        """So many shared prompts and as many new ones, in random order. Without `between` the victim sends each prompt
        right before the attacker does; else all before, and then `between` happens, such as a restart.

        `begun`: what an audit that was interrupted has measured of them. New prompts are drawn for the others.
        """
        key = self._victim if same_project else self._attacker
        shared, new = ([], []) if begun is None else (list(begun.shared[:samples]), list(begun.new[:samples]))
        cached = 0 if begun is None else begun.cached
        order = [True] * (samples - len(shared)) + [False] * (samples - len(new))
        prompts = [self._prompt() for _ in range(samples - len(shared))]
        if between is not None:
            for prompt in prompts:
                await self._ask(self._victim, prompt)
            await between()
        self._dice.shuffle(order)
        for is_shared in order:
            if is_shared:
                prompt = prompts.pop()
                if between is None:
                    await self._ask(self._victim, prompt)
                seconds, read = await self._ask(key, self._beginning_alike(prompt))
                shared.append(seconds)
            else:
                seconds, read = await self._ask(key, self._prompt())
                new.append(seconds)
            if not same_project or not is_shared:
                cached = max(cached, read)
            self.progress(Timing(name, same_project, tuple(shared), tuple(new), cached))
        return Timing(name, same_project, tuple(shared), tuple(new), cached)

    async def oracles(self) -> tuple[Oracle, ...]:
        """Ask whatever the API tells of caches, as the attacker, about a prompt that the victim has marked."""
        prompt, tag = self._prompt(), f"isolation-audit-{self._dice.randrange(10**9)}"
        marked = {"prompt_cache_options": {"mode": "implicit"}, "metadata": {"user": tag}}
        first = await self._post(self._victim, prompt, **marked)
        if first.status_code != _HIT:
            raise _refused(first)
        victims = first.json()["id"]
        own = await self._get(self._victim, "/v1/caches")
        names = [entry["id"] for entry in own.json().get("data", ())] if own.status_code == _HIT else []
        found = [await self._only_if_cached(prompt), await self._compared(prompt, victims)]
        found += await self._lists(names, tag)
        unknown = await self._get(self._attacker, f"/v1/requests/{'0' * 32}/cache")
        foreign = await self._get(self._attacker, f"/v1/requests/{victims}/cache")
        alike = (foreign.status_code, _code(foreign)) == (unknown.status_code, _code(unknown))
        found.append(Oracle("explanation of another's request", not alike, str(foreign.status_code)))
        still = await self._get(self._victim, "/v1/caches")
        after = [entry["id"] for entry in still.json().get("data", ())] if still.status_code == _HIT else []
        gone = bool(set(names) - set(after))
        found.append(Oracle("another's caches after purges", gone, f"{len(names)} before, {len(after)} after"))
        return tuple(found)

    async def _only_if_cached(self, prompt: str) -> Oracle:
        answer = await self._post(
            self._attacker,
            prompt,
            headers={"cache-control": "only-if-cached"},
            prompt_cache_options={"mode": "implicit"},
        )
        return Oracle("only-if-cached", answer.status_code == _HIT, str(answer.status_code))

    async def _compared(self, prompt: str, named: str) -> Oracle:
        options = {"mode": "implicit", "comparison_response_id": named}
        answer = await self._post(self._attacker, prompt, prompt_cache_options=options)
        told = answer.json().get("prompt_cache_diagnostics") or {} if answer.status_code == _HIT else {}
        kind = str(told.get("type", answer.status_code))
        return Oracle("diagnostics against another's response", kind in ("cache_hit", "cache_miss"), kind)

    async def _lists(self, names: Sequence[str], tag: str) -> list[Oracle]:
        listed = await self._get(self._attacker, "/v1/caches")
        seen = {entry["id"] for entry in listed.json().get("data", ())} if listed.status_code == _HIT else set()
        found = [Oracle("list of caches", bool(seen & set(names)), f"{len(seen)} listed")]
        for name in names[:1]:
            for method in ("GET", "PATCH", "DELETE"):
                answer = await self._client.request(method, f"/v1/caches/{name}", headers=_key(self._attacker))
                leaks = answer.status_code not in _MISS
                found.append(Oracle(f"{method} of another's cache", leaks, str(answer.status_code)))
        purged = await self._client.delete("/v1/caches", params={"tag": tag}, headers=_key(self._attacker))
        deleted = purged.json().get("deleted", 0) if purged.status_code == _HIT else 0
        found.append(Oracle("purge by another's tag", deleted > 0, f"{deleted} purged"))
        return found

    # ------------------------------------------------ requests

    async def _ask(self, key: str, prompt: str) -> tuple[float, int]:
        """Seconds to the first token, and how many cached tokens the usage tells of."""
        body = self._body(prompt) | {"stream": True, "stream_options": {"include_usage": True}}
        began, first, cached = self.clock(), 0.0, 0
        async with self._client.stream("POST", _CHAT, json=body, headers=_key(key)) as answer:
            if answer.status_code != _HIT:
                await answer.aread()
                raise _refused(answer)
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                first = first or self.clock() - began
                usage = msgspec.json.decode(line[6:]).get("usage")
                if usage:
                    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        return first, cached

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

    def _beginning_alike(self, prompt: str) -> str:
        words = prompt.split(" ")
        kept = int(len(words) * SHARED)
        return " ".join(words[:kept]) + " " + self._prompt(len(words) - kept or 1)


def _refused(answer: httpx.Response) -> CommandError:
    return CommandError(f"the gateway answered {answer.status_code} to the audit: {answer.text[:300]}")


def _key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""
