"""A registry of one's own on 127.0.0.1: Debian's docker-registry as a child process."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import yaml

from qualify.errors import MachineryError
from qualify.images.children import start_child, stop
from qualify.loopback import HOST
from qualify.serving.process import free_port

PROGRAM = "docker-registry"
_READY_WITHIN_S = 20.0
_STOP_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that answers.

    Attributes:
        address: ``127.0.0.1:PORT``.
        log: Its output.
    """

    address: str
    log: Path


@contextlib.contextmanager
def local_registry(folder: Path, port: int | None = None) -> Iterator[Registry]:
    """Runs a registry until the block ends.

    Args:
        folder: What it keeps, its configuration and its log go there.
        port: Port on 127.0.0.1; None takes a free one.

    Yields:
        The registry, once it answers.

    Raises:
        MachineryError: It is not installed, or does not start.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise MachineryError(
            f"there is no {PROGRAM} on this machine", advice="Install it: `apt-get install docker-registry`."
        )
    address = f"{HOST}:{free_port() if port is None else port}"
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "config.yml"
    configuration.write_text(_configuration(folder / "data", address), encoding="utf-8")
    log = folder / "registry.log"
    process = start_child([program, "serve", str(configuration)], log)
    try:
        _wait_until_ready(process, address, log)
        yield Registry(address, log)
    finally:
        stop(process, _STOP_WITHIN_S)


def _configuration(data: Path, address: str) -> str:
    return yaml.safe_dump(
        {
            "version": 0.1,
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(data.absolute())}, "delete": {"enabled": True}},
            "http": {"addr": address},
        }
    )


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx2.TransportError):
            # another server on this port would answer too, and ours would have ended
            response = httpx2.get(f"http://{address}/v2/", trust_env=False, timeout=2.0)
            if response.status_code == 200 and process.poll() is None:
                return
        time.sleep(0.05)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise MachineryError(f"the registry did not start at {address}: {' / '.join(said)}", where=str(log))
