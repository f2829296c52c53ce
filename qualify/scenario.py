"""Scenarios: one workload, as written in `scenarios/*.yaml`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from qualify.requirements import NOTHING, Requirements
from qualify.yamlsource import Strict

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Offset = Annotated[float, Field(ge=0, le=86_400)]
Tokens = Annotated[int, Field(ge=1, le=4_194_304)]


class Arrival(Strict):
    """When a phase's requests reach the server.

    Attributes:
        kind: ``together``: sent at once; ``offsets``: each at its own time; ``held``: the server queues them
            (its development endpoint ``/pause?mode=keep``), they are sent in order and start together.
        offsets_s: With ``offsets``: seconds after the phase's start, one for each request.
    """

    kind: Literal["together", "offsets", "held"] = "together"
    offsets_s: Annotated[tuple[Offset, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _offsets_only_where_used(self) -> Arrival:
        if self.kind == "offsets" and not self.offsets_s:
            raise ValueError("arrival by offsets needs offsets_s, one number of seconds for each request")
        if self.kind != "offsets" and self.offsets_s:
            raise ValueError(f"offsets_s has no meaning with arrival {self.kind!r}")
        return self


class Phase(Strict):
    """A group of requests; a phase starts when the one before it has ended.

    Attributes:
        name: Unique within the scenario.
        judged: False for requests that only warm up or pollute the server's state.
        context_tokens: Prompt length of each request, in sending order.
        decode_tokens: Tokens that each request generates.
        arrival: When they arrive.
        repeat: The phase is driven so many times in a row.
    """

    name: Name
    judged: bool = True
    context_tokens: Annotated[tuple[Tokens, ...], Field(min_length=1, max_length=4096, strict=False)]
    decode_tokens: Tokens
    arrival: Arrival = Arrival()
    repeat: Annotated[int, Field(ge=1, le=1000)] = 1

    @model_validator(mode="after")
    def _one_offset_a_request(self) -> Phase:
        if self.arrival.kind == "offsets" and len(self.arrival.offsets_s) != len(self.context_tokens):
            raise ValueError(
                f"{len(self.arrival.offsets_s)} offsets_s for {len(self.context_tokens)} requests; "
                "give one for each"
            )
        return self


class Sampling(Strict):
    """How tokens are chosen and what is asked back.

    Attributes:
        temperature: 0 is greedy; nothing else can be compared between servers.
        top_logprobs: Most probable tokens returned at each position; 0 asks for none.
        seed: Sent with each request.
    """

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 20
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class Scenario(Strict):
    """One workload.

    Attributes:
        format: Version of this file's format.
        name: Unique among the release's scenarios; names files in the bundle.
        description: What it is for, for people.
        field_cases: Cases of the field-case catalogue that it exists for.
        seed: Prompts are generated from it.
        decode: Ways of decoding that are driven. ``forced`` needs ``free``: the baseline's free run gives
            the tokens to force.
        sampling: How tokens are chosen.
        stream: Whether answers are streamed.
        deadline_s: A request that has not ended after so many seconds is recorded as failed.
        requires: What its load must reach, held against measurement.
        phases: In order.
    """

    format: Literal["qualify/scenario/1"]
    name: Name
    description: str
    field_cases: tuple[Annotated[str, StringConstraints(pattern=r"^F\d\d$")], ...] = Field(
        default=(), strict=False
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    decode: Annotated[tuple[Literal["free", "forced"], ...], Field(min_length=1, strict=False)] = (
        "free",
        "forced",
    )
    sampling: Sampling = Sampling()
    stream: bool = True
    deadline_s: Seconds = 300.0
    requires: Requirements = NOTHING
    phases: Annotated[tuple[Phase, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _possible(self) -> Scenario:
        problems = []
        if "free" not in self.decode:
            problems.append("decode must include 'free': its tokens are what 'forced' forces")
        if len(set(self.decode)) != len(self.decode):
            problems.append("decode names a way of decoding twice")
        if "forced" in self.decode and self.sampling.top_logprobs == 0:
            problems.append(
                "forced decoding compares distributions and needs sampling.top_logprobs of at least 1"
            )
        if "forced" in self.decode and self.sampling.temperature != 0:
            problems.append("forced decoding needs sampling.temperature 0")
        names = [phase.name for phase in self.phases]
        if len(set(names)) != len(names):
            problems.append(f"phase names must differ: {', '.join(names)}")
        if not self.stream and any(phase.arrival.kind == "held" for phase in self.phases):
            problems.append("arrival 'held' needs stream: true; nothing else tells that a request is queued")
        if not any(phase.judged for phase in self.phases):
            problems.append("no phase is judged")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def longest(self) -> int:
        """Longest context that any request reaches, prompt and generated tokens together."""
        return max(max(phase.context_tokens) + phase.decode_tokens for phase in self.phases)

    @property
    def most_at_once(self) -> int:
        """Requests of the largest phase."""
        return max(len(phase.context_tokens) for phase in self.phases)
