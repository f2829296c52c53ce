"""Acts the field cases out: one right run of each world, then each case with the same baseline."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fieldcases.cases import CASES, Case
from tests.fieldcases.worlds import WORLDS, make
from tests.projects import Outcome, Project

AT_ONCE = 2


@dataclass(frozen=True)
class Act:
    """What came of one run.

    Attributes:
        outcome: Exit code and output.
        verdict: The verdict.
        log: The candidate's log.
    """

    outcome: Outcome
    verdict: dict[str, Any]
    log: str

    def findings(self, weight: str) -> list[dict[str, Any]]:
        """Findings of one weight."""
        return [finding for finding in self.verdict["findings"] if finding["weight"] == weight]


class Stage:
    """Runs all worlds, a few at once, each in a directory of its own.

    Args:
        root: An empty directory.
    """

    def __init__(self, root: Path) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._acts: dict[tuple[str, str], Future[Act]] = {}
        for name in WORLDS:
            cases = [case for case in CASES if case.world == name]
            futures = {case.id: Future() for case in cases} | {"": Future()}
            self._acts |= {(name, id): future for id, future in futures.items()}
            self._pool.submit(_play, root / name, name, cases, futures)

    def act(self, world: str, case: str = "") -> Act:
        """What came of a case; with none, of a right server."""
        return self._acts[world, case].result()

    def close(self) -> None:
        """Waits for all runs."""
        self._pool.shutdown()


def _play(root: Path, world: str, cases: list[Case], futures: dict[str, Future[Act]]) -> None:
    root.mkdir()
    project = make(root, WORLDS[world])
    # those that change the baseline come last: it is served anew for each
    for case in (None, *sorted(cases, key=lambda case: case.baseline)):
        future = futures[case.id if case else ""]
        try:
            future.set_result(_run(project, case))
        except BaseException as error:
            future.set_exception(error)


def _run(project: Project, case: Case | None) -> Act:
    acted = {"candidate": case.id, "baseline": case.baseline} if case else {}
    for arm in ("baseline", "candidate"):
        environment = {"FAKE_CASE": acted[arm]} if acted.get(arm) else {}
        project.change(**{f"arms__{arm}__environment": environment})
    outcome = project.run(within_s=400)
    log = project.bundle() / "arms/candidate/server.log"
    return Act(outcome, project.read("verdict.json"), log.read_text() if log.exists() else "")
