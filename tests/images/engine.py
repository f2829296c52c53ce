"""A stand-in for the Docker SDK: remembers what it was asked, and answers as it is told."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from docker.errors import APIError, ImageNotFound
from requests import Response
from urllib3.exceptions import ProtocolError


def api_error(status: int, message: str) -> APIError:
    response = Response()
    response.status_code = status
    return APIError(message, response=response, explanation=message)


@dataclass
class FakeContainer:
    engine: "FakeEngine"
    image: str
    options: dict[str, Any]
    state: dict[str, Any] = field(default_factory=lambda: {"Status": "running", "Pid": 0})
    output: tuple[bytes, bytes] = (b"", b"")
    start_error: APIError | None = None
    exported: bytes = b""
    # what the engine does before it answers, and after how many pieces of the log it breaks off, time by time
    before_reload: Callable[[], None] = lambda: None
    log_breaks: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.options["name"]

    @property
    def labels(self) -> dict[str, str]:
        return self.options["labels"]

    @property
    def attrs(self) -> dict[str, Any]:
        return {"State": self.state}

    def start(self) -> None:
        if self.start_error:
            raise self.start_error

    def reload(self) -> None:
        self.before_reload()
        if self not in self.engine.containers.made:
            raise_gone(self.name)

    def wait(self, timeout: float) -> None:
        self.state.setdefault("ExitCode", 0)
        self.state.setdefault("OOMKilled", False)

    def stop(self, timeout: int) -> None:
        self.state = {"Status": "exited", "ExitCode": 0, "OOMKilled": False}

    def logs(self, stdout: bool = True, stderr: bool = True, stream: bool = False, follow: bool = False):
        if stream:
            return self._log_pieces(self.log_breaks.pop(0) if self.log_breaks else None)
        return (self.output[0] if stdout else b"") + (self.output[1] if stderr else b"")

    def _log_pieces(self, breaks_after: int | None) -> Iterator[bytes]:
        for number, piece in enumerate(self.output[0].splitlines(keepends=True)):
            if number == breaks_after:
                raise ProtocolError("Connection broken: IncompleteRead(0 bytes read)")
            yield piece

    def export(self) -> Iterator[bytes]:
        return (self.exported[at : at + 1000] for at in range(0, len(self.exported), 1000))

    def remove(self, force: bool) -> None:
        assert force
        if self not in self.engine.containers.made:
            raise_gone(self.name)
        self.engine.containers.made.remove(self)


def raise_gone(name: str) -> None:
    from docker.errors import NotFound

    raise NotFound(f"no such container: {name}")


@dataclass
class FakeContainers:
    engine: "FakeEngine"
    made: list[FakeContainer] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    create_error: APIError | None = None

    def create(self, image: str, **options: Any) -> FakeContainer:
        if self.create_error:
            raise self.create_error
        container = FakeContainer(self.engine, image, options, **self.changes)
        self.made.append(container)
        return container

    def list(self, **_: Any) -> list[FakeContainer]:
        return list(self.made)


@dataclass
class FakeImage:
    id: str
    labels: dict[str, str] = field(default_factory=dict)
    tags: list[tuple[str, str]] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)

    def tag(self, repository: str, tag: str) -> None:
        self.tags.append((repository, tag))


@dataclass
class FakeRegistryData:
    id: str


@dataclass
class FakeImages:
    known: dict[str, FakeImage] = field(default_factory=dict)
    held: str = ""

    def get(self, name: str) -> FakeImage:
        if name not in self.known:
            raise ImageNotFound(f"no such image: {name}")
        return self.known[name]

    def pull(self, name: str) -> FakeImage:
        raise ImageNotFound(f"manifest unknown: {name}", explanation="manifest unknown")

    def get_registry_data(self, name: str) -> FakeRegistryData:
        return FakeRegistryData(self.held)


@dataclass
class FakeApi:
    events: list[dict[str, Any]] = field(default_factory=list)

    def push(self, repository: str, **_: Any):
        return iter(self.events)


class FakeEngine:
    def __init__(self, runtimes: tuple[str, ...] = ("runc",)) -> None:
        self.containers = FakeContainers(self)
        self.images = FakeImages()
        self.api = FakeApi()
        self.runtimes = runtimes

    def info(self) -> dict[str, Any]:
        return {"Runtimes": {name: {} for name in self.runtimes}}
