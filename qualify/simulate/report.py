"""Puts what simulations found into tables, figures and the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from qualify.compare.table import as_markdown
from qualify.errors import UsageError
from qualify.findings import Verdict
from qualify.simulate.evidence import Case
from qualify.simulate.settings import BASELINES, ROUNDS, TOKENS, USUAL_TOKENS
from qualify.simulate.trials import Outcome, Rate

DOCUMENT = Path("docs/judgement.md")
FIGURES = Path("docs/figures")
WANTED = 0.95

Curve = Mapping[tuple[int, int, int], Rate]


def evidence_table(judged: Sequence[tuple[Case, Verdict]]) -> str:
    """Every set and run with all its scenarios, and with those that are judged alone."""
    lines = [
        "| set | run | truth | all scenarios | rules that spoke | rows named | all but | alone |",
        "|---|---|---|---|---|---|---|---|",
    ]
    runs: dict[tuple[str, str, str, int], list[tuple[Case, Verdict]]] = {}
    for case, verdict in judged:
        runs.setdefault((case.folder, case.mode, case.metadata, case.number), []).append((case, verdict))
    for (folder, mode, metadata, number), entries in runs.items():
        whole, verdict = max(entries, key=lambda entry: len(entry[0].scenarios))
        without = [f"{case.left_out} {short(each)}" for case, each in entries if case.left_out]
        alone = [f"{case.scenarios[0]} {short(each)}" for case, each in entries if len(case.scenarios) == 1]
        truth = {True: "faulty", False: "right", None: "faulty in part"}[whole.faulty]
        lines.append(
            f"| {folder} | {mode}, {metadata}, run {number} | {truth} | **{verdict.result}** | "
            f"{_rules(verdict)} | {_rows(verdict)} | {', '.join(without)} | {', '.join(alone)} |"
        )
    return "\n".join(lines) + "\n"


def short(verdict: Verdict) -> str:
    """A verdict in one word for a crowded cell."""
    return {"rejected": "**R**", "inconclusive": "-", "qualified": "Q"}[verdict.result]


def _rules(verdict: Verdict) -> str:
    if verdict.comparison is None:
        return ""
    fired = [item.rule for item in verdict.comparison.arms[0].evidence if item.fired]
    fired += [item.rule for item in verdict.findings if item.weight == "defect" and item.rule != "divergence"]
    return ", ".join(dict.fromkeys(fired))


def _rows(verdict: Verdict) -> str:
    rows = sorted({row for item in verdict.findings if item.weight == "defect" for row in item.rows})
    if not rows:
        return ""
    spans: list[list[int]] = []
    for row in rows:
        if spans and row == spans[-1][1] + 1:
            spans[-1][1] = row
        else:
            spans.append([row, row])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """Rates with their 95% intervals."""
    lines = ["| setting | runs | rejected | inconclusive | rules that spoke |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        rules = ", ".join(f"{rule} {count}" for rule, count in outcome.rules)
        lines.append(
            f"| {outcome.name} | {outcome.rejected.of} | {percent(outcome.rejected)} | "
            f"{percent(outcome.inconclusive)} | {rules} |"
        )
    return "\n".join(lines) + "\n"


def percent(rate: Rate) -> str:
    """A rate with its interval."""
    low, high = rate.interval
    return f"{rate.share:.2%} ({low:.2%} to {high:.2%})"


def smallest_table(curve: Curve) -> str:
    """Fewest rounds of 16 requests at which the sparse fault is found with 95%."""
    lines = ["| baseline runs | tokens | rounds of 16 requests | found |", "|---|---|---|---|"]
    for runs, tokens in dict.fromkeys((runs, tokens) for runs, tokens, _ in curve):
        enough = [rounds for rounds in ROUNDS if curve[runs, tokens, rounds].share >= WANTED]
        reached = f"{enough[0]}" if enough else f"more than {ROUNDS[-1]}"
        best = curve[runs, tokens, enough[0] if enough else ROUNDS[-1]]
        lines.append(f"| {runs} | {tokens} | {reached} | {percent(best)} |")
    return "\n".join(lines) + "\n"


def draw_rates(outcomes: Sequence[Outcome], path: Path) -> None:
    """Rejection rates with their intervals."""
    figure, axes = plt.subplots(figsize=(9, 0.36 * len(outcomes) + 1), layout="constrained")
    for height, outcome in enumerate(reversed(outcomes)):
        low, high = outcome.rejected.interval
        axes.plot([low, high], [height, height], color="tab:blue", linewidth=2)
        axes.plot([outcome.rejected.share], [height], "o", color="tab:blue")
    axes.set_yticks(range(len(outcomes)), [outcome.name for outcome in reversed(outcomes)])
    axes.set_xlabel("share of runs rejected, with 95% interval")
    axes.set_xlim(-0.01, 1.01)
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


def draw_curve(curve: Curve, path: Path) -> None:
    """Detection of a fault on one row of 16, every 8th step, against the load."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    for runs in BASELINES:
        shares = [curve[runs, USUAL_TOKENS, rounds].share for rounds in ROUNDS]
        left.plot([16 * rounds for rounds in ROUNDS], shares, "o-", label=f"{runs} baseline runs")
    left.set_title(f"{USUAL_TOKENS} tokens")
    for tokens in TOKENS:
        shares = [curve[3, tokens, rounds].share for rounds in ROUNDS]
        right.plot([16 * rounds for rounds in ROUNDS], shares, "o-", label=f"{tokens} tokens")
    right.set_title("3 baseline runs")
    for axes in (left, right):
        axes.axhline(WANTED, color="grey", linestyle=":", linewidth=1)
        axes.set_xlabel("requests, 16 at once")
        axes.grid(alpha=0.3)
        axes.legend()
    left.set_ylabel("share of faulty runs found")
    _save(figure, path)


def _save(figure: mpl.figure.Figure, path: Path) -> None:
    """Without date and random ids: the same figures give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "qualify"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def insert(text: str, sections: Mapping[str, str]) -> str:
    """Replaces the generated sections of the documentation.

    Args:
        text: The document, with ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` around each section.
        sections: New text by name.

    Raises:
        UsageError: The document lacks a section.
    """
    for name, content in sections.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        if begin not in text or end not in text:
            raise UsageError(f"has no section {name!r}", where=str(DOCUMENT))
        head, rest = text.split(begin, 1)
        text = head + begin + content + rest[rest.index(end) :]
    return text


def decision_section() -> str:
    """The decision table, from the gate's own data."""
    return as_markdown()
