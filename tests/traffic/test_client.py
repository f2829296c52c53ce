from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from qualify.serving.process import free_port
from qualify.traffic.answer import Answer
from qualify.traffic.client import CompletionRequest, Exchange, complete
from qualify.transcript import MINUS_INFINITY
from tests.fake_server.starting import NAME, fake_server

REQUEST = CompletionRequest(
    server_request_id="candidate.free.run1-mixed-ask-0",
    prompt=(10, 11, 12),
    max_tokens=6,
    forced=None,
    temperature=0.0,
    top_logprobs=20,
    seed=0,
    stream=True,
    deadline_s=10.0,
)
STREAMS = pytest.mark.parametrize("stream", [True, False])


async def ask(url: str, **changes: object) -> Exchange:
    request = dataclasses.replace(REQUEST, **changes)
    exchange = Exchange(Answer(request.prompt, request.top_logprobs))
    await complete(url, NAME, request, exchange, on_accepted=lambda: None, on_tokens=lambda count: None)
    return exchange


async def ask_misbehaving(directory: Path, misbehaviour: str, **changes: object) -> Exchange:
    async with fake_server(directory, misbehaviour) as server:
        return await ask(server.url, **changes)


async def test_streamed_and_whole_answers_are_equal(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        streamed, whole = await ask(server.url), await ask(server.url, stream=False)
    assert streamed == whole
    assert streamed.failure is None
    assert streamed.answer.finish_reason == "length"
    assert len(streamed.answer.token_ids) == len(streamed.answer.logprobs) == 6
    assert [len(top) for top in streamed.answer.top_ids] == [20] * 6
    assert [top[0] for top in streamed.answer.top_ids] == streamed.answer.token_ids


async def test_forced_tokens_are_emitted_with_their_own_logprobs(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        free = await ask(server.url)
        same = await ask(server.url, forced=tuple(free.answer.token_ids))
        other = await ask(server.url, forced=(7, 7, 7, 7, 7, 7))
    assert same == free
    assert other.failure is None
    assert other.answer.token_ids == [7] * 6
    assert other.answer.logprobs[0] != free.answer.logprobs[0]
    assert other.answer.top_ids[0] == free.answer.top_ids[0]


@pytest.mark.parametrize(
    ("misbehaviour", "kind", "message"),
    [
        ("http-500", "http", "it broke"),
        ("truncated-json", "malformed", "truncated"),
        ("no-logprobs", "malformed", "logprobs are missing"),
        ("no-token-ids", "malformed", "token_ids are missing"),
        ("wrong-counts", "malformed", "differ in length"),
        ("few-top", "malformed", "1 top logprobs, 20 asked for"),
        ("other-prompt", "malformed", "prompt is not the one"),
        ("early-stop", "incomplete", "2 of 6 tokens, finish reason stop"),
        ("disconnect", "disconnected", ""),
    ],
)
async def test_each_failure_has_its_kind(tmp_path: Path, misbehaviour: str, kind: str, message: str) -> None:
    async with fake_server(tmp_path, misbehaviour) as server:
        exchanges = [await ask(server.url, stream=stream) for stream in (True, False)]
    for exchange in exchanges:
        assert exchange.failure is not None
        assert exchange.failure.kind == kind
        assert message in exchange.failure.message


@STREAMS
async def test_server_error_keeps_its_status_and_is_not_retried(tmp_path: Path, stream: bool) -> None:
    async with fake_server(tmp_path, "http-500") as server:
        exchange = await ask(server.url, stream=stream)
        asked = sum("POST /v1/completions" in line for line in server.log_lines())
    assert exchange.failure is not None
    assert exchange.failure.status == 500
    assert asked == 1


async def test_error_in_mid_stream_is_the_servers(tmp_path: Path) -> None:
    exchange = await ask_misbehaving(tmp_path, "error-in-stream")
    assert exchange.failure is not None
    assert (exchange.failure.kind, exchange.failure.status) == ("http", 500)
    assert "it broke" in exchange.failure.message
    assert len(exchange.answer.token_ids) == 1


async def test_stream_that_ends_without_its_end_mark_is_disconnected(tmp_path: Path) -> None:
    exchange = await ask_misbehaving(tmp_path, "no-done")
    assert exchange.failure is not None
    assert exchange.failure.kind == "disconnected"
    assert len(exchange.answer.token_ids) == 1


async def test_ignored_forced_tokens_are_noticed(tmp_path: Path) -> None:
    exchange = await ask_misbehaving(tmp_path, "ignore-forced", forced=(7,) * 6)
    assert exchange.failure is not None
    assert exchange.failure.kind == "malformed"
    assert "did not emit the tokens" in exchange.failure.message


@STREAMS
async def test_deadline_is_kept(tmp_path: Path, stream: bool) -> None:
    async with fake_server(tmp_path, "hang", FAKE_AFTER_TOKENS="3") as server:
        started = asyncio.get_running_loop().time()
        exchange = await ask(server.url, deadline_s=0.5, stream=stream)
    assert exchange.failure is not None
    assert exchange.failure.kind == "timeout"
    assert 0.5 <= asyncio.get_running_loop().time() - started < 60


async def test_nobody_listening_is_refused() -> None:
    exchange = await ask(f"http://127.0.0.1:{free_port()}")
    assert exchange.failure is not None
    assert exchange.failure.kind == "refused"


async def test_unknown_model_is_an_http_failure(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        exchange = Exchange(Answer(REQUEST.prompt, 20))
        await complete(
            server.url, "nobody", REQUEST, exchange, on_accepted=lambda: None, on_tokens=lambda count: None
        )
    assert exchange.failure is not None
    assert (exchange.failure.kind, exchange.failure.status) == ("http", 404)


async def test_nan_and_minus_infinity_are_kept_for_the_judge(tmp_path: Path) -> None:
    nan = await ask_misbehaving(tmp_path / "nan", "nan-logprobs")
    assert nan.failure is None
    assert nan.answer.logprobs == [None] * 6
    infinite = await ask_misbehaving(tmp_path / "inf", "minus-infinity")
    assert infinite.answer.logprobs == [MINUS_INFINITY] * 6


async def test_proxies_of_the_environment_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_server(tmp_path) as server:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
        monkeypatch.setenv("no_proxy", "")
        exchange = await ask(server.url)
    assert exchange.failure is None


async def test_cancelled_request_keeps_what_came(tmp_path: Path) -> None:
    async with fake_server(tmp_path, "hang", FAKE_AFTER_TOKENS="3") as server:
        exchange = Exchange(Answer(REQUEST.prompt, 20))
        task = asyncio.create_task(
            complete(
                server.url, NAME, REQUEST, exchange, on_accepted=lambda: None, on_tokens=lambda count: None
            )
        )
        while len(exchange.answer.token_ids) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(exchange.answer.token_ids) == 2
