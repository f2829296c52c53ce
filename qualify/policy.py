"""Policies: what must hold before a release is called qualified, as written in `policy.yaml`."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from qualify.scenario import Name
from qualify.yamlsource import Strict

Share = Annotated[float, Field(ge=0, le=1)]
Demanded = Literal[
    "rows",
    "padded_rows",
    "straddled_tokens",
    "identical_prompts",
    "in_flight",
    "warmup_requests",
    "decoded_tokens",
    "prefix_hits",
    "prefix_hit_tokens",
    "prompt_tails",
    "preemptions",
    "kv_cache_share",
    "prefill_during_decode",
    "speculation",
]
"""The fields of `qualify.requirements.Requirements`."""

Sentence = Annotated[str, StringConstraints(min_length=10)]


class FloorPolicy(Strict):
    """How well the noise between two baseline runs must be known.

    Attributes:
        baseline_forced_runs: Forced runs of the baseline; two give one comparison.
        minimum_requests: Fewer judged requests than this in one run make the run inconclusive.
    """

    baseline_forced_runs: Annotated[int, Field(ge=2, le=20)] = 2
    minimum_requests: Annotated[int, Field(ge=2)] = 8


class DecisionPolicy(Strict):
    """Error rates that the comparison is held to.

    Attributes:
        false_rejection: Probability that a correct release is rejected, for one whole run; the thresholds
            follow from it.
        ceiling_kld: A request whose mean Kullback-Leibler divergence (nats) exceeds this is a defect whatever
            the floor says. The default is the loss of a 3-bit quantisation (llama.cpp's Q3_K_S: 0.164 nats
            mean over a corpus), far beyond what two ways of running the same weights may differ.
        negligible_kld: A difference smaller than this, in the mean over all requests or at a position, does
            not matter, however sure it is; where the floor is exactly zero, any does. A floor that nowhere
            shows as much is quiet, and one request beyond it is a finding. The default is the loss of an
            8-bit quantisation (llama.cpp's Q8_0: 0.00024 nats).
    """

    false_rejection: Annotated[float, Field(gt=0, le=0.05)] = 0.001
    ceiling_kld: Annotated[float, Field(gt=0)] = 0.164
    negligible_kld: Annotated[float, Field(ge=0)] = 0.00024


class CoveragePolicy(Strict):
    """What the run must really have reached, by measurement.

    Attributes:
        minimum_rows: At least one decode step had so many rows.
        replay_share: Share of all-decode steps of the candidate that must have been replays; in each
            scenario, share of the judged tokens of such steps that replays must have computed.
        replayed_tokens: Share of all judged tokens of the candidate, without the first of each request, that
            replays must have computed in each scenario where the control can act. Steps with a prefill beside
            are none. Recorded right runs have 62% (32 long prompts at once, 48 tokens each) to 100%, and more
            prompts at once leave less; the default, a quarter, is well below.
        judged_positions: Positions that must have been compared in one run.
        active_widths: Active widths of the C128A metadata rows, in entries, that must each have been seen in
            a decode step of the candidate.
        graph_rows: Graph sizes that must each have replayed a whole decode step of the candidate.
        known_answers: Questions with a known answer that the baseline must answer right. A baseline that
            misses what its model can answer is wrong itself, and then nothing can be told from it.
        limitations_only: Demands of scenarios whose shortfall is said as a limitation; that of any other
            leaves the run inconclusive: what was not reached was not tested.
    """

    minimum_rows: Annotated[int, Field(ge=2)] = 2
    replay_share: Share = 0.95
    replayed_tokens: Share = 0.25
    judged_positions: Annotated[int, Field(ge=1)] = 1
    active_widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)] = ()
    graph_rows: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)] = ()
    known_answers: Annotated[int, Field(ge=0)] = 0
    limitations_only: Annotated[tuple[Demanded, ...], Field(strict=False)] = ()


class ProbePolicy(Strict):
    """From when on a probe's measurement counts against the candidate, beside the same of the baseline.

    Attributes:
        acceptance_share: Draft acceptance of the candidate, at its lowest, must be at least this share of the
            baseline's lowest. Collapses in the field left less than a tenth (75.8% to 4.1%, 45% to 1.5%,
            exactly 0); two windows of a right server with 200 drafts each differ by a few percent.
        acceptance_drafts: Draft tokens of one window.
        memory_growth_share: The candidate's processes may grow by this share of what they held as serving
            began, beyond the baseline's own growth; a convention.
        memory_growth_mib: Growth below this never counts: caches and allocators fill up.
        repeated_warnings: So many times as often as the baseline, which counts as once at least, is a flood.
            A start warns a few times of one thing; a case in the field warned 944 times; this lies between.
    """

    acceptance_share: Share = 0.5
    acceptance_drafts: Annotated[int, Field(ge=50)] = 200
    memory_growth_share: Annotated[float, Field(gt=0)] = 0.25
    memory_growth_mib: Annotated[int, Field(ge=1)] = 512
    repeated_warnings: Annotated[int, Field(ge=2)] = 100


class Waiver(Strict):
    """A finding that its owner accepts for a while.

    Attributes:
        rule: The finding's rule.
        scenario: Only in this scenario; null is any.
        owner: Who answers for it.
        reason: Why it is acceptable.
        expires: Last day on which it holds, compared with the run's date.
    """

    rule: Name
    scenario: Name | None = None
    owner: Annotated[str, StringConstraints(min_length=2)]
    reason: Sentence
    expires: datetime.date


class Policy(Strict):
    """What must hold.

    Attributes:
        format: Version of this file's format.
        name: Name of the policy.
        floor: How well the baseline's noise must be known.
        decision: Error rates.
        coverage: What must have been reached.
        probes: From when on what probes measured counts.
        waivers: Accepted findings. A waiver turns a defect into a waived finding, never missing evidence
            into a pass.
    """

    format: Literal["qualify/policy/1"]
    name: Name
    floor: FloorPolicy = FloorPolicy()
    decision: DecisionPolicy = DecisionPolicy()
    coverage: CoveragePolicy = CoveragePolicy()
    probes: ProbePolicy = ProbePolicy()
    waivers: Annotated[tuple[Waiver, ...], Field(strict=False)] = ()


class PublicationPolicy(Strict):
    """What may be published: which verdicts are good enough, by what was run for them.

    The defaults accept what a user will meet: a real model on a GPU, served from the image, with the graphs
    that ship. Verdicts that bind to no image are never published, whatever this says.

    Attributes:
        format: Version of this file's format.
        name: Name of the policy.
        devices: Accepted devices (the verdict's scope names one).
        launchers: Accepted launchers.
        replays: Accepted ways of replaying graphs.
        model_kinds: Accepted kinds of model.
        max_age_days: Days after the run for which its statement holds.
        accept_uncommitted: Accepts an image of sources that no commit holds, or packages that were changed
            after they had been installed.
        policies: SHA-256 of each policy that may have judged; empty accepts any, whatever it waives.
        profiles: Profiles that the scenarios may have been driven in; empty accepts any.
        channels: Tags that may be moved (``stable``, ``latest``), and only when asked for by name. Any other
            tag is immutable.
    """

    format: Literal["qualify/publication/1"]
    name: Name
    devices: Annotated[tuple[Literal["GPU", "CPU"], ...], Field(strict=False)] = ("GPU",)
    launchers: Annotated[tuple[Literal["docker"], ...], Field(strict=False)] = ("docker",)
    replays: Annotated[
        tuple[Literal["FULL CUDA graph replay", "emulated replay"], ...], Field(strict=False)
    ] = ("FULL CUDA graph replay",)
    model_kinds: Annotated[tuple[Literal["local", "synthetic"], ...], Field(strict=False)] = ("local",)
    max_age_days: Annotated[int, Field(ge=1, le=3650)] = 30
    accept_uncommitted: bool = False
    policies: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")], ...], Field(strict=False)
    ] = ()
    profiles: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    channels: Annotated[tuple[str, ...], Field(strict=False)] = ()
