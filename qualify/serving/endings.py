"""What the end of a server means: its own doing, a signal from outside, or the machine's.

The main process's exit code is the server's own word only where the main process is what failed. vLLM runs
the engine in a child; when that dies, the main process logs that it died, but not of what, and exits in an
orderly way. What tells the two apart is what the dying process itself left in the log: a Python process
that dies by a fault of its own prints a traceback, or (with ``PYTHONFAULTHANDLER``) ``Fatal Python error``;
one that is killed from outside prints nothing, or that it received a signal.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qualify.record import ArmState
from qualify.serving.launcher import Exit

# Log lines that are searched: a stack dump of some hundred threads fits.
SEARCHED_LINES = 4000

_OWN_SIGNALS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)
_OWN_FAILURE = re.compile(
    r"Fatal Python error: "
    r"|illegal memory access"
    r"|device-side assert"
    r"|CUDA error: "
    r"|terminate called "
    r"|Assertion .* failed"
    r"|Segmentation fault"
    r"|EngineCore (failed to start|encountered a fatal error)"
    r"|WorkerProc (failed to start|hit an exception)"
    r"|^Process (EngineCore|\S*Worker\S*):"
)
_MACHINE = (
    (re.compile(r"[Aa]ddress already in use"), "its port was taken by another program"),
    (re.compile(r"No space left on device"), "the disk is full"),
    (re.compile(r"[Cc]annot allocate memory|can't allocate memory"), "the machine is out of memory"),
    (re.compile(r"can't start new thread|Resource temporarily unavailable"), "the process limit is reached"),
    (re.compile(r"No CUDA GPUs are available|Failed to infer device type"), "there is no usable GPU"),
    (re.compile(r"CUDA driver version is insufficient"), "the GPU's driver is too old"),
)
_MISSING_MODULE = re.compile(r"No module named '?([\w.]+)'?\)?$")
_RAISED = re.compile(r"(?:^|\s)((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Exit|Interrupt))(?::|$)")
_FAILED_CHILD = re.compile(r"Failed core proc\(s\): \{[^}]*: -(\d+)")
_REFUSED_ARGUMENTS = re.compile(r"error: (unrecognized arguments|argument |the following arguments)")


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a server.

    Attributes:
        state: How it ended.
        detail: One sentence.
    """

    state: ArmState
    detail: str


def classify(seen: Exit, log: Sequence[str], *, ready: bool) -> Ending:
    """Says what the end of a server means.

    Args:
        seen: What was seen of its end, before the harness sent it any signal.
        log: Its last log lines.
        ready: True where it had been ready before.

    Returns:
        ``DIED`` or ``START_FAILED`` for its own doing, ``KILLED``, or ``MACHINERY``.
    """
    how = _how(seen)
    if seen.out_of_memory and not _own_words(log):
        return Ending(ArmState.MACHINERY, f"{how}; the kernel killed a process for lack of memory meanwhile")
    machine = _machine_trouble(log, ready=ready)
    if machine:
        return Ending(ArmState.MACHINERY, f"{how}: {machine}")
    own = ArmState.DIED if ready else ArmState.START_FAILED
    words = _own_words(log)
    if words:
        return Ending(own, f"{how}: {words}")
    if _killed(seen, log):
        return Ending(ArmState.KILLED, f"{how}, without a failure of its own in the log")
    return Ending(own, f"{how}{_last_raised(log)}")


def _how(seen: Exit) -> str:
    if seen.returncode is None:
        return f"{seen.lost_child} vanished"
    if seen.returncode < 0:
        how = f"the server was ended by {_signal_name(-seen.returncode)}"
    else:
        how = f"the server exited with code {seen.returncode}"
    return f"{seen.lost_child} vanished and {how}" if seen.lost_child else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _own_words(log: Iterable[str]) -> str:
    """The first line in which a process says that it failed by itself; empty where there is none."""
    lines = list(log)
    for line in lines:
        child = _FAILED_CHILD.search(line)
        if child and int(child[1]) in _OWN_SIGNALS:
            return f"its engine was ended by {_signal_name(int(child[1]))}"
    return next((line.strip() for line in lines if _OWN_FAILURE.search(line)), "")


def _machine_trouble(log: Sequence[str], *, ready: bool) -> str:
    for pattern, meaning in _MACHINE:
        line = next((line.strip() for line in log if pattern.search(line)), "")
        if line:
            return f"{meaning} ({line})"
    # vLLM mentions optional modules that are missing; only what ended the process counts
    missing = None if ready else _MISSING_MODULE.search(log[-1]) if log else None
    if missing:
        return f"its environment lacks the module {missing[1]}; make it again (`make install-serving`)"
    return ""


def _killed(seen: Exit, log: Sequence[str]) -> bool:
    if seen.lost_child:
        return True
    if seen.returncode is None:
        return False
    if any(_FAILED_CHILD.search(line) for line in log):
        return True
    # exit 0 is what an orderly server does on SIGTERM, and nobody but the harness should have sent that
    return seen.returncode == 0 or (seen.returncode < 0 and -seen.returncode not in _OWN_SIGNALS)


def _last_raised(log: Sequence[str]) -> str:
    for line in reversed(log):
        if _REFUSED_ARGUMENTS.search(line):
            return f", refusing its arguments: {line.strip()}"
        if _RAISED.search(line):
            return f": {line.strip()}"
    return " without saying why"
