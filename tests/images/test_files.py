"""The files of an image are listed by the engine: no mode hides anything, and a cut list is no list."""

import io
import tarfile

import pytest

from qualify.errors import MachineryError
from qualify.findings import Weight
from qualify.images import checks
from qualify.images.files import WEIGHTS_BYTES, ImageFile, list_files, unwanted
from tests.images.engine import FakeEngine
from tests.images.factory import IDENTITY

LARGE = WEIGHTS_BYTES


def exported(*entries: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    return buffer.getvalue()


def entry(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o600):
    made = tarfile.TarInfo(name)
    made.size, made.type, made.linkname, made.mode = size, kind, link, mode
    return made


def listed(content: bytes) -> tuple[ImageFile, ...]:
    engine = FakeEngine()
    engine.containers.changes = {"exported": content}
    files = list_files(engine, IDENTITY.reference)
    assert not engine.containers.made
    return files


def test_what_only_root_may_read_is_listed():
    content = exported(
        entry("root/", kind=tarfile.DIRTYPE, mode=0o700),
        entry("root/.netrc", 10),
        entry("model/a.safetensors", LARGE),
        entry("tmp/again.gguf", kind=tarfile.LNKTYPE, link="model/a.safetensors"),
        entry("tmp/link.gguf", kind=tarfile.SYMTYPE, link="/model/a.safetensors"),
        entry("usr/lib/small.pth", 100),
    )
    files = listed(content)
    assert files[0] == ImageFile("/root/.netrc", 10)
    assert unwanted(files, frozenset()) == ("/model/a.safetensors", "/root/.netrc", "/tmp/again.gguf")
    assert unwanted(files, frozenset({"/model/a.safetensors", "/tmp/again.gguf"})) == ("/root/.netrc",)


@pytest.mark.parametrize("length", [0, 700, 1200, 1536, 1536 + LARGE // 2, 1536 + LARGE, 2048 + LARGE])
def test_list_that_was_cut_off_is_no_list(length):
    content = exported(entry("etc/passwd", 10), entry("opt/blob", LARGE))
    assert len(listed(content)) == 2
    with pytest.raises(MachineryError, match=r"cut off|cannot be read"):
        listed(content[:length])


@pytest.mark.parametrize(
    "path",
    [
        "/app/.npmrc",
        "/root/.docker/config.json",
        "/root/.aws/credentials",
        "/root/.ssh/id_ed25519",
        "/root/.cache/pip/http/a",
        "/root/.cache/huggingface/token",
        "/home/user/.cache/pip/a",
        "/usr/local/share/ca-certificates/own.crt",
        "/var/cache/apt/archives/gcc.deb",
        "/var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_InRelease",
    ],
)
def test_each_kind_is_found(path):
    assert unwanted([ImageFile(path, 1), ImageFile("/etc/hosts", 1)], frozenset()) == (path,)


def test_variables_that_hold_secrets_are_named_and_not_quoted():
    files = (ImageFile("/etc/hosts", 1),)
    good = {"PATH": "/bin", "TOKENIZERS_PARALLELISM": "false", "HF_TOKEN": ""}
    assert checks.check_baked_in(files, (), good).weight is Weight.SATISFIED
    finding = checks.check_baked_in(files, (), {"HF_TOKEN": "hf_abc"})
    assert finding.weight is Weight.DEFECT
    assert finding.evidence == ("variable HF_TOKEN",)


def test_no_files_are_no_pass():
    assert checks.check_baked_in((), (), {}).weight is Weight.UNTESTED
