"""What changed between two runs, from their bundles. A comparison tells; it judges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qualify.compare.figures import ArmComparison, rounded
from qualify.findings import Finding, Verdict, Weight
from qualify.record import RunRecord
from qualify.reporting.coverage import full_name
from qualify.reporting.material import Material
from qualify.reporting.plain import one_line
from qualify.runtable import duration_s
from qualify.transcript import Arm

Value = str | int | float | bool | None
_AGAINST = (Weight.DEFECT, Weight.UNTESTED, Weight.WAIVED)
_NOT_KNOWN = "-"
# Sections of which rows that are the same in both runs are worth showing, too.
_ALWAYS = frozenset({"run", "floor", "candidate", "speed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing in both runs.

    Attributes:
        section: ``run``, ``scope``, ``policy``, ``floor``, ``candidate``, ``coverage`` or ``speed``.
        name: What it is, with its unit.
        first: In the first run; null where there is none or it is not known.
        second: In the second run.
        changed: True where they differ.
    """

    section: str
    name: str
    first: Value
    second: Value
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs beside each other.

    Attributes:
        format: Version of this format.
        first: Name of the first bundle.
        second: Name of the second bundle.
        rows: What can be set side by side.
        findings_gone: Findings against the release that only the first run has: rule, arm, scenario, summary.
        findings_new: Those that only the second run has.
        limitations_gone: Limitations that only the first run has.
        limitations_new: Those that only the second run has.
    """

    format: Literal["qualify/run-comparison/1"]
    first: str
    second: str
    rows: tuple[Row, ...]
    findings_gone: tuple[str, ...]
    findings_new: tuple[str, ...]
    limitations_gone: tuple[str, ...]
    limitations_new: tuple[str, ...]


def compare_runs(first: Material, second: Material) -> RunComparison:
    """Sets two judged bundles side by side.

    Args:
        first: The earlier run, as a rule.
        second: The later one.

    Returns:
        What they share and where they differ. Each is judged by its own policy.
    """
    sections: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "run": (_run(first), _run(second)),
        "scope": (dict(first.verdict.scope), dict(second.verdict.scope)),
        "policy": (_policy(first), _policy(second)),
        "floor": (_floor(first.verdict), _floor(second.verdict)),
        "candidate": (_candidate(first.verdict), _candidate(second.verdict)),
        "coverage": (_coverage(first.verdict), _coverage(second.verdict)),
        "speed": (_speed(first.record), _speed(second.record)),
    }
    one, other = _against(first.verdict), _against(second.verdict)
    return RunComparison(
        format="qualify/run-comparison/1",
        first=first.bundle.root.name,
        second=second.bundle.root.name,
        rows=tuple(row for name, sides in sections.items() for row in _rows(name, *sides)),
        findings_gone=_more(one, other),
        findings_new=_more(other, one),
        limitations_gone=_only(first.verdict.limitations, second.verdict.limitations),
        limitations_new=_only(second.verdict.limitations, first.verdict.limitations),
    )


def _rows(section: str, first: dict[str, Any], second: dict[str, Any]) -> Iterable[Row]:
    for name in [*first, *(name for name in second if name not in first)]:
        one, other = first.get(name), second.get(name)
        yield Row(section=section, name=name, first=one, second=other, changed=one != other)


def _only(these: Sequence[str], those: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in these if text not in those)


def _run(material: Material) -> dict[str, Value]:
    verdict = material.verdict
    return {
        "verdict": str(verdict.result),
        "release": verdict.release,
        "subject": verdict.subject,
        "date": material.state.date,
        "harness": material.state.harness,
        "status": material.state.status,
        "policy": f"sha256:{verdict.policy_sha256}",
        **{f"{arm} taken over from": source for arm, source in material.state.adopted},
    }


def _policy(material: Material) -> dict[str, Value]:
    return dict(_flat(material.policy.model_dump(mode="json")))


def _flat(value: Any, path: str = "") -> Iterable[tuple[str, Value]]:
    """The leaves of a tree of lists and mappings, each with the way to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _flat(item, f"{path}[{number}]")
    else:
        yield path, value


def _floor(verdict: Verdict) -> dict[str, Value]:
    comparison = verdict.comparison
    if comparison is None:
        return {}
    return {
        "exactly zero": comparison.exact,
        "baseline runs": comparison.baseline_runs,
        "mean of the farthest two, nats": comparison.floor.mean,
        "99th percentile of these, nats": comparison.floor.p99,
        "largest, nats": comparison.floor.largest,
        "same most probable token, share": comparison.floor.same_top,
    }


def _candidate(verdict: Verdict) -> dict[str, Value]:
    arms = verdict.comparison.arms if verdict.comparison else ()
    return {name: value for arm in arms for name, value in _arm(arm).items()}


def _arm(arm: ArmComparison) -> dict[str, Value]:
    figures: dict[str, Value] = {
        "requests compared": arm.requests,
        "positions compared": arm.spread.positions,
        "positions that differ": arm.spread.differ,
        "mean to nearest baseline, nats": arm.spread.mean,
        "excess over the floor, nats": arm.excess,
        "same most probable token, share": arm.spread.same_top,
    }
    if arm.arm == Arm.CANDIDATE:
        return figures
    kept = ("positions that differ", "mean to nearest baseline, nats")
    return {f"{arm.arm}: {name}": figures[name] for name in kept} | {
        f"{arm.arm}: could be so many times weaker": arm.margin
    }


def _coverage(verdict: Verdict) -> dict[str, Value]:
    return {full_name(cell): cell.reached for cell in verdict.coverage}


def _speed(record: RunRecord) -> dict[str, Value]:
    """Start-up, wall time, rate and time to the first token of each arm, over all its runs."""
    found: dict[str, Value] = {}
    for arm, entry in record.arms.items():
        runs = [run for key, run in record.runs.items() if key.arm is arm and run.heads]
        driven_s = sum(duration_s(run.heads) for run in runs)
        waits = [
            head.first_token_s - head.sent_s
            for run in runs
            for head in run.heads
            if head.first_token_s is not None
        ]
        tokens = sum(head.length for run in runs for head in run.heads)
        found |= {
            f"{arm}: start, s": _or_none(entry.started_s),
            f"{arm}: wall time driven, s": _or_none(driven_s or None),
            f"{arm}: tokens/s": _or_none(tokens / driven_s if driven_s else None),
            f"{arm}: time to first token, median, s": _or_none(_quantile(waits, 0.5)),
            f"{arm}: time to first token, 95th percentile, s": _or_none(_quantile(waits, 0.95)),
        }
    return found


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def _or_none(value: float | None) -> float | None:
    return None if value is None else rounded(value)


def _against(verdict: Verdict) -> dict[tuple[str, ...], list[str]]:
    """Findings against the release by what they are about; sentences hold figures that always change."""
    found: dict[tuple[str, ...], list[str]] = {}
    for item in verdict.findings:
        if item.weight in _AGAINST:
            found.setdefault(_key(item), []).append(f"{item.weight}: {item.summary}")
    return found


def _key(item: Finding) -> tuple[str, ...]:
    said = re.split(r"\d", item.summary)[0] or re.sub(r"\d[\d., ]*", "", item.summary)
    # only the evidence of these says which warning it is
    which = item.evidence[:1] if item.rule == "warnings" else ()
    return (item.weight, item.rule, item.arm or "", item.scenario or "", said, *which)


def _more(
    these: dict[tuple[str, ...], list[str]], those: dict[tuple[str, ...], list[str]]
) -> tuple[str, ...]:
    """What one run has more findings of than the other."""
    found: list[str] = []
    for key, texts in these.items():
        others = those.get(key, [])
        unlike = [text for text in texts if text not in others]
        found += unlike[: max(len(texts) - len(others), 0)]
    return tuple(found)


def print_comparison(console: Console, comparison: RunComparison) -> None:
    """Prints a comparison for people: what changed, and the figures that are always of interest.

    Args:
        console: Where to.
        comparison: The comparison.
    """
    console.print(Text(f"A: {comparison.first}\nB: {comparison.second}"), soft_wrap=True)
    table = Table("", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for side in ("A", "B"):
        table.add_column(side, overflow="fold")  # digests are not cut
    sections = list(dict.fromkeys(row.section for row in comparison.rows))
    for section in sections:
        rows = [row for row in comparison.rows if row.section == section]
        shown = [row for row in rows if row.changed or section in _ALWAYS]
        for number, row in enumerate(shown):
            mark = Text("*" if row.changed else "")
            name = Text(f"{section}: {row.name}" if number == 0 else f"  {row.name}")
            table.add_row(mark, name, Text(_shown(row.first)), Text(_shown(row.second)))
        if not shown and rows:
            table.add_row("", Text(f"{section}: the same"), "", "")
    console.print(table)
    for title, lines in (
        ("findings only in A", comparison.findings_gone),
        ("findings only in B", comparison.findings_new),
        ("limitations only in A", comparison.limitations_gone),
        ("limitations only in B", comparison.limitations_new),
    ):
        if lines:
            console.print(
                Text("\n".join([title, *(f"  - {one_line(line)}" for line in lines)])), soft_wrap=True
            )


def _shown(value: Value) -> str:
    if value is None:
        return _NOT_KNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))
