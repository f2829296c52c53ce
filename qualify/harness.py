"""Which of the harness's own code the transcripts depend on."""

from __future__ import annotations

from pathlib import Path

from qualify import __version__
from qualify.evidence.digests import sha256_file, sha256_value

JUDGES_OR_REPORTS = (
    "__main__.py",
    "bench/",
    "cli/",
    "compare/",
    "evidence/recording.py",
    "evidence/signature.py",
    "evidence/statement.py",
    "evidence/verification.py",
    "foreign/",
    "gate.py",
    "judging.py",
    "preview.py",
    "publish.py",
    "registry/",
    "rendering.py",
    "reporting/",
    "signing.py",
    "simulate/",
)
"""What parses commands, judges, reports, publishes or measures the harness, as paths below the package: no
transcript depends on it. Everything else counts, so that a new module counts by itself."""


def harness_sha256(package: Path = Path(__file__).parent) -> str:
    """Digest of the code that makes transcripts: its change makes old ones stale.

    Args:
        package: Directory of the package.

    Returns:
        Hex SHA-256 over its version and over the path and content of each Python file that counts.
    """
    counted = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    return sha256_value(
        [
            __version__,
            {
                name: sha256_file(path)
                for name, path in counted.items()
                if not name.startswith(JUDGES_OR_REPORTS)
            },
        ]
    )
