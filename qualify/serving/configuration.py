"""What a server says of its own configuration once it is ready: kept in the bundle, and read back from there.

vLLM answers ``/server_info?config_format=json`` where ``VLLM_SERVER_DEV_MODE=1``, with the configuration that
its front end resolved from command line, model and platform. The engine may still fall back to less when it
starts (a backend that supports no FULL graphs), so the step log stays the first witness of what was replayed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import msgspec

from qualify.evidence.digests import canonical_json
from qualify.loopback import http_client
from qualify.record import ResolvedConfiguration

CONFIGURATION = "configuration.json"
_PATH = "/server_info?config_format=json"
# vLLM looks at the whole system for its answer (packages, drivers), which takes it several seconds.
_ANSWER_WITHIN_S = 60.0
_REMOVED = "removed"
# Names of values that are, or may hold, a secret; tokens that are counted or forced are none.
_SECRET = re.compile(
    r"(^|_)(hf_token|api_?keys?|secret|password|credentials?|auth\w*|.*_key|access_token)$", re.I
)

# How vLLM writes a graph mode in JSON: a number, or one for decode steps and one for the others.
_MODES = {
    (0,): "NONE",
    (1,): "PIECEWISE",
    (2,): "FULL",
    (2, 0): "FULL_DECODE_ONLY",
    (2, 1): "FULL_AND_PIECEWISE",
}

Json = object


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptConfiguration:
    """``configuration.json`` of an arm.

    Attributes:
        why: Why there is no configuration; empty where there is one.
        vllm_config: The configuration by section, secrets removed.
        vllm_env: The server's ``VLLM_`` variables, secrets removed.
    """

    why: str = ""
    vllm_config: dict[str, Json] = field(default_factory=dict)
    vllm_env: dict[str, Json] = field(default_factory=dict)


async def keep_configuration(url: str, directory: Path) -> KeptConfiguration:
    """Asks a server for its configuration and writes the answer down; an answer that is none is no trouble.

    Args:
        url: The server's base URL.
        directory: The arm's directory in the bundle.

    Returns:
        What was written.
    """
    kept = await _ask(url)
    (directory / CONFIGURATION).write_bytes(canonical_json(kept))
    return kept


async def _ask(url: str) -> KeptConfiguration:
    try:
        async with http_client(url, timeout_s=_ANSWER_WITHIN_S) as client:
            response = await client.get(_PATH)
    except httpx2.HTTPError as error:
        return KeptConfiguration(why=f"/server_info does not answer ({type(error).__name__})")
    if response.status_code != 200:
        return KeptConfiguration(why=f"/server_info answers {response.status_code}")
    try:
        answer = msgspec.json.decode(response.content, type=dict[str, Json])
    except msgspec.DecodeError:
        return KeptConfiguration(why="/server_info answers with something that is not a JSON object")
    sections, variables = answer.get("vllm_config"), answer.get("vllm_env")
    if not isinstance(sections, dict):
        return KeptConfiguration(why="/server_info answers without a configuration by section")
    return KeptConfiguration(
        vllm_config=_without_secrets(sections),
        vllm_env=_without_secrets(variables if isinstance(variables, dict) else {}),
    )


def _without_secrets(values: Mapping[str, Json]) -> dict[str, Json]:
    return {name: _clean(name, value) for name, value in values.items()}


def _clean(name: str, value: Json) -> Json:
    if _SECRET.search(name) and value not in (None, "", False, [], {}):
        return _REMOVED
    if isinstance(value, dict):
        return _without_secrets(value)
    if isinstance(value, list):
        return [_clean("", item) for item in value]
    return value


def resolved(kept: KeptConfiguration) -> ResolvedConfiguration:
    """Takes what judging looks at from a configuration.

    Args:
        kept: What was written down.

    Returns:
        Its figures; None each where the configuration has none that is understood.
    """
    compilation = _section(kept, "compilation_config")
    model, scheduler = _section(kept, "model_config"), _section(kept, "scheduler_config")
    sizes = compilation.get("cudagraph_capture_sizes")
    eager = model.get("enforce_eager")
    return ResolvedConfiguration(
        why=kept.why,
        graph_mode=_mode(compilation.get("cudagraph_mode")),
        capture_sizes=tuple(sorted(size for size in sizes if isinstance(size, int)))
        if isinstance(sizes, list)
        else (),
        enforce_eager=eager if isinstance(eager, bool) else None,
        max_num_seqs=_whole(scheduler.get("max_num_seqs")),
        max_model_len=_whole(model.get("max_model_len")),
    )


def _section(kept: KeptConfiguration, name: str) -> Mapping[str, Json]:
    section = kept.vllm_config.get(name)
    return section if isinstance(section, dict) else {}


def _whole(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _mode(value: Json) -> str | None:
    if isinstance(value, str):
        return value.upper() if value.upper() in _MODES.values() else None
    numbers = tuple(value) if isinstance(value, list) else (value,)
    return next((name for known, name in _MODES.items() if known == numbers), None)
