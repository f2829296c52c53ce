"""Which faults the kernels of a serving environment can put into the control."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from qualify.errors import UsageError
from qualify.release import Release
from qualify.yamlsource import Located, Problem, refuse

KERNELS = "ds4-kernels"
_WITHIN_S = 60.0
# Run by the serving environment's interpreter: each fault with the forms in which it can be put in.
_ASK = """
import json
from ds4_kernels.faults import CATALOGUE
print(json.dumps({name: [form.value for form in fault.forms] for name, fault in CATALOGUE.items()}))
"""
_FORMS = {"emulated": "cpu-emulated", "full-graph": "gpu"}


def read_faults(python: Path) -> dict[str, tuple[str, ...]]:
    """Asks a serving environment which faults its kernels know.

    Args:
        python: Its interpreter; `KERNELS` is installed there.

    Returns:
        The forms in which each fault can be put in, by the fault's name.

    Raises:
        UsageError: The kernels do not say.
    """
    try:
        output = subprocess.run(
            [str(python), "-I", "-c", _ASK], check=True, capture_output=True, timeout=_WITHIN_S
        ).stdout
        return msgspec.json.decode(output, type=dict[str, tuple[str, ...]])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        raise UsageError(
            f"the {KERNELS} there do not say which faults they know: {error}",
            where=str(python),
            advice="Install those that come with this harness (`make install-serving`).",
        ) from error


def check_fault(release: Release, source: Located, known: Mapping[str, tuple[str, ...]]) -> None:
    """Refuses a fault that the control's server would refuse, after the other arms have been served.

    Args:
        release: The release.
        source: Where its values stand.
        known: What `read_faults` gave.

    Raises:
        UsageError: The fault is unknown, or cannot be put in where the release is served.
    """
    control = release.arms.control
    if control is None or control.fault is None:
        return
    form = _FORMS[release.replay]
    fitting = ", ".join(sorted(name for name, forms in known.items() if form in forms))
    what = ""
    if control.fault not in known:
        what = f"fault {control.fault!r} is unknown; known with replay {release.replay}: {fitting}"
    elif form not in known[control.fault]:
        what = f"fault {control.fault!r} cannot be put in with replay {release.replay}; these can: {fitting}"
    if what:
        refuse([Problem(source.where(("arms", "control", "fault")), what)])
