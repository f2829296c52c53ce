"""Plans: everything that a run depends on, resolved and pinned before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qualify.evidence.digests import sha256_value
from qualify.record import ScenarioExpectation
from qualify.transcript import Arm

UNBOUND = "unbound"


class Label(StrEnum):
    """What the scope of a verdict says; publication asks for some of it by these names."""

    ARMS = "arms"
    DEVICE = "device"
    IMAGE = "image"
    LAUNCHER = "launcher"
    MAX_MODEL_LEN = "max_model_len"
    MODEL = "model"
    MODEL_KIND = "model kind"
    MODIFIED = "modified after installation"
    PROFILE = "profile"
    REPLAY = "replay"
    SCENARIOS = "scenarios"
    SERVER = "server"
    SOURCES = "sources not as committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArm:
    """One arm as it will be served.

    Attributes:
        arm: Which.
        argv: Its command; interpreter, model, port and bundle directory stand as placeholders.
        environment: Variables set for it, sorted by name.
        url: Where an attached server listens; None where the harness starts it.
        fault: The fault that is put in.
        stage_sha256: Digest of everything that its transcripts depend on. An arm whose digest is unchanged is
            not served again.
        ranks: Processes that run its model.
        looks_at_metadata: Whether its ranks look at their C128A rows in each step.
    """

    arm: Arm
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    url: str | None
    fault: str | None
    stage_sha256: str
    ranks: int = 1
    looks_at_metadata: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything resolved and pinned.

    Attributes:
        release: Name of the release.
        subject: What the verdict binds to: ``sha256:...`` of distributions, model and the candidate's command
            of a ``process`` arm; ``image@sha256:...``, the manifest, of a ``docker`` arm; ``unbound`` of an
            attached server.
        scope: What the verdict will cover, as (label, value) pairs sorted by label.
        replay: ``emulated replay`` or ``FULL CUDA graph replay``.
        control_configured: False where the control is switched off.
        scenarios: What is asked for, sorted by name.
        arms: In the order in which they are served.
        baseline_forced_runs: Forced runs of the baseline.
        max_model_len: Longest context that the servers accept; None in bundles from before it was kept.
        compress_ratio: Tokens for each compressed entry of the C128A layers; None just so.
        bos_token_id: Id of the beginning-of-sequence token; None where the model has none, and just so.
        inputs: (path within the bundle, SHA-256) of the YAML files.
        distributions_sha256: Digest of the serving environment; empty for attached servers.
        model_sha256: Digest of the checkpoint; empty for attached servers.
        machine: The machine, as (label, value) pairs.
        parallel_arms: The servers of all arms are started side by side.
        inspections: Rules that must each look at the image before it is served; empty without an image.
    """

    release: str
    subject: str
    scope: tuple[tuple[str, str], ...]
    replay: str
    control_configured: bool
    scenarios: tuple[ScenarioExpectation, ...]
    arms: tuple[PlannedArm, ...]
    baseline_forced_runs: int
    max_model_len: int | None = None
    compress_ratio: int | None = None
    bos_token_id: int | None = None
    inputs: tuple[tuple[str, str], ...]
    distributions_sha256: str
    model_sha256: str
    machine: tuple[tuple[str, str], ...]
    parallel_arms: bool = False
    inspections: tuple[str, ...] = ()

    @property
    def plan_id(self) -> str:
        """SHA-256 of the plan."""
        return sha256_value(self)
