"""The record of one run: everything that judging is a function of, beside the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from qualify.findings import Finding
from qualify.probe import ProbeRecord
from qualify.ranksteps import RankSteps
from qualify.requirements import NOTHING, Requirements
from qualify.runtable import RunTable
from qualify.steps import Step as Step
from qualify.steps import StepRow as StepRow
from qualify.steps import StepTable
from qualify.transcript import Arm, RunKey

AS_RECORDED = "as recorded"
"""Kind of replay of transcripts made elsewhere: their steps, where counted, name no requests."""


class ArmState(StrEnum):
    """How an arm ended."""

    SERVED = "served"  # all its scenarios were driven and it was stopped by the harness
    NOT_STARTED = "not-started"  # it was never asked to start
    START_FAILED = "start-failed"  # it ended, by itself, before it was ready
    NEVER_READY = "never-ready"  # it ran, and was not ready in time
    DIED = "died"  # it ended by itself while requests were sent
    KILLED = "killed"  # a signal from outside ended it
    HUNG = "hung"  # requests in flight, no token for too long
    MACHINERY = "machinery"  # it could not be started for a reason that is not its own (port, memory, file)
    INTERRUPTED = "interrupted"  # the user stopped the run


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRecord:
    """What became of one arm.

    Attributes:
        arm: Which.
        state: How it ended.
        detail: One sentence; for a failure with exit code or signal.
        log_tail: Last lines of its log where it failed.
        fault: The fault that was put in (control only).
        started_s: Seconds from process start until ready; None where it never was.
        peak_rss_bytes: Largest resident memory of its process group; None where not measured.
        beside: How a first attempt beside the other arms' servers ended, which does not count; empty where
            there was none.
    """

    arm: Arm
    state: ArmState
    detail: str = ""
    log_tail: tuple[str, ...] = ()
    fault: str | None = None
    started_s: float | None = None
    peak_rss_bytes: int | None = None
    beside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRequest:
    """A request that each run of each arm must have answered.

    Attributes:
        request_id: ``scenario/phase/index``.
        scenario: Its scenario.
        judged: False for warm-up and polluting requests.
        context_tokens: Length of its prompt in tokens.
        max_tokens: Tokens it generates.
        prompt_sha256: Digest of its prompt.
        answer_ids: Ways to write a right answer as token ids, one of which it contains; empty where no answer
            is known.
        alone: True where it is sent alone, too (see `qualify.traffic.alone`).
    """

    request_id: str
    scenario: str
    judged: bool
    context_tokens: int
    max_tokens: int
    prompt_sha256: str
    answer_ids: tuple[tuple[int, ...], ...] = ()
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioExpectation:
    """What the plan says of one scenario.

    Attributes:
        name: The scenario.
        decode_ways: Ways of decoding that every arm must have been driven with.
        control_can_act: True where the control's fault can act in it (the release names them).
        requests: Its requests.
        requires: What its load must reach; nothing in bundles from before it was kept.
    """

    name: str
    decode_ways: tuple[str, ...]
    control_can_act: bool
    requests: tuple[ExpectedRequest, ...]
    requires: Requirements = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCounts:
    """CUDA graphs of one server, as it counts them itself.

    Attributes:
        mode: Its graph mode, e.g. ``FULL_DECODE_ONLY``; ``NONE`` where it has no graphs.
        captured: Batch sizes that it captures.
        steps: (mode that ran the step, tokens of the step with padding, steps), sorted; lower bounds.
    """

    mode: str
    captured: tuple[int, ...]
    steps: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfiguration:
    """What one server said of its own configuration once it was ready.

    Attributes:
        why: Why it could not be read; empty where it could.
        graph_mode: Its graph mode, e.g. ``FULL_DECODE_ONLY``; None where not known.
        capture_sizes: Batch sizes that it captures, sorted.
        enforce_eager: True where graphs are switched off; None where not known.
        max_num_seqs: Most requests in one batch; None where not known.
        max_model_len: Longest context in tokens; None where not known.
    """

    why: str = ""
    graph_mode: str | None = None
    capture_sizes: tuple[int, ...] = ()
    enforce_eager: bool | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """What became of the server's prefix cache before a run.

    Attributes:
        run: The run.
        kept: Why it was not emptied; empty where it was.
    """

    run: RunKey
    kept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that judging is a function of, beside the policy.

    Attributes:
        release: Name of the release.
        run_date: ISO date of the run.
        subject: Digest that the verdict binds to, or ``unbound``.
        scope: What ran, as (label, value) pairs sorted by label: launcher, device, replay, model, ...
        replay: ``emulated replay``, ``FULL CUDA graph replay``, or `AS_RECORDED`.
        scenarios: What the plan asked for, sorted by name.
        arms: What became of each configured arm.
        runs: Transcripts of each run (see `qualify.runtable.collect`).
        steps: Engine steps of each arm, where its server recorded them (see `qualify.steps.collect_steps`).
        graphs: What each arm's server itself says of its CUDA graphs, where it says anything.
        configurations: The configuration of each arm's server as it resolved it; none in bundles from before
            it was kept.
        prefixes_kept: Why the server's prefix cache was not emptied before a run, empty where it was; without
            the runs of bundles from before that was kept.
        probes: What the probes of each arm measured; none where nothing was.
        ranks: Steps of each rank of an arm's server, rank 0 first; none where one rank serves and nobody
            looks at its metadata.
        looks_at_metadata: Arms whose ranks were asked to look at their C128A rows in each step.
        torn: Arms whose step log ends within a line.
        control_configured: False where the control was switched off.
        incomplete: Why evidence is not complete; empty where it is.
        inspections: What was found in the image before it was served; a missing look is a finding too.
        max_model_len: Longest context that the servers accept; None where unknown.
        compress_ratio: Tokens for each compressed entry of the C128A layers; None where unknown.
        bos_token_id: Id of the beginning-of-sequence token; None where unknown.
    """

    release: str
    run_date: str
    subject: str
    scope: tuple[tuple[str, str], ...]
    replay: str
    scenarios: tuple[ScenarioExpectation, ...]
    arms: Mapping[Arm, ArmRecord]
    runs: Mapping[RunKey, RunTable]
    steps: Mapping[Arm, StepTable] = field(default_factory=dict)
    ranks: Mapping[Arm, tuple[RankSteps, ...]] = field(default_factory=dict)
    looks_at_metadata: frozenset[Arm] = frozenset()
    torn: frozenset[Arm] = frozenset()
    graphs: Mapping[Arm, GraphCounts] = field(default_factory=dict)
    configurations: Mapping[Arm, ResolvedConfiguration] = field(default_factory=dict)
    prefixes_kept: Mapping[RunKey, str] = field(default_factory=dict)
    probes: Mapping[Arm, ProbeRecord] = field(default_factory=dict)
    control_configured: bool
    incomplete: tuple[str, ...] = ()
    inspections: tuple[Finding, ...] = ()
    max_model_len: int | None = None
    compress_ratio: int | None = None
    bos_token_id: int | None = None

    @property
    def expected_arms(self) -> tuple[Arm, ...]:
        """The arms that must have served, in that order; the control only where it is configured."""
        return tuple(arm for arm in Arm if arm is not Arm.CONTROL or self.control_configured)
