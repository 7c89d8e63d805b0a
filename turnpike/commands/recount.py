"""`turnpike recount`: tokenize a request and its answer again, and compare with what the receipt says."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from gateway.generation_request import GenerationRequest
    from gateway.served_models.served_model import ServedModel
    from turnpike.settings.settings import Settings


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike recount`."""
    parser.runs(recount)
    parser.add_argument("request", metavar="REQUEST", help="the JSON body that was sent")
    parser.add_argument("answer", metavar="ANSWER", help="the whole JSON answer, with its receipts")
    parser.add_argument("folder", metavar="FOLDER", help="the model's files: its tokenizer and its chat template")


def recount(_settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike recount`: 1 if anything is counted otherwise."""
    from gateway.served_models.served_model import load_served_model

    request, answer = read_exchange(arguments.request, arguments.answer)
    model = load_served_model(Path(arguments.folder))
    generations, texts = generations_of(request, answer), texts_of(answer)
    receipts = answer["receipts"]
    if len(generations) != len(receipts):
        raise CommandError(f"{len(receipts)} receipts for {len(generations)} prompts")
    each = len(texts) // len(receipts)
    differences = []
    for place, (generation, receipt) in enumerate(zip(generations, receipts, strict=True)):
        differences += _prompt_differences(model, generation, receipt)
        differences += _output_differences(model, texts[place * each : (place + 1) * each], receipt)
    for line in differences:
        print(line)
    print(f"{len(differences)} differences" if differences else "prompt and output are counted alike")
    return 1 if differences else 0


def read_exchange(request: str, answer: str) -> tuple[bytes, dict[str, Any]]:
    """A request's body and its answer, which has receipts, from files. Raises CommandError."""
    try:
        body = Path(request).read_bytes()
        said = msgspec.json.decode(Path(answer).read_bytes())
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise CommandError(f"{answer}: {error}") from error
    if not (isinstance(said, dict) and said.get("receipts")):
        raise CommandError(f"{answer} has no receipts: ask for them by the header X-Turnpike-Receipt: true")
    return body, said


def dialect_of(answer: dict[str, Any]) -> str:
    """The path of the endpoint that answers like this. Raises CommandError."""
    paths = {
        "chat.completion": "/v1/chat/completions",
        "text_completion": "/v1/completions",
        "message": "/v1/messages",
        "response": "/v1/responses",
    }
    kind = answer.get("object") or answer.get("type")
    if kind not in paths:
        raise CommandError(f"the answer is a {kind!r}, not a whole answer of {', '.join(paths.values())}")
    return paths[kind]


def generations_of(body: bytes, answer: dict[str, Any]) -> list[GenerationRequest]:
    """The requests of a body, one for each prompt. Raises CommandError, InvalidRequest."""
    from gateway.dialects.anthropic import messages_request
    from gateway.dialects.openai import chat_request, completions_request

    match dialect_of(answer):
        case "/v1/chat/completions":
            return [chat_request.parse(body).generation]
        case "/v1/messages":
            return [messages_request.parse(body).generation]
        case "/v1/completions":
            return list(completions_request.parse(body).generations)
        case path:
            raise CommandError(f"answers of {path} cannot be recounted: what came before is with the server")


def texts_of(answer: dict[str, Any]) -> list[str | None]:
    """The text of each choice; None where it has calls or reasoning, whose tokens the text does not show."""
    if answer.get("type") == "message":
        blocks = answer["content"]
        plain = all(block["type"] == "text" for block in blocks)
        return ["".join(block["text"] for block in blocks) if plain else None]
    texts: list[str | None] = []
    for choice in sorted(answer["choices"], key=lambda choice: choice["index"]):
        message = choice.get("message")
        hidden = message is not None and (message.get("tool_calls") or message.get("reasoning_content"))
        texts.append(None if hidden else choice["text"] if message is None else message["content"])
    return texts


def _prompt_differences(model: ServedModel, generation: GenerationRequest, receipt: dict[str, Any]) -> list[str]:
    from billing.receipts.answer_receipts import tokens_digest
    from gateway.admission.tool_choice import apply_tool_choice

    generation = apply_tool_choice(model, generation)
    raw = generation.prompt
    if isinstance(raw, str):
        tokens: Sequence[int] = model.continued(raw, "$.prompt", opened=generation.add_special_tokens).tokens
    elif raw is not None:
        tokens = raw
    else:
        turns = generation.turns
        prompt = model.prompt(turns, generation.tools, continued=generation.continued, reasoning=generation.reasoning)
        tokens = prompt.tokens
    counted, event = receipt["event"]["counts"].get("prompt", 0), receipt["event"]["id"]
    if counted != len(tokens):
        return [f"event {event}: the prompt has {len(tokens)} tokens, the receipt says {counted}"]
    if tokens_digest(tokens) != receipt["answer"]["prompt"]:
        return [f"event {event}: the prompt's {len(tokens)} tokens are not those of the receipt"]
    return []


def _output_differences(model: ServedModel, texts: Sequence[str | None], receipt: dict[str, Any]) -> list[str]:
    from billing.receipts.answer_receipts import tokens_digest

    event, counted = receipt["event"]["id"], receipt["event"]["counts"].get("output", 0)
    total, same = 0, True
    for text, digest in zip(texts, receipt["answer"]["output"], strict=True):
        if text is None:
            return [f"event {event}: calls and reasoning are not recounted: their tokens are not in the text"]
        tokens = model.tokenizer.content(text)
        ends = [[], *([stop] for stop in model.stop_tokens)]
        exact = next((end for end in ends if tokens_digest([*tokens, *end]) == digest), None)
        total += len(tokens) + (1 if exact is None else len(exact))
        same = same and exact is not None
    if same and total == counted:
        return []
    if total == counted:
        return [f"event {event}: the output has as many tokens as billed, {counted}, though other ones spell it"]
    return [f"event {event}: the output's text has {total} tokens with its end, the receipt says {counted}"]
