"""Drives one run: all scenarios' requests against one server, each written down as it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import httpx2

from qualify.errors import MachineryError
from qualify.loopback import http_client, loopback_url
from qualify.scenario import Scenario
from qualify.traffic.alone import rounds_of
from qualify.traffic.answer import Answer
from qualify.traffic.client import CompletionRequest, Exchange, complete
from qualify.traffic.connection import NoSocketError, allow_many_connections
from qualify.traffic.forced import ForcedTokens, check_forced
from qualify.traffic.prefixes import forget_prefixes
from qualify.traffic.prompts import PlannedRequest, Round, Vocabulary, prompt_digest
from qualify.traffic.schedule import Sending, send_round
from qualify.transcript import Decode, RequestFailure, RunKey, Transcript, encode

_WATCH_EVERY_S = 0.25
_HEALTH_WITHIN_S = 5.0
# Failures after which the server may be gone. An engine that is told to stop ends its answers early.
_SUSPECT = frozenset({"refused", "disconnected", "incomplete"})


class DriveEnd(StrEnum):
    """How a drive ended."""

    DRIVEN = "driven"  # every request was sent and has ended, well or not
    HUNG = "hung"  # requests in flight, and nothing from any of them for too long
    LOST = "lost"  # the server is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveProgress:
    """Told about four times a second.

    Attributes:
        run: The run.
        scenario: The scenario being driven.
        phase: Its phase.
        done: Requests that have ended.
        failed: Those among them without a complete answer.
        total: Requests of the run.
        in_flight: Requests sent that have not ended.
        tokens: Tokens received.
        tokens_per_s: Their number by the seconds since the run began.
        elapsed_s: Seconds since the run began.
    """

    run: RunKey
    scenario: str
    phase: str
    done: int
    failed: int
    total: int
    in_flight: int
    tokens: int
    tokens_per_s: float
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What became of a run.

    Attributes:
        run: The run.
        end: How it ended.
        trouble: Why not all was driven; None where all was.
        expected: Requests that it should have sent.
        finished: Requests that were written down.
        failed: Those among them without a complete answer.
        prefixes_kept: Why the server's prefix cache was not emptied before the run; empty where it was.
    """

    run: RunKey
    end: DriveEnd
    trouble: str | None
    expected: int
    finished: int
    failed: int
    prefixes_kept: str = ""


def silence_limit_s(scenario: Scenario) -> float:
    """How long a server may send nothing at all, with requests in flight, before it counts as hung.

    Args:
        scenario: The scenario being driven.

    Returns:
        Half of the scenario's deadline for one request where answers are streamed: a single request that is
        silent for so long can be slow, all of them together cannot. Where they are not streamed nothing is
        heard before the first answer is whole, so it is the deadline.
    """
    return scenario.deadline_s / 2 if scenario.stream else scenario.deadline_s


async def drive_run(
    run: RunKey,
    scenarios: Sequence[Scenario],
    *,
    url: str,
    served_name: str,
    vocabulary: Vocabulary,
    path: Path,
    forced: ForcedTokens | None,
    progress: Callable[[DriveProgress], None],
) -> RunOutcome:
    """Sends every request of a run exactly once and writes down what came back.

    The server's prefix cache is emptied before: what is found there is of this run.

    Args:
        run: The run; its way of decoding chooses the scenarios driven.
        scenarios: Of the release, in order.
        url: The server's base URL, on loopback.
        served_name: The model's name there.
        vocabulary: Of the model.
        path: Transcript file, replaced: one line for each request, written as it ends.
        forced: Tokens to force; None in free runs.
        progress: Told how it goes.

    Returns:
        How it ended. A server that fails requests is no error here: transcripts say what each one got.

    Raises:
        EvidenceError: Tokens to force are missing; nothing was sent.
        UsageError: The server cannot be driven as a scenario asks.
        MachineryError: This machine gave no socket for a request.
        asyncio.CancelledError: The caller was cancelled; requests in flight were written as such.
    """
    rounds = [
        (scenario, round_) for scenario in scenarios for round_ in rounds_of(scenario, run.decode, vocabulary)
    ]
    if run.decode is not Decode.FREE:
        check_forced((request for _, round_ in rounds for request in round_.requests), forced or {})
    path.parent.mkdir(parents=True, exist_ok=True)
    allow_many_connections()
    kept = await forget_prefixes(url)
    with path.open("wb") as file:
        total = sum(len(round_.requests) for _, round_ in rounds)
        drive = _Drive(run, served_name, loopback_url(url), file, forced or {}, total, progress)
        return replace(await drive.all(rounds), prefixes_kept=kept)


class _Drive:
    """The state of one run: counters, and when the server was last heard of."""

    def __init__(
        self,
        run: RunKey,
        served_name: str,
        url: str,
        file: BinaryIO,
        forced: ForcedTokens,
        total: int,
        progress: Callable[[DriveProgress], None],
    ) -> None:
        self._run = run
        self._served_name = served_name
        self._url = url
        self._file = file
        self._forced = forced
        self._total = total
        self._progress = progress
        self._began = time.monotonic()
        self._heard = self._began
        self._in_flight = self._done = self._failed = self._tokens = 0
        self._suspect = False
        self._hang: str | None = None

    async def all(self, rounds: Sequence[tuple[Scenario, Round]]) -> RunOutcome:
        """Drives the rounds in order, until one shows that the server is gone or hangs."""
        for scenario, round_ in rounds:
            try:
                await self._watched(scenario, round_)
            except NoSocketError:
                raise
            except MachineryError as error:
                return self._outcome(DriveEnd.LOST, str(error))
            if self._hang:
                return self._outcome(DriveEnd.HUNG, self._hang)
            if self._suspect and (why := await self._unhealthy()):
                return self._outcome(DriveEnd.LOST, why)
        return self._outcome(DriveEnd.DRIVEN, None)

    async def _watched(self, scenario: Scenario, round_: Round) -> None:
        sendings = [self._sending(scenario, round_, request) for request in round_.requests]
        task = asyncio.create_task(send_round(round_.arrival, sendings, self._url))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_WATCH_EVERY_S)
                self._tell(scenario, round_)
                silent = time.monotonic() - self._heard
                if self._in_flight and silent >= silence_limit_s(scenario) and not task.done():
                    self._hang = f"{self._in_flight} requests in flight, nothing heard for {silent:.0f} s"
                    await _cancelled(task, self._hang)
                    return
        except asyncio.CancelledError as error:
            await _cancelled(task, *error.args)
            raise
        task.result()

    def _sending(self, scenario: Scenario, round_: Round, planned: PlannedRequest) -> Sending:
        async def send() -> None:
            await self._send(planned, self._request(scenario, planned), sending, held=held)

        held = round_.arrival.kind == "held" and planned.after is None
        sending = Sending(send, after=planned.after)
        return sending

    def _request(self, scenario: Scenario, planned: PlannedRequest) -> CompletionRequest:
        forced = self._forced[planned.request_id] if self._run.decode is not Decode.FREE else None
        return CompletionRequest(
            server_request_id=f"{self._run}-{planned.scenario}-{planned.phase}-{planned.index}",
            prompt=planned.prompt,
            max_tokens=planned.max_tokens,
            forced=forced,
            temperature=scenario.sampling.temperature,
            top_logprobs=scenario.sampling.top_logprobs,
            seed=scenario.sampling.seed,
            stream=scenario.stream,
            deadline_s=scenario.deadline_s,
        )

    async def _send(
        self, planned: PlannedRequest, request: CompletionRequest, sending: Sending, *, held: bool
    ) -> None:
        exchange = Exchange(Answer(request.prompt, request.top_logprobs))
        first_token: list[float] = []

        def on_tokens(count: int) -> None:
            self._heard = time.monotonic()
            self._tokens += count
            sending.milestones.add(count)
            if count and not first_token:
                first_token.append(self._now())

        def on_accepted() -> None:
            if held:  # no token can come before all are accepted, so that is what a living server shows
                self._heard = time.monotonic()
            sending.accepted.set()

        sent_s = self._now()
        if not self._in_flight:
            self._heard = time.monotonic()
        self._in_flight += 1
        try:
            await complete(
                self._url,
                self._served_name,
                request,
                exchange,
                on_accepted=on_accepted,
                on_tokens=on_tokens,
            )
        except asyncio.CancelledError as error:
            kind = "timeout" if self._hang else "cancelled"
            exchange.failure = RequestFailure(kind, str(next(iter(error.args), "the run was interrupted")))
            raise
        except NoSocketError as error:
            exchange.failure = RequestFailure("cancelled", error.what)
            raise
        finally:
            self._in_flight -= 1
            times = (sent_s, first_token[0] if first_token else None, self._now())
            self._write(planned, request, exchange, times)

    def _write(
        self,
        planned: PlannedRequest,
        request: CompletionRequest,
        exchange: Exchange,
        times: tuple[float, float | None, float],
    ) -> None:
        answer, failure = exchange.answer, exchange.failure
        self._file.write(
            encode(
                Transcript(
                    request_id=planned.request_id,
                    server_request_id=request.server_request_id,
                    scenario=planned.scenario,
                    phase=planned.phase,
                    index=planned.index,
                    judged=planned.judged,
                    run=self._run,
                    prompt_sha256=prompt_digest(request.prompt),
                    context_tokens=planned.context_tokens,
                    max_tokens=planned.max_tokens,
                    forced_sha256=prompt_digest(request.forced) if request.forced is not None else None,
                    token_ids=tuple(answer.token_ids),
                    logprobs=tuple(answer.logprobs),
                    top_ids=tuple(answer.top_ids),
                    top_logprobs=tuple(answer.top_logprobs),
                    finish_reason=answer.finish_reason,
                    failure=failure,
                    sent_s=times[0],
                    first_token_s=times[1],
                    finished_s=times[2],
                )
            )
        )
        self._file.flush()
        self._done += 1
        if failure:
            self._failed += 1
            self._suspect |= failure.kind in _SUSPECT or (failure.status or 0) >= 500

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _tell(self, scenario: Scenario, round_: Round) -> None:
        elapsed = self._now()
        self._progress(
            DriveProgress(
                run=self._run,
                scenario=scenario.name,
                phase=round_.phase,
                done=self._done,
                failed=self._failed,
                total=self._total,
                in_flight=self._in_flight,
                tokens=self._tokens,
                tokens_per_s=self._tokens / elapsed,
                elapsed_s=elapsed,
            )
        )

    def _outcome(self, end: DriveEnd, trouble: str | None) -> RunOutcome:
        return RunOutcome(
            run=self._run,
            end=end,
            trouble=trouble,
            expected=self._total,
            finished=self._done,
            failed=self._failed,
        )

    async def _unhealthy(self) -> str | None:
        """Why the server cannot be used any more; None where it can."""
        self._suspect = False
        try:
            async with http_client(self._url, timeout_s=_HEALTH_WITHIN_S) as client:
                response = await client.get("/health")
        except httpx2.TransportError as error:
            return f"requests failed and /health does not answer ({type(error).__name__})"
        if response.status_code != 200:
            return f"requests failed and /health answers {response.status_code}"
        return None


async def _cancelled(task: asyncio.Task[None], *why: object) -> None:
    task.cancel(*why)
    await asyncio.wait({task})
