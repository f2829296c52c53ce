"""The files of an image, as the engine lists them: all of them, whoever may read them inside it."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, cast

from docker import DockerClient

from qualify.errors import MachineryError
from qualify.images.containers import ContainerSpec, create, remove
from qualify.images.engine import engine_errors

# A tar archive ends with two blocks of zeros; one without them was cut off.
_END = bytes(1024)
_BUFFER = 1 << 20
# Files from here on are no example in a package but somebody's weights.
WEIGHTS_BYTES = 1 << 20
_WEIGHTS = (".safetensors", ".gguf", ".ckpt", ".pth")
_SECRETS = frozenset(
    {".netrc", ".npmrc", ".pypirc", ".git-credentials", "id_rsa", "id_dsa", "id_ed25519", "id_ecdsa"}
)
_SECRET_ENDS = (
    ".docker/config.json",
    ".aws/credentials",
    ".kube/config",
    ".huggingface/token",
    ".cache/huggingface/token",
    ".p12",
    ".pfx",
)
_CAS = "/usr/local/share/ca-certificates/"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A regular file of an image.

    Attributes:
        path: Absolute path inside the image, without symbolic links.
        size: Bytes.
    """

    path: str
    size: int


def list_files(client: DockerClient, image: str) -> tuple[ImageFile, ...]:
    """Lists the regular files of an image from outside: nothing is started, no mode hides anything.

    Args:
        client: The engine.
        image: ``NAME@sha256:...``.

    Returns:
        Files as a container of the image would have them before it starts. What a later layer has removed is
        not among them.

    Raises:
        MachineryError: The engine failed, or its answer was cut off.
    """
    container = create(client, ContainerSpec(image=image, argv=("/never-started",), role="files"))
    try:
        with engine_errors(f"list the files of {image}"):
            pieces: Iterable[bytes] = container.export()  # type: ignore[assignment]  # its types say str
            return tuple(_regular_files(pieces, image))
    finally:
        remove(container)


def _regular_files(pieces: Iterable[bytes], image: str) -> Iterator[ImageFile]:
    stream = _Stream(pieces)
    large: dict[str, int] = {}
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", bufsize=_BUFFER) as archive:
            while entry := archive.next():
                path = "/" + posixpath.normpath(entry.name).lstrip("/")
                # a hard link is a file under another name, with the size of that one
                size = large.get(posixpath.normpath(entry.linkname), 0) if entry.islnk() else entry.size
                if entry.isreg() or entry.islnk():
                    large |= {path.lstrip("/"): size} if size >= WEIGHTS_BYTES else {}
                    yield ImageFile(path, size)
                archive.members = []  # type: ignore[attr-defined]  # an image has a hundred thousand of them
        while stream.read(_BUFFER):
            pass
    except tarfile.TarError as error:
        raise MachineryError(f"the engine's list of files of {image} cannot be read: {error}") from error
    if stream.tail != _END:
        raise MachineryError(f"the engine's list of files of {image} was cut off", advice="Run again.")


class _Stream:
    """Pieces as one file that can be read once; remembers its last bytes.

    Args:
        pieces: The content.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""
        self._at = 0
        self.tail = b""

    def read(self, size: int) -> bytes:
        """At most so many bytes, from one piece; none at the end."""
        while self._at >= len(self._rest):
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest, self._at = piece, 0
            self.tail = (self.tail + piece[-len(_END) :])[-len(_END) :]
        found = self._rest[self._at : self._at + size]
        self._at += size
        return found

    def close(self) -> None:
        """Nothing is to be closed."""


def unwanted(files: Iterable[ImageFile], packaged: frozenset[str]) -> tuple[str, ...]:
    """Files that have no business in an image: credentials, private CAs, weights, download caches.

    Args:
        files: The image's files.
        packaged: Files that look like weights and belong to a Python package, which has them as constants.

    Returns:
        Their paths, sorted.
    """
    return tuple(sorted({file.path for file in files if _is_unwanted(file, packaged)}))


def _is_unwanted(file: ImageFile, packaged: frozenset[str]) -> bool:
    path = file.path
    is_secret = posixpath.basename(path) in _SECRETS or path.endswith(_SECRET_ENDS)
    is_weights = path.endswith(_WEIGHTS) and file.size >= WEIGHTS_BYTES and path not in packaged
    return is_secret or is_weights or path.startswith(_CAS) or _is_cache(path)


def _is_cache(path: str) -> bool:
    of_user = path.startswith(("/root/.cache/", "/home/")) and "/.cache/" in path
    package = path.startswith("/var/cache/apt/archives/") and path.endswith(".deb")
    lists = path.startswith("/var/lib/apt/lists/") and "_dists_" in path
    return of_user or package or lists
