"""Coverage by what probes measured at the candidate's server; nothing where nothing was."""

from __future__ import annotations

from collections.abc import Iterator

from qualify.findings import SERVER_METRICS, CoverageCell
from qualify.probe import ACCEPTED, CACHE_USED, DRAFTED, PREEMPTIONS, PREFIX_HITS, PREFIX_QUERIES, Sample
from qualify.record import RunRecord
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
