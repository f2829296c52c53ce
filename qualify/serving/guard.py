"""Ends a server's processes when the harness is gone, however it went.

Runs as a process of its own, with nothing but the standard library. Its standard input is a pipe whose other
end only the harness holds: the harness writes the server's session id, and ``done`` once it has seen the
server end. When the pipe closes before that, the harness was killed, and what is left of the server is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

DONE = "done"
_ROUNDS = 100
_PAUSE_S = 0.05


def session_members(session: int) -> list[int]:
    """Processes of a session that still run.

    Args:
        session: Id of the session, which is the process id of its leader.

    Returns:
        Process ids; a zombie does not count.
    """
    return [pid for pid in _pids() if _session_of(pid) == session]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # proc(5): the command, in parentheses, may hold anything; after it: state, ppid, pgrp, session
    state, _, _, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else int(session)


def kill_session(session: int) -> bool:
    """Sends SIGKILL to all processes of a session until none is left.

    Args:
        session: Id of the session.

    Returns:
        True where none is left.
    """
    for _ in range(_ROUNDS):
        members = session_members(session)
        if not members:
            return True
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    return not session_members(session)


def main() -> int:
    """Waits for the harness's word, or for its end."""
    session: int | None = None
    for line in sys.stdin:
        word = line.strip()
        if word == DONE:
            return 0
        session = int(word)
    if session is not None:
        kill_session(session)
    return 0


if __name__ == "__main__":
    sys.exit(main())
