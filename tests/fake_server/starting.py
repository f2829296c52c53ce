"""Starts fake servers for tests, by the harness's own launcher."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from qualify.serving.arms import ServerCommand, command_line
from qualify.serving.process import ProcessLauncher, ProcessServer
from qualify.serving.readiness import healthy, serves, wait_until_ready

ROOT = Path(__file__).parents[2]
NAME = "fake"
VOCABULARY = 500


def write_model(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": [1, 2]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def fake_launcher(
    directory: Path,
    misbehaviour: str = "",
    *,
    stop_within_s: float = 5.0,
    port: int | None = None,
    **environment: str,
) -> ProcessLauncher:
    """A launcher for a fake server whose files lie below `directory`."""
    model = write_model(directory / "model")

    def command(port: int) -> ServerCommand:
        arguments = {"model": str(model), "served-model-name": NAME, "host": "127.0.0.1", "port": port}
        variables = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "FAKE_MISBEHAVE": misbehaviour}
        return ServerCommand(
            argv=(sys.executable, "-m", "tests.fake_server", *command_line(arguments)),
            environment=tuple(sorted((variables | environment).items())),
            cwd=ROOT,
        )

    return ProcessLauncher(command, log=directory / "server.log", stop_within_s=stop_within_s, port=port)


@asynccontextmanager
async def fake_server(
    directory: Path, misbehaviour: str = "", **environment: str
) -> AsyncIterator[ProcessServer]:
    """A fake server that is ready, and is stopped at the end."""
    server = fake_launcher(directory, misbehaviour, **environment).start()
    try:
        ready = await wait_until_ready(server, (healthy, serves(NAME)), within_s=30, progress=lambda _: None)
        assert ready.ready, (ready, server.log_tail())
        yield server
    finally:
        await server.stop()
