"""Statements: what they say of a bundle, and that nothing but the truth verifies."""

import base64
import datetime
import json
import shutil
from dataclasses import replace

import msgspec
import pytest

from qualify.errors import EvidenceError, UsageError
from qualify.evidence.bundle import MANIFEST, STATEMENT, Bundle, seal, verify
from qualify.evidence.digests import canonical_json, sha256_file
from qualify.evidence.signature import read_private_key, sign
from qualify.evidence.statement import make_statement, sha256_of
from qualify.evidence.verification import check_age, verify_bundle, verify_statement
from qualify.findings import Result
from qualify.images.identity import IMAGE_FILE, ImageIdentity
from qualify.plan import Plan
from tests.imagebundles import DIGEST, Keys, image_bundle, judged

HEX = DIGEST.removeprefix("sha256:")


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


@pytest.fixture
def bundle(served, tmp_path, keys):
    return keys.sign(image_bundle(served, tmp_path / "bundle"))


def payload(bundle):
    envelope = json.loads((bundle.root / STATEMENT).read_bytes())
    return json.loads(base64.b64decode(envelope["payload"]))


def resign(bundle, keys, change):
    """Signs an edited statement with the right key."""
    statement = payload(bundle)
    change(statement)
    content = sign(canonical_json(statement), read_private_key(keys.private))
    bundle.write_bytes(STATEMENT, content)


def test_says_what_the_bundle_says(bundle):
    said = payload(bundle)
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert said["subject"] == [{"name": "fake", "digest": {"sha256": HEX}}]
    predicate = said["predicate"]
    assert predicate["result"] == "PASSED"
    assert "control" in predicate["passedTests"]
    assert predicate["failedTests"] == predicate["warnedTests"] == []
    configuration = {item["name"]: item["digest"]["sha256"] for item in predicate["configuration"]}
    assert set(configuration) == {"inputs/policy.yaml", "inputs/release.yaml", "inputs/scenarios/mixed.yaml"}
    run = predicate["qualifyRun"]
    assert run["verdict"] == "qualified"
    assert run["subject"] == f"image@{DIGEST}"
    assert run["scope"]["launcher"] == "docker"
    assert run["limitations"] == json.loads((bundle.root / "verdict.json").read_bytes())["limitations"] != []
    assert run["bundleSha256"] == sha256_file(bundle.root / MANIFEST)
    assert run["verdictSha256"] == sha256_file(bundle.root / "verdict.json")
    assert run["policySha256"] == sha256_file(bundle.root / "inputs/policy.yaml")
    assert run["planId"] == json.loads((bundle.root / "run.json").read_bytes())["plan_id"]


def test_rejected_and_waived_are_told_apart(served_rejected, tmp_path, keys):
    rejected = keys.sign(image_bundle(served_rejected, tmp_path / "rejected"))
    assert payload(rejected)["predicate"]["result"] == "FAILED"
    assert "divergence" in payload(rejected)["predicate"]["failedTests"]
    verified = verify_bundle(rejected, keys.verifying)
    assert verified.statement.run.verdict is verified.verdict.result is Result.REJECTED
    rules = payload(rejected)["predicate"]["failedTests"]
    waivers = [
        {"rule": rule, "owner": "me", "reason": "for this test", "expires": datetime.date(2026, 12, 31)}
        for rule in rules
    ]
    waived = keys.sign(image_bundle(served_rejected, tmp_path / "waived", policy={"waivers": waivers}))
    predicate = payload(waived)["predicate"]
    assert predicate["result"] == "WARNED"
    assert predicate["warnedTests"] == rules
    assert not set(predicate["passedTests"]) & set(rules)


def test_verifies_and_is_deterministic(bundle, keys):
    before = (bundle.root / STATEMENT).read_bytes()
    verified = verify_bundle(bundle, keys.verifying)
    assert verified.verdict.result is Result.QUALIFIED
    assert verified.envelope == before
    keys.sign(bundle)
    assert (bundle.root / STATEMENT).read_bytes() == before


def test_statement_is_no_part_of_the_seal(bundle):
    verify(bundle)
    before = (bundle.root / MANIFEST).read_bytes()
    seal(bundle)
    assert (bundle.root / MANIFEST).read_bytes() == before


def test_private_key_is_not_in_the_bundle(bundle, keys):
    secret = b"".join(keys.private.read_bytes().splitlines()[1:-1])
    assert not any(
        b"PRIVATE KEY" in path.read_bytes() or secret in path.read_bytes()
        for path in bundle.root.rglob("*")
        if path.is_file()
    )


def test_one_changed_byte_anywhere_is_refused(bundle, keys):
    files = sorted(path for path in bundle.root.rglob("*") if path.is_file())
    assert {path.name for path in files} >= {
        "plan.json",
        "run.json",
        "verdict.json",
        MANIFEST,
        STATEMENT,
        IMAGE_FILE,
    }
    for path in files:
        content = path.read_bytes()
        if not content:
            continue
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(EvidenceError):
            verify_bundle(bundle, keys.verifying)
        path.write_bytes(content)
    verify_bundle(bundle, keys.verifying)


def test_missing_and_added_files_are_refused(bundle, keys):
    (bundle.root / "extra").touch()
    with pytest.raises(EvidenceError, match="extra: is not in the manifest"):
        verify_bundle(bundle, keys.verifying)
    (bundle.root / "extra").unlink()
    (bundle.root / "junit.xml").unlink()
    with pytest.raises(EvidenceError, match=r"junit\.xml: is missing"):
        verify_bundle(bundle, keys.verifying)


def test_no_statement_and_no_seal(bundle, keys):
    (bundle.root / STATEMENT).rename(bundle.root.parent / "kept")
    with pytest.raises(EvidenceError, match="no signed statement"):
        verify_bundle(bundle, keys.verifying)
    (bundle.root / MANIFEST).unlink()
    with pytest.raises(EvidenceError, match="never sealed"):
        verify_bundle(bundle, keys.verifying, bundle.root.parent / "kept")


def test_wrong_key(bundle, tmp_path):
    with pytest.raises(EvidenceError, match="is signed by"):
        verify_bundle(bundle, Keys(tmp_path, "other.key").verifying)


def test_statement_of_another_run(bundle, served, tmp_path, keys):
    other = keys.sign(image_bundle(served, tmp_path / "other", date="2026-11-30"))
    shutil.copy(other.root / STATEMENT, bundle.root / STATEMENT)
    with pytest.raises(EvidenceError, match=r"belongs to another run \(fake, 2026-11-30"):
        verify_bundle(bundle, keys.verifying)


def test_resealed_after_a_change_is_another_bundle(bundle, keys):
    bundle.write_bytes("summary.txt", b"all is well\n")
    seal(bundle)
    with pytest.raises(EvidenceError, match="or the manifest was changed"):
        verify_bundle(bundle, keys.verifying)


def test_forged_verdict_does_not_follow_from_the_evidence(served_rejected, tmp_path, keys):
    """Even whoever holds the key cannot have a rejected run pass for a qualified one."""
    bundle = image_bundle(served_rejected, tmp_path / "forged")
    forged = replace(judged(bundle), result=Result.QUALIFIED)
    bundle.write("verdict.json", forged)
    seal(bundle)
    statement = make_statement(bundle, forged)
    bundle.write_bytes(STATEMENT, sign(canonical_json(statement), read_private_key(keys.private)))
    with pytest.raises(EvidenceError, match=r"verdict\.json: is not the verdict"):
        verify_bundle(bundle, keys.verifying)


@pytest.mark.parametrize(
    "edit",
    [
        lambda said: said["predicate"].update(result="WARNED"),
        lambda said: said["predicate"]["qualifyRun"]["scope"].update(device="CPU"),
        lambda said: said["subject"][0]["digest"].update(sha256="2" * 64),
        lambda said: said["predicate"]["qualifyRun"].update(limitations=[]),
        lambda said: said["predicate"]["qualifyRun"].update(date="2030-01-01T00:00:00+00:00"),
    ],
)
def test_signed_but_not_what_the_bundle_says(bundle, keys, edit):
    resign(bundle, keys, edit)
    with pytest.raises(EvidenceError, match="does not say what the bundle says"):
        verify_bundle(bundle, keys.verifying)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda said: said.update(_type="https://in-toto.io/Statement/v2"), "of another type"),
        (lambda said: said.update(predicateType="https://slsa.dev/provenance/v1"), "of another type"),
        (lambda said: said["predicate"]["qualifyRun"].update(format="qualify/statement/2"), "of format"),
        (lambda said: said["subject"].append(said["subject"][0]), "about 2 subjects"),
        (lambda said: said["predicate"].pop("qualifyRun"), "no statement about a test result"),
        (lambda said: said["predicate"]["qualifyRun"].update(verdict="fine"), "no statement about"),
    ],
)
def test_signed_something_else(bundle, keys, edit, said):
    resign(bundle, keys, edit)
    with pytest.raises(EvidenceError, match=said):
        verify_bundle(bundle, keys.verifying)


def test_unknown_fields_are_ignored(bundle, keys):
    """As in-toto's parsing rules demand; they are signed, and change nothing."""
    resign(bundle, keys, lambda said: said["predicate"].update(url="https://ci.example.com/1", newer=1))
    assert verify_bundle(bundle, keys.verifying).verdict.result is Result.QUALIFIED


def test_image_file_of_another_image(bundle, keys):
    identity = bundle.read(IMAGE_FILE, ImageIdentity)
    bundle.write(IMAGE_FILE, replace(identity, digest="sha256:" + "2" * 64))
    seal(bundle)
    keys.sign(bundle)
    with pytest.raises(EvidenceError, match=r"names image@sha256:2222.*verdict is about image@sha256:1111"):
        verify_bundle(bundle, keys.verifying)


def test_statement_alone(bundle, keys):
    file = bundle.root / STATEMENT
    assert verify_statement(file, keys.verifying, HEX).run.verdict is Result.QUALIFIED
    with pytest.raises(EvidenceError, match=f"is about image@{DIGEST}, not about sha256:2222"):
        verify_statement(file, keys.verifying, "2" * 64)
    resign(bundle, keys, lambda said: said["subject"][0]["digest"].update(sha256="2" * 64))
    for digest in (HEX, "2" * 64):  # subject and run contradict each other
        with pytest.raises(EvidenceError, match="is about"):
            verify_statement(file, keys.verifying, digest)


def test_attached_servers_are_nothing_to_state_about(bundle):
    plan = bundle.read("plan.json", Plan)
    bundle.write("plan.json", replace(plan, subject="unbound"))
    with pytest.raises(UsageError, match="binds to nothing"):
        make_statement(bundle, judged(bundle))


def test_process_runs_bind_to_their_digest(served, tmp_path, keys):
    shutil.copytree(served, tmp_path / "process")
    bundle = keys.sign(Bundle(tmp_path / "process"))
    statement = verify_bundle(bundle, keys.verifying).statement
    assert statement.run.subject == f"sha256:{statement.subject[0].digest['sha256']}"


@pytest.mark.parametrize(
    ("today", "said"),
    [
        ("2026-12-31", None),
        ("2026-12-01", None),
        ("2026-11-30", None),  # clocks and time zones
        ("2027-01-01", "has expired: the run was on 2026-12-01, 31 days ago; 30 days are accepted"),
        ("2026-11-29", "from the future"),
    ],
)
def test_age(bundle, keys, today, said):
    statement = verify_bundle(bundle, keys.verifying).statement
    day = datetime.date.fromisoformat(today)
    if said is None:
        check_age(statement, day, 30)
    else:
        with pytest.raises(EvidenceError, match=said):
            check_age(statement, day, 30)


@pytest.mark.parametrize("digest", ["", "1" * 64, "sha256:1", "sha256:" + "A" * 64, "sha512:" + "1" * 64])
def test_no_digests(digest):
    with pytest.raises(UsageError, match="is no digest"):
        sha256_of(digest)


def test_round_trip(bundle, keys):
    statement = verify_bundle(bundle, keys.verifying).statement
    assert msgspec.json.decode(canonical_json(statement), type=type(statement)) == statement
