"""Starts a server as a process of this machine, watches it and ends it with everything that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from qualify.errors import MachineryError, UsageError
from qualify.loopback import HOST
from qualify.serving import guard
from qualify.serving.arms import ServerCommand, inherited_environment
from qualify.serving.launcher import Exit
from qualify.serving.logfile import LoggedToFile
from qualify.serving.workers import WorkerWatch, oom_kills

_POLL_S = 0.05
_LEFTOVERS_WITHIN_S = 3.0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nobody listens on at this moment.

    Args:
        count: How many.
    """
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in sockets]


def refuse_taken(port: int) -> None:
    """Refuses a port of 127.0.0.1 that somebody listens on.

    Raises:
        UsageError: It is taken.
    """
    with socket.socket() as probe:
        # as the servers do: a port whose last connections are still closing down is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UsageError(
                f"port {port} of {HOST} cannot be used: {error.strerror}",
                advice="Name another port, or leave it out: a free one is chosen.",
            ) from error


class ProcessLauncher:
    """Starts `python -m module` in a session of its own.

    Args:
        command: Gives the command for a port.
        log: File that gets the server's output.
        stop_within_s: Time between SIGTERM and SIGKILL.
        port: Port on 127.0.0.1; None chooses a free one.
        environment: The harness's environment, of which the server sees a small part.
    """

    def __init__(
        self,
        command: Callable[[int], ServerCommand],
        *,
        log: Path,
        stop_within_s: float,
        port: int | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._command = command
        self._log = log
        self._stop_within_s = stop_within_s
        self._port = port
        self._environment = environment

    def start(self) -> ProcessServer:
        """Starts the server.

        Raises:
            UsageError: The given port is taken.
            MachineryError: There is no such interpreter, or the process cannot be made.
        """
        if self._port is not None:
            refuse_taken(self._port)
        port = free_port() if self._port is None else self._port
        command = self._command(port)
        if not os.access(command.argv[0], os.X_OK):
            raise MachineryError(
                f"there is no Python interpreter at {command.argv[0]}",
                advice="Make the serving environment (`make install-serving`), or correct serving.python.",
            )
        environment = inherited_environment(self._environment) | dict(command.environment)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        watcher = _Guard()
        try:
            with self._log.open("wb") as log:
                process = subprocess.Popen(
                    command.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=command.cwd,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            watcher.dismiss()
            raise MachineryError(f"the server cannot be started: {error}") from error
        watcher.watch(process.pid)
        return ProcessServer(process, watcher, f"http://{HOST}:{port}", self._log, self._stop_within_s)


class ProcessServer(LoggedToFile):
    """A server process with its children, and the guard that outlives the harness.

    Args:
        process: The main process, leader of its session.
        watcher: Its guard.
        url: Where it will listen.
        log: Its output.
        stop_within_s: Time between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        watcher: _Guard,
        url: str,
        log: Path,
        stop_within_s: float,
    ) -> None:
        self._process = process
        self._guard = watcher
        self._url = url
        self._log = log
        self._stop_within_s = stop_within_s
        self.watch = WorkerWatch(lambda: guard.session_members(process.pid))
        self._oom_kills = oom_kills()

    @property
    def url(self) -> str:
        """Base URL."""
        return self._url

    @property
    def observable(self) -> bool:
        """Always True."""
        return True

    @property
    def pid(self) -> int:
        """Process id of the main process, which leads its session."""
        return self._process.pid

    @property
    def rss_bytes(self) -> int | None:
        """Resident memory of its processes when last seen; None where they cannot be seen from here."""
        return self.watch.rss_bytes

    @property
    def peak_rss_bytes(self) -> int | None:
        """Largest sum of the resident memory of its processes; pages that they share count in each."""
        return self.watch.peak_rss_bytes

    def ended(self) -> Exit | None:
        """What was seen of its end; None while the main process and all known workers run."""
        returncode = self._process.poll()
        if returncode is None:
            self.watch.sample()
        lost = self.watch.lost()
        if returncode is None and lost is None:
            return None
        return Exit(returncode=returncode, lost_child=lost, out_of_memory=oom_kills() > self._oom_kills)

    async def stop(self) -> None:
        """SIGTERM to the main process; after `stop_within_s`, SIGKILL to all that is left.

        Raises:
            MachineryError: A process cannot be ended.
        """
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
            if await self._within(self._stop_within_s, lambda: self._process.poll() is not None):
                await self._within(_LEFTOVERS_WITHIN_S, lambda: not guard.session_members(self.pid))
        finally:
            gone = guard.kill_session(self.pid)
            self._process.poll()
            self._guard.dismiss()
        if not gone:
            raise MachineryError(
                f"processes {guard.session_members(self.pid)} of the server cannot be ended",
                where=self._url,
                advice="They hang in the kernel (device or file system); see `ps` and the kernel log.",
            )

    async def _within(self, seconds: float, gone: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not (done := gone()) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        return done


class _Guard:
    """The process that ends the server should the harness be killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, session: int) -> None:
        """Tells it which session to end."""
        self._say(str(session))

    def dismiss(self) -> None:
        """Sends it away; it ends nothing."""
        if self._process.poll() is None:
            self._say(guard.DONE)
            self._process.communicate()

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
