"""Prints, as one JSON line, what is in this image. Runs inside it; knows the standard library only."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

_DPKG = "/var/lib/dpkg/status"
_WEIGHTS = (".safetensors", ".gguf", ".ckpt", ".pth")


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


def packaged_weights() -> list[str]:
    """Files that look like weights and belong to a Python package, which has them as constants; sorted."""
    return sorted(
        {
            os.path.realpath(str(file.locate()))
            for dist in importlib.metadata.distributions()
            for file in dist.files or ()
            if file.name.endswith(_WEIGHTS)
        }
    )


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


def faults() -> dict[str, list[str]]:
    """Forms of each fault that the kernels know, by its name; empty where there are no kernels."""
    try:
        catalogue = importlib.import_module("ds4_kernels.faults").CATALOGUE
    except (ImportError, AttributeError):
        return {}
    return {name: [form.value for form in fault.forms] for name, fault in catalogue.items()}


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
                "packaged_weights": packaged_weights(),
                "faults": faults(),
            }
        )
    )


if __name__ == "__main__":
    main()
