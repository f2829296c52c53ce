"""The commands as a release engineer types them: keygen, run --key, sign, verify, publish."""

import datetime
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qualify.errors import ExitCode
from qualify.evidence.bundle import STATEMENT
from tests.imagebundles import DIGEST, Keys, image_bundle
from tests.projects import ENVIRONMENT, Outcome
from tests.registry.fake import running

CPU_SCOPE = {"device": "CPU", "replay": "emulated replay", "model kind": "synthetic"}


def qualify(*arguments: object, cwd: Path | None = None) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "qualify", *map(str, arguments)],
        env={**ENVIRONMENT, "DOCKER_CONFIG": "/nowhere"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
    )
    assert "Traceback" not in done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


def test_keygen(tmp_path):
    outcome = qualify("keygen", "release.key", cwd=tmp_path)
    assert outcome.code == 0
    assert outcome.out.startswith("SHA256:")
    assert (tmp_path / "release.key").stat().st_mode & 0o777 == 0o600
    assert b"PUBLIC KEY" in (tmp_path / "release.key.pub").read_bytes()
    again = qualify("keygen", "release.key", cwd=tmp_path)
    assert again.code == ExitCode.USAGE
    assert "not overwritten" in again.err


def test_run_signs_and_signs_again_with_another_key(project, keys, tmp_path):
    outcome = project.run("--key", str(keys.private))
    assert outcome.code == ExitCode.QUALIFIED, outcome.err
    verified = qualify("verify", project.bundle(), "--key", keys.public)
    assert verified.code == ExitCode.QUALIFIED, verified.err
    assert json.loads(verified.out)["predicate"]["result"] == "PASSED"
    assert "every file of the bundle" in verified.err
    other = Keys(tmp_path, "other.key")
    assert qualify("verify", project.bundle(), "--key", other.public).code == ExitCode.INCONCLUSIVE
    again = project.run("--key", str(other.private))
    assert "nothing has changed" in again.err
    assert qualify("verify", project.bundle(), "--key", other.public).code == ExitCode.QUALIFIED


def test_wrong_key_is_told_before_anything_starts(project, keys):
    keys.private.chmod(0o644)
    outcome = project.run("--key", str(keys.private))
    assert outcome.code == ExitCode.USAGE
    assert "read or written by others" in outcome.err
    assert project.bundles() == []


def test_attached_servers_cannot_be_signed(project, keys):
    urls = ("--attach", "baseline=http://127.0.0.1:9", "--attach", "candidate=http://127.0.0.1:9")
    outcome = project.run("--key", str(keys.private), "--no-control", *urls)
    assert outcome.code == ExitCode.USAGE
    assert "binds to nothing" in outcome.err
    assert project.bundles() == []


def test_sign_later(served, tmp_path, keys):
    bundle = shutil.copytree(served, tmp_path / "bundle")
    assert "qualify sign" in qualify("verify", bundle, "--key", keys.public).err
    signed = qualify("sign", bundle, "--key", keys.private)
    assert signed.code == ExitCode.QUALIFIED, signed.err
    assert qualify("verify", bundle, "--key", keys.public).code == ExitCode.QUALIFIED


def test_damaged_bundle_is_not_signed(served, tmp_path, keys):
    bundle = shutil.copytree(served, tmp_path / "bundle")
    (bundle / "arms/baseline/server.log").write_text("other")
    assert qualify("sign", bundle, "--key", keys.private).code == ExitCode.INCONCLUSIVE
    assert not (bundle / STATEMENT).exists()


def test_rejected_stays_rejected_however_well_signed(served_rejected, tmp_path, keys):
    bundle = shutil.copytree(served_rejected, tmp_path / "bundle")
    assert qualify("sign", bundle, "--key", keys.private).code == ExitCode.REJECTED
    assert qualify("verify", bundle, "--key", keys.public).code == ExitCode.REJECTED


def test_statement_without_its_bundle(served, tmp_path, keys):
    bundle = keys.sign(image_bundle(served, tmp_path / "bundle"))
    file = shutil.copy(bundle.root / STATEMENT, tmp_path / "kept.json")
    good = qualify("verify", file, "--key", keys.public, "--digest", DIGEST)
    assert good.code == ExitCode.QUALIFIED, good.err
    assert "the bundle was not at hand" in good.err
    other = qualify("verify", file, "--key", keys.public, "--digest", "sha256:" + "2" * 64)
    assert other.code == ExitCode.INCONCLUSIVE
    for digest in ([], ["--digest", "1.0"]):
        assert qualify("verify", file, "--key", keys.public, *digest).code == ExitCode.USAGE
    for digest, code in ((DIGEST, ExitCode.QUALIFIED), ("sha256:" + "2" * 64, ExitCode.INCONCLUSIVE)):
        found = qualify("verify", bundle.root, "--key", keys.public, "--statement", file, "--digest", digest)
        assert found.code == code, found.err


def test_verify_refuses_old_statements(served, tmp_path, keys):
    bundle = keys.sign(image_bundle(served, tmp_path / "bundle", date="2020-01-01")).root
    assert qualify("verify", bundle, "--key", keys.public).code == ExitCode.QUALIFIED
    old = qualify("verify", bundle, "--key", keys.public, "--max-age-days", 30)
    assert old.code == ExitCode.INCONCLUSIVE
    assert "has expired" in old.err


def test_publish(served, served_rejected, tmp_path, keys):
    policy = tmp_path / "publication.yaml"
    said = {
        "format": "qualify/publication/1",
        "name": "test",
        "devices": ["CPU"],
        "replays": ["emulated replay"],
        "model_kinds": ["synthetic"],
        "channels": ["stable"],
    }
    policy.write_text(yaml.safe_dump(said))
    with running() as fake:
        digest = fake.put_image("staging/a", "t")
        more = {"digest": digest, "repository": f"{fake.host}/staging/a", "scope": CPU_SCOPE, "date": today()}
        good = keys.sign(image_bundle(served, tmp_path / "good", **more)).root
        bad = keys.sign(image_bundle(served_rejected, tmp_path / "bad", **more)).root
        options = ("--key", keys.public, "--to", f"{fake.host}/release/a:1.0", "--policy", policy)
        dry = qualify("publish", good, *options, "--dry-run")
        assert dry.code == 0, dry.err
        assert qualify("publish", bad, *options).code == ExitCode.REJECTED
        assert qualify("publish", good, *options[:4]).code == ExitCode.INCONCLUSIVE
        assert fake.writes() == []
        done = qualify("publish", good, *options, "--channel", "stable")
        assert done.code == 0, done.err
        assert fake.tag("release/a", "1.0") == fake.tag("release/a", "stable") == digest
        assert qualify("publish", good, *options).code == 0
        fake.put_image("release/a", "2.0", "other")
        taken = qualify("publish", good, *options[:3], f"{fake.host}/release/a:2.0", *options[4:])
        assert taken.code == ExitCode.USAGE
        assert qualify("publish", good, *options[:3], "release/a:1.0", *options[4:]).code == ExitCode.USAGE
    down = qualify("publish", good, *options)
    assert down.code == ExitCode.MACHINERY
    assert "does not answer" in down.err
