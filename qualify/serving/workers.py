"""Watching a server's processes: its workers by their titles, and how much memory all of them hold."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

# vLLM gives its engine and worker processes such titles; they live as long as the server.
_WORKER_TITLE = "VLLM::"
_SAMPLE_EVERY_S = 0.5


class WorkerWatch:
    """Remembers the workers of a server, and notices when one has vanished.

    Args:
        members: Gives the process ids of the server at this moment.
    """

    def __init__(self, members: Callable[[], Iterable[int]]) -> None:
        self._members = members
        self._workers: dict[str, psutil.Process] = {}
        self._lost: str | None = None
        self._sampled_at = 0.0
        self.rss_bytes: int | None = None
        self.peak_rss_bytes: int | None = None

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers that were seen."""
        return tuple(self._workers)

    def sample(self, *, at_once: bool = False) -> None:
        """Looks at the processes; twice a second at most, however often it is called.

        Args:
            at_once: True looks whatever was seen when.
        """
        now = time.monotonic()
        if not at_once and now - self._sampled_at < _SAMPLE_EVERY_S:
            return
        self._sampled_at = now
        resident = 0
        for pid in self._members():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                process = psutil.Process(pid)
                resident += process.memory_info().rss
                title = _title(process)
                # A worker that runs a command is for a moment two processes of one title: the child is no
                # worker, and its end is none.
                if title.startswith(_WORKER_TITLE) and title != _title(psutil.Process(process.ppid())):
                    self._workers.setdefault(f"{title} (process {pid})", process)
        self.rss_bytes = resident
        self.peak_rss_bytes = max(resident, self.peak_rss_bytes or 0)

    def lost(self) -> str | None:
        """Name of a worker that has vanished; None while all that were seen run."""
        if self._lost is None:
            self._lost = next((name for name, process in self._workers.items() if not _runs(process)), None)
        return self._lost


def _title(process: psutil.Process) -> str:
    return next(iter(process.cmdline()), "")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def oom_kills() -> int:
    """Processes that the kernel has killed for lack of memory since boot (proc(5), ``/proc/vmstat``)."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))
