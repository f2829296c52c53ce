"""What a run looks like while it runs, in a terminal and in a log."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import termios

import pytest

from qualify.reporting.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that Progress sees; the test moves it."""
    now = [0.0]
    monkeypatch.setattr("qualify.reporting.progress.time.monotonic", lambda: now[0])
    return now


def screen(written: str, width: int) -> list[str]:
    """What stands on a terminal after `written`; knows the control characters that are used."""
    lines, row = [""], 0
    for part in re.split(r"(\n|\r|\x1b\[\d*[AJ])", written):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1])
        elif part == "\x1b[J":
            del lines[row + 1 :]
            lines[row] = ""
        elif part != "\r" and part:
            assert "\x1b" not in part
            assert len(part) < width, "the line would break, and no longer be erased as a whole"
            lines[row] = part
    return lines


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    return 60


def test_a_log_gets_a_line_every_so_often_and_no_control_characters(clock: list[float]) -> None:
    stream = io.StringIO()
    progress = Progress(stream, every_s=15)
    progress.say("baseline: starting")
    for second in range(100):
        clock[0] = second
        progress.wait("baseline: not ready", about="baseline", detail="log: Loading weights")
    waits = stream.getvalue().splitlines()[1:]
    assert waits[0] == "[  0:15] ... baseline: not ready; log: Loading weights"
    assert len(waits) == 6
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_dumb_terminal_is_written_to_as_a_log(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    progress = Progress(stream, every_s=1)
    for second in range(9):
        clock[0] = second
        progress.wait("server")
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_shows_what_each_arm_waits_for_below_what_happened(clock: list[float], wide: int) -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.say("starting side by side")
    for second in range(1, 30):
        clock[0] = second
        progress.wait(f"baseline: not ready after {second} s", about="baseline", detail="x" * 200)
        progress.wait(f"candidate: not ready after {second} s", about="candidate")
    clock[0] = 30
    progress.wait("candidate: not ready after 30 s", about="candidate")
    shown = screen(stream.getvalue(), wide)
    assert shown[0] == "[  0:00] starting side by side"
    assert shown[1] == "[  0:30] ... baseline: not ready after 29 s"
    assert shown[2].endswith("x…")
    assert shown[3] == "[  0:30] ... candidate: not ready after 30 s"
    assert len(shown) == 4


def everything(terminal: int) -> bytes:
    """What a terminal was sent, whose other end is closed; it comes in pieces."""
    found = b""
    with os.fdopen(terminal, "rb", buffering=0) as stream, contextlib.suppress(OSError):  # its end is EIO
        while part := stream.read(4096):
            found += part
    return found


def test_lines_fit_the_terminal_that_they_go_to_and_not_another(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 50))
    # standard output is no terminal here, and one of 80 columns would be assumed
    with os.fdopen(theirs, "w") as stream:
        progress = Progress(stream)
        for second in range(1, 4):
            clock[0] = second
            progress.wait(
                "candidate: loading the model, waiting for the server to be ready", about="candidate"
            )
    written = everything(ours).decode()
    assert screen(written, 50) == ["[  0:03] ... candidate: loading the model, waiti…"]


def test_an_event_replaces_what_was_waited_for(clock: list[float], wide: int) -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        clock[0] = 9
        progress.wait("baseline: not ready", about="baseline", detail="log: Loading")
        progress.say("baseline: ready")
        clock[0] = 12
        progress.wait("candidate: not ready", about="candidate")
    assert screen(stream.getvalue(), wide) == ["[  0:09] baseline: ready", ""]


def test_a_wait_that_nobody_tells_of_any_more_disappears(clock: list[float], wide: int) -> None:
    stream = Terminal()
    progress = Progress(stream)
    clock[0] = 1
    progress.wait("baseline: not ready", about="baseline")
    clock[0] = 10
    progress.wait("candidate: not ready", about="candidate")
    assert screen(stream.getvalue(), wide) == ["[  0:10] ... candidate: not ready"]


def test_it_tells_how_long_something_took(clock: list[float]) -> None:
    progress = Progress(io.StringIO())
    clock[0] = 5
    progress.begin("baseline", "candidate")
    clock[0] = 128
    assert progress.took("baseline") == progress.took("candidate") == "2:03"
    assert progress.took("anything else") == "2:08"
