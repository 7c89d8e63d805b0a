"""The choices of one request as they grow: a transcript and an end for each, and the prompt before them if it is
echoed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import sha256

from billing.receipts.answer_receipts import AnswerDigests, tokens_as_bytes, tokens_digest
from gateway.admission.prepared_request import PreparedRequest
from gateway.conversation.output.events import TokenScore
from gateway.generation.delivery import ChoiceDelta
from gateway.generation.outcome import ChoiceEnd
from gateway.generation.prediction import PredictionMatch
from gateway.generation.transcript import Transcript
from protocol.requests import PromptLogprobs, TokenLogprob, Tokens


class Choices:
    """The choices of one request. `tokens` and `shown` are sums of those of `Transcript`."""

    def __init__(self, prepared: PreparedRequest) -> None:
        generation, prompt, sampling = prepared.generation, prepared.prompt, prepared.sampling
        self._model = prepared.model
        self._prompt = prompt.tokens
        self._prompt_scored = sampling.prompt_logprobs is not None and generation.logprobs is not None
        self._prompt_scores: list[TokenLogprob] = []
        self._unpaid: set[int] = set()
        self._hashes = [sha256() for _ in range(generation.choices)] if prepared.receipt else None
        """Of the output of each choice, where a receipt says its digest."""
        self._echo = self._echoed() if generation.echo else None
        echoed_characters = 0 if self._echo is None else len(self._echo[0])
        context = prompt.tokens if generation.continued or generation.prompt is not None else ()
        self._transcripts = [
            Transcript(
                prepared.model.detokenizer(context),
                generation.stop,
                frozenset(sampling.stop_tokens),
                sampling.min_tokens,
                offset=echoed_characters,
                parser=prepared.model.output_parser(generation, prompt.tokens),
            )
            for _ in range(generation.choices)
        ]
        self._emitted = [array("I") for _ in range(generation.choices)]
        self._predicted = len(prepared.prediction)
        prediction = array("I", prepared.prediction).tobytes()
        self._predictions = [PredictionMatch(prediction) for _ in self._transcripts if prediction]

    @property
    def tokens(self) -> int:
        """Output tokens taken in."""
        return sum([transcript.tokens for transcript in self._transcripts])

    @property
    def emitted(self) -> tuple[list[int], ...]:
        """The output tokens of each choice."""
        return tuple(tokens.tolist() for tokens in self._emitted)

    @property
    def longest(self) -> int:
        """Output tokens of the furthest choice."""
        return max(map(len, self._emitted))

    @property
    def shown(self) -> int:
        """Output tokens whose text has been given out completely."""
        return sum([transcript.shown for transcript in self._transcripts])

    @property
    def reasoning(self) -> int:
        """Output tokens of reasoning."""
        return sum(transcript.reasoning for transcript in self._transcripts)

    @property
    def predicted(self) -> tuple[int, int]:
        """Of the tokens that were predicted for each choice, those that became output, and the others."""
        accepted = sum(match.accepted for match in self._predictions)
        return accepted, len(self._predictions) * self._predicted - accepted

    def end_of(self, choice: int) -> ChoiceEnd:
        """Why the gateway ended this choice, None while it did not."""
        if self._transcripts[choice].stopped:
            return "stop"
        return "budget" if choice in self._unpaid else None

    @property
    def ends(self) -> list[ChoiceEnd]:
        """`end_of` each choice."""
        return [self.end_of(choice) for choice in range(len(self._transcripts))]

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended every choice."""
        return all(transcript.stopped for transcript in self._transcripts)

    @property
    def stop_strings(self) -> tuple[str | None, ...]:
        """The stop string that ended each choice, None where none did."""
        return tuple(transcript.stop_string for transcript in self._transcripts)

    @property
    def answer_digests(self) -> AnswerDigests | None:
        """What a receipt says of the prompt and the output; None where there is to be none."""
        if self._hashes is None:
            return None
        return AnswerDigests(tokens_digest(self._prompt), tuple(output.hexdigest() for output in self._hashes))

    def end_unpaid(self, choice: int) -> None:
        """No more of this choice can be paid for."""
        self._unpaid.add(choice)

    def score_prompt(self, message: PromptLogprobs) -> None:
        """Keep more log probabilities of the prompt."""
        self._prompt_scores += message.logprobs

    def take(self, message: Tokens) -> Iterator[ChoiceDelta]:
        """Take in tokens of a choice; returns what can be shown now."""
        yield from self._opening()
        transcript = self._transcripts[message.choice]
        before = transcript.tokens
        text = transcript.feed(message.tokens, message.logprobs)
        tokens = message.tokens[: transcript.tokens - before]
        self._emitted[message.choice].extend(tokens)
        if self._predictions:
            self._predictions[message.choice].feed(tokens)
        if self._hashes is not None:
            self._hashes[message.choice].update(tokens_as_bytes(tokens))
        yield ChoiceDelta(message.choice, text, transcript.scores(), transcript.events())

    def finish(self) -> Iterator[ChoiceDelta]:
        """Everything held back, when no token follows."""
        yield from self._opening()
        for choice, transcript in enumerate(self._transcripts):
            text = "" if transcript.stopped else transcript.finish()
            yield ChoiceDelta(choice, text, transcript.scores(), transcript.events())

    def _opening(self) -> Iterator[ChoiceDelta]:
        """The echoed prompt, before the first output of each choice; once."""
        if self._echo is None:
            return
        (text, offsets), self._echo = self._echo, None
        scores: tuple[TokenScore, ...] = ()
        if self._prompt_scored:
            logprobs = [None, *self._prompt_scores]
            scores = tuple(map(TokenScore, self._prompt, offsets, logprobs))
        for choice in range(len(self._transcripts)):
            yield ChoiceDelta(choice, text, prompt_scores=scores)

    def _echoed(self) -> tuple[str, list[int]]:
        """The prompt's text, and where each token's text begins in it, in characters."""
        detokenizer = self._model.detokenizer()
        text, offsets = "", []
        for token in self._prompt:
            offsets.append(len(text))
            text += detokenizer.feed(token)
        return text + detokenizer.finish(), offsets
