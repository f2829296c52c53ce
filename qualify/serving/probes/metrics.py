"""A server's Prometheus metrics: which are kept, and their values at one moment."""

from __future__ import annotations

import re

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from qualify import probe

_KEPT = frozenset(
    {
        probe.GENERATED,
        probe.RUNNING,
        probe.WAITING,
        probe.CACHE_USED,
        probe.PREEMPTIONS,
        probe.PREFIX_QUERIES,
        probe.PREFIX_HITS,
        probe.DRAFTED,
        probe.ACCEPTED,
        probe.STARTED,
    }
)
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")


def parse(text: str) -> dict[str, float]:
    """Reads what `GET /metrics` answered.

    Args:
        text: In Prometheus' text format.

    Returns:
        The metrics that are kept, by name (counters without ``_total``), each summed over its labels; a
        server's engines, for one. Of a gauge for a share that is wrong with several engines and harmless
        with one.

    Raises:
        ValueError: One of them is not in that format.
    """
    # vLLM answers with a thousand lines of histograms; reading them all would hold up the traffic for long
    kept = "".join(f"{line}\n" for line in text.splitlines() if _is_kept(line))
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(kept):
        for sample in family.samples:
            name = sample.name.removesuffix("_total")
            values[name] = values.get(name, 0.0) + float(sample.value)
    return values


def _is_kept(line: str) -> bool:
    name = _NAME.match(line)
    return name is not None and name[0].removesuffix("_total") in _KEPT


async def fetch(client: httpx2.AsyncClient) -> dict[str, float] | None:
    """The server's metrics at this moment.

    Args:
        client: Of the server.

    Returns:
        As `parse` gives them; None where it does not answer, or with none of them.
    """
    try:
        response = await client.get("/metrics")
        return (parse(response.text) or None) if response.status_code == 200 else None
    except (httpx2.TransportError, ValueError):
        return None
