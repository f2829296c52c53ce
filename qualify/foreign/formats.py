"""The two formats of foreign transcripts: one JSON file a scenario and run, and OpenAI-style JSONL."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec

from qualify.errors import UsageError
from qualify.foreign.answers import Answer, ForeignRun

_NAME = re.compile(r"^(?P<scenario>[^.]+)(?P<middle>(?:\.[^.]+)*)\.run(?P<number>[1-9]\d*)\.jsonl(?:\.gz)?$")
_TOKEN_ID = re.compile(r"^token_id:(\d+)$")


class _Request(msgspec.Struct):
    context_tokens: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[tuple[tuple[int, float | None], ...], ...]


class _Recording(msgspec.Struct):
    scenario: str
    run: int
    requests: tuple[_Request, ...]
    decode: str = "free"
    dispatch: dict[str, int] = {}
    max_model_len: int | None = None
    vllm: str | None = None
    model: str | None = None
    seed: int | None = None


class _TopLogprob(msgspec.Struct):
    token: str
    logprob: float | None


class _Token(msgspec.Struct):
    token: str
    logprob: float | None
    top_logprobs: list[_TopLogprob] = []


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    index: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0


class _Response(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    model: str | None = None
    prompt_token_ids: list[int] | None = None


class _Envelope(msgspec.Struct):
    body: _Response


class _BatchLine(msgspec.Struct):
    response: _Envelope
    custom_id: str | None = None


class Vocabulary:
    """Gives ids to tokens that come as text; the same text gets the same id in every file of one import."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id_of(self, token: str) -> int:
        """Id of a token; ``token_id:17``, as vLLM writes it when asked for ids, is 17."""
        known = _TOKEN_ID.match(token)
        return int(known.group(1)) if known else self._ids.setdefault(token, len(self._ids))


def read_file(path: Path, vocabulary: Vocabulary) -> ForeignRun:
    """Reads one file of either format, plain or gzip-compressed.

    Args:
        path: ``*.json[.gz]`` or ``<scenario>[.more].run<N>.jsonl[.gz]``.
        vocabulary: Shared by all files of one import.

    Raises:
        UsageError: The file cannot be read or is not of the format; names file and line.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path)) from error
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        return parse_jsonl(content, path, vocabulary)
    if name.endswith(".json"):
        return parse_json(content, str(path))
    raise UsageError("is neither .json nor .jsonl", where=str(path), advice="Rename it after its format.")


def parse_json(content: bytes, where: str) -> ForeignRun:
    """Reads the format with one JSON object a scenario and run.

    Args:
        content: ``{"scenario", "run", "requests": [{"context_tokens", "token_ids", "logprobs", "top"}]}``.
        where: The file, for messages.

    Raises:
        UsageError: It is not of the format.
    """
    recording = _decode(content, _Recording, where)
    if recording.decode not in ("free", "forced"):
        raise UsageError(f"decode is {recording.decode!r}; 'free' or 'forced' is known", where=where)
    answers = tuple(
        Answer(
            name=f"{number:04d}",
            prompt=f"{request.context_tokens} tokens",
            context_tokens=request.context_tokens,
            token_ids=request.token_ids,
            logprobs=request.logprobs,
            top_ids=tuple(tuple(token for token, _ in listed) for listed in request.top),
            top_logprobs=tuple(tuple(value for _, value in listed) for listed in request.top),
            finish_reason="length",
        )
        for number, request in enumerate(recording.requests)
    )
    served = [("vLLM", recording.vllm), ("model", recording.model), ("seed", recording.seed)]
    return ForeignRun(
        where=where,
        scenario=recording.scenario,
        number=recording.run,
        decode=recording.decode,
        answers=answers,
        served=tuple((label, str(value)) for label, value in served if value is not None),
        dispatch=tuple(sorted(recording.dispatch.items())),
        max_model_len=recording.max_model_len,
    )


def parse_jsonl(content: bytes, path: Path, vocabulary: Vocabulary) -> ForeignRun:
    """Reads OpenAI's answers, one a line: completions or chat completions, bare or as batch output.

    Args:
        content: The lines.
        path: The file; its name gives scenario, run number and, with ``.forced``, the way of decoding.
        vocabulary: Shared by all files of one import.

    Raises:
        UsageError: A line is not an answer with logprobs, or the name does not say which run it is.
    """
    named = _NAME.match(path.name)
    if named is None:
        raise UsageError(
            "the name does not say which scenario and run it is",
            where=str(path),
            advice="Name it <scenario>.run<N>.jsonl, or <scenario>.forced.run<N>.jsonl.",
        )
    answers: list[Answer] = []
    models: set[str] = set()
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            name, response = _response(line, where, len(answers))
            models |= {response.model} if response.model else set()
            answers.append(_answer(name, response, vocabulary, where))
    return ForeignRun(
        where=str(path),
        scenario=named["scenario"],
        number=int(named["number"]),
        decode="forced" if "forced" in named["middle"].split(".") else "free",
        answers=tuple(answers),
        served=tuple(("model", model) for model in sorted(models)),
    )


def _decode(content: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"is not a foreign transcript: {error}", where=where) from error


def _response(line: bytes, where: str, number: int) -> tuple[str, _Response]:
    fields = _decode(line, dict[str, msgspec.Raw], where)
    if "response" in fields:
        batch: _BatchLine = _decode(line, _BatchLine, where)
        return batch.custom_id or f"{number:04d}", batch.response.body
    response: _Response = _decode(line, _Response, where)
    return f"{number:04d}", response


def _answer(name: str, response: _Response, vocabulary: Vocabulary, where: str) -> Answer:
    if len(response.choices) != 1:
        raise UsageError(f"has {len(response.choices)} choices; exactly one can be judged", where=where)
    choice = response.choices[0]
    if choice.logprobs is None:
        raise UsageError("has no logprobs", where=where, advice="Ask for logprobs when recording.")
    tokens, logprobs, top = _positions(choice.logprobs, where)
    context = response.usage.prompt_tokens if response.usage else 0
    prompt = response.prompt_token_ids
    return Answer(
        name=name,
        prompt=f"{context} tokens" if prompt is None else ",".join(map(str, prompt)),
        context_tokens=context,
        token_ids=tuple(vocabulary.id_of(token) for token in tokens),
        logprobs=tuple(logprobs),
        top_ids=tuple(tuple(vocabulary.id_of(token) for token, _ in listed) for listed in top),
        top_logprobs=tuple(tuple(value for _, value in listed) for listed in top),
        finish_reason=choice.finish_reason or "length",
    )


Listed = list[tuple[str, float | None]]


def _positions(given: _Logprobs, where: str) -> tuple[list[str], list[float | None], list[Listed]]:
    """Tokens, logprobs and most probable tokens of a chat completion or a completion."""
    if given.content is not None:
        return (
            [item.token for item in given.content],
            [item.logprob for item in given.content],
            [_best([(top.token, top.logprob) for top in item.top_logprobs]) for item in given.content],
        )
    if given.tokens is None or given.token_logprobs is None or given.top_logprobs is None:
        raise UsageError(
            "has logprobs without tokens, token_logprobs and top_logprobs",
            where=where,
            advice="Ask for the most probable tokens too (logprobs=20).",
        )
    return (
        given.tokens,
        given.token_logprobs,
        [_best(list((top or {}).items())) for top in given.top_logprobs],
    )


def _best(listed: Listed) -> Listed:
    """Best first; a completion's mapping has no order of its own."""
    return sorted(listed, key=lambda pair: -(pair[1] if pair[1] is not None else float("-inf")))
