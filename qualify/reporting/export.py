"""The export: a bundle told in the field names in which release engineers keep their receipts.

Nothing is made up: what the bundle holds no evidence of is null, and `unknown` says why.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Literal

import msgspec

from qualify.errors import EvidenceError
from qualify.evidence.bundle import MANIFEST, Bundle
from qualify.findings import Result, Verdict, Weight
from qualify.images.checks import contract_rule
from qualify.images.identity import IMAGE_FILE, LOCK_FILE, SBOM_FILE, ImageIdentity
from qualify.images.lock import ReleaseLock
from qualify.reporting.coverage import Standing, cells_that_are, full_name
from qualify.reporting.material import Material
from qualify.reporting.receipt import Sha256
from qualify.serving.telemetry import GPU_SAMPLES
from qualify.transcript import Arm

_NO_IMAGE = "the release was not served from an image"
_CONTRACT = contract_rule("")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTree:
    """One folder that was built into the image.

    Attributes:
        commit: The last commit that changed it.
        tree: Its tree at that commit.
        modified: True where files differ from that tree.
        content_sha256: SHA-256 over its files' paths and contents.
    """

    commit: str
    tree: str
    modified: bool
    content_sha256: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What was tried on the served release, and with what outcome.

    Attributes:
        arms: How each arm ended: ``served`` is the good end.
        scenarios: Names of the scenarios.
        requests_compared: Requests of the candidate that were compared; null where none could be.
        positions_compared: Positions of these requests; null just so.
        positions_that_differ: Those at which the candidate's distribution is not exactly the baseline's.
        controls: Sentences about controls that were caught.
        contracts: Each subject of the contract suite, with its finding's weight (``satisfied`` is good).
        coverage_missed: Names of required cells of the coverage table that were not reached.
        reasons: Sentences that decided the verdict.
    """

    arms: dict[str, str]
    scenarios: tuple[str, ...]
    requests_compared: int | None
    positions_compared: int | None
    positions_that_differ: int | None
    controls: tuple[str, ...]
    contracts: dict[str, str]
    coverage_missed: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of the bundle.

    Attributes:
        path: Its path in the bundle.
        sha256: SHA-256 of its content, as in the bundle's manifest.
    """

    path: str
    sha256: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A bundle in the field names of release engineers.

    Attributes:
        schema_version: Version of this format.
        status: The verdict: ``qualified``, ``rejected`` or ``inconclusive``; only the first is a pass.
        release: Name of the release.
        subject: What the verdict is bound to.
        date: When the run began (UTC).
        evidence_date: When the run began (UTC) that made the oldest evidence; the date where none was taken
            over from an earlier run.
        image: Where the image lies, by digest: ``REGISTRY/NAME@sha256:...``; null without an image.
        image_id: Digest of the image's configuration; null where the bundle does not hold it.
        registry_digest: Digest of the image's manifest, as the registry gave it back; null without an image.
        gpu_ids: Indices of the graphics cards that served; null where that was not recorded.
        source_trees: Folders built into the image, by name; null without an image.
        runtime_packages: Version of each Python package in the image; null where they were not listed.
        runtime_validation: What was tried, and with what outcome.
        limitations: What was not covered.
        artifacts: Every file of the bundle.
        unknown: For each field that is null, why.
    """

    schema_version: Literal["2"]
    status: Result
    release: str
    subject: str
    date: str
    evidence_date: str
    image: str | None
    image_id: str | None
    registry_digest: str | None
    gpu_ids: tuple[str, ...] | None
    source_trees: dict[str, SourceTree] | None
    runtime_packages: dict[str, str] | None
    runtime_validation: Validation
    limitations: tuple[str, ...]
    artifacts: tuple[Artifact, ...]
    unknown: dict[str, str]


class _Component(msgspec.Struct):
    name: str
    version: str = ""
    purl: str = ""


class _Bill(msgspec.Struct):
    components: list[_Component]


def make_export(material: Material) -> Export:
    """Tells a sealed bundle in the field names of release engineers.

    Args:
        material: The bundle and its verdict.

    Returns:
        The export; every value comes from a file of the bundle.

    Raises:
        EvidenceError: The bundle was never sealed, or one of its files is damaged.
    """
    bundle, verdict = material.bundle, material.verdict
    unknown = {"image_id": "a bundle holds the digest of the image's manifest, not of its configuration"}
    if not (bundle.root / MANIFEST).exists():
        raise EvidenceError(
            "the bundle was never sealed, so its files have no digests",
            where=str(bundle.root),
            advice="Run again to the end; unchanged arms are not served again.",
        )
    image = bundle.read(IMAGE_FILE, ImageIdentity) if (bundle.root / IMAGE_FILE).exists() else None
    packages, gpus = _packages(bundle), _gpus(bundle)
    if image is None:
        unknown |= dict.fromkeys(("image", "image_id", "registry_digest", "source_trees"), _NO_IMAGE)
    if packages is None:
        unknown["runtime_packages"] = "no bill of materials: only images are looked into"
    if isinstance(gpus, str):
        unknown["gpu_ids"] = gpus
    return Export(
        schema_version="2",
        status=verdict.result,
        release=verdict.release,
        subject=verdict.subject,
        date=material.state.date,
        evidence_date=material.state.oldest,
        image=image.reference if image else None,
        image_id=None,
        registry_digest=image.digest if image else None,
        gpu_ids=None if isinstance(gpus, str) else gpus,
        source_trees=_sources(bundle) if image else None,
        runtime_packages=packages,
        runtime_validation=_validation(material),
        limitations=verdict.limitations,
        artifacts=tuple(
            Artifact(path=path, sha256=digest)
            for path, digest in sorted(bundle.read(MANIFEST, dict[str, str]).items())
        ),
        unknown=dict(sorted(unknown.items())),
    )


def _sources(bundle: Bundle) -> dict[str, SourceTree]:
    lock = bundle.read(LOCK_FILE, ReleaseLock)
    return {
        source.name: SourceTree(
            commit=source.commit,
            tree=source.tree,
            modified=source.modified,
            content_sha256=source.content_sha256,
        )
        for source in lock.sources
    }


def _packages(bundle: Bundle) -> dict[str, str] | None:
    if not (bundle.root / SBOM_FILE).exists():
        return None
    bill = bundle.read(SBOM_FILE, _Bill)
    return {item.name: item.version for item in bill.components if item.purl.startswith("pkg:pypi/")}


def _gpus(bundle: Bundle) -> tuple[str, ...] | str:
    """Indices of the cards that served, or why they are not known."""
    path = bundle.arm(Arm.CANDIDATE) / GPU_SAMPLES
    if not path.exists():
        return "no graphics card was watched while the candidate was served"
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        rows = csv.DictReader(stream, skipinitialspace=True)
        found = sorted({row["index"] for row in rows if (row.get("index") or "").isdigit()}, key=int)
    if len(found) == 1:
        return tuple(found)
    if not found:
        return "no sample of a graphics card was written"
    return f"{len(found)} cards were watched, and nothing says which of them served"


def _validation(material: Material) -> Validation:
    verdict = material.verdict
    arms = verdict.comparison.arms if verdict.comparison else ()
    candidate = next((arm for arm in arms if arm.arm == Arm.CANDIDATE), None)
    return Validation(
        arms={str(arm): str(entry.state) for arm, entry in material.record.arms.items()},
        scenarios=tuple(scenario.name for scenario in material.plan.scenarios),
        requests_compared=candidate.requests if candidate else None,
        positions_compared=candidate.spread.positions if candidate else None,
        positions_that_differ=candidate.spread.differ if candidate else None,
        controls=tuple(
            item.summary
            for item in verdict.findings
            if item.rule == "control" and item.weight is Weight.SATISFIED
        ),
        contracts=_contracts(verdict),
        coverage_missed=tuple(full_name(cell) for cell in cells_that_are(verdict, Standing.MISSED)),
        reasons=verdict.reasons,
    )


def _contracts(verdict: Verdict) -> dict[str, str]:
    return {
        item.rule.removeprefix(_CONTRACT): str(item.weight)
        for item in verdict.findings
        if item.rule.startswith(_CONTRACT)
    }
