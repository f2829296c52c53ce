"""The stages of a run that concern the image: compose it, inspect it, make a synthetic model with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from qualify.errors import EvidenceError, MachineryError
from qualify.evidence.bundle import INSPECTIONS, MANIFEST, Bundle, RunState, verify
from qualify.evidence.digests import graphics_cards, machine, sha256_directory
from qualify.findings import Finding, Weight
from qualify.images.builders import find_command_line
from qualify.images.checks import expected_rules
from qualify.images.compose import compose
from qualify.images.containers import Bind, ContainerSpec, hand_over, run_to_end, sweep
from qualify.images.engine import connect
from qualify.images.identity import IMAGE_FILE, INSPECT_FOLDER, LOCK_FILE, SBOM_FILE, ImageIdentity
from qualify.images.inspection import STRIDE_FIX, inspect_image, known_faults
from qualify.images.lock import ReleaseLock, image_of
from qualify.inputs import Inputs
from qualify.release import SyntheticModel

_CACHE = Path(".cache")
_MODELS_AT = Path("/qualify/models")
_MODEL_WITHIN_S = 1800.0
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """The image of a run.

    Attributes:
        lock: What it is made of.
        identity: What the registry calls it.
        stride_fix: ``DS4_STRIDE_FIX`` of the candidate's server, where the release sets it.
    """

    lock: ReleaseLock
    identity: ImageIdentity
    stride_fix: str

    @property
    def inspections(self) -> tuple[str, ...]:
        """Rules that must each look at it before it is served."""
        return expected_rules(self.lock)

    @property
    def harness_sha256(self) -> str:
        """Digest of the code that runs containers and inspects images."""
        return sha256_directory(Path(__file__).parent, "*.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inspected:
    """``inspect/stage.json``: what an inspection depends on."""

    digest: str
    build_id: str
    harness_sha256: str
    stride_fix: str = ""
    gpus: int | None = None
    machine: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Inspected:
    """What an inspection came to.

    Attributes:
        good: True where nothing speaks against serving the image.
        evidence_date: ISO date and time (UTC) of the run that made it; empty where it was made just now.
        faults: Forms in which each fault that the image's kernels know can be put in; empty where the image
            did not say.
    """

    good: bool
    evidence_date: str = ""
    faults: dict[str, tuple[str, ...]] = field(default_factory=dict)


def compose_stage(inputs: Inputs, registry: str, say: Callable[[str], None]) -> Composed:
    """Composes the image of a release and pushes it to its staging repository.

    Args:
        inputs: The release.
        registry: ``HOST:PORT`` of the staging registry.
        say: Told what happens.

    Returns:
        The image.

    Raises:
        UsageError: The release or its lock is wrong.
        MachineryError: Engine, builder or registry failed.
    """
    image_of(inputs)  # a release without an image needs no engine to be refused
    for name in sweep(connect()):
        say(f"removed container {name}, which a killed run had left behind")
    lock, identity = compose(
        inputs, registry=registry, cache=_CACHE, command_line=find_command_line(), say=say
    )
    release = inputs.release
    environment = release.serving.environment | release.arms.candidate.environment
    return Composed(lock=lock, identity=identity, stride_fix=environment.get(STRIDE_FIX, ""))


def compose_for(
    inputs: Inputs, registry: str, *, attached: bool, say: Callable[[str], None]
) -> Composed | None:
    """Composes the image of a release, if it is served from one.

    Args:
        inputs: The release.
        registry: ``HOST:PORT`` of the registry for staging.
        attached: True where servers run already; then no image is needed.
        say: Told what happens.

    Returns:
        The image; None where the release is served without one.

    Raises:
        QualifyError: It could not be composed.
    """
    if inputs.release.serving.launcher != "docker" or attached:
        return None
    return compose_stage(inputs, registry, say)


def inspect_stage(
    composed: Composed,
    bundle: Bundle,
    earlier: Iterable[Bundle],
    *,
    gpus: int | None,
    say: Callable[[str], None],
) -> Inspected:
    """Inspects the image, or takes over what an earlier run found in the same image.

    Args:
        composed: The image.
        bundle: Evidence goes there.
        earlier: Bundles of the same release, newest first.
        gpus: How many GPUs the contract suite gets where it needs them.
        say: Told what happens.

    Returns:
        What it came to. An inspection that was itself taken over keeps its date.

    Raises:
        MachineryError: The engine failed.
    """
    date = ""
    bundle.write(IMAGE_FILE, composed.identity)
    bundle.write(LOCK_FILE, composed.lock)
    wanted = _Inspected(
        digest=composed.identity.digest,
        build_id=composed.lock.build_id,
        harness_sha256=composed.harness_sha256,
        stride_fix=composed.stride_fix,
        gpus=gpus,
        machine=_machine(gpus),
    )
    source = next((other for other in earlier if other != bundle and _inspected(other) == wanted), None)
    if source is not None:
        shutil.copytree(source.root / INSPECT_FOLDER, bundle.root / INSPECT_FOLDER)
        shutil.copyfile(source.root / SBOM_FILE, bundle.root / SBOM_FILE)
        date = source.read("run.json", RunState).oldest
        say(f"inspect: the same image was inspected in {source.root.name}; taken from there")
    else:
        findings = inspect_image(
            connect(),
            composed.lock,
            composed.identity,
            bundle.root,
            gpus=gpus,
            stride_fix=composed.stride_fix,
            say=say,
        )
        bundle.write(INSPECTIONS, findings)
        bundle.write(f"{INSPECT_FOLDER}/stage.json", wanted)
    good = _nothing_against(bundle.read(INSPECTIONS, tuple[Finding, ...]), say)
    return Inspected(good, date, known_faults(bundle.root / INSPECT_FOLDER))


def _machine(gpus: int | None) -> tuple[tuple[str, str], ...]:
    """What the contract suite ran on: a virtual machine's memory can grow and is left out."""
    return (*(entry for entry in machine() if entry[0] != "memory"), *(graphics_cards() if gpus else ()))


def _nothing_against(findings: tuple[Finding, ...], say: Callable[[str], None]) -> bool:
    against = [finding for finding in findings if finding.weight is not Weight.SATISFIED]
    for finding in against:
        say(f"inspect: {finding.rule}: {finding.weight}: {finding.summary}")
    return not against


def _inspected(bundle: Bundle) -> _Inspected | None:
    """What a sealed bundle's inspection depended on; None where there is none that can be taken over."""
    if not (bundle.root / MANIFEST).exists():
        return None
    try:
        verify(bundle)
        found = bundle.read(INSPECTIONS, tuple[Finding, ...])
        inspected = bundle.read(f"{INSPECT_FOLDER}/stage.json", _Inspected)
    except EvidenceError:
        return None
    # what could not be looked at is looked at again
    return None if any(finding.weight is Weight.UNTESTED for finding in found) else inspected


def model_in_image(composed: Composed, model: SyntheticModel, models: Path) -> Path:
    """Makes the synthetic checkpoint with what is in the image.

    Args:
        composed: The image.
        model: What to make.
        models: Directory for synthetic checkpoints.

    Returns:
        The checkpoint's directory; one that is there already is taken.

    Raises:
        MachineryError: It could not be made.
    """
    kernels = next((source.content_sha256 for source in composed.lock.sources), composed.lock.build_id)
    directory = models.absolute() / f"image-{kernels[:12]}" / model.folder
    if (directory / "config.json").is_file():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    hand_over(directory.parent)
    output = run_to_end(
        connect(),
        ContainerSpec(
            image=composed.identity.reference,
            argv=(composed.lock.python, *model.arguments(_MODELS_AT / directory.name)),
            role="checkpoint",
            binds=(Bind(source=directory.parent, target=str(_MODELS_AT), writable=True),),
            memory_bytes=8 * _GIB,
        ),
        within_s=_MODEL_WITHIN_S,
    )
    if output.exit_code:
        raise MachineryError(
            f"the synthetic model could not be made in the image (exit {output.exit_code})",
            where=composed.identity.reference,
            advice=(output.stdout + output.stderr).strip()[-600:],
        )
    return directory
