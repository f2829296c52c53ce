"""Measures our client beside other load generators: ``python -m qualify.bench.client``.

Each runs in a process of its own against the same stand-in server, one after another in the same run; the
machine may be busy, so that only their ratios say something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from qualify.bench.drive import TOKENS
from qualify.bench.memory import peak_bytes
from qualify.bench.tools import TOOLS, Load, Tool, environment, write_inputs

_WORK = Path(".cache/bench/work")
_LONGEST_S = 900
_HEADINGS = ("client", "keeps", "tokens/s", "CPU s/M tokens", "ratio", "... until exit", "ratio", "MiB")


@dataclass(frozen=True)
class Level:
    """One load.

    Attributes:
        name: For the table.
        in_flight: Requests at once.
        requests: In all.
        step_s: Seconds between two tokens of a request.
        rounds: Times that every client is measured, in turn; the median counts.
    """

    name: str
    in_flight: int
    requests: int
    step_s: float
    rounds: int = 1


LEVELS = (
    Level("1 in flight, 5 ms a token", 1, 8, 0.005, rounds=3),
    Level("32 in flight, 10 ms a token", 32, 192, 0.01),
    Level("256 in flight, 40 ms a token", 256, 512, 0.04),
    Level("256 in flight, as fast as the client reads", 256, 1024, 0.001),
)


@dataclass(frozen=True)
class Measured:
    """What a client took.

    Attributes:
        tokens_per_s: Tokens by the seconds from the first request's beginning to the last answer's end.
        served: CPU seconds per million tokens in that time, of all processes of the client.
        ended: The same from the first request until the client has exited: with what it makes of the answers.
        peak_bytes: Largest resident memory of its main process.
    """

    tokens_per_s: float
    served: float
    ended: float
    peak_bytes: int


class ToolFailedError(Exception):
    """A client could not be measured."""


def measure(tool: Tool, level: Level, work: Path) -> Measured:
    """Runs a client once.

    Args:
        tool: The client.
        level: The load.
        work: Directory with the inputs.

    Raises:
        ToolFailedError: It is not installed, fails, or does not send what it should.
    """
    if not tool.python.exists():
        raise ToolFailedError("not installed")
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "qualify.bench.stand_in"),
            *("--expected", str(level.requests), "--step-s", str(level.step_s)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().split()[1]
        load = Load(f"http://127.0.0.1:{port}", level.in_flight, level.requests, work)
        log = work / f"{tool.name.replace(' ', '-')}.log"
        with log.open("w") as output:
            client = subprocess.Popen(
                [os.path.abspath(tool.python), *tool.command(load)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment(work.resolve()),
            )
            return _watch(client, server, level, log)
    finally:
        server.kill()
        server.wait()


def _watch(
    client: subprocess.Popen[bytes], server: subprocess.Popen[str], level: Level, log: Path
) -> Measured:
    assert server.stdout is not None
    os.set_blocking(server.stdout.fileno(), False)
    told: dict[str, tuple[float, float]] = {}
    deadline = time.monotonic() + _LONGEST_S
    peak = 0
    while True:
        peak = peak_bytes(client.pid) or peak
        for line in server.stdout.readlines():
            what, when = line.split()
            told[what] = (float(when), _cpu_s(client.pid))
        pid, status, usage = os.wait4(client.pid, os.WNOHANG)
        if pid:
            client.returncode = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > deadline:
            client.kill()
            raise ToolFailedError(f"not done after {_LONGEST_S} s; see {log}")
        time.sleep(0.005)
    if client.returncode or "last" not in told:
        raise ToolFailedError(f"exited with {client.returncode}; see {log}")
    millions = level.requests * TOKENS / 1e6
    (began, before), (ended, after) = told["first"], told["last"]
    return Measured(
        tokens_per_s=millions * 1e6 / (ended - began),
        served=(after - before) / millions,
        ended=(usage.ru_utime + usage.ru_stime - before) / millions,
        peak_bytes=peak,
    )


def _cpu_s(pid: int) -> float:
    """Processor time of a process and all below it, those that have ended included."""
    try:
        process = psutil.Process(pid)
        total = 0.0
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        return total
    except psutil.NoSuchProcess:
        return 0.0


def _version(tool: Tool) -> str:
    if not tool.python.exists():
        return "not installed"
    done = subprocess.run([tool.python, "-c", tool.version], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


@dataclass(frozen=True)
class Outcome:
    """What came of one level.

    Attributes:
        ours: What ours took.
        measured: What every tool took that could be measured, ours included, by its name.
        failed: Why the others could not.
    """

    ours: Measured
    measured: Mapping[str, Measured]
    failed: Mapping[str, str]

    @property
    def lowest(self) -> bool:
        """True where none took less CPU a token than ours while it was served."""
        return all(one.served >= self.ours.served for one in self.measured.values())


def compare(level: Level, tools: Sequence[Tool], work: Path) -> Outcome:
    """Measures every tool at one level, in turn, as often as the level says.

    Args:
        level: The load.
        tools: Ours first.
        work: Directory with the inputs.

    Returns:
        The round with the median CPU a token of each tool; one that failed in any round is not measured.

    Raises:
        ToolFailedError: Ours could not be measured.
    """
    rounds: dict[str, list[Measured]] = {tool.name: [] for tool in tools}
    failed: dict[str, str] = {}
    for _ in range(level.rounds):
        for tool in tools:
            try:
                rounds[tool.name].append(measure(tool, level, work))
            except ToolFailedError as error:
                if tool is tools[0]:
                    raise
                failed[tool.name] = str(error)
    measured = {name: _median(taken) for name, taken in rounds.items() if name not in failed}
    return Outcome(measured[tools[0].name], measured, failed)


def table_of(level: Level, tools: Sequence[Tool], outcome: Outcome) -> Table:
    """What came of one level, for people.

    Args:
        level: The load.
        tools: Those measured, in the order of the rows.
        outcome: What came of it.

    Returns:
        One row for each tool; the ratios are to ours.
    """
    table = Table(title=f"{level.name}: {level.requests} requests of {TOKENS} tokens, top-20 logprobs")
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in ("client", "keeps") else "right")
    for tool in tools:
        if tool.name in outcome.failed:
            table.add_row(tool.name, outcome.failed[tool.name])
            continue
        one = outcome.measured[tool.name]
        table.add_row(
            tool.name,
            tool.keeps,
            f"{one.tokens_per_s:,.0f}",
            f"{one.served:.1f}",
            f"{one.served / outcome.ours.served:.1f}",
            f"{one.ended:.1f}",
            f"{one.ended / outcome.ours.ended:.1f}",
            f"{one.peak_bytes / 2**20:.0f}",
        )
    return table


def _median(rounds: Sequence[Measured]) -> Measured:
    return sorted(rounds, key=lambda one: one.served)[len(rounds) // 2]


def main() -> int:
    """Prints the tables; fails where our client could not be measured or takes more CPU than another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="in-flight numbers to measure, e.g. 1,32")
    options = parser.parse_args()
    wanted = {int(number) for number in options.only.split(",")} if options.only else None
    shutil.rmtree(_WORK, ignore_errors=True)
    write_inputs(_WORK)
    console = Console(width=120)
    console.print(", ".join(f"{tool.name} {_version(tool)}" for tool in TOOLS))
    failed = False
    for level in LEVELS:
        if wanted is None or level.in_flight in wanted:
            outcome = compare(level, TOOLS, _WORK)
            console.print(table_of(level, TOOLS, outcome))
            failed |= not outcome.lowest
    console.print("another client took less CPU a token" if failed else "ours took the least CPU a token")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
