"""Reads a bundle back as the record that judging is a function of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qualify.errors import EvidenceError, UsageError
from qualify.evidence.bundle import INSPECTIONS, PREFIXES, Bundle, RunState
from qualify.evidence.digests import sha256_file, sha256_value
from qualify.findings import Finding, Weight
from qualify.plan import Plan, PlannedArm
from qualify.policy import Policy
from qualify.ranksteps import RankSteps, compare_ranks
from qualify.record import (
    ArmRecord,
    ArmState,
    GraphCounts,
    PrefixCache,
    ResolvedConfiguration,
    RunRecord,
)
from qualify.runtable import collect
from qualify.serving.configuration import CONFIGURATION, KeptConfiguration, resolved
from qualify.serving.graphs import read_graphs
from qualify.serving.logfile import log_lines
from qualify.serving.probes.reading import read_probes
from qualify.serving.steps import StepLog
from qualify.steps import Step, StepCollector, StepTable, collect_steps
from qualify.transcript import Arm, RunKey, Transcript, read_transcripts
from qualify.yamlsource import Source, parse_or_refuse


def read_record(bundle: Bundle) -> RunRecord:
    """Reads everything that the gate needs from a bundle.

    Args:
        bundle: A bundle, sealed or not, complete or not.

    Returns:
        The record. What is not there is said in `RunRecord.incomplete`, or is an arm that was not started.

    Raises:
        EvidenceError: A file is damaged.
    """
    plan = bundle.read("plan.json", Plan)
    state = bundle.read("run.json", RunState)
    arms = {}
    for planned in plan.arms:
        record = ArmRecord(arm=planned.arm, state=ArmState.NOT_STARTED, fault=planned.fault)
        if (bundle.arm(planned.arm) / "arm.json").exists():
            record = bundle.read(f"arms/{planned.arm}/arm.json", ArmRecord)
        arms[planned.arm] = record
    runs = {
        key: collect(key, _own(path, key)) for arm in arms for key, path in bundle.transcripts(arm).items()
    }
    stepped = {arm.arm: read for arm in plan.arms if (read := _steps(bundle, plan.replay, arm)) is not None}
    return RunRecord(
        release=plan.release,
        run_date=state.date[:10],
        subject=plan.subject,
        scope=plan.scope,
        replay=plan.replay,
        scenarios=plan.scenarios,
        arms=arms,
        runs=runs,
        steps={arm: read.table for arm, read in stepped.items()},
        torn=frozenset(arm for arm, read in stepped.items() if read.torn),
        ranks={arm: read.ranks for arm, read in stepped.items() if read.ranks},
        looks_at_metadata=frozenset(planned.arm for planned in plan.arms if planned.looks_at_metadata),
        graphs=_graphs(bundle, arms),
        configurations=_configurations(bundle, arms),
        prefixes_kept=_prefixes(bundle, arms),
        probes={arm: read_probes(bundle.arm(arm)) for arm in arms},
        control_configured=plan.control_configured,
        max_model_len=plan.max_model_len,
        compress_ratio=plan.compress_ratio,
        bos_token_id=plan.bos_token_id,
        inspections=_inspections(bundle, plan.inspections),
        incomplete=() if state.status == "complete" else (state.why or "the run did not come to its end",),
    )


@dataclass(frozen=True, slots=True)
class _Stepped:
    """What the step logs of one driven arm hold.

    Attributes:
        table: The steps of rank 0.
        torn: The log of rank 0 ends within a line.
        ranks: Every rank's steps in figures; none where one rank serves and nobody looks at its metadata.
    """

    table: StepTable
    torn: bool
    ranks: tuple[RankSteps, ...] = ()


def _steps(bundle: Bundle, replay: str, planned: PlannedArm) -> _Stepped | None:
    """Goes through an arm's step logs, each once; None where its server wrote none: it was not driven."""
    path = bundle.steps(planned.arm)
    if path is None:
        return None
    log, collector = StepLog(path), StepCollector(replay)

    def read(rank: int) -> Iterator[Step]:
        if rank > 0:
            other = bundle.steps(planned.arm, rank)
            yield from () if other is None else StepLog(other)
            return
        for step in log:
            collector.add(step)
            yield step

    if planned.ranks > 1 or planned.looks_at_metadata:
        ranks = compare_ranks(read, planned.ranks, replay)
        return _Stepped(collector.table(), log.torn, ranks)
    return _Stepped(collect_steps(log, replay), log.torn)


def _graphs(bundle: Bundle, arms: Iterable[Arm]) -> dict[Arm, GraphCounts]:
    counted = {arm: read_graphs(log_lines(bundle.arm(arm) / "server.log")) for arm in arms}
    return {arm: counts for arm, counts in counted.items() if counts is not None}


def _configurations(bundle: Bundle, arms: Iterable[Arm]) -> dict[Arm, ResolvedConfiguration]:
    names = {arm: f"arms/{arm}/{CONFIGURATION}" for arm in arms}
    return {
        arm: resolved(bundle.read(name, KeptConfiguration))
        for arm, name in names.items()
        if (bundle.root / name).exists()
    }


def _prefixes(bundle: Bundle, arms: Iterable[Arm]) -> dict[RunKey, str]:
    names = [f"arms/{arm}/{PREFIXES}" for arm in arms]
    return {
        cache.run: cache.kept
        for name in names
        if (bundle.root / name).exists()
        for cache in bundle.read(name, tuple[PrefixCache, ...])
    }


def _inspections(bundle: Bundle, rules: tuple[str, ...]) -> tuple[Finding, ...]:
    """What was found in the image, and for each rule that did not look, that it did not."""
    found: tuple[Finding, ...] = ()
    if (bundle.root / INSPECTIONS).exists():
        found = bundle.read(INSPECTIONS, tuple[Finding, ...])
    looked = {finding.rule for finding in found}
    missing = tuple(
        Finding(
            rule=rule,
            weight=Weight.UNTESTED,
            summary=f"The image was not inspected: there is no finding of {rule}.",
            advice="Run again to the end.",
        )
        for rule in rules
        if rule not in looked
    )
    return found + missing


def _own(path: Path, key: RunKey) -> Iterator[Transcript]:
    for transcript in read_transcripts(path):
        if transcript.run != key:
            raise EvidenceError(
                f"holds a transcript of run {transcript.run}, where {key} is expected",
                where=str(path),
                advice="The file was moved; run again.",
            )
        yield transcript


def read_policy(bundle: Bundle, other: Path | None = None) -> tuple[Policy, str]:
    """The policy to judge a bundle by.

    Args:
        bundle: The bundle.
        other: A policy file to use instead of the one that the bundle was made with.

    Returns:
        The policy and the SHA-256 of its file.

    Raises:
        EvidenceError: The bundle's own policy is missing or wrong.
        UsageError: The other policy is wrong.
    """
    if other is not None:
        return read_policy_file(other)
    own = bundle.root / "inputs/policy.yaml"
    try:
        return read_policy_file(own)
    except UsageError as error:
        where = "" if error.where else str(own)
        raise EvidenceError(f"the bundle's policy: {error}", where=where) from error


def read_policy_file(path: Path | None) -> tuple[Policy, str]:
    """Reads a policy.

    Args:
        path: Its file; None takes the defaults of the format.

    Returns:
        The policy and the SHA-256 of its file, or of its content where there is none.

    Raises:
        UsageError: The policy is wrong.
    """
    if path is None:
        policy = Policy(format="qualify/policy/1", name="default")
        return policy, sha256_value(policy.model_dump(mode="json"))
    return parse_or_refuse(Source(path), Policy), sha256_file(path)
