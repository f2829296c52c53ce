"""Child processes that end with the process that started them, also where that is killed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def start_child(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a child in a session of its own; it gets SIGTERM when this process ends, however it ends.

    Args:
        command: Program and arguments.
        log: Gets its output, after what is there.

    Returns:
        The child.
    """
    # util-linux's setpriv asks the kernel for that (PR_SET_PDEATHSIG) and becomes the program
    tie = shutil.which("setpriv")
    with log.open("ab") as output:
        return subprocess.Popen(
            [*([tie, "--pdeathsig", "TERM", "--"] if tie else []), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Ends a child process: SIGTERM, and SIGKILL where that is not enough.

    Args:
        process: The child.
        within_s: Time between the two.
    """
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
