"""A small OCI registry over real HTTP that misbehaves on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qualify.registry.reference import Repository

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class FakeRegistry:
    """What lies in it, and how it behaves.

    Attributes:
        port: Where it listens.
        blobs: Content by (repository, digest).
        manifests: (content, media type) by (repository, tag or digest).
        log: ``METHOD path`` of each request.
        trouble: Given method and path, the status to answer with; None serves.
        before: Called with method and path before each request is served.
        mounts: Whether blobs can be mounted.
        referrers: Whether it says that it has the referrers API.
        password: If set, Basic (``user`` and this) or Bearer authentication is demanded.
        bearer: Demands a token from ``/token`` instead of Basic.
        realm: Where tokens are to be had; empty for ``/token`` here.
        redirect: Where blobs are to be had; empty for here.
        tokens: Scopes of each token that was asked for.
    """

    port: int = 0
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[bytes, str]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    trouble: Callable[[str, str], int | None] = lambda method, path: None
    before: Callable[[str, str], None] = lambda method, path: None
    mounts: bool = True
    referrers: bool = False
    password: str = ""
    bearer: bool = False
    realm: str = ""
    redirect: str = ""
    tokens: list[list[str]] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def repository(self, name: str) -> Repository:
        return Repository(self.host, name)

    def tag(self, name: str, tag: str) -> str | None:
        """Digest that a tag names."""
        held = self.manifests.get((name, tag))
        return digest_of(held[0]) if held else None

    def writes(self) -> list[str]:
        return [line for line in self.log if line.split()[0] not in ("GET", "HEAD")]

    def is_write(self, method: str, number: int) -> bool:
        """True for one of the writes since the registry was cleared, counted from 1."""
        return method not in ("GET", "HEAD") and len(self.writes()) == number

    def clear(self, name: str) -> None:
        """Takes a repository away, and the log."""
        self.log.clear()
        for held in (self.blobs, self.manifests):
            for key in [key for key in held if key[0] == name]:
                del held[key]

    def put_image(self, name: str, tag: str, text: str = "one") -> str:
        """Puts a small image in; its manifest is spaced as no JSON writer would."""
        config, layer = b'{"os": "linux"}', f"layer {text}".encode() * 1000
        for blob in (config, layer):
            self.blobs[name, digest_of(blob)] = blob
        described = [
            f'{{"mediaType":  "application/x", "size":{len(blob)}, "digest": "{digest_of(blob)}"}}'
            for blob in (config, layer)
        ]
        content = (
            f'{{ "schemaVersion": 2,\n\n  "mediaType": "{OCI_MANIFEST}",'
            f'"config": {described[0]}, "layers":[{described[1]}]  }}'
        ).encode()
        self.put_manifest(name, tag, content, OCI_MANIFEST)
        return digest_of(content)

    def put_index(self, name: str, tag: str) -> str:
        """Puts an index of two images in."""
        children = [
            {"mediaType": OCI_MANIFEST, "digest": digest, "size": len(self.manifests[name, digest][0])}
            for digest in (self.put_image(name, "a", "first"), self.put_image(name, "b", "second"))
        ]
        content = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": children}).encode()
        self.put_manifest(name, tag, content, OCI_INDEX)
        return digest_of(content)

    def put_manifest(self, name: str, reference: str, content: bytes, media_type: str) -> None:
        for key in (reference, digest_of(content)):
            self.manifests[name, key] = (content, media_type)

    # -- serving ---------------------------------------------------------------------------------------------

    async def serve(self, request: Request) -> Response:
        path = request.url.path
        self.log.append(f"{request.method} {path}")
        content = await request.body()
        if path == "/token":
            return self._token(request)
        refused = self._refuse(request)
        if refused is not None:
            return refused
        status = self.trouble(request.method, path)
        if status is not None:
            return JSONResponse({"errors": [{"code": "TROUBLE", "message": "as asked"}]}, status)
        self.before(request.method, path)
        name, _, rest = path.removeprefix("/v2/").rpartition("/manifests/")
        if name:
            return self._manifest(request, name, rest, content)
        name, _, rest = path.removeprefix("/v2/").partition("/blobs/")
        return self._blob(request, name, rest, content)

    def _refuse(self, request: Request) -> Response | None:
        given = request.headers.get("Authorization", "")
        if not self.password or given in (self._basic(), "Bearer good"):
            return None
        challenge = 'Basic realm="here"'
        if self.bearer:
            name = request.url.path.removeprefix("/v2/").rsplit("/manifests/")[0].split("/blobs/")[0]
            realm = self.realm or f"http://{self.host}/token"
            challenge = f'Bearer realm="{realm}",service="fake",scope="repository:{name}:pull,push"'
        errors = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
        return JSONResponse(errors, 401, {"WWW-Authenticate": challenge})

    def _basic(self) -> str:
        return "Basic " + base64.b64encode(f"user:{self.password}".encode()).decode()

    def _token(self, request: Request) -> Response:
        self.tokens.append(request.query_params.getlist("scope"))
        if request.headers.get("Authorization") != self._basic():
            return JSONResponse({}, 401)
        return JSONResponse({"token": "good"})

    def _manifest(self, request: Request, name: str, reference: str, content: bytes) -> Response:
        if request.method == "PUT":
            media_type = request.headers["Content-Type"]
            parsed = json.loads(content)
            needed = [*parsed.get("layers", []), *([parsed["config"]] if "config" in parsed else [])]
            if any((name, blob["digest"]) not in self.blobs for blob in needed):
                return JSONResponse({"errors": [{"code": "MANIFEST_BLOB_UNKNOWN"}]}, 404)
            self.manifests[name, reference] = (content, media_type)
            self.put_manifest(name, reference, content, media_type)
            headers = (
                {"OCI-Subject": parsed["subject"]["digest"]} if self.referrers and "subject" in parsed else {}
            )
            return Response(status_code=201, headers=headers)
        held = self.manifests.get((name, reference))
        if held is None:
            return JSONResponse({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, 404)
        return Response(held[0], media_type=held[1])

    def _blob(self, request: Request, name: str, rest: str, content: bytes) -> Response:
        query = request.query_params
        if request.method == "POST":
            source = (query.get("from", ""), query.get("mount", ""))
            if self.mounts and source in self.blobs:
                self.blobs[name, source[1]] = self.blobs[source]
                return Response(status_code=201)
            return Response(status_code=202, headers={"Location": f"/v2/{name}/blobs/uploads/1?state=x"})
        if request.method == "PUT":
            if query.get("state") != "x" or digest_of(content) != query.get("digest"):
                return JSONResponse({"errors": [{"code": "DIGEST_INVALID"}]}, 400)
            self.blobs[name, query["digest"]] = content
            return Response(status_code=201)
        if self.redirect:
            return Response(status_code=307, headers={"Location": self.redirect})
        held = self.blobs.get((name, rest))
        return Response(held) if held is not None else JSONResponse({"errors": []}, 404)


@contextmanager
def running() -> Iterator[FakeRegistry]:
    """A fake registry on a free port, for as long as the context lasts."""
    registry = FakeRegistry()
    app = Starlette(routes=[Route("/{path:path}", registry.serve, methods=["GET", "HEAD", "PUT", "POST"])])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        registry.port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield registry
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()
