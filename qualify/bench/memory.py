"""Peak memory of a process."""

from __future__ import annotations

import re
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_bytes(pid: int | None = None) -> int | None:
    """Largest resident memory that a process had since it began its program.

    `ru_maxrss` would not do: Linux lets it begin with that of the process that started it
    (getrusage(2), "Resource usage metrics are preserved across an execve(2)").

    Args:
        pid: The process; this one where left out.

    Returns:
        Bytes; None where it has ended.
    """
    try:
        found = _PEAK.search(Path(f"/proc/{pid or 'self'}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(found[1]) * 1024 if found else None
