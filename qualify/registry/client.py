"""One registry over HTTP (OCI distribution specification v1.1): manifests as bytes, blobs as streams.

Libraries that speak this protocol parse manifests and write them anew, or repeat failed requests for minutes.
Here a manifest keeps its bytes, for they are what the digest is about, and a failed request is told at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import httpx2

from qualify.errors import MachineryError
from qualify.evidence.digests import sha256_bytes
from qualify.loopback import is_loopback
from qualify.registry.credentials import RegistryAuth, docker_credentials
from qualify.registry.reference import Repository

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEXES = frozenset({OCI_INDEX, DOCKER_LIST})
_ACCEPT = ", ".join((OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST))
# Docker Hub's registry is not at its name.
_HOSTS = {"docker.io": "registry-1.docker.io"}
_CONNECT_S, _SILENCE_S = 10.0, 120.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest or index, as it lies in a registry.

    Attributes:
        content: Its bytes.
        media_type: Its type.
    """

    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """``sha256:...`` of its bytes."""
        return f"sha256:{sha256_bytes(self.content)}"


class Registry:
    """A connection to one registry; a context manager.

    Args:
        repository: Any repository of it; decides host, plain HTTP (loopback only) or HTTPS.
    """

    def __init__(self, repository: Repository) -> None:
        self.host = repository.registry
        self._client = httpx2.Client(
            base_url=f"{'http' if repository.is_local else 'https'}://{_HOSTS.get(self.host, self.host)}/v2",
            auth=RegistryAuth(lambda: docker_credentials(self.host)),
            timeout=httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S),
            follow_redirects=True,
            trust_env=not repository.is_local,
            event_hooks={"request": [_refuse_plain_http]},
        )

    def __enter__(self) -> Registry:
        """Opens nothing yet: the first request connects."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connections."""
        self._client.close()

    def manifest(self, repository: Repository, reference: str) -> Manifest | None:
        """Reads a manifest.

        Args:
            repository: Where.
            reference: A tag or a digest.

        Returns:
            The manifest; None where there is none.

        Raises:
            MachineryError: The registry does not answer, refuses, or gives other bytes than the digest says.
        """
        path = f"/{repository.name}/manifests/{reference}"
        response = self._find("GET", path, headers={"Accept": _ACCEPT})
        if response is None:
            return None
        media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        found = Manifest(response.content, media_type)
        if reference.startswith("sha256:") and found.digest != reference:
            raise MachineryError(
                f"the registry gave a manifest with digest {found.digest}", where=f"{repository}@{reference}"
            )
        return found

    def put_manifest(self, repository: Repository, reference: str, manifest: Manifest) -> bool:
        """Writes a manifest and reads it back.

        Args:
            repository: Where.
            reference: A tag, or the manifest's own digest.
            manifest: The manifest.

        Returns:
            True where the registry says that it keeps the list of referrers itself.

        Raises:
            MachineryError: The registry does not answer or refuses, or something else lies there afterwards.
        """
        response = self._send(
            "PUT",
            f"/{repository.name}/manifests/{reference}",
            content=manifest.content,
            headers={"Content-Type": manifest.media_type},
        )
        back = self.manifest(repository, reference)
        if back is None or back.content != manifest.content:
            raise MachineryError(
                f"{back.digest if back else 'nothing'} lies there after {manifest.digest} was written",
                where=f"{repository}, {reference}",
                advice="Somebody else wrote there too, or the registry is broken. Look, and try again.",
            )
        return "OCI-Subject" in response.headers

    def has_blob(self, repository: Repository, digest: str) -> bool:
        """Tells whether a blob lies in a repository."""
        return self._find("HEAD", f"/{repository.name}/blobs/{digest}") is not None

    def mount_blob(self, repository: Repository, digest: str, source: Repository) -> bool:
        """Takes a blob over from another repository of the same registry, without moving its bytes.

        Returns:
            False where the registry does not do that; then the blob must be uploaded.
        """
        query = {"mount": digest, "from": source.name}
        response = self._send("POST", f"/{repository.name}/blobs/uploads/", params=query)
        return response.status_code == httpx2.codes.CREATED

    def upload_blob(self, repository: Repository, digest: str, size: int, content: Iterable[bytes]) -> None:
        """Uploads a blob.

        Args:
            repository: Where to.
            digest: Its digest; the registry checks it.
            size: Its size in bytes.
            content: Its bytes in pieces.
        """
        started = self._send("POST", f"/{repository.name}/blobs/uploads/")
        where = started.headers.get("Location", "")
        if not where:
            raise MachineryError("the registry names no place to upload to", where=str(repository))
        place = started.request.url.join(where).copy_merge_params({"digest": digest})
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self._send("PUT", str(place), content=content, headers=headers)

    @contextlib.contextmanager
    def blob(self, repository: Repository, digest: str) -> Iterator[Iterator[bytes]]:
        """Reads a blob in pieces."""
        path = f"/{repository.name}/blobs/{digest}"
        with self._trouble(), self._client.stream("GET", path) as response:
            if not response.is_success:
                response.read()
                self._complain(response)
            yield response.iter_raw(2**20)

    def _send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """One request that must succeed."""
        with self._trouble():
            response = self._client.request(method, path, **more)
        if not response.is_success:
            self._complain(response)
        return response

    def _find(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """One request for something that may be missing."""
        with self._trouble():
            response = self._client.request(method, path, **more)
        if response.status_code == httpx2.codes.NOT_FOUND:
            return None
        if not response.is_success:
            self._complain(response)
        return response

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except httpx2.StreamConsumed as error:
            raise MachineryError(
                "authorisation ran out while a blob was uploaded", where=self.host, advice="Try again."
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise MachineryError(
                f"the registry does not answer: {error or type(error).__name__}",
                where=self.host,
                advice="Is it running, and is the name right? Nothing needs to be qualified again.",
            ) from error

    def _complain(self, response: httpx2.Response) -> NoReturn:
        status, request = response.status_code, response.request
        where = f"{request.method} {request.url.copy_with(query=None)}"
        what = f"the registry answers {status} {response.reason_phrase}{_reason(response)}"
        advice = ""
        if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            advice = f"`docker login {self.host}` with an account that may do this."
        elif status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            advice = "Try again when the registry is well; nothing needs to be qualified again."
        raise MachineryError(what, where=where, advice=advice)


def _reason(response: httpx2.Response) -> str:
    """What the registry says about an error, in the specification's format; at most 300 characters of it."""
    try:
        errors = json.loads(response.content)["errors"]
        said = "; ".join(f"{error['code']}: {error.get('message', '')}" for error in errors)
    except (ValueError, KeyError, TypeError):
        return ""
    return f" ({''.join(filter(str.isprintable, said))[:300]})"


def _refuse_plain_http(request: httpx2.Request) -> None:
    if request.url.scheme == "http" and not is_loopback(request.url.host):
        raise MachineryError(
            f"the registry sends us to {request.url.host} without TLS",
            where=str(request.url.copy_with(query=None)),
        )
