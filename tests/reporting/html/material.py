"""Material for HTML reports of runs of known truth, and what a browser would find in a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from qualify.evidence.bundle import Bundle, RunState
from qualify.gate import judge
from qualify.plan import Plan, PlannedArm
from qualify.policy import Policy
from qualify.record import RunRecord
from qualify.reporting.material import Material
from tests.judgefactory import POLICY


def material(record: RunRecord, root: Path, links: str = "./", policy: Policy = POLICY) -> Material:
    """Judges a record as if its bundle lay in a directory."""
    arms = tuple(
        PlannedArm(
            arm=arm,
            argv=("PYTHON", "-m", "server"),
            environment=(("A", "b"),),
            url=None,
            fault=entry.fault,
            stage_sha256="1" * 64,
        )
        for arm, entry in record.arms.items()
    )
    plan = Plan(
        release=record.release,
        subject=record.subject,
        scope=record.scope,
        replay=record.replay,
        control_configured=record.control_configured,
        scenarios=record.scenarios,
        arms=arms,
        baseline_forced_runs=2,
        inputs=(),
        distributions_sha256="2" * 64,
        model_sha256="3" * 64,
        machine=(("cores", "2"),),
    )
    incomplete = record.incomplete[0] if record.incomplete else ""
    state = RunState(
        status="incomplete" if incomplete else "complete",
        why=incomplete,
        date=f"{record.run_date}T10:00:00+00:00",
        harness="0.1.0",
        plan_id=plan.plan_id,
    )
    return Material(
        bundle=Bundle(root),
        plan=plan,
        state=state,
        record=record,
        policy=policy,
        verdict=judge(record, policy, "5" * 64),
        links=links,
    )


@dataclass
class Table:
    caption: str = ""
    rows: list[list[str]] = field(default_factory=list)


class Page(HTMLParser):
    """Elements, attributes and tables of a page."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.text = ""
        self.tables: list[Table] = []
        self._inside: list[str] = []
        self.feed(content.decode())

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        self._inside.append(tag)
        if tag == "table":
            self.tables.append(Table())
        if tag == "tr":
            self.tables[-1].rows.append([])
        if tag in ("td", "th"):
            self.tables[-1].rows[-1].append("")

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" not in self._inside:
            self.text += data
        if "caption" in self._inside:
            self.tables[-1].caption += data
        elif "td" in self._inside or "th" in self._inside:
            self.tables[-1].rows[-1][-1] += data

    def rows(self, caption: str) -> list[list[str]]:
        """The rows of a table."""
        (found,) = [table for table in self.tables if table.caption.startswith(caption)]
        return found.rows

    def table(self, caption: str) -> dict[str, list[str]]:
        """The rows of a table by their first cell."""
        return {row[0]: row[1:] for row in self.rows(caption)}

    def links(self) -> list[str]:
        return [value for tag, name, value in self.attributes if (tag, name) == ("a", "href")]
