"""Looks into an image before anything is served from it; each look is a finding with evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from docker import DockerClient

from qualify.evidence.digests import canonical_json
from qualify.findings import Finding
from qualify.images import checks
from qualify.images.compose import OCI, labels_of
from qualify.images.containers import Bind, ContainerSpec, Output, hand_over, run_to_end
from qualify.images.contents import Contents, bill_of_materials
from qualify.images.engine import engine_errors
from qualify.images.files import list_files
from qualify.images.identity import ImageIdentity
from qualify.images.lock import ReleaseLock

_PROBES = Path(__file__).parent / "probes"
_PROBES_AT = "/qualify/probes"
_OUT_AT = "/qualify/out"
_WITHIN_S = 600.0
_GPU_SUBJECTS = frozenset({"vllm", "triton", "cuda"})
_EMULATED = "ds4_kernels.contracts.emulated:build"
STRIDE_FIX = "DS4_STRIDE_FIX"
_DEFAULT_FIX, _NO_FIX = "auto", "off"
_LAST_LINES = 8
Value = TypeVar("Value")


class _Summary(msgspec.Struct):
    """The part of the suite's own summary that is read."""

    class Failure(msgspec.Struct):
        """A check that failed."""

        check: str
        message: str

    passed: list[str]
    failed: list[Failure]
    not_run: list[object]


class _Active(msgspec.Struct):
    active: bool


def inspect_image(
    client: DockerClient,
    lock: ReleaseLock,
    image: ImageIdentity,
    bundle: Path,
    *,
    gpus: int | None,
    stride_fix: str,
    say: Callable[[str], None],
) -> tuple[Finding, ...]:
    """Looks into an image. Nothing is skipped: what cannot be looked at is a finding too.

    Args:
        client: The engine.
        lock: What it is made of.
        image: The image.
        bundle: Evidence goes to its folder ``inspect`` and ``sbom.cdx.json``.
        gpus: How many GPUs the subjects get that need them.
        stride_fix: ``DS4_STRIDE_FIX`` of the servers that the release starts; empty where the image decides.
        say: Told what happens.

    Returns:
        One finding for each of `checks.expected_rules`.

    Raises:
        MachineryError: The engine failed.
    """
    look = _Look(client, lock, image, bundle / "inspect", gpus)
    look.folder.mkdir(parents=True, exist_ok=True)
    findings = [checks.check_labels(look.labels(), labels_of(lock))]
    output = look.probe("contents", timeout_s=_WITHIN_S)
    contents = _decode(output, Contents)
    if contents is None:
        said = "The image's contents could not be listed, so nothing else was looked at."
        others = [rule for rule in checks.expected_rules(lock) if rule != checks.LABELS]
        return (*findings, *[checks.untested(rule, said, *_last_lines(output)) for rule in others])
    say("inspect: contents listed")
    findings += [
        checks.check_vllm(contents, lock),
        checks.check_packages(contents, lock),
        _baked_in(look, contents),
        _write_bill(contents, image, bundle),
        _plugin(look, contents),
    ]
    if lock.cuda_architectures:
        findings.append(_architectures(look))
    policy = stride_fix or look.environment().get(STRIDE_FIX, _DEFAULT_FIX)
    for subject in lock.contracts:
        findings.append(_contract(look, subject, contract_words(subject, contents.plugins, policy)))
        say(f"inspect: contract suite on {subject}: {findings[-1].weight}")
    return tuple(findings)


def known_faults(folder: Path) -> dict[str, tuple[str, ...]]:
    """What an inspection left about the faults that the image's kernels know.

    Args:
        folder: The bundle's folder ``inspect``.

    Returns:
        The forms in which each fault can be put in, by its name; empty where the image did not say.
    """
    path = folder / "contents.json"
    if not path.exists():
        return {}
    contents = _decode(msgspec.json.decode(path.read_bytes(), type=Output), Contents)
    return contents.faults if contents else {}


class _Look:
    """One image that is looked into.

    Args:
        client: The engine.
        lock: What it is made of.
        image: The image.
        folder: Where evidence goes.
        gpus: How many GPUs the subjects get that need them.
    """

    def __init__(
        self, client: DockerClient, lock: ReleaseLock, image: ImageIdentity, folder: Path, gpus: int | None
    ) -> None:
        self.client = client
        self.image = image
        self.folder = folder
        self.lock = lock
        self._gpus = gpus

    def labels(self) -> dict[str, str]:
        """The image's labels, as the engine has them."""
        with engine_errors(f"labels of {self.image.reference}"):
            return dict(self.client.images.get(self.image.reference).labels)

    def environment(self) -> dict[str, str]:
        """Variables that the image sets."""
        with engine_errors(f"environment of {self.image.reference}"):
            said = self.client.images.get(self.image.reference).attrs["Config"].get("Env") or []
        return dict(entry.partition("=")[::2] for entry in said)

    def probe(self, name: str, *, timeout_s: float) -> Output:
        """Runs one of the scripts that are mounted into the image, and keeps what it printed."""
        output = self.run(
            f"probe-{name}",
            (f"{_PROBES_AT}/{name}.py",),
            (Bind(source=_PROBES, target=_PROBES_AT),),
            timeout_s,
        )
        self.keep(name, output)
        return output

    def run(
        self,
        role: str,
        words: tuple[str, ...],
        binds: tuple[Bind, ...],
        timeout_s: float,
        *,
        gpu: bool = False,
    ) -> Output:
        """Runs the image's interpreter, without network."""
        spec = ContainerSpec(
            image=self.image.reference,
            argv=(self.lock.python, *words),
            role=role,
            binds=binds,
            gpus=self._gpus if gpu else None,
        )
        return run_to_end(self.client, spec, within_s=timeout_s)

    def keep(self, name: str, output: Output) -> None:
        """Keeps an output as evidence."""
        (self.folder / f"{name}.json").write_bytes(canonical_json(output))


def _decode(output: Output, kind: type[Value]) -> Value | None:
    """The JSON of the last line that a probe printed; None where it did not."""
    last = next(reversed(output.stdout.strip().splitlines()), "")
    try:
        return None if output.exit_code else msgspec.convert(json.loads(last), kind)
    except (json.JSONDecodeError, msgspec.ValidationError):
        return None


def _last_lines(output: Output) -> list[str]:
    how = f"exit code {output.exit_code}" + (", out of memory" if output.out_of_memory else "")
    lines = [line for line in (output.stdout + output.stderr).splitlines() if line.strip()]
    return [how, *lines[-_LAST_LINES:]]


def _write_bill(contents: Contents, image: ImageIdentity, bundle: Path) -> Finding:
    text = bill_of_materials(contents, image, image.label(f"{OCI}.created"))
    (bundle / "sbom.cdx.json").write_text(text, encoding="utf-8")
    if not contents.distributions:
        return checks.untested(checks.SBOM, "The bill of materials names no Python package.", "sbom.cdx.json")
    counted = f"{len(contents.distributions)} Python and {len(contents.debian_packages)} Debian packages"
    return checks.good(checks.SBOM, f"The bill of materials names {counted}.", "sbom.cdx.json")


def _baked_in(look: _Look, contents: Contents) -> Finding:
    files = list_files(look.client, look.image.reference)
    return checks.check_baked_in(files, contents.packaged_weights, look.environment())


def _plugin(look: _Look, contents: Contents) -> Finding:
    if checks.PLUGIN_NAME not in contents.plugins:
        return checks.check_plugin(contents, None, ())
    output = look.probe("plugin", timeout_s=_WITHIN_S)
    outcome = _decode(output, _Active)
    return checks.check_plugin(contents, outcome.active if outcome else None, _last_lines(output))


def _architectures(look: _Look) -> Finding:
    output = look.probe("architectures", timeout_s=_WITHIN_S)
    found = _decode(output, checks.FoundArchitectures)
    if found is None:
        said = "The architectures of the CUDA kernels could not be read."
        return checks.untested(checks.ARCHITECTURES, said, *_last_lines(output))
    return checks.check_architectures(found, look.lock)


def contract_words(subject: str, plugins: tuple[str, ...], policy: str) -> tuple[str, ...]:
    """How the suite is told to test a subject as a server of this image would have it.

    Args:
        subject: Subject of the contract suite.
        plugins: vLLM plugins that are in the image.
        policy: ``DS4_STRIDE_FIX`` of its servers.

    Returns:
        Words of the suite's command line. vLLM gets the fix only where the plugin would put it in.
    """
    fixed = subject == "vllm" and checks.PLUGIN_NAME in plugins and policy != _NO_FIX
    return (
        "--subject",
        _EMULATED if subject == "emulated" else subject,
        *(("--stride-fix", policy) if fixed else ()),
    )


def _contract(look: _Look, subject: str, subject_words: tuple[str, ...]) -> Finding:
    folder = look.folder / f"contract-{subject}"
    folder.mkdir(exist_ok=True)
    hand_over(folder)
    words = ("-m", "ds4_kernels.contracts", *subject_words)
    output = look.run(
        f"contract-{subject}",
        (*words, "--json", f"{_OUT_AT}/summary.json"),
        (Bind(source=folder, target=_OUT_AT, writable=True),),
        _WITHIN_S,
        gpu=subject in _GPU_SUBJECTS,
    )
    look.keep(f"contract-{subject}", output)
    where = f"inspect/contract-{subject}/summary.json"
    try:
        summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=_Summary)
    except (OSError, msgspec.DecodeError):
        return checks.untested(
            checks.contract_rule(subject),
            f"The contract suite could not be run on {subject} inside the image.",
            *_last_lines(output),
            advice="The image must carry ds4_kernels, pytest and hypothesis, and what the subject needs.",
        )
    outcome = checks.ContractOutcome(
        len(summary.passed),
        tuple((failure.check, failure.message) for failure in summary.failed),
        len(summary.not_run),
    )
    if output.exit_code and not outcome.failed:
        said = f"The contract suite ended with an error on {subject}."
        return checks.untested(checks.contract_rule(subject), said, *_last_lines(output))
    return checks.check_contract(subject, outcome, where)
