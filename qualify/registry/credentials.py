"""Authentication at registries, with the credentials that `docker login` has left."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import docker.auth
import docker.errors
import httpx2

from qualify.errors import MachineryError

_CHALLENGE = re.compile(r"""(?P<name>[A-Za-z_]+)="(?P<value>[^"]*)\"""")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and what proves it.

    Attributes:
        user: The name.
        password: The password, or the token that stands for one.
    """

    user: str
    password: str


def docker_credentials(registry: str) -> Credentials | None:
    """Looks a registry up where `docker login` writes: config.json and credential helpers.

    Args:
        registry: Host and port.

    Returns:
        The credentials; None where there are none.

    Raises:
        MachineryError: The configuration cannot be read, or a credential helper failed.
    """
    try:
        found = docker.auth.load_config().resolve_authconfig(registry)
    except (docker.errors.DockerException, ValueError, OSError) as error:
        raise MachineryError(
            f"the credentials for {registry} cannot be read: {type(error).__name__}",
            advice="Look at Docker's config.json and its credential helper, or `docker login` again.",
        ) from error
    entry = {name.lower(): value for name, value in (found or {}).items()}
    if not entry.get("username") or not entry.get("password"):
        return None
    return Credentials(str(entry["username"]), str(entry["password"]))


class RegistryAuth(httpx2.Auth):
    """Answers a registry's challenge: Basic, or a Bearer token fetched from the realm that it names.

    A token is asked for with all scopes seen so far (the Distribution project's token specification allows
    several), so that a blob can be mounted from one repository into another.

    Args:
        look_up: Gives the credentials; asked at the first challenge.
    """

    def __init__(self, look_up: Callable[[], Credentials | None]) -> None:
        self._look_up = look_up
        self._header = ""
        self._scopes: list[str] = []

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Sends the request, and once more with authorisation where that is asked for."""
        if self._header:
            request.headers["Authorization"] = self._header
        response = yield request
        same_host = response.request.url.netloc == request.url.netloc
        if response.status_code != httpx2.codes.UNAUTHORIZED or not same_host:
            return
        kind, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        parameters = {found["name"].lower(): found["value"] for found in _CHALLENGE.finditer(rest)}
        credentials = self._look_up()
        if kind.lower() == "basic" and credentials is not None:
            self._header = _basic(credentials)
        elif kind.lower() == "bearer" and "realm" in parameters:
            answer = yield self._token_request(parameters, credentials)
            token = _token(answer)
            if not token:
                return
            self._header = f"Bearer {token}"
        else:
            return
        request.headers["Authorization"] = self._header
        yield request

    def _token_request(self, parameters: dict[str, str], credentials: Credentials | None) -> httpx2.Request:
        scope = parameters.get("scope", "")
        if scope and scope not in self._scopes:
            self._scopes.append(scope)
        query: dict[str, Sequence[str]] = {"scope": self._scopes}
        if "service" in parameters:
            query["service"] = [parameters["service"]]
        headers = {"Authorization": _basic(credentials)} if credentials else {}
        url = httpx2.URL(parameters["realm"])
        return httpx2.Request("GET", url.copy_merge_params(query), headers=headers)


def _basic(credentials: Credentials) -> str:
    pair = f"{credentials.user}:{credentials.password}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _token(answer: httpx2.Response) -> str:
    """The token in a token server's answer; empty where there is none."""
    if not answer.is_success:
        return ""
    try:
        found = json.loads(answer.read())
    except ValueError:
        return ""
    return str(found.get("token") or found.get("access_token") or "") if isinstance(found, dict) else ""
