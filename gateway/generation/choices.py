"""The answers to one request as they grow: a transcript for each choice, and the prompt before them if it is echoed."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.conversation.prompt import Prompt
from gateway.generation.delivery import ChoiceDelta
from gateway.generation.transcript import TokenScore, Transcript
from gateway.generation_request import GenerationRequest
from gateway.served_models.served_model import ServedModel
from protocol.requests import PromptLogprobs, Sampling, TokenLogprob, Tokens


class Choices:
    """`tokens` and `shown` are sums over the choices, as `Transcript` has them."""

    def __init__(self, generation: GenerationRequest, model: ServedModel, prompt: Prompt, sampling: Sampling) -> None:
        self._model = model
        self._prompt = prompt.tokens
        self._echo = generation.echo
        self._scored = sampling.prompt_logprobs is not None and generation.logprobs is not None
        self._prompt_scores: list[TokenLogprob] = []
        echoed = len(self._echoed()[0]) if generation.echo else 0
        before = () if generation.prompt is None else prompt.tokens
        self._transcripts = [
            Transcript(
                model.detokenizer(before),
                generation.stop,
                frozenset(sampling.stop_tokens),
                sampling.min_tokens,
                offset=echoed,
            )
            for _ in range(generation.choices)
        ]

    @property
    def tokens(self) -> int:
        """Output tokens taken in."""
        return sum(transcript.tokens for transcript in self._transcripts)

    @property
    def shown(self) -> int:
        """Output tokens that are delivered once the text given out so far is."""
        return sum(transcript.shown for transcript in self._transcripts)

    @property
    def stopped(self) -> bool:
        """Whether every choice was ended by a stop string."""
        return all(self.stops_by_string)

    @property
    def stops_by_string(self) -> list[bool]:
        """Which choices were ended by a stop string."""
        return [transcript.stopped for transcript in self._transcripts]

    def stops(self, choice: int) -> bool:
        """Whether this choice was ended by a stop string."""
        return self._transcripts[choice].stopped

    def score_prompt(self, message: PromptLogprobs) -> None:
        """What the replica tells of the prompt."""
        self._prompt_scores += message.logprobs

    def take(self, message: Tokens) -> Iterator[ChoiceDelta]:
        """The parts that can be shown now."""
        yield from self._opening()
        transcript = self._transcripts[message.choice]
        text = transcript.feed(message.tokens, message.logprobs)
        yield ChoiceDelta(message.choice, text, transcript.scores())

    def finish(self) -> Iterator[ChoiceDelta]:
        """The rest, when no token follows."""
        yield from self._opening()
        for choice, transcript in enumerate(self._transcripts):
            text = "" if transcript.stopped else transcript.finish()
            yield ChoiceDelta(choice, text, transcript.scores())

    def _opening(self) -> Iterator[ChoiceDelta]:
        """The prompt, once."""
        if not self._echo:
            return
        self._echo = False
        text, offsets = self._echoed()
        scores: tuple[TokenScore, ...] = ()
        if self._scored:
            told = [None, *self._prompt_scores]
            scores = tuple(map(TokenScore, self._prompt, offsets, told))
        for choice in range(len(self._transcripts)):
            yield ChoiceDelta(choice, text, scores)

    def _echoed(self) -> tuple[str, list[int]]:
        """The prompt's text, and where each token begins in it."""
        detokenizer = self._model.detokenizer()
        text, offsets = "", []
        for token in self._prompt:
            offsets.append(len(text))
            text += detokenizer.feed(token)
        return text + detokenizer.finish(), offsets
