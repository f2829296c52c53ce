"""A scenario as one value, and the refusal of what contradicts itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from qualify.requirements import NOTHING, Requirements
from qualify.scenario.consistency import asked_but_impossible, impossible_phase
from qualify.scenario.phase import Phase
from qualify.scenario.values import Name, Seconds
from qualify.yamlsource import Strict, located


class Sampling(Strict):
    """How tokens are chosen and what is asked back.

    Attributes:
        temperature: 0 is greedy; nothing else can be compared between servers.
        top_logprobs: Most probable tokens returned at each position: what is compared.
        seed: Sent with each request.
    """

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_logprobs: Annotated[int, Field(ge=1, le=20)] = 20
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class Scenario(Strict):
    """One workload, its profile chosen and its includes written out.

    Attributes:
        format: Version of this file's format.
        name: Unique among the release's scenarios; names files in the bundle.
        description: What it is for, for people.
        field_cases: Cases of the field-case catalogue that it exists for.
        seed: Prompts are generated from it.
        decode: Ways of decoding that are driven. ``forced`` needs ``free``: the baseline's free run gives
            the tokens to force. ``alone`` needs ``forced``: a few of its requests, one at a time.
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
    decode: Annotated[tuple[Literal["free", "forced", "alone"], ...], Field(min_length=1, strict=False)] = (
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
        problems = [(("decode",), text) for text in self._wrong_decoding()]
        names = [phase.name for phase in self.phases]
        if len(set(names)) != len(names):
            problems.append((("phases",), f"phase names must differ: {', '.join(names)}"))
        if not any(phase.judged for phase in self.phases):
            problems.append((("phases",), "no phase is judged"))
        found = [*problems, *asked_but_impossible(self.requires, self.phases, self.stream)]
        for index, phase in enumerate(self.phases):
            wrong = impossible_phase(phase, self.stream, self.deadline_s)
            found += [(("phases", index, *at), text) for at, text in wrong]
        if found:
            raise located(found)
        return self

    def _wrong_decoding(self) -> list[str]:
        problems = []
        if "free" not in self.decode:
            problems.append("decode must include 'free': its tokens are what 'forced' forces")
        if "alone" in self.decode and "forced" not in self.decode:
            problems.append("decode 'alone' needs 'forced', with which it is compared")
        if len(set(self.decode)) != len(self.decode):
            problems.append("decode names a way of decoding twice")
        if "forced" in self.decode and self.sampling.temperature != 0:
            problems.append("forced decoding needs sampling.temperature 0")
        return problems
