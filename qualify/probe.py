"""What probes measured beside the transcripts, as it is read back from a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GENERATED = "vllm:generation_tokens"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
CACHE_USED = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions"
PREFIX_QUERIES = "vllm:prefix_cache_queries"
PREFIX_HITS = "vllm:prefix_cache_hits"
DRAFTED = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
STARTED = "process_start_time_seconds"

TRACEBACK = "a traceback"
ILLEGAL_MEMORY = "an illegal memory access"
NAN = "NaN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a server.

    Attributes:
        time_s: Seconds since the arm's first sample.
        run: The run that was driven then, as `str(RunKey)`; empty before the first.
        scenario: Its scenario; empty just so.
        in_flight: Requests in flight by the client's count.
        answered: False where the server's metrics could not be read.
        values: Its metrics by name (counters without ``_total``), summed over their labels.
        rss_bytes: Resident memory of its processes together; None where they cannot be seen.
    """

    time_s: float
    run: str
    scenario: str
    in_flight: int
    answered: bool
    values: Mapping[str, float]
    rss_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSigns:
    """Signs of trouble in a server's log, up to where it was told to stop.

    Attributes:
        counts: Sign to lines that show it, from when the server was ready on.
        first: Sign to the first such line.
        warnings: Warning with its numbers taken out, to how often it came; the most frequent ones.
    """

    counts: Mapping[str, int]
    first: Mapping[str, str]
    warnings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """What the probes of one arm measured.

    Attributes:
        samples: Looks at the server in order of time; empty where none was taken.
        log: Signs in its log; None where there is no log.
        gpu_errors: New lines of the kernel log about errors of graphics cards; None where it was not read.
    """

    samples: tuple[Sample, ...] = ()
    log: LogSigns | None = None
    gpu_errors: tuple[str, ...] | None = None

    def gained(self, name: str, scenario: str, decode: str) -> int | None:
        """By how much a counter grew while a scenario was driven, at least.

        Args:
            name: Of the counter.
            scenario: The scenario.
            decode: Way of decoding of the run.

        Returns:
            From the first sample in which it was driven to the last; None where no sample has the counter.
        """
        values = [
            sample.values[name]
            for sample in self.samples
            if sample.scenario == scenario and f".{decode}." in sample.run and name in sample.values
        ]
        return int(values[-1] - values[0]) if values else None

    def most_cache_used(self, scenario: str) -> float | None:
        """Largest share of the KV cache that was seen in use in a scenario; None where none was seen."""
        shares = [
            sample.values[CACHE_USED]
            for sample in self.samples
            if sample.scenario == scenario and CACHE_USED in sample.values
        ]
        return max(shares, default=None)
