"""Puts the HTML report together: everything that the template shows, as text that is not yet escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from qualify import __version__
from qualify.compare.figures import ArmComparison, Evidence
from qualify.evidence.bundle import MANIFEST, STATEMENT, Bundle
from qualify.findings import Finding, Result, Weight
from qualify.plan import Label
from qualify.record import RunRecord
from qualify.reporting.coverage import Standing, full_name, standing
from qualify.reporting.html.gpus import gpu_table
from qualify.reporting.html.measured import Measured, Nats, measure
from qualify.reporting.html.plots import HEAT_EDGES, draw_all
from qualify.reporting.html.svg import HEAT
from qualify.reporting.html.tables import Table, nats, share
from qualify.reporting.html.tokens import TokenView, token_view
from qualify.reporting.material import Material
from qualify.reporting.waivers import untold_waivers
from qualify.transcript import Arm

MOST_FINDINGS = 200
MOST_NAMED = 40
MOST_FILES = 200

_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")
"""Characters that a server's log may hold and no HTML document may."""

MEANINGS = {
    Result.QUALIFIED: "Within its scope the candidate answers as the baseline does, and the run could have "
    "seen the fault that its control had.",
    Result.REJECTED: "A defect was found. Do not publish.",
    Result.INCONCLUSIVE: "Neither good nor bad was shown: evidence is missing or not enough. Do not publish "
    "on it.",
}
WAIVING = (
    "Something was found against the candidate, and the policy waives it. Apart from that it answers as the "
    "baseline does within its scope, and the run could have seen the fault that its control had."
)
"""What `Result.QUALIFIED` means where a finding is waived."""

TESTED = frozenset({Label.MODEL, Label.MODEL_KIND, Label.SERVER, Label.DEVICE, Label.IMAGE, Label.REPLAY})
"""Labels of the scope that also tell what was tested."""

STANDINGS = {
    Standing.MISSED: "missed",
    Standing.LIMITATION: "not reached, a limitation",
    Standing.REACHED: "met",
    Standing.SHOWN: "only shown",
}
WEIGHTS = {
    Weight.DEFECT: "defect",
    Weight.UNTESTED: "not tested",
    Weight.WAIVED: "waived",
    Weight.SATISFIED: "met",
    Weight.NOTE: "note",
}


@dataclass(frozen=True, slots=True)
class Link:
    """Text, and where it leads; None where it leads nowhere."""

    text: str
    href: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """One finding as the page shows it.

    Attributes:
        finding: The finding.
        weight: Its weight in plain words.
        requests: The requests it names, leading to the token view.
        unnamed: Requests that are not listed for want of room.
        evidence: Its evidence, leading into the bundle where it names a file.
    """

    finding: Finding
    weight: str
    requests: tuple[Link, ...]
    unnamed: int
    evidence: tuple[Link, ...]


def html_report(material: Material) -> bytes:
    """Writes the HTML report of a run.

    Args:
        material: What it is made from. All of it is untrusted: the template escapes every value.

    Returns:
        One HTML document without scripts, which loads nothing. The same material gives the same bytes.
    """
    environment = Environment(
        loader=PackageLoader("qualify.reporting.html", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    assert environment.loader is not None
    style = environment.loader.get_source(environment, "report.css")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = environment.get_template("report.html.jinja").render(
        style=style, style_digest=digest, **_context(material)
    )
    return _NOT_TEXT.sub("\N{REPLACEMENT CHARACTER}", page).encode("utf-8", errors="replace")


def _context(material: Material) -> Mapping[str, object]:
    record, verdict = material.record, material.verdict
    measured = measure(record, material.policy)
    tokens = token_view(record, measured)
    files = _files(material.bundle)
    links = {name: material.links + quote(name) for name in files}
    findings = [_finding(item, tokens, links) for item in verdict.findings]
    waived = any(item.weight is Weight.WAIVED for item in verdict.findings)
    arms = (verdict.comparison.arms if verdict.comparison else ()) or ()
    return {
        "verdict": verdict,
        "meaning": WAIVING if waived and verdict.result is Result.QUALIFIED else MEANINGS[verdict.result],
        "waived": untold_waivers(verdict),
        "plan": material.plan,
        "state": material.state,
        "record": record,
        "harness": __version__,
        "identity": tuple(_identity(material)),
        "configurations": _configurations(record),
        "gpus": gpu_table(material.bundle, record.arms),
        "findings": findings[:MOST_FINDINGS],
        "findings_left_out": max(len(findings) - MOST_FINDINGS, 0),
        "control": next((arm for arm in arms if arm.arm == Arm.CONTROL), None),
        "control_findings": [item for item in findings if item.finding.rule == "control"],
        "coverage": [(full_name(cell), cell, standing(verdict, cell)) for cell in verdict.coverage],
        "standings": STANDINGS,
        "figures": _figures(material, measured),
        "rules": [_rules(arm) for arm in arms],
        "plots": draw_all(record, measured),
        "heat_key": tuple(zip([ink.role for ink in HEAT], _heat_key(), strict=True)),
        "tokens": tokens,
        "files": [Link(name, links[name]) for name in files[:MOST_FILES]],
        "files_left_out": max(len(files) - MOST_FILES, 0),
        "links": links,
        "nats": nats,
    }


def _identity(material: Material) -> Iterator[tuple[str, str]]:
    """What was tested, most telling first."""
    plan, verdict, state = material.plan, material.verdict, material.state
    yield "subject", verdict.subject
    yield from ((label, value) for label, value in verdict.scope if label in TESTED)
    yield from (("machine: " + label, value) for label, value in plan.machine)
    yield "checkpoint", plan.model_sha256 or "not known"
    yield "serving environment", plan.distributions_sha256 or "not known"
    yield "run", f"{state.date}, {state.status}" + (f": {state.why}" if state.why else "")
    yield "plan", plan.plan_id
    yield "policy", f"{material.policy.name}, sha256 {verdict.policy_sha256}"
    yield "harness that ran it", state.harness
    for arm, source in state.adopted:
        yield f"{arm} taken over from", source
    if state.adopted:
        yield "oldest evidence", state.oldest


def _configurations(record: RunRecord) -> Table | None:
    """What each server said of its own configuration once it was ready."""
    if not record.configurations:
        return None
    header = (
        "arm",
        "graph mode",
        "captured batch sizes",
        "eager",
        "most requests at once",
        "longest context",
    )
    rows = [
        (
            str(arm),
            *(said.graph_mode or said.why or "not known", ", ".join(map(str, said.capture_sizes)) or "none"),
            {True: "yes", False: "no", None: "not known"}[said.enforce_eager],
            *(str(value or "not known") for value in (said.max_num_seqs, said.max_model_len)),
        )
        for arm, said in record.configurations.items()
    ]
    return Table(caption="What each server said of itself", header=header, rows=tuple(rows))


def _files(bundle: Bundle) -> list[str]:
    """Evidence in the bundle, sorted. Not the reports: they come and go with whoever makes them."""
    names = (
        path.relative_to(bundle.root).as_posix()
        for path in bundle.root.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    made = {MANIFEST, STATEMENT}
    return sorted(name for name in names if name not in made and (_is_evidence(name)))


def _is_evidence(name: str) -> bool:
    """Files of the bundle's root are reports, but for what a run begins with and its verdict."""
    roots = {"plan.json", "run.json", "image.json", "lock.json", "sbom.cdx.json", "verdict.json"}
    return len(PurePosixPath(name).parts) > 1 or name in roots


def _finding(finding: Finding, tokens: TokenView | None, links: Mapping[str, str]) -> FindingView:
    anchors = {view.request_id: f"#{view.anchor}" for view in tokens.requests} if tokens else {}
    return FindingView(
        finding=finding,
        weight=WEIGHTS[finding.weight],
        requests=tuple(Link(name, anchors.get(name)) for name in finding.request_ids[:MOST_NAMED]),
        unnamed=max(len(finding.request_ids) - MOST_NAMED, 0),
        evidence=tuple(Link(text, links.get(text)) for text in finding.evidence),
    )


def _figures(material: Material, measured: Measured) -> Table | None:
    """Floor, candidate and control in one measure: every pair of runs at every position that it shares."""
    comparison = material.verdict.comparison
    if comparison is None:
        return None
    compared = dict(measured.spreads)
    entries = [("floor", comparison.floor, "", "")]
    for arm in comparison.arms:
        margin = f"{arm.margin:g} times" if arm.margin is not None else ""
        entries.append((arm.arm, arm.spread, nats(arm.excess), margin))
    return Table(
        caption="Divergence in nats, over all pairs of runs",
        header=(
            *("", "positions", "comparisons", "that differ", "mean", "99%", "largest"),
            *("same top token", "excess", "margin"),
        ),
        rows=tuple(
            (name, str(spread.positions), *_spread(compared[name]), share(spread.same_top), excess, margin)
            for name, spread, excess, margin in entries
            if name in compared
        ),
    )


def _spread(values: Nats) -> tuple[str, ...]:
    """Number of comparisons, those that differ, mean, 99th percentile and largest."""
    counts = (str(len(values)), str(int((values > 0).sum())))
    if not len(values):
        return (*counts, "", "", "")
    return (
        *counts,
        *(nats(float(each)) for each in (values.mean(), np.quantile(values, 0.99), values.max())),
    )


def _rules(arm: ArmComparison) -> Table:
    """What each rule counted, and what it would have needed."""
    return Table(
        caption=f"What each rule found: {arm.arm}",
        header=("rule", "where", "against it", "of", "by chance", "limit", "spoke"),
        rows=tuple(
            (
                *(item.rule, item.scope, str(item.hits), str(item.of)),
                *("" if item.p is None else f"{item.p:.2g}", _limit(item), "yes" if item.fired else "no"),
            )
            for item in arm.evidence
        ),
    )


def _limit(item: Evidence) -> str:
    """What must not be exceeded: nats of two rules, of the others the probability beside it."""
    if item.rule not in ("exact", "ceiling"):
        return f"{item.limit:.2g}"
    return f"{item.limit:.2g} nats" if item.limit else "any difference"


def _heat_key() -> list[str]:
    edges = [f"{edge:g}" for edge in HEAT_EDGES]
    between = [f"to {edge}" for edge in edges[1:]]
    return ["exactly 0", f"under {edges[0]}", *between, f"over {edges[-1]}"]
