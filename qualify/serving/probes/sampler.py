"""Looks at a server every second or so while it is driven, and writes down what it sees."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import httpx2
import msgspec

from qualify.errors import EvidenceError
from qualify.jsonlines import open_lines
from qualify.loopback import http_client
from qualify.probe import Sample
from qualify.serving.launcher import Server
from qualify.serving.probes.metrics import fetch

METRICS = "metrics.jsonl"
_EVERY_S = 1.0
# Later samples lie farther apart: 600 in the first ten minutes, 600 more for each factor of e after that.
_SAMPLES_TO_THIN = 600
_ANSWER_WITHIN_S = 2.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Sample).decode


class Sampler:
    """The state of sampling one server.

    Args:
        server: The server.
        client: Of it.
        file: Gets one JSON line for each sample.
        every_s: Seconds between samples at first.
    """

    def __init__(self, server: Server, client: httpx2.AsyncClient, file: BinaryIO, every_s: float) -> None:
        self._server = server
        self._client = client
        self._file = file
        self._every_s = every_s
        self._began = time.monotonic()
        self._run = self._scenario = ""
        self._in_flight = 0

    def driving(self, run: str, scenario: str, in_flight: int) -> None:
        """Tells what is being driven; later samples say so.

        Args:
            run: The run.
            scenario: Its scenario.
            in_flight: Requests sent that have not ended.
        """
        self._run, self._scenario, self._in_flight = run, scenario, in_flight

    async def sample_forever(self) -> None:
        """Samples until it is cancelled."""
        while True:
            await self.sample()
            elapsed = time.monotonic() - self._began
            await asyncio.sleep(max(self._every_s, elapsed / _SAMPLES_TO_THIN))

    async def sample(self) -> None:
        """Takes one sample."""
        time_s = time.monotonic() - self._began
        run, scenario, in_flight = self._run, self._scenario, self._in_flight
        values = await fetch(self._client)
        sample = Sample(
            time_s=round(time_s, 3),
            run=run,
            scenario=scenario,
            in_flight=in_flight,
            answered=values is not None,
            values=values or {},
            rss_bytes=self._server.rss_bytes,
        )
        self._file.write(_encode(sample) + b"\n")
        self._file.flush()


@asynccontextmanager
async def sampled(server: Server, directory: Path, *, every_s: float = _EVERY_S) -> AsyncIterator[Sampler]:
    """Samples a server from the first line of the block to its last.

    Args:
        server: The server.
        directory: The arm's directory in the bundle; gets ``metrics.jsonl``.
        every_s: Seconds between samples, which grow in long runs.

    Yields:
        The sampler, which wants to be told what is driven.
    """
    with (directory / METRICS).open("wb") as file:
        async with http_client(server.url, timeout_s=_ANSWER_WITHIN_S) as client:
            sampler = Sampler(server, client, file, every_s)
            task = asyncio.create_task(sampler.sample_forever())
            try:
                yield sampler
                # the counters after the last request
                await sampler.sample()
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def read_samples(path: Path) -> Iterator[Sample]:
    """Reads samples back.

    Args:
        path: ``metrics.jsonl``, or the same compressed.

    Yields:
        The samples in order. A last line that was cut is left out.

    Raises:
        EvidenceError: A line is not a sample.
    """
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _decode(line)
            except msgspec.DecodeError as error:
                raise EvidenceError(
                    f"not a sample of metrics ({error})",
                    where=f"{path}:{number}",
                    advice="The file is damaged; run again.",
                ) from error
