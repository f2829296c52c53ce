"""The errors a user can meet, each with the exit code that `docs/exit-codes.md` promises for it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to the CI that called it."""

    QUALIFIED = 0
    REJECTED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    MACHINERY = 4
    INTERRUPTED = 130


class QualifyError(Exception):
    """Something foreseeable went wrong.

    Args:
        what: What happened, in one sentence.
        where: File and line, arm or request id; empty where there is none.
        advice: What the user can do about it.
    """

    exit_code = ExitCode.MACHINERY

    def __init__(self, what: str, *, where: str = "", advice: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.advice = advice

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  {self.advice}" if self.advice else text


class UsageError(QualifyError):
    """The tool was called wrongly, or a file given to it is wrong: exit 2."""

    exit_code = ExitCode.USAGE


class MachineryError(QualifyError):
    """The machine, a daemon or a registry failed, not the release: exit 4."""

    exit_code = ExitCode.MACHINERY


class EvidenceError(QualifyError):
    """Evidence is missing, damaged or contradicts itself: exit 3, never a pass."""

    exit_code = ExitCode.INCONCLUSIVE


class InterruptedRunError(QualifyError):
    """The user ended the run, with Ctrl-C or SIGTERM: exit 130; what is whole stays."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(self) -> None:
        super().__init__("the run was interrupted")
