"""Publication over HTTP: only what was qualified, byte for byte, and nothing half published."""

import datetime
import json
import shutil

import pytest

from qualify.errors import EvidenceError, ExitCode, MachineryError, QualifyError, UsageError
from qualify.evidence.bundle import STATEMENT, Bundle
from qualify.policy import PublicationPolicy
from qualify.publish import NotQualifiedError, Publication, publish, read_publication_policy
from qualify.registry.attach import cosign_tag, referrers_tag
from qualify.registry.reference import Reference
from tests.imagebundles import Keys, image_bundle, judged
from tests.registry.fake import digest_of, running

DAY = datetime.date(2026, 12, 2)
CPU = {"device": "CPU", "replay": "emulated replay", "model kind": "synthetic"}


class Shop:
    """A registry with a tested image in staging, its bundle, and a key."""

    def __init__(self, fake, served, root):
        self.fake, self.served, self.root = fake, served, root
        self.digest = fake.put_image("staging/ds4", "candidate")
        self.keys = Keys(root)
        self.said = []

    def bundle(self, name="bundle", served=None, **more) -> Bundle:
        more = {"digest": self.digest, "repository": f"{self.fake.host}/staging/ds4", **more}
        return self.keys.sign(image_bundle(served or self.served, self.root / name, **more))

    def publish(self, bundle, *, policy=None, tag="1.0", today=DAY, **more):
        publication = Publication(
            bundle=bundle,
            key=more.pop("key", self.keys.verifying),
            policy=PublicationPolicy(format="qualify/publication/1", name="test", **(policy or {})),
            target=Reference(self.fake.repository("release/ds4"), tag),
            source=more.pop("source", None),
            channels=more.pop("channels", ()),
            today=today,
            dry_run=more.pop("dry_run", False),
        )
        assert not more
        return publish(publication, self.said.append)

    def refuse(self, kind: type[QualifyError], match: str, code: ExitCode, bundle, **more) -> None:
        """Publishing is refused, and nothing is written."""
        with pytest.raises(kind, match=match) as raised:
            self.publish(bundle, **more)
        assert raised.value.exit_code is code
        assert self.fake.writes() == []

    def released(self, tag="1.0"):
        return self.fake.tag("release/ds4", tag)


@pytest.fixture
def shop(served, tmp_path):
    with running() as fake:
        yield Shop(fake, served, tmp_path)


def test_the_same_bytes_get_the_tag_and_the_statement(shop):
    bundle = shop.bundle()
    published = shop.publish(bundle)
    assert published.digest == shop.digest == shop.released()
    assert not published.was_there
    held = shop.fake.manifests
    assert held["release/ds4", "1.0"] == held["staging/ds4", shop.digest]
    assert (bundle.root / STATEMENT).read_bytes() in shop.fake.blobs.values()
    for tag in (cosign_tag(shop.digest), referrers_tag(shop.digest)):
        assert shop.released(tag)


def test_the_tag_is_the_last_thing_written(shop):
    shop.publish(shop.bundle())
    assert shop.fake.writes()[-1] == "PUT /v2/release/ds4/manifests/1.0"


def test_again_changes_nothing(shop):
    bundle = shop.bundle()
    shop.publish(bundle)
    before = dict(shop.fake.manifests), dict(shop.fake.blobs)
    assert shop.publish(bundle).was_there
    assert (shop.fake.manifests, shop.fake.blobs) == before
    assert "PUT /v2/release/ds4/manifests/1.0" not in shop.fake.log[-5:]


def test_dry_run_checks_everything_and_writes_nothing(shop):
    assert shop.publish(shop.bundle(), dry_run=True).digest == shop.digest
    assert shop.fake.writes() == []
    assert any("dry run" in line for line in shop.said)
    late = {"dry_run": True, "today": DAY.replace(year=2027)}
    shop.refuse(EvidenceError, "expired", ExitCode.INCONCLUSIVE, shop.bundle("late"), **late)


def test_rejected_is_refused(shop, served_rejected):
    bundle = shop.bundle(served=served_rejected)
    shop.refuse(NotQualifiedError, "is rejected: The candidate differs", ExitCode.REJECTED, bundle)


def test_inconclusive_is_refused(shop):
    bundle = shop.bundle(policy={"coverage": {"minimum_rows": 9}})
    shop.refuse(NotQualifiedError, "the verdict is inconclusive", ExitCode.INCONCLUSIVE, bundle)


def test_a_changed_byte_is_refused(shop):
    bundle = shop.bundle()
    for name in (STATEMENT, "arms/baseline/server.log", "manifest.json"):
        path = bundle.root / name
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        shop.refuse(EvidenceError, "changed|statement", ExitCode.INCONCLUSIVE, bundle)
        path.write_bytes(content)
    assert shop.publish(bundle)


def test_wrong_key(shop, tmp_path):
    key = Keys(tmp_path, "other").verifying
    shop.refuse(EvidenceError, "is signed by", ExitCode.INCONCLUSIVE, shop.bundle(), key=key)


def test_unsigned(shop):
    bundle = shop.bundle()
    (bundle.root / STATEMENT).unlink()
    shop.refuse(EvidenceError, "no signed statement", ExitCode.INCONCLUSIVE, bundle)


def test_statement_of_another_run(shop):
    bundle, other = shop.bundle(), shop.bundle("other", date="2026-11-30")
    (bundle.root / STATEMENT).write_bytes((other.root / STATEMENT).read_bytes())
    shop.refuse(EvidenceError, "belongs to another run", ExitCode.INCONCLUSIVE, bundle)


def test_expired(shop):
    bundle = shop.bundle()
    shop.refuse(EvidenceError, "has expired", ExitCode.INCONCLUSIVE, bundle, today=datetime.date(2027, 1, 1))
    assert shop.publish(bundle, today=datetime.date(2027, 1, 1), policy={"max_age_days": 31})


def test_waivers_are_compared_with_today(shop, served_rejected):
    waivers = [
        {"rule": rule, "owner": "owner", "reason": "for this test", "expires": datetime.date(2026, 12, 5)}
        for rule in ("divergence", "exact", "oracle")
    ]
    bundle = shop.bundle(served=served_rejected, policy={"waivers": waivers})
    late = datetime.date(2026, 12, 6)
    said = r"a waiver has expired since the run: divergence \(owner, 2026-12-05\).*today it is rejected"
    shop.refuse(NotQualifiedError, said, ExitCode.REJECTED, bundle, today=late)
    assert shop.publish(bundle, today=datetime.date(2026, 12, 5)).digest == shop.digest


def test_process_runs_bind_to_no_image(shop):
    shutil.copytree(shop.served, shop.root / "process")
    bundle = shop.keys.sign(Bundle(shop.root / "process"))
    shop.refuse(EvidenceError, "which is no image", ExitCode.INCONCLUSIVE, bundle)


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("device", "CPU"),
        ("launcher", "process"),
        ("launcher", "attach: the servers are what they say they are"),
        ("replay", "emulated replay"),
        ("model kind", "synthetic"),
        ("device", ""),
        ("model kind", ""),
    ],
)
def test_scope_that_is_not_accepted_by_default(shop, label, value):
    bundle = shop.bundle(scope={label: value})
    shop.refuse(EvidenceError, f"{label} {value or 'not said'!r}", ExitCode.INCONCLUSIVE, bundle)


def test_a_policy_can_accept_a_cpu_and_a_synthetic_model(shop):
    policy = {"devices": ["CPU"], "replays": ["emulated replay"], "model_kinds": ["synthetic"]}
    assert shop.publish(shop.bundle(scope=CPU), policy=policy).digest == shop.digest


@pytest.mark.parametrize(
    ("label", "value"), [("sources not as committed", "kernels"), ("modified after installation", "1: a.py")]
)
def test_what_no_commit_holds_is_published_only_where_that_is_accepted(shop, label, value):
    bundle = shop.bundle(scope={label: value})
    shop.refuse(EvidenceError, f"{label}: {value}", ExitCode.INCONCLUSIVE, bundle)
    assert shop.publish(bundle, policy={"accept_uncommitted": True}).digest == shop.digest


@pytest.mark.parametrize("profile", ["smoke", ""])
def test_a_policy_can_name_the_profiles(shop, profile):
    bundle = shop.bundle(scope={"profile": profile})
    wanted = {"policy": {"profiles": ["gate", "soak"]}}
    shop.refuse(EvidenceError, f"profile {profile or 'not said'!r}", ExitCode.INCONCLUSIVE, bundle, **wanted)
    good = shop.bundle("good", scope={"profile": "gate"})
    assert shop.publish(good, **wanted).digest == shop.digest


def test_a_policy_can_name_the_policies_that_may_judge(shop, served_rejected):
    expected = judged(shop.bundle()).policy_sha256
    waivers = [
        {"rule": rule, "owner": "owner", "reason": "for this test", "expires": datetime.date(2099, 12, 5)}
        for rule in ("divergence", "exact", "oracle")
    ]
    bundle = shop.bundle("waived", served=served_rejected, policy={"waivers": waivers})
    named = {"policies": [expected]}
    shop.refuse(EvidenceError, "judged by policy", ExitCode.INCONCLUSIVE, bundle, policy=named)
    assert shop.publish(shop.bundle("good"), policy=named).digest == shop.digest


def test_who_judged_and_what_was_waived_is_said_before_anything_is_written(shop, served_rejected):
    waivers = [
        {"rule": rule, "owner": "somebody", "reason": "for this test", "expires": datetime.date(2099, 12, 5)}
        for rule in ("divergence", "exact", "oracle")
    ]
    bundle = shop.bundle(served=served_rejected, policy={"waivers": waivers}, scope={"profile": "smoke"})
    shop.publish(bundle, dry_run=True)
    assert shop.fake.writes() == []
    assert f"({judged(bundle).policy_sha256}), profile smoke" in shop.said[1]
    assert "waived: divergence (somebody, until 2099-12-05)" in shop.said


def test_taken_tag_is_refused(shop):
    other = shop.fake.put_image("release/ds4", "1.0", "other")
    shop.refuse(
        UsageError, f"is taken by {other}, and a release tag never moves", ExitCode.USAGE, shop.bundle()
    )
    assert shop.released() == other


def test_tag_taken_while_copying(shop):
    def somebody(method, path):
        if path.endswith(referrers_tag(shop.digest)) and method == "PUT":
            shop.fake.put_image("release/ds4", "1.0", "other")

    shop.fake.before = somebody
    with pytest.raises(UsageError, match="is taken by"):
        shop.publish(shop.bundle())
    assert shop.released() != shop.digest


def after_the_tag(shop, act):
    """Acts before the second reading of the release tag after it was written; the first reads it back."""
    reads = []

    def somebody(method, path):
        if path.endswith("/manifests/1.0") and shop.released() == shop.digest:
            reads.append(path)
            if len(reads) == 2:
                act()

    shop.fake.before = somebody


def test_tag_that_was_overtaken_after_it_was_written_is_told(shop):
    after_the_tag(shop, lambda: shop.fake.put_image("release/ds4", "1.0", "other"))
    with pytest.raises(UsageError, match="is taken by"):
        shop.publish(shop.bundle())
    assert shop.released() != shop.digest


def test_tag_that_vanishes_after_it_was_written_is_told(shop):
    after_the_tag(shop, lambda: shop.fake.manifests.pop(("release/ds4", "1.0")))
    with pytest.raises(MachineryError, match="gone again"):
        shop.publish(shop.bundle())


def forget_ours(shop) -> str:
    """Somebody who had read the lists before we wrote them writes them with an entry of his own only."""
    content = b"other"
    other = {"mediaType": "application/x", "digest": digest_of(content), "size": len(content)}
    shop.fake.blobs["release/ds4", other["digest"]] = content
    for tag, name in lists(shop).items():
        kind = shop.fake.manifests["release/ds4", tag][1]
        shop.fake.put_manifest("release/ds4", tag, json.dumps({name: [other]}).encode(), kind)
    return other["digest"]


def lists(shop) -> dict[str, str]:
    return {cosign_tag(shop.digest): "layers", referrers_tag(shop.digest): "manifests"}


def test_statement_that_another_write_took_out_is_put_back(shop):
    others = []

    def somebody(method, path):
        if method == "PUT" and path.endswith("/manifests/1.0"):
            others.append(forget_ours(shop))

    shop.fake.before = somebody
    shop.publish(shop.bundle())
    for tag, name in lists(shop).items():
        listed = json.loads(shop.fake.manifests["release/ds4", tag][0])[name]
        assert len(listed) == 2, name
        assert listed[0]["digest"] == others[0]


def test_statement_that_is_taken_out_all_the_time_is_told(shop):
    reads = []

    def somebody(method, path):
        # every other reading: the ones between are those of what we have just written
        if method == "GET" and path.endswith(referrers_tag(shop.digest)) and shop.released():
            reads.append(path)
            if len(reads) % 2:
                forget_ours(shop)

    shop.fake.before = somebody
    with pytest.raises(MachineryError, match="taken out of the lists 3 times"):
        shop.publish(shop.bundle())


def test_moved_staging_tag_does_not_matter(shop):
    """The digest that was tested is promoted, whatever the candidate's tag names by now."""
    bundle = shop.bundle()
    moved = shop.fake.put_image("staging/ds4", "candidate", "another build")
    assert moved != shop.digest
    shop.publish(bundle)
    assert shop.released() == shop.digest


def test_subject_is_gone(shop):
    bundle = shop.bundle(digest="sha256:" + "3" * 64)
    shop.refuse(MachineryError, "is not in the registry", ExitCode.MACHINERY, bundle)


def test_registry_gives_other_bytes(shop):
    content, kind = shop.fake.manifests["staging/ds4", shop.digest]
    shop.fake.manifests["staging/ds4", shop.digest] = (content.replace(b" ", b"  ", 1), kind)
    shop.refuse(MachineryError, "gave a manifest with digest", ExitCode.MACHINERY, shop.bundle())


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_registry_refuses_at_once(shop, status):
    shop.fake.trouble = lambda method, path: status
    shop.refuse(MachineryError, str(status), ExitCode.MACHINERY, shop.bundle())


def test_registry_is_down(shop):
    bundle = shop.bundle(repository="127.0.0.1:9/staging/ds4")
    shop.refuse(MachineryError, "does not answer", ExitCode.MACHINERY, bundle)


def test_trouble_at_any_write_leaves_no_tag_and_can_be_repeated(shop):
    bundle, fake = shop.bundle(), shop.fake
    fake.mounts = False
    shop.publish(bundle)
    steps = len(fake.writes())
    assert steps > 8
    for failing in range(1, steps + 1):
        fake.clear("release/ds4")
        fake.trouble = lambda method, path, at=failing: 500 if fake.is_write(method, at) else None
        with pytest.raises(MachineryError, match="500"):
            shop.publish(bundle)
        assert shop.released() is None
        fake.trouble = lambda method, path: None
        shop.publish(bundle)
        assert shop.released() == shop.digest


def test_channels_move_only_when_named(shop):
    policy = {"channels": ["stable", "latest"]}
    old = shop.fake.put_image("release/ds4", "stable", "old")
    shop.fake.put_image("release/ds4", "latest", "old")
    bundle = shop.bundle()
    shop.publish(bundle, policy=policy)
    assert (shop.released("stable"), shop.released("latest")) == (old, old)
    shop.publish(bundle, policy=policy, channels=("stable",))
    assert (shop.released("stable"), shop.released("latest")) == (shop.digest, old)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"channels": ("beta",)}, "'beta' is no channel"),
        ({"channels": ("be ta",)}, "is not a tag"),
        ({"tag": "stable"}, "a release needs a tag that never moves"),
        ({"tag": ""}, "name the release by a tag"),
    ],
)
def test_wrong_tags(shop, more, said):
    shop.refuse(UsageError, said, ExitCode.USAGE, shop.bundle(), policy={"channels": ["stable"]}, **more)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format: qualify/publication/1\nname: a\nlaunchers: [process]\n", "launchers"),
        ("format: qualify/publication/1\nname: a\ndevice: [GPU]\n", "unknown key 'device'"),
        ("format: qualify/publication/1\nname: a\nmax_age_days: 0\n", "max_age_days"),
        ("format: qualify/publication/1\nname: a\npolicies: [abc]\n", "policies"),
        ("format: qualify/policy/1\nname: a\n", "format"),
    ],
)
def test_wrong_policies(tmp_path, text, said):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_publication_policy(tmp_path / "p.yaml")


def test_policies(tmp_path):
    (tmp_path / "p.yaml").write_text(
        "format: qualify/publication/1\nname: a\ndevices: [CPU]\nchannels: [stable]\n"
    )
    policy = read_publication_policy(tmp_path / "p.yaml")
    assert policy.devices == ("CPU",)
    assert policy.channels == ("stable",)
    assert read_publication_policy(None).devices == ("GPU",)
