"""Findings of the probes: what was measured beside the transcripts, held against the same of the baseline."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from qualify.findings import Finding, Weight
from qualify.policy import ProbePolicy
from qualify.probe import ACCEPTED, DRAFTED, GENERATED, STARTED, LogSigns, ProbeRecord, Sample
from qualify.record import ArmState, RunRecord
from qualify.transcript import Arm, Decode

NOTHING = ProbeRecord()
QUARTER = 4
"""Memory is compared between the first and the last quarter of an arm's samples, by their medians."""

FEWEST_SAMPLES = 8
"""Two samples a quarter."""

_XID = re.compile(r"Xid \(.*?\): (?P<number>\d+)")
OF_A_PROGRAM = frozenset({13, 31, 43})
"""Xid errors that a program brings about: graphics engine exception, page fault, channel reset after one. All
others are the machine's (NVIDIA's catalogue of Xid errors)."""

# What such an arm's log and memory show may be how its processes ended, and then says nothing against it.
_ENDED_FROM_OUTSIDE = frozenset(
    {ArmState.KILLED, ArmState.INTERRUPTED, ArmState.MACHINERY, ArmState.NEVER_READY}
)

_SERVER = re.compile(r"name=[^,]*(VLLM|python)")


def check_probes(record: RunRecord, policy: ProbePolicy) -> list[Finding]:
    """Findings of all probes about all arms.

    Args:
        record: The run record; what was not measured gives no finding.
        policy: Thresholds.
    """
    checks: Sequence[Callable[[RunRecord, ProbePolicy], Iterator[Finding]]] = (
        _restarts,
        _acceptance,
        _memory,
        _log_signs,
        _repeated_warnings,
        _gpu_errors,
    )
    return [finding for check in checks for finding in check(record, policy)]


def _probes(record: RunRecord, arm: Arm) -> ProbeRecord:
    return record.probes.get(arm, NOTHING)


def _against_candidate(record: RunRecord) -> Weight:
    entry = record.arms.get(Arm.CANDIDATE)
    return Weight.NOTE if entry is not None and entry.state in _ENDED_FROM_OUTSIDE else Weight.DEFECT


def _restarts(record: RunRecord, policy: ProbePolicy) -> Iterator[Finding]:
    for arm, probes in sorted(record.probes.items()):
        seen = [sample for sample in probes.samples if sample.answered]
        for before, after in pairwise(seen):
            if _began_anew(before, after):
                yield Finding(
                    rule="restart",
                    weight=Weight.UNTESTED,
                    arm=arm,
                    summary=f"The {arm}'s server was started anew {after.time_s:.0f} s after it was ready: "
                    "its answers come from two servers.",
                    advice="Find out who or what restarted it, and run again.",
                )


def _began_anew(before: Sample, after: Sample) -> bool:
    fewer = after.values.get(GENERATED, 0.0) < before.values.get(GENERATED, 0.0)
    return fewer or before.values.get(STARTED) != after.values.get(STARTED)


def acceptance(probes: ProbeRecord, decode: Decode, drafts: int) -> list[float]:
    """Share of draft tokens that were accepted, over time.

    Args:
        probes: Of one arm.
        decode: Runs with this way of decoding.
        drafts: Draft tokens of each window.

    Returns:
        One share for each window; empty where fewer drafts were made in all.
    """
    shares = []
    begin: Sample | None = None
    for sample in probes.samples:
        if not sample.answered or DRAFTED not in sample.values:
            continue
        if f".{decode}." not in sample.run:
            begin = sample
            continue
        begin = begin or sample
        made = sample.values[DRAFTED] - begin.values[DRAFTED]
        if made >= drafts:
            shares.append((sample.values.get(ACCEPTED, 0.0) - begin.values.get(ACCEPTED, 0.0)) / made)
            begin = sample
    return shares


def _acceptance(record: RunRecord, policy: ProbePolicy) -> Iterator[Finding]:
    for decode in Decode:
        usual = acceptance(_probes(record, Arm.BASELINE), decode, policy.acceptance_drafts)
        mine = acceptance(_probes(record, Arm.CANDIDATE), decode, policy.acceptance_drafts)
        if not usual:
            continue
        if not mine:
            yield Finding(
                rule="acceptance",
                weight=Weight.UNTESTED,
                arm=Arm.CANDIDATE,
                summary=f"The baseline speculates ({decode} decoding), and of the candidate's drafts nothing "
                "is known.",
                advice="Serve both with the same speculation, and with their metrics.",
            )
        elif min(mine) < policy.acceptance_share * min(usual):
            yield Finding(
                rule="acceptance",
                weight=Weight.DEFECT,
                arm=Arm.CANDIDATE,
                summary=f"Draft acceptance of the candidate falls to {min(mine):.1%} ({decode} decoding), "
                f"that of the baseline to {min(usual):.1%} at least.",
                advice="Read the answers from then on: a server that answers wrongly rejects its drafts.",
                evidence=(f"over time: {', '.join(f'{share:.1%}' for share in mine[:20])}",),
            )


def growth(probes: ProbeRecord) -> tuple[int, int] | None:
    """Memory of an arm's processes as serving began, and by how much it grew.

    Args:
        probes: Of one arm.

    Returns:
        Bytes; None where there are too few samples.
    """
    resident = [sample.rss_bytes for sample in probes.samples if sample.rss_bytes]
    if len(resident) < FEWEST_SAMPLES:
        return None
    part = len(resident) // QUARTER
    first, last = np.median(resident[:part]), np.median(resident[-part:])
    return int(first), int(last - first)


def _memory(record: RunRecord, policy: ProbePolicy) -> Iterator[Finding]:
    usual, mine = growth(_probes(record, Arm.BASELINE)), growth(_probes(record, Arm.CANDIDATE))
    if usual is None or mine is None:
        return
    excess = mine[1] - max(usual[1], 0)
    if excess > max(policy.memory_growth_share * mine[0], policy.memory_growth_mib * 2**20):
        yield Finding(
            rule="memory",
            weight=_against_candidate(record),
            arm=Arm.CANDIDATE,
            summary=f"The candidate's processes grew by {mine[1] / 2**20:.0f} MiB from "
            f"{mine[0] / 2**20:.0f} MiB while it was driven, the baseline's by {usual[1] / 2**20:.0f} MiB.",
            advice="Look for what is kept for each request or graph.",
        )


def _log_signs(record: RunRecord, policy: ProbePolicy) -> Iterator[Finding]:
    usual, mine = _probes(record, Arm.BASELINE).log, _probes(record, Arm.CANDIDATE).log
    if usual is None or mine is None:
        return
    for sign, count in sorted(mine.counts.items()):
        if not usual.counts.get(sign):
            yield Finding(
                rule="log",
                weight=_against_candidate(record),
                arm=Arm.CANDIDATE,
                summary=f"The candidate's log shows {sign} ({count} lines), the baseline's none.",
                advice="Read the log around the first such line.",
                evidence=(mine.first[sign],),
            )


def _repeated_warnings(record: RunRecord, policy: ProbePolicy) -> Iterator[Finding]:
    usual, mine = _probes(record, Arm.BASELINE).log, _probes(record, Arm.CANDIDATE).log
    if usual is None or mine is None:
        return
    for text, count in sorted(mine.warnings.items()):
        if count >= policy.repeated_warnings * max(1, _times(usual, text)):
            yield Finding(
                rule="warnings",
                weight=_against_candidate(record),
                arm=Arm.CANDIDATE,
                summary=f"The candidate warns {count} times of one thing, the baseline "
                f"{_times(usual, text)} times.",
                advice="Read the warning; waive the rule where it is harmless.",
                evidence=(text,),
            )


def _times(log: LogSigns, text: str) -> int:
    return log.warnings.get(text, 0)


def _gpu_errors(record: RunRecord, policy: ProbePolicy) -> Iterator[Finding]:
    usual = _probes(record, Arm.BASELINE).gpu_errors
    for arm, probes in sorted(record.probes.items()):
        lines = probes.gpu_errors or ()
        own = [line for line in lines if _of_the_server(line)]
        if arm is Arm.CANDIDATE and own and usual == ():
            yield _gpu_finding(arm, own, Weight.DEFECT, "its server", "Read its log at that time.")
            lines = tuple(line for line in lines if line not in own)
        if lines:
            yield _gpu_finding(
                arm, lines, Weight.UNTESTED, "the machine or an unknown program", "Repair it; run again."
            )


def _of_the_server(line: str) -> bool:
    found = _XID.search(line)
    return found is not None and int(found["number"]) in OF_A_PROGRAM and _SERVER.search(line) is not None


def _gpu_finding(arm: Arm, lines: Sequence[str], weight: Weight, whose: str, advice: str) -> Finding:
    return Finding(
        rule="gpu-error",
        weight=weight,
        arm=arm,
        summary=f"While the {arm} was served the kernel logged {len(lines)} errors of a graphics card, "
        f"by {whose}.",
        advice=advice,
        evidence=tuple(lines[:5]),
    )
