"""Starts a server in a container of the release's image, watches it and removes it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from docker import DockerClient
from docker.errors import NotFound
from docker.models.containers import Container

from qualify.images.containers import Bind, ContainerSpec, create, hand_over, remove, start, sweep
from qualify.images.engine import ENGINE_ERRORS, connect
from qualify.loopback import HOST
from qualify.release import Container as Limits
from qualify.serving.arms import ServerCommand
from qualify.serving.launcher import Exit
from qualify.serving.logfile import LoggedToFile
from qualify.serving.process import free_port, refuse_taken
from qualify.serving.workers import WorkerWatch, oom_kills
from qualify.steps import step_log

MODEL_AT = Path("/model")
EVIDENCE_AT = Path("/qualify")
_GIB, _MIB = 2**30, 2**20
# A shell's and an init's way of saying that a signal ended the program.
_SIGNALLED = 128
_LOG_ENDS_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.2
_AGAIN_AFTER_S = 1.0
_LOG_IS_LOST = b"\nqualify: the engine did not send the rest of this log\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a container serves.

    Attributes:
        image: ``NAME@sha256:...``.
        arm: Name of the arm.
        model: Directory of the checkpoint.
        directory: The arm's directory in the bundle, for log and step log.
        limits: Limits of the container.
        ranks: Processes that run its model, each with a step log.
    """

    image: str
    arm: str
    model: Path
    directory: Path
    limits: Limits
    ranks: int = 1

    @property
    def step_logs(self) -> tuple[str, ...]:
        """Names of the ranks' step logs."""
        return tuple(step_log(rank) for rank in range(self.ranks))


class DockerLauncher:
    """Starts `python -m module` in a container, by digest and with nothing that it does not need.

    Args:
        serving: What the container serves.
        command: Gives the command for a port, with paths as they are in the container.
        stop_within_s: Time between SIGTERM and SIGKILL.
        port: Port on 127.0.0.1; None chooses a free one.
        client: Gives the engine.
    """

    def __init__(
        self,
        serving: Serving,
        command: Callable[[int], ServerCommand],
        *,
        stop_within_s: float,
        port: int | None = None,
        client: Callable[[], DockerClient] = connect,
    ) -> None:
        self._serving = serving
        self._command = command
        self._stop_within_s = stop_within_s
        self._port = port
        self._client = client

    def start(self) -> DockerServer:
        """Starts the server.

        Raises:
            UsageError: The given port is taken.
            MachineryError: No engine answers, or it cannot start the container.
        """
        if self._port is not None:
            refuse_taken(self._port)
        port = free_port() if self._port is None else self._port
        client = self._client()
        sweep(client)
        directory = self._serving.directory
        directory.mkdir(parents=True, exist_ok=True)
        for name in self._serving.step_logs:
            (directory / name).touch()
            hand_over(directory / name)
        container = create(client, container_spec(self._serving, self._command(port)))
        start(container)
        return DockerServer(container, f"http://{HOST}:{port}", directory / "server.log", self._stop_within_s)


def container_spec(serving: Serving, command: ServerCommand) -> ContainerSpec:
    """The container of an arm.

    Args:
        serving: What it serves.
        command: The server's command.
    """
    limits = serving.limits
    return ContainerSpec(
        image=serving.image,
        argv=command.argv,
        environment=command.environment,
        role=serving.arm,
        binds=(
            Bind(source=serving.model, target=str(MODEL_AT)),
            *(
                Bind(source=serving.directory / name, target=str(EVIDENCE_AT / name), writable=True)
                for name in serving.step_logs
            ),
        ),
        on_network=True,
        memory_bytes=int(limits.memory_gib * _GIB),
        pids=limits.pids,
        shm_bytes=limits.shm_mib * _MIB,
        tmp_bytes=limits.tmp_mib * _MIB,
        gpus=limits.gpus,
    )


class DockerServer(LoggedToFile):
    """A server in a container.

    Args:
        container: The container, started.
        url: Where it will listen.
        log: Gets its output, as it comes.
        stop_within_s: Time between SIGTERM and SIGKILL.
    """

    def __init__(self, container: Container, url: str, log: Path, stop_within_s: float) -> None:
        self._container = container
        self._url = url
        self._log = log
        self._stop_within_s = stop_within_s
        self._state: dict[str, object] = {}
        self._exit: Exit | None = None
        self._closing = threading.Event()
        self._oom_kills = oom_kills()
        self.watch = WorkerWatch(self._members)
        self._log.write_bytes(b"")
        self._follower = threading.Thread(target=self._follow, name=f"log of {container.name}", daemon=True)
        self._follower.start()
        # The engine may answer late: whoever asks `ended` beside traffic must not wait for it.
        threading.Thread(target=self._look, name=f"state of {container.name}", daemon=True).start()

    @property
    def url(self) -> str:
        """Base URL."""
        return self._url

    @property
    def observable(self) -> bool:
        """Always True."""
        return True

    @property
    def name(self) -> str:
        """Name of the container."""
        return str(self._container.name)

    @property
    def rss_bytes(self) -> int | None:
        """Resident memory of its processes when last seen; None where they cannot be seen from here."""
        return self.watch.rss_bytes or None

    @property
    def peak_rss_bytes(self) -> int | None:
        """Largest sum of the resident memory of its processes; None where they cannot be seen from here."""
        return self.watch.peak_rss_bytes or None

    def ended(self) -> Exit | None:
        """What was last seen of its end; None while the container and all known workers run."""
        if self._exit is None:
            self._exit = exit_of(self._state, self.watch.lost())
        if self._exit is not None:
            return self._exit
        self.watch.sample()
        lost = self.watch.lost()
        return (
            None
            if lost is None
            else Exit(returncode=None, lost_child=lost, out_of_memory=oom_kills() > self._oom_kills)
        )

    def _look(self) -> None:
        """Asks the engine for the container's state, until it has ended or is being stopped."""
        while not self._closing.is_set() and self._exit is None:
            # an engine that does not answer says nothing of the server
            with contextlib.suppress(*ENGINE_ERRORS):
                try:
                    self._container.reload()
                    self._state = self._container.attrs["State"]
                except NotFound:  # somebody has removed the container
                    self._state = {"Status": "dead", "ExitCode": _SIGNALLED + signal.SIGKILL}
            self._closing.wait(_LOOK_EVERY_S)

    def _members(self) -> list[int]:
        """The container's processes as this machine sees them; none where the engine is elsewhere."""
        pid = self._container.attrs.get("State", {}).get("Pid", 0)
        if not pid:
            return []
        try:
            first = psutil.Process(pid)
            return [pid, *[child.pid for child in first.children(recursive=True)]]
        except psutil.NoSuchProcess:
            return []

    def _follow(self) -> None:
        with self._log.open("wb") as log, contextlib.suppress(NotFound):
            while True:
                last_try = self._closing.is_set()
                skip = log.tell()  # where it broke off, it is sent from its first byte again
                try:
                    for piece in self._container.logs(stream=True, follow=True):
                        log.write(piece[skip:])
                        log.flush()
                        skip = max(0, skip - len(piece))
                    return
                except NotFound:
                    raise
                except ENGINE_ERRORS:
                    if last_try:
                        log.write(_LOG_IS_LOST)
                        return
                self._closing.wait(_AGAIN_AFTER_S)

    async def stop(self) -> None:
        """SIGTERM; after `stop_within_s`, SIGKILL; then the container is removed.

        Raises:
            MachineryError: The engine cannot end or remove it.
        """
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._closing.set()
        try:
            with contextlib.suppress(*ENGINE_ERRORS):
                # what cannot be stopped in an orderly way is removed by force right after
                self._container.stop(timeout=max(1, round(self._stop_within_s)))
            self._follower.join(_LOG_ENDS_WITHIN_S)
        finally:
            remove(self._container)


def exit_of(state: dict[str, object], lost: str | None) -> Exit | None:
    """What a container's state says of its end.

    Args:
        state: ``State`` of the engine's answer.
        lost: Name of a worker that had vanished before.

    Returns:
        None while it runs. An exit code above 128 is the signal that ended the program: the container's init
        passes it on so.
    """
    if state.get("Status") not in ("exited", "dead"):
        return None
    code = int(str(state.get("ExitCode", 0)))
    return Exit(
        returncode=_SIGNALLED - code if code > _SIGNALLED else code,
        lost_child=lost,
        out_of_memory=bool(state.get("OOMKilled")),
    )
