"""A phase of a scenario: which requests it has and when they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from qualify.scenario.arrival import Arrival
from qualify.scenario.values import (
    MOST_REQUESTS,
    Count,
    Known,
    Lengths,
    Name,
    Offset,
    Tokens,
    Written,
    lengths_of,
)
from qualify.yamlsource import Strict


class Prefix(Strict):
    """The beginning that several requests of a scenario have in common.

    Attributes:
        name: Requests that give the same name begin with the same tokens.
        tokens: How many. For a hit of exactly so many, a multiple of the server's block size.
    """

    name: Name
    tokens: Tokens


class After(Strict):
    """What a request waits for; with arrival ``together`` or ``held``.

    Attributes:
        seconds: It is sent so long after the phase's start; with ``held``, after the server was resumed.
        request: ... once this earlier request, by its position in the phase,
        tokens: has received so many tokens: it arrives in mid-decode. One that ends before releases it, too.
    """

    seconds: Offset | None = None
    request: Annotated[int, Field(ge=0, lt=MOST_REQUESTS)] | None = None
    tokens: Tokens | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> After:
        by_request = (self.request is not None, self.tokens is not None)
        if any(by_request) != all(by_request) or (self.seconds is not None) == any(by_request):
            raise ValueError("give either seconds, or request and tokens")
        return self


class RequestGroup(Strict):
    """Requests of one kind.

    Attributes:
        count: How many, where the lengths do not say it.
        context_tokens: Prompt length: one number, one for each request, or a spread.
        tail_tokens: In its place with a prefix: tokens after the prefix.
        decode_tokens: Tokens to generate, alike; the phase's where not given.
        prompt: Requests of the scenario with the same name and length ask the very same prompt.
        prefix: The beginning that they share with others.
        ask: Their answer is known: a ``needle`` in a text, ``arithmetic`` (both need the model's tokenizer),
            or an ``echo``, a stretch of tokens to go on repeating. Counts where the baseline answers right.
            With a prefix, the question is what comes after it.
        after: What they wait for.
    """

    count: Count = 1
    context_tokens: Lengths | None = None
    tail_tokens: Lengths | None = None
    decode_tokens: Lengths | None = None
    prompt: Name | None = None
    prefix: Prefix | None = None
    ask: Known | None = None
    after: After | None = None

    @model_validator(mode="after")
    def _consistent(self) -> RequestGroup:
        if self.ask is not None and self.prompt is not None:
            raise ValueError("ask and prompt exclude each other: a question is a prompt of its own")
        if (self.context_tokens is None) == (self.tail_tokens is None):
            raise ValueError("give either context_tokens, or prefix and tail_tokens")
        if self.tail_tokens is not None and self.prefix is None:
            raise ValueError("tail_tokens needs a prefix: it is what comes after it")
        if self.prompt is not None and self.prefix is not None:
            raise ValueError("prompt and prefix exclude each other: a shared prompt is shared as a whole")
        counts = {
            len(lengths_of(value, ""))
            for value in (self.context_tokens, self.tail_tokens, self.decode_tokens)
            if value is not None and not isinstance(value, int)
        }
        if len(counts) > 1 or (counts and self.count not in (1, *counts)):
            raise ValueError(f"count and lengths disagree about the number of requests: {sorted(counts)}")
        shortest = min(lengths_of(self.context_tokens, "")) if self.context_tokens is not None else None
        if self.prefix and shortest is not None and shortest <= self.prefix.tokens:
            raise ValueError(f"context_tokens must exceed the prefix of {self.prefix.tokens} tokens")
        return self

    def number(self) -> int:
        """How many requests the group has."""
        for value in (self.context_tokens, self.tail_tokens, self.decode_tokens):
            if value is not None and not isinstance(value, int):
                return len(lengths_of(value, ""))
        return self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request of a phase, written out.

    Attributes:
        context_tokens: Prompt length.
        decode_tokens: Tokens to generate.
        prompt: Name of the prompt that it shares; None where it has one of its own.
        prefix: The beginning that it shares.
        tail_tokens: Tokens after the prefix, where the scenario asks for exactly so many.
        ask: Kind of its known answer; None where none is known.
        after: What it waits for.
    """

    context_tokens: int
    decode_tokens: int
    prompt: str | None = None
    prefix: Prefix | None = None
    tail_tokens: int | None = None
    ask: Known | None = None
    after: After | None = None


class Phase(Strict):
    """A group of requests; a phase starts when the one before it has ended.

    Attributes:
        name: Unique within the scenario.
        judged: False for requests that only warm up or pollute the server's state.
        context_tokens: Prompt length of each request, in sending order: a list, or a spread.
        decode_tokens: Tokens that requests generate: one number, one for each request, or a spread.
        requests: In place of `context_tokens`: groups of requests, in sending order.
        arrival: When they arrive.
        repeat: The phase is driven so many times in a row.
    """

    name: Name
    judged: bool = True
    context_tokens: Lengths | None = None
    decode_tokens: Lengths | None = None
    requests: Annotated[tuple[RequestGroup, ...], Field(max_length=4096, strict=False)] = ()
    arrival: Arrival = Arrival()
    repeat: Annotated[int, Field(ge=1, le=100_000)] = 1

    @model_validator(mode="after")
    def _consistent(self) -> Phase:
        if (self.context_tokens is None) == (not self.requests):
            raise ValueError("give either context_tokens or requests")
        if self.decode_tokens is None and any(
            group.decode_tokens is None for group in self.requests or (self,)
        ):
            raise ValueError("decode_tokens is missing: give it for the phase or for each group of requests")
        if self.requests and not isinstance(self.decode_tokens, int | None):
            raise ValueError(
                "with requests, decode_tokens of the phase is one number; lists go into the groups"
            )
        count = len(self.asked)
        if not isinstance(self.decode_tokens, int | None):
            given = len(lengths_of(self.decode_tokens, self.name))
            if given != count:
                raise ValueError(
                    f"{given} decode_tokens for {count} requests; give one number, or one for each"
                )
        offsets = self.arrival.offsets_s
        if offsets and len(offsets) != count:
            raise ValueError(f"{len(offsets)} offsets_s for {count} requests; give one for each")
        if count > MOST_REQUESTS:
            raise ValueError(f"{count} requests are more than {MOST_REQUESTS}")
        return self

    @property
    def asked(self) -> tuple[Asked, ...]:
        """Its requests of one round, written out in sending order."""
        if self.context_tokens is not None:
            assert self.decode_tokens is not None
            contexts = lengths_of(self.context_tokens, self.name)
            decodes = lengths_of(self.decode_tokens, f"{self.name}/decode")
            if len(decodes) == 1:
                decodes *= len(contexts)
            pairs = zip(contexts, decodes, strict=False)
            return tuple(Asked(context_tokens=context, decode_tokens=decode) for context, decode in pairs)
        return tuple(
            asked
            for index, group in enumerate(self.requests)
            for asked in _of_group(group, self.decode_tokens, f"{self.name}/{index}")
        )


def _of_group(group: RequestGroup, decode: Written | None, place: str) -> Iterator[Asked]:
    number = group.number()

    def each(value: Written | None, what: str) -> tuple[int, ...]:
        assert value is not None
        lengths = lengths_of(value, f"{place}/{what}")
        return lengths * number if len(lengths) == 1 else lengths

    decodes = each(group.decode_tokens if group.decode_tokens is not None else decode, "decode")
    tails: tuple[int | None, ...] = (None,) * number
    if group.context_tokens is not None:
        contexts = each(group.context_tokens, "context")
    else:
        assert group.prefix is not None
        tails = exact = each(group.tail_tokens, "context")
        contexts = tuple(group.prefix.tokens + tail for tail in exact)
    for context, tail, tokens in zip(contexts, tails, decodes, strict=True):
        yield Asked(
            context_tokens=context,
            decode_tokens=tokens,
            prompt=group.prompt,
            prefix=group.prefix,
            tail_tokens=tail,
            ask=group.ask,
            after=group.after,
        )
