"""What a checkpoint's `config.json` says, and what of a release contradicts it. Needs no weights.

The limits are vLLM's, as 0.32 states them: `models/deepseek_v4/attention.py` (heads and output groups of each
rank, type of the cache), `models/deepseek_v4/sparse_mla.py` (types of the cache), `config/parallel.py`
(decode context parallelism), `config/speculative.py` (MTP and DSpark).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from qualify.errors import UsageError
from qualify.release import Release
from qualify.serving.arms import SPECULATION, ArmSettings, arm_settings
from qualify.transcript import Arm
from qualify.yamlsource import Location

C128A_MODELS = frozenset({"deepseek_v4"})
_TENSOR, _CONTEXT = "tensor-parallel-size", "decode-context-parallel-size"
_INTERLEAVE, _BLOCK = "cp-kv-cache-interleave-size", "block-size"
_CACHE, _COMPILATION = "kv-cache-dtype", "compilation-config"
_FP8_CACHES = ("auto", "fp8", "fp8_ds_mla")
# Tokens of a page of the cache where the release names none: what DeepSeek V4's kernels take.
_BLOCK_DEFAULT = 256

Contradiction = tuple[Location, str]


class ModelConfig(msgspec.Struct, frozen=True):
    """The part of `config.json` that a release can contradict; None where it says nothing of it.

    Attributes:
        model_type: Kind of model.
        max_position_embeddings: Longest context in tokens.
        num_hidden_layers: Layers without those of MTP.
        num_attention_heads: Query heads.
        o_groups: Groups of heads in the output projection.
        compress_ratios: Tokens for each compressed entry, by layer; 0 for none.
        num_nextn_predict_layers: Layers of multi-token prediction.
        dspark_block_size: Tokens that DSpark drafts at once.
    """

    model_type: str
    max_position_embeddings: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    o_groups: int | None = None
    compress_ratios: list[int] | None = None
    num_nextn_predict_layers: int | None = None
    dspark_block_size: int | None = None


def read_model_config(path: Path) -> ModelConfig:
    """Reads a `config.json`.

    Args:
        path: The file.

    Returns:
        What it says.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelConfig)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"is no model configuration: {error}", where=str(path)) from error


def contradictions(release: Release, config: ModelConfig) -> list[Contradiction]:
    """What of a release cannot be served with a model of this configuration.

    Args:
        release: The release.
        config: The model's configuration.

    Returns:
        (place in the release, what is wrong), each once.
    """
    found = [*_of_the_release(release, config)]
    for arm in release.arms.configured():
        found += _of_an_arm(_Arguments(release, arm, arm_settings(release, arm)), config)
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Arguments:
    """One arm's arguments, and where the release has them."""

    release: Release
    arm: Arm
    settings: ArmSettings

    def place(self, name: str) -> Location:
        arms = (self.arm, Arm.CANDIDATE) if self.arm is Arm.CONTROL else (self.arm,)
        for arm in arms:
            if name in self.release.arms.configured()[arm].arguments:
                return ("arms", str(arm), "arguments", name)
        return ("serving", "arguments", name)

    def number(self, name: str, default: int) -> int:
        value = self.settings.arguments.get(name, default)
        return value if isinstance(value, int) else default

    def text(self, name: str) -> str:
        return str(self.settings.arguments.get(name, ""))


def _of_the_release(release: Release, config: ModelConfig) -> Iterator[Contradiction]:
    longest = config.max_position_embeddings
    if longest is not None and release.serving.max_model_len > longest:
        yield (
            ("serving", "max_model_len"),
            f"{release.serving.max_model_len} is more than the model's max_position_embeddings of {longest}",
        )
    if config.model_type not in C128A_MODELS:
        if release.replay == "full-graph":
            yield ("model",), f"model_type {config.model_type!r} has no C128A layers"
        return
    place: Location = ("arms", "control", "fault") if release.arms.control else ("model",)
    ratios = config.compress_ratios
    if not ratios:
        yield place, "the model's config.json has no compress_ratios: no C128A layer for the fault to act in"
    elif release.compress_ratio not in ratios:
        known = ", ".join(map(str, sorted(set(ratios))))
        yield place, f"no layer of the model has compress ratio {release.compress_ratio}, only {known}"
    elif config.num_hidden_layers is not None and len(ratios) < config.num_hidden_layers:
        yield (
            ("model",),
            f"config.json has {len(ratios)} compress_ratios for {config.num_hidden_layers} layers",
        )


def _of_an_arm(given: _Arguments, config: ModelConfig) -> Iterator[Contradiction]:
    yield from _parallel(given, config)
    yield from _json(given)
    if config.model_type in C128A_MODELS:
        yield from _cache(given)
    yield from _speculation(given, config)


def _parallel(given: _Arguments, config: ModelConfig) -> Iterator[Contradiction]:
    ranks = given.number(_TENSOR, 1)
    for name, count in (("num_attention_heads", config.num_attention_heads), ("o_groups", config.o_groups)):
        if count is not None and (ranks < 1 or count % ranks):
            yield given.place(_TENSOR), f"{ranks} ranks do not divide the model's {name} of {count}"
    context = given.number(_CONTEXT, 1)
    if context < 1 or ranks % context:
        yield given.place(_CONTEXT), f"{context} does not divide {_TENSOR} of {ranks}"
    gpus = given.release.serving.container.gpus
    if given.release.serving.launcher == "docker" and gpus is not None and gpus != ranks:
        yield ("serving", "container", "gpus"), f"{gpus} GPUs for {_TENSOR} of {ranks}"


def _cache(given: _Arguments) -> Iterator[Contradiction]:
    kind = given.text(_CACHE) or "auto"
    if kind not in _FP8_CACHES:
        yield given.place(_CACHE), f"{kind!r}: DeepSeek V4's cache takes {', '.join(_FP8_CACHES)}"
    page, ratio = given.number(_BLOCK, _BLOCK_DEFAULT), given.release.compress_ratio
    if page < 1 or page % ratio:
        yield given.place(_BLOCK), f"{page} tokens of a page are no multiple of the compress ratio of {ratio}"
        return
    interleave = given.number(_INTERLEAVE, 1)
    if given.number(_CONTEXT, 1) > 1 and (interleave < 1 or (page // ratio) % interleave):
        yield (
            given.place(_INTERLEAVE),
            f"{interleave} does not divide the {page // ratio} compressed entries of a page: those of "
            "one page would collide",
        )


def _json(given: _Arguments) -> Iterator[Contradiction]:
    for name in (_COMPILATION, SPECULATION):
        if given.text(name) and _object(given.text(name)) is None:
            yield given.place(name), "is not a JSON object"


def _speculation(given: _Arguments, config: ModelConfig) -> Iterator[Contradiction]:
    asked = _object(given.text(SPECULATION))
    if not asked:
        return
    place, method = given.place(SPECULATION), str(asked.get("method", ""))
    if "mtp" in method and not config.num_nextn_predict_layers:
        yield place, f"method {method!r} needs MTP layers; the model has no num_nextn_predict_layers"
    if method == "dspark" and not config.dspark_block_size:
        yield place, "method 'dspark' needs DSpark stages; the model has no dspark_block_size"


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
