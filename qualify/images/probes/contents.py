"""Prints, as one JSON line, what is in this image. Runs inside it; knows the standard library only."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

_DPKG = "/var/lib/dpkg/status"
_SKIPPED = {"/proc", "/sys", "/dev", "/tmp", "/qualify", "/model"}
_WEIGHTS = (".safetensors", ".gguf", ".ckpt", ".pth")
_SECRETS = {".netrc", ".npmrc", ".pypirc", ".git-credentials", "id_rsa", "id_ed25519", "id_ecdsa"}
_SECRET_ENDS = (
    ".docker/config.json",
    ".aws/credentials",
    ".kube/config",
    ".huggingface/token",
    ".p12",
    ".pfx",
)
# Files from here on are no example in a package but somebody's weights.
_WEIGHTS_BYTES = 1 << 20


def distributions() -> list[tuple[str, str]]:
    """Name and version of what is installed for this interpreter, sorted."""
    found = {
        dist.metadata["Name"].lower().replace("_", "-"): dist.version
        for dist in importlib.metadata.distributions()
    }
    return sorted(found.items())


def debian_packages() -> list[tuple[str, str]]:
    """Name and version of the installed Debian packages, sorted; empty on other systems."""
    if not os.path.exists(_DPKG):
        return []
    found = []
    for paragraph in Path(_DPKG).read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if line[:1].strip() and ": " in line
        )
        if fields.get("Status", "").endswith(" installed"):
            found.append((fields["Package"], fields["Version"]))
    return sorted(found)


def baked_in() -> list[str]:
    """Files that have no business in an image: credentials, private CAs, weights, download caches."""
    found = []
    packaged = weights_of_packages()
    for folder, names, files in os.walk("/"):
        names[:] = [name for name in names if os.path.join(folder, name) not in _SKIPPED]
        for name in files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            if name in _SECRETS or path.endswith(_SECRET_ENDS) or _is_cache(path):
                found.append(path)
            if _is_weights(path) and path not in packaged:
                found.append(path)
            if path.startswith("/usr/local/share/ca-certificates/"):
                found.append(path)
    return sorted(found)


def weights_of_packages() -> set[str]:
    """Files that look like weights and belong to a Python package, which has them as constants."""
    return {
        str(file.locate())
        for dist in importlib.metadata.distributions()
        for file in dist.files or ()
        if file.name.endswith(_WEIGHTS)
    }


def _is_cache(path: str) -> bool:
    caches = ("/root/.cache/", "/home/", "/var/cache/apt/archives/", "/var/lib/apt/lists/")
    inside = path.startswith(caches[0]) or (path.startswith(caches[1]) and "/.cache/" in path)
    packages = path.startswith(caches[2]) and path.endswith(".deb")
    lists = path.startswith(caches[3]) and "_dists_" in path
    return inside or packages or lists


def _is_weights(path: str) -> bool:
    return path.endswith(_WEIGHTS) and os.path.getsize(path) >= _WEIGHTS_BYTES


def pip_check() -> tuple[int, str]:
    """Exit code and output of ``pip check``."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=False,
    )
    # its warnings about caches go to the other stream, and say nothing of the packages
    return done.returncode, done.stdout.strip() or done.stderr.strip()


def system() -> str:
    """Name of the operating system."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def main() -> None:
    """Print what was found."""
    code, said = pip_check()
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "system": system(),
                "distributions": distributions(),
                "debian_packages": debian_packages(),
                "plugins": sorted(point.name for point in points),
                "pip_check_code": code,
                "pip_check": said,
                "baked_in": baked_in(),
            }
        )
    )


if __name__ == "__main__":
    main()
