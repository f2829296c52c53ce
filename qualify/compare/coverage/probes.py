"""Coverage by what probes measured beside the answers, and which of them left nothing."""

from __future__ import annotations

from collections.abc import Iterator

from qualify.findings import ARM_FILES, NOT_MEASURED, SERVER_METRICS, CoverageCell
from qualify.probe import ACCEPTED, CACHE_USED, DRAFTED, PREEMPTIONS, PREFIX_HITS, PREFIX_QUERIES, Sample
from qualify.record import AS_RECORDED, ArmState, RunRecord
from qualify.release import FULL_GRAPHS
from qualify.transcript import Arm


def measured_by_probes(record: RunRecord) -> Iterator[CoverageCell]:
    """A second witness beside the step log, and what a step log cannot tell.

    Args:
        record: The run record.
    """
    probes = record.probes.get(Arm.CANDIDATE)
    seen = [sample for sample in probes.samples if sample.answered] if probes else []
    if not probes or not seen:
        return
    for name, reached in (
        ("looks at the candidate's metrics", f"{len(seen)} of {len(probes.samples)} answered"),
        (
            "prompt tokens that its prefix cache had, as the server counted",
            _share(seen, PREFIX_HITS, PREFIX_QUERIES),
        ),
        ("preemptions as the server counted them", _total(seen, PREEMPTIONS)),
        ("share of its KV cache in use", _most(seen)),
        ("draft tokens that were accepted", _share(seen, ACCEPTED, DRAFTED)),
    ):
        if reached:
            yield CoverageCell(name=name, reached=reached, how=SERVER_METRICS)
    resident = [sample.rss_bytes for sample in probes.samples if sample.rss_bytes]
    if resident:
        said = f"{min(resident) / 2**20:.0f} to {max(resident) / 2**20:.0f} MiB"
        yield CoverageCell(name="memory of the candidate's processes", reached=said, how="processes")


def probes_there(record: RunRecord) -> Iterator[CoverageCell]:
    """Which probes left something of the arms that served to their end, and of which arms one left nothing.

    What only the candidate lacks is asked for: nothing could be held against what its baseline shows.

    Args:
        record: The run record; a probe of graphics cards is looked for where they are, or any arm has it.
    """
    served = [arm for arm in Arm if arm in record.arms and record.arms[arm].state is ArmState.SERVED]
    lacking = {name: tuple(arm for arm in served if arm not in has) for name, has in _left(record).items()}
    if there := [name for name, arms in lacking.items() if served and not arms]:
        yield CoverageCell(name="probes of every arm", reached=", ".join(there), how=ARM_FILES)
    groups: dict[tuple[tuple[Arm, ...], bool], list[str]] = {}
    for name, arms in lacking.items():
        if arms:
            asked = Arm.CANDIDATE in arms and Arm.BASELINE in served and Arm.BASELINE not in arms
            groups.setdefault((arms, asked), []).append(name)
    for (arms, asked), names in groups.items():
        yield CoverageCell(
            name=f"{' and '.join(names)} of {', '.join(arms)}",
            reached=NOT_MEASURED,
            required="as of the baseline" if asked else "",
            satisfied=False if asked else None,
            how=ARM_FILES,
        )


def _left(record: RunRecord) -> dict[str, set[Arm]]:
    """Arms of which each probe left something."""
    probes = record.probes
    left = {
        "log": {arm for arm in probes if probes[arm].log is not None},
        "metrics": {arm for arm in probes if any(sample.answered for sample in probes[arm].samples)},
        "configuration": set(record.configurations),
        "kernel log": {arm for arm in probes if probes[arm].gpu_errors is not None},
    }
    if record.replay != FULL_GRAPHS and not left["kernel log"]:
        del left["kernel log"]
    return {} if record.replay == AS_RECORDED else left


def _gained(seen: list[Sample], name: str) -> int | None:
    values = [sample.values[name] for sample in seen if name in sample.values]
    return int(values[-1] - values[0]) if values else None


def _total(seen: list[Sample], name: str) -> str:
    gained = _gained(seen, name)
    return "" if gained is None else str(gained)


def _share(seen: list[Sample], part: str, whole: str) -> str:
    some, every = _gained(seen, part), _gained(seen, whole)
    if some is None or not every:
        return ""
    return f"{some} of {every} ({some / every:.1%})"


def _most(seen: list[Sample]) -> str:
    shares = [sample.values[CACHE_USED] for sample in seen if CACHE_USED in sample.values]
    return f"at most {max(shares):.1%}" if shares else ""
