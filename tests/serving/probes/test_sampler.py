from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qualify.errors import EvidenceError
from qualify.probe import GENERATED, RUNNING
from qualify.serving.attach import AttachLauncher
from qualify.serving.probes.metrics import parse
from qualify.serving.probes.reading import read_probes
from qualify.serving.probes.sampler import METRICS, read_samples, sampled
from tests.fake_server.starting import fake_server

TEXT = """# HELP vllm:generation_tokens_total Tokens.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 30.0
vllm:generation_tokens_total{engine="1",model_name="m"} 12.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e9
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 3.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 1.0
"""


def test_counters_are_summed_and_what_is_not_kept_is_left_out() -> None:
    assert parse(TEXT) == {GENERATED: 42.0, RUNNING: 3.0}


def test_a_server_is_sampled_with_what_is_driven(tmp_path: Path) -> None:
    async def drive() -> None:
        async with fake_server(tmp_path) as server, sampled(server, tmp_path, every_s=0.05) as sampler:
            server.ended()  # looks at the processes
            await asyncio.sleep(0.3)
            sampler.driving("baseline.free.run1", "mixed", 4)
            await asyncio.sleep(0.2)

    asyncio.run(drive())
    found = list(read_samples(tmp_path / METRICS))
    assert len(found) > 4
    assert (found[0].run, found[-1].run, found[-1].scenario, found[-1].in_flight) == (
        "",
        "baseline.free.run1",
        "mixed",
        4,
    )
    assert all(sample.answered and sample.values[GENERATED] == 0 for sample in found)
    assert found[-1].rss_bytes is not None
    assert found[-1].rss_bytes > 1_000_000
    assert [sample.time_s for sample in found] == sorted(sample.time_s for sample in found)


@pytest.mark.parametrize("text", ["", "<html>no metrics</html>", "other_metric 3\n"])
def test_an_answer_without_any_of_them_gives_none(text: str) -> None:
    assert parse(text) == {}


def test_a_damaged_line_is_refused() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        parse(f"{GENERATED}_total many\n")


def test_the_counters_after_the_last_request_are_kept(tmp_path: Path) -> None:
    async def drive() -> None:
        async with fake_server(tmp_path) as server, sampled(server, tmp_path, every_s=60) as sampler:
            while not (tmp_path / METRICS).stat().st_size:
                await asyncio.sleep(0.01)
            sampler.driving("baseline.free.run1", "mixed", 0)

    asyncio.run(drive())
    assert [sample.run for sample in read_samples(tmp_path / METRICS)] == ["", "baseline.free.run1"]


def test_a_server_that_does_not_answer_is_no_reason_to_fail(tmp_path: Path) -> None:
    async def drive() -> None:
        server = AttachLauncher("http://127.0.0.1:9").start()
        async with sampled(server, tmp_path, every_s=0.05):
            await asyncio.sleep(0.1)

    asyncio.run(drive())
    found = list(read_samples(tmp_path / METRICS))
    assert found
    assert not any(sample.answered for sample in found)
    assert found[0].rss_bytes is None


def test_a_line_that_was_cut_is_left_out_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    path.write_bytes(
        b'{"time_s":0,"run":"","scenario":"","in_flight":0,"answered":false,"values":{}}\n{"time'
    )
    assert len(list(read_samples(path))) == 1
    path.write_bytes(b"{}\n")
    with pytest.raises(EvidenceError, match=f"{METRICS}:1"):
        list(read_samples(path))


def test_an_old_bundle_has_nothing(tmp_path: Path) -> None:
    probes = read_probes(tmp_path)
    assert (probes.samples, probes.log, probes.gpu_errors) == ((), None, None)
