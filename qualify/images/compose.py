"""From a lock to an image: the build context is made of exactly what the lock names."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from docker import DockerClient

from qualify.errors import UsageError
from qualify.evidence.digests import sha256_file
from qualify.images.builders import Build, CommandLine, build
from qualify.images.engine import connect, engine_errors, find_base
from qualify.images.identity import ImageIdentity
from qualify.images.lock import (
    RELEASE_LOCK,
    LockedBase,
    ReleaseLock,
    check_lock,
    image_of,
    read_lock,
    resolve_lock,
)
from qualify.images.sources import content_sha256, kept_mode, laid_files, source_files
from qualify.images.staging import push
from qualify.inputs import Inputs

OCI = "org.opencontainers.image"
OWN = "io.qualify"


def labels_of(lock: ReleaseLock) -> dict[str, str]:
    """Labels of the image that a lock gives.

    Args:
        lock: The lock.

    Returns:
        Values by name; the same for the same lock. ``created`` is the date of the newest source, so that
        building again gives the same image.
    """
    labels = {
        f"{OCI}.title": lock.release,
        f"{OCI}.base.name": lock.base.name,
        f"{OCI}.base.digest": lock.base.digest,
        f"{OWN}.build-id": lock.build_id,
        f"{OWN}.vllm-version": lock.vllm,
        f"{OWN}.cuda-architectures": " ".join(str(number) for number in lock.cuda_architectures) or "none",
    }
    if lock.sources:
        newest = max(lock.sources, key=lambda source: source.date)
        labels[f"{OCI}.revision"] = newest.commit + ("-modified" if newest.modified else "")
        labels[f"{OCI}.created"] = newest.date
    labels |= {f"{OWN}.tree.{source.name}": source.tree for source in lock.sources}
    if lock.composition:
        pulls = " ".join(f"#{number}@{head}" for number, head in lock.composition.pull_requests)
        labels[f"{OWN}.composition.base"] = f"{lock.composition.repository}@{lock.composition.commit}"
        labels[f"{OWN}.composition.tree"] = lock.composition.tree
        labels[f"{OWN}.composition.pull-requests"] = pulls
    return labels


def lay_context(lock: ReleaseLock, inputs: Inputs, folder: Path) -> None:
    """Lays the build context: recipe, wheels with their hashes, sources, patches, overlay, and nothing else.

    Args:
        lock: The lock, which was compared with what is there.
        inputs: The release, whose paths the lock names by their last part.
        folder: Made anew. Times of files are kept: BuildKit then sends only what has changed.

    Raises:
        UsageError: Something was changed since the lock was compared.
    """
    image = image_of(inputs)
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("wheels", "sources", "patches", "overlay"):
        (folder / name).mkdir(parents=True)
    shutil.copy2(inputs.path(image.recipe), folder / "Dockerfile")
    requirements = "".join(f"{wheel.requirement}\n" for wheel in lock.wheels)
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    # A file of this content is the same file for the builder, whenever it was written.
    os.utime(folder / "requirements.txt", (0, 0))
    if image.wheels:
        for wheel in lock.wheels:
            _link(inputs.path(image.wheels) / wheel.file, folder / "wheels" / wheel.file)
    for name in image.sources:
        source = inputs.path(name).resolve()
        _copy(source, folder / "sources" / source.name)
    for number, name in enumerate(image.patches, start=1):
        shutil.copy2(inputs.path(name), folder / "patches" / f"{number:03}-{Path(name).name}")
    if image.overlay:
        _copy(inputs.path(image.overlay), folder / "overlay")
    _check_context(lock, folder)


def _copy(source: Path, target: Path) -> None:
    """Copies what is pinned of a folder, with the modes that are pinned, whatever this user's umask is."""
    for name in source_files(source):
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, copy, follow_symlinks=False)
        if not copy.is_symlink():
            copy.chmod(kept_mode(copy))
    for path in (target, *target.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def _check_context(lock: ReleaseLock, folder: Path) -> None:
    """Compares what was laid with the lock: the folders may have changed since they were compared."""
    expected = {"Dockerfile": lock.recipe_sha256}
    expected |= {f"sources/{source.name}": source.content_sha256 for source in lock.sources}
    expected |= {
        f"patches/{number:03}-{patch.name}": patch.sha256
        for number, patch in enumerate(lock.patches, start=1)
    }
    expected["overlay"] = lock.overlay_sha256 or content_sha256(folder, ())
    changed = [name for name, sha256 in expected.items() if _laid(folder / name) != sha256]
    if changed:
        raise UsageError(
            f"changed meanwhile, and no longer what the lock says: {', '.join(changed)}",
            advice="Leave the files alone and run again; if the change is meant, `qualify lock` first.",
        )


def _laid(path: Path) -> str:
    return sha256_file(path) if path.is_file() else content_sha256(path, laid_files(path))


@contextlib.contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Keeps other commands from a build context until the block ends; waits where one has it.

    Args:
        folder: The context's folder.
        say: Told where it must wait.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.taken").open("w") as taken:
        try:
            fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another command builds from {folder}; waiting for it")
            fcntl.flock(taken, fcntl.LOCK_EX)
        yield


def _link(source: Path, target: Path) -> None:
    """Large files are linked where the file system allows it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def make_image(
    client: DockerClient, lock: ReleaseLock, inputs: Inputs, context: Path, command_line: CommandLine | None
) -> tuple[str, str]:
    """Builds the image of a lock.

    Args:
        client: The engine.
        lock: The lock.
        inputs: The release.
        context: Folder for the build context.
        command_line: A docker CLI with BuildKit, if there is one.

    Returns:
        Id of the image, and the builder that was used.

    Raises:
        UsageError: The recipe or a patch is wrong.
        MachineryError: The machine failed.
    """
    lay_context(lock, inputs, context)
    arguments = dict(lock.arguments) | {"BASE": _base_reference(client, lock.base)}
    if lock.cuda_architectures:
        arguments["CUDA_ARCHITECTURES"] = " ".join(str(number) for number in lock.cuda_architectures)
    task = Build(
        context=context,
        tag=f"qualify/{lock.release}:{lock.build_id[:16]}",
        arguments=arguments,
        labels=labels_of(lock),
    )
    return build(client, task, command_line)


def _base_reference(client: DockerClient, base: LockedBase) -> str:
    """A name for the base that cannot come to mean another image."""
    if base.from_registry:
        return f"{base.name}@{base.digest}"
    repository, tag = "qualify/base", base.digest.removeprefix("sha256:")[:32]
    with engine_errors(f"tag base image {base.name}"):
        client.images.get(base.digest).tag(repository, tag=tag)
    return f"{repository}:{tag}"


def lock_release(inputs: Inputs, client: DockerClient) -> ReleaseLock:
    """Resolves a release into its lock with the engine's help.

    Args:
        inputs: The release.
        client: The engine, which knows the base.
    """
    return resolve_lock(inputs, lambda name: find_base(client, name))


def compose(
    inputs: Inputs,
    *,
    registry: str,
    cache: Path,
    command_line: CommandLine | None,
    say: Callable[[str], None],
) -> tuple[ReleaseLock, ImageIdentity]:
    """Builds the image of a release from its lock and pushes it to the staging repository.

    Args:
        inputs: The release, with ``release.lock.json`` beside it.
        registry: ``HOST:PORT`` of the staging registry.
        cache: Folder for build contexts.
        command_line: A docker CLI with BuildKit, if there is one.
        say: Told what happens.

    Returns:
        The lock, and the image as the registry knows it.

    Raises:
        UsageError: The release or its lock is wrong.
        MachineryError: Engine, builder or registry failed.
    """
    client = connect()
    path = inputs.home / RELEASE_LOCK
    lock = read_lock(path)
    check_lock(lock, lock_release(inputs, client), path)
    context = cache / "contexts" / lock.release
    with alone(context, say):
        image_id, builder = make_image(client, lock, inputs, context, command_line)
    say(f"image: {image_id} from lock {lock.build_id[:16]} ({builder})")
    identity = push(
        client, image_id, registry=registry, name=f"staging/{lock.release}", build_id=lock.build_id
    )
    say(f"pushed: {identity.reference}")
    return lock, identity
