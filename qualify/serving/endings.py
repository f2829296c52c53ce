"""What the end of a server means: its own doing, a signal from outside, or the machine's.

The main process's exit code is the server's own word only where the main process is what failed. vLLM runs
the engine and its workers in children; when one dies, the others say so at length, but not of what, and the
main process exits in an orderly way. What tells the two apart is what the dying process itself left in the
log: a Python process that dies by a fault of its own prints a traceback, or (with ``PYTHONFAULTHANDLER``)
``Fatal Python error``; one that is killed from outside prints nothing, or that it received a signal. Whatever
stands in the log after the others have noticed is consequence and says nothing of the cause.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from qualify.record import ArmState
from qualify.serving.launcher import Exit

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
    r"|Segfault encountered"  # TVM's handler, which takes SIGSEGV from Python's
    r"|illegal memory access"
    r"|device-side assert"
    r"|CUDA error: "
    r"|terminate called "
    r"|Assertion .* failed"
    r"|EngineCore (failed to start|encountered a fatal error)"
    r"|WorkerProc (failed to start|hit an exception)"
    r"|^Process (EngineCore|\S*Worker\S*):"
)
TOLD_TO_STOP = re.compile(r"EngineCore: trigger received signal|API server: shutdown triggered")
_NOTICED = re.compile(r"died unexpectedly|exited unexpectedly|Parent process exited|EngineDeadError")
# What the machine lacks at any time ...
_MACHINE = (
    (re.compile(r"No space left on device"), "the disk is full"),
    (re.compile(r"[Cc]annot allocate memory|can't allocate memory"), "the machine is out of memory"),
    (
        re.compile(r"can't start new thread|(fork|pthread_create).*Resource temporarily unavailable"),
        "the limit of processes is reached",
    ),
    (re.compile(r"uncorrectable (ECC|NVLink) error|GPU has fallen off the bus"), "the GPU is broken"),
)
# ... and what ends no server that has started.
_MACHINE_AT_START = (
    (re.compile(r"[Aa]ddress already in use"), "its port was taken by another program"),
    (
        re.compile(
            r"No CUDA GPUs are available|Failed to infer device type|no CUDA-capable device is detected"
            r"|Found no NVIDIA driver|CUDA-capable device\(s\) is/are busy"
        ),
        "there is no usable GPU",
    ),
    (
        re.compile(r"CUDA driver version is insufficient|NVIDIA driver on your system is too old"),
        "the GPU's driver is too old",
    ),
    (
        re.compile(r"Free memory on device .* on startup is less than|Error in memory profiling\."),
        "another program uses the GPU's memory",
    ),
)
_WARNING = re.compile(r"^(\(\S+ pid=\d+\) )?WARNING\b")
# A server that goes on saying such things lives.
_ORDINARY = re.compile(r"^(\(\S+ pid=\d+\) )?(INFO|DEBUG|WARNING)\b")
# What a server that dies by itself may lack, said beside what it raised: its end stays its own, which counts
# against the candidate only where the baseline starts on the same machine.
_LACKS = (
    (
        re.compile(r"no kernel image is available|[Uu]nsupported (gpu|GPU) architecture"),
        "its kernels are built for other GPUs",
    ),
    (
        re.compile(
            r"Failed to find C compiler|No working C(\+\+)? compiler|[Nn]vcc.*(not found|No such file)"
            r"|No such file or directory: '\S*(nvcc|g\+\+|gcc|c\+\+|ninja)'|CUDA_HOME .*not set"
            r"|Ninja is required"
        ),
        "it compiles kernels when it starts, and lacks a compiler: nvcc (CUDA_HOME) or one for C++ (CC)",
    ),
    (
        re.compile(r"CUDA out of memory|No available memory for the cache blocks|OutOfMemoryError"),
        "it needs more of the GPU's memory than there is",
    ),
    (re.compile(r"[Cc]apturing|capture"), "a CUDA graph could not be captured"),
)
_MISSING_MODULE = re.compile(r"No module named '?([\w.]+)'?\)?$")
_RAISED = re.compile(r"(?:^|\s)((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Exit|Interrupt)(?:: .*|$))")
_FAILED_CHILD = re.compile(r"Failed core proc\(s\): \{[^}]*: -(\d+)")
_REFUSED_ARGUMENTS = re.compile(r"error: (unrecognized arguments|argument |the following arguments)")
_LAST_LINES = 200


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a server.

    Attributes:
        state: How it ended.
        detail: One sentence.
    """

    state: ArmState
    detail: str


@dataclass(slots=True)
class _Words:
    """What a log says.

    Attributes:
        own: The first line in which a process says that it failed by itself, and what it raised then.
        told: The line that says that it was told to stop, before any such failure.
        machine: What the machine lacked, with the line that says so. Of a server that had been ready, only
            where it did not live on after that, and not what failed after its own failure.
        failed_child: Signal that ended the engine while it started, as the main process saw it.
        last: The last lines.
    """

    own: str
    told: str
    machine: str
    failed_child: int | None
    last: tuple[str, ...]


def classify(seen: Exit, log: Iterable[str], *, ready: bool) -> Ending:
    """Says what the end of a server means.

    Args:
        seen: What was seen of its end, before the harness sent it any signal.
        log: Its whole log, line by line.
        ready: True where it had been ready before.

    Returns:
        ``DIED`` or ``START_FAILED`` for its own doing, ``KILLED``, or ``MACHINERY``.
    """
    words = _read(log, ready=ready)
    how = _how(seen)
    own = ArmState.DIED if ready else ArmState.START_FAILED
    if words.machine:
        return Ending(ArmState.MACHINERY, f"{how}: {words.machine}")
    if words.own:
        return Ending(own, f"{how}: {words.own}{_lacking(words.own)}")
    if seen.out_of_memory:
        return Ending(ArmState.MACHINERY, f"{how}; the kernel killed a process for lack of memory meanwhile")
    if words.failed_child in _OWN_SIGNALS:
        return Ending(own, f"{how}: its engine was ended by {_signal_name(words.failed_child or 0)}")
    if words.told:
        return Ending(ArmState.KILLED, f"{how}: {words.told}")
    if _killed(seen, words):
        return Ending(ArmState.KILLED, f"{how}, without a failure of its own in the log")
    missing = None if ready else _MISSING_MODULE.search(next(iter(words.last[-1:]), ""))
    if missing:
        # vLLM mentions optional modules that are missing; only the last line is what ended the process
        advice = "make the serving environment again (`make install-serving`)"
        return Ending(ArmState.MACHINERY, f"{how}: it lacks the module {missing[1]}; {advice}")
    raised = _last_raised(words.last)
    return Ending(own, f"{how}{raised}{_lacking(raised)}")


def told_to_stop(log: Iterable[str]) -> str:
    """The line in which a server says that somebody told it to stop; empty where nobody did.

    Args:
        log: Its whole log, before the harness sent it any signal.
    """
    return _read(log, ready=True).told


def _read(log: Iterable[str], *, ready: bool) -> _Words:
    words = _Words("", "", "", None, ())
    last: deque[str] = deque(maxlen=_LAST_LINES)
    noticed = False
    for line in log:
        last.append(line)
        if ready and not noticed and not words.own and _ORDINARY.search(line):
            words.machine = ""
        if not words.machine and not (ready and noticed):
            words.machine = _machine_trouble(line, ready=ready)
        if child := _FAILED_CHILD.search(line):
            words.failed_child = int(child[1])
        if noticed:
            continue
        if _NOTICED.search(line):
            noticed = True
        elif words.own:
            if raised := _RAISED.search(line):
                noticed, words.own = True, f"{words.own} {raised[1].strip()}"
        elif _OWN_FAILURE.search(line):
            # a line that itself names what was raised is whole: what is raised later is consequence
            noticed, words.own = bool(_RAISED.search(line)), line.strip()
        elif TOLD_TO_STOP.search(line):
            noticed, words.told = True, line.strip()
    words.last = tuple(last)
    return words


def _lacking(said: str) -> str:
    """What is missing where a server's last words say so, fit to follow them."""
    return next((f" ({why})" for pattern, why in _LACKS if pattern.search(said)), "")


def _machine_trouble(line: str, *, ready: bool) -> str:
    if _WARNING.search(line):
        return ""
    known = _MACHINE if ready else (*_MACHINE_AT_START, *_MACHINE)
    return next((f"{why} ({line.strip()})" for pattern, why in known if pattern.search(line)), "")


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


def _killed(seen: Exit, words: _Words) -> bool:
    if seen.lost_child or words.failed_child:
        return True
    # exit 0 is what an orderly server does on SIGTERM, and nobody but the harness should have sent that
    return seen.returncode == 0 or -(seen.returncode or 0) in set(signal.Signals) - _OWN_SIGNALS


def _last_raised(log: tuple[str, ...]) -> str:
    for line in reversed(log):
        if _REFUSED_ARGUMENTS.search(line):
            return f", refusing its arguments: {line.strip()}"
        if raised := _RAISED.search(line):
            return f": {raised[1].strip()}"
    return f"; its last line: {log[-1].strip()}" if log else " without a word"
