"""Bundles as runs of images leave them, made from a run on the fake server: only what binds them is other."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import yaml

from qualify.evidence.bundle import MANIFEST, Bundle, RunState, seal
from qualify.evidence.digests import canonical_json
from qualify.evidence.recording import read_policy, read_record
from qualify.evidence.signature import generate_key, read_private_key, read_public_key
from qualify.evidence.statement import sign_bundle
from qualify.findings import Verdict
from qualify.gate import judge
from qualify.images.identity import IMAGE_FILE, ImageIdentity
from qualify.plan import Plan

GOOD_SCOPE = {
    "device": "GPU",
    "launcher": "docker",
    "replay": "FULL CUDA graph replay",
    "model kind": "local",
}
DIGEST = "sha256:" + "1" * 64


def image_bundle(
    served: Path,
    root: Path,
    *,
    digest: str = DIGEST,
    repository: str = "127.0.0.1:1/staging/ds4",
    scope: dict[str, str] | None = None,
    date: str = "2026-12-01",
    policy: dict | None = None,
) -> Bundle:
    """Copies a bundle and binds it to an image; judged and sealed, not signed.

    Args:
        served: Bundle of a run on the fake server.
        root: Where the copy goes.
        digest: The image's digest.
        repository: Its staging repository.
        scope: Labels that differ from `GOOD_SCOPE`; an empty value leaves one out.
        date: Date of the run.
        policy: Keys that differ from the run's policy.
    """
    shutil.copytree(served, root)
    bundle = Bundle(root)
    (root / MANIFEST).unlink()
    plan = bundle.read("plan.json", Plan)
    assert GOOD_SCOPE.keys() <= dict(plan.scope).keys(), "the plan does not say what publication asks for"
    labels = dict(plan.scope) | GOOD_SCOPE | (scope or {})
    said = tuple(sorted((label, value) for label, value in labels.items() if value))
    plan = replace(plan, subject=f"image@{digest}", scope=said)
    bundle.write("plan.json", plan)
    state = bundle.read("run.json", RunState)
    bundle.write("run.json", replace(state, date=f"{date}T10:00:00+00:00", plan_id=plan.plan_id))
    bundle.write(
        IMAGE_FILE,
        ImageIdentity(digest=digest, reference=f"{repository}@{digest}", build_id="0" * 64, labels=()),
    )
    if policy:
        file = root / "inputs/policy.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | policy))
    bundle.write_bytes("verdict.json", canonical_json(judged(bundle)))
    seal(bundle)
    return bundle


def judged(bundle: Bundle) -> Verdict:
    return judge(read_record(bundle), *read_policy(bundle))


class Keys:
    """A pair of keys in a directory."""

    def __init__(self, directory: Path, name: str = "release.key") -> None:
        self.private = directory / name
        self.public = directory / f"{name}.pub"
        generate_key(self.private, self.public)

    def sign(self, bundle: Bundle) -> Bundle:
        sign_bundle(bundle, judged(bundle), read_private_key(self.private))
        return bundle

    @property
    def verifying(self):
        return read_public_key(self.public)
