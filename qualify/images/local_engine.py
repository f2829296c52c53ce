"""Runs a command with a Docker engine and a registry at hand, and stops what it had to start for that.

    python -m qualify.images.local_engine [--folder .cache/docker] [--port 5125] -- COMMAND...

Where an engine answers already, that one is used. Otherwise a private one is started (as root): its images
and containers lie below the folder, it has no bridge and touches no firewall rule. The command finds it in
``DOCKER_HOST``, and the registry in ``QUALIFY_REGISTRY``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import psutil

from qualify.errors import ExitCode, MachineryError, QualifyError
from qualify.images.children import start_child, stop
from qualify.images.engine import ENGINE_ERRORS
from qualify.images.registry_process import local_registry

REGISTRY_VARIABLE = "QUALIFY_REGISTRY"
_DAEMON = "dockerd"
_READY_WITHIN_S = 60.0
_STOP_WITHIN_S = 60.0
_PORT = 5125
# A shell's way of saying that a signal ended the program.
_SIGNALLED = 128


@contextlib.contextmanager
def local_engine(folder: Path) -> Iterator[str]:
    """Gives a Docker engine until the block ends: the machine's, or a private one.

    Args:
        folder: What a private engine keeps goes there.

    Yields:
        Value for ``DOCKER_HOST``.

    Raises:
        MachineryError: None answers and none can be started.
    """
    there = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if _answers(there):
        yield there
        return
    program = shutil.which(_DAEMON)
    if program is None or os.getuid() != 0:
        raise MachineryError(
            f"no Docker engine answers at {there}, and a private one needs root and dockerd",
            advice="Start it, or install one: `apt-get install --no-install-recommends docker.io iptables`.",
        )
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    host = f"unix://{folder}/docker.sock"
    log = folder / "dockerd.log"
    _wait_until_gone(folder)
    process = start_child(_daemon_command(program, folder, host), log)
    try:
        _wait_until_ready(process, host, log)
        yield host
    finally:
        stop(process, _STOP_WITHIN_S)
        # left by containers with network none; would keep the folder from being removed
        for left in (folder / "exec/netns").glob("*"):
            subprocess.run(["umount", str(left)], check=False, capture_output=True)


def _daemon_command(program: str, folder: Path, host: str) -> list[str]:
    """A daemon that shares nothing with another one and leaves the machine's network alone."""
    return [
        program,
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/docker.pid",
        f"--host={host}",
        "--iptables=false",
        "--ip6tables=false",
        "--bridge=none",
        "--ip-forward=false",
        "--ip-masq=false",
        "--userland-proxy=false",
    ]


def _wait_until_gone(folder: Path) -> None:
    """An engine whose command was killed ends by itself; its folder is free then.

    Raises:
        MachineryError: It goes on running: another command uses it.
    """
    pidfile = folder / "docker.pid"
    deadline = time.monotonic() + _STOP_WITHIN_S
    while _runs(pidfile):
        if time.monotonic() > deadline:
            raise MachineryError(
                "another command uses the private Docker engine of this folder",
                where=str(folder),
                advice="Wait for it to end, or give this one a folder of its own (--folder).",
            )
        time.sleep(0.2)
    pidfile.unlink(missing_ok=True)


def _runs(pidfile: Path) -> bool:
    try:
        return psutil.Process(int(pidfile.read_text())).name() == _DAEMON
    except (OSError, ValueError, psutil.NoSuchProcess):
        return False


def _answers(host: str) -> bool:
    try:
        with contextlib.closing(docker.DockerClient(base_url=host, timeout=5)) as client:
            return bool(client.ping())
    except ENGINE_ERRORS:
        return False


def _wait_until_ready(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(host):
            return
        time.sleep(0.1)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise MachineryError(f"the private Docker engine did not start: {' / '.join(said)}", where=str(log))


def run_with_engine(command: list[str], folder: Path, port: int | None) -> int:
    """Runs a command with engine and registry.

    Args:
        command: Program and arguments.
        folder: Engine and registry keep their data there.
        port: The registry's port; None takes a free one.

    Returns:
        The command's exit code; 130 where a signal to stop ended it, 128 and more where another signal did.

    Raises:
        MachineryError: Engine or registry cannot be had.
    """
    told: list[psutil.Process] = []
    with local_engine(folder) as host, local_registry(folder / "registry", port) as registry:
        environment = {**os.environ, "DOCKER_HOST": host, REGISTRY_VARIABLE: registry.address}
        process = subprocess.Popen(command, env=environment)
        # Ctrl-C reaches the command by itself; engine and registry stay until it has ended in its own way.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        # SIGTERM reaches this process alone: it is passed on to whom Ctrl-C would reach. A shell that runs
        # the command may end before it does.
        signal.signal(signal.SIGTERM, lambda number, frame: told.extend(_tell(process.pid)))
        code = process.wait()
        psutil.wait_procs(told)
    if code in (-signal.SIGTERM, -signal.SIGINT) or (told and code == _SIGNALLED + signal.SIGTERM):
        return ExitCode.INTERRUPTED
    return code if code >= 0 else _SIGNALLED - code


def _tell(pid: int) -> list[psutil.Process]:
    """Sends SIGTERM to a process, and to those of its descendants that are in this process's group."""
    told = []
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in (*first.children(recursive=True), first):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) == os.getpgrp():
                    process.terminate()
                    told.append(process)
    return told


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: Without the program's name; None takes the process's own.

    Returns:
        The command's exit code, or 4 where engine or registry cannot be had.
    """
    parser = argparse.ArgumentParser(prog="python -m qualify.images.local_engine")
    parser.add_argument("--folder", type=Path, default=Path(".cache/docker"), help="default: .cache/docker")
    parser.add_argument("--port", type=int, default=_PORT, help=f"the registry's port; default: {_PORT}")
    parser.add_argument("command", nargs="+", help="program and arguments, after --")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run_with_engine(options.command, options.folder, options.port)
    except QualifyError as error:
        print(f"qualify: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
