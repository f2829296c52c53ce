"""The faults that a control arm can be given, each a way in which C128A metadata has gone or could go wrong.

A fault acts only if two environment variables agree, so that no server is broken by accident::

    DS4_FAULT=packed-stride DS4_FAULT_CONFIRM=yes-break-this-server
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

FAULT_VARIABLE = "DS4_FAULT"
CONFIRM_VARIABLE = "DS4_FAULT_CONFIRM"
CONFIRMATION = "yes-break-this-server"


class FaultForm(enum.Enum):
    """Where a fault can be put in."""

    CPU_EMULATED = "cpu-emulated"  # emulated replay, served by vLLM on a CPU
    GPU = "gpu"  # the kernel's launcher, served with CUDA graphs
    CONTRACT = "contract"  # a builder handed to the contract suite


EVERYWHERE = frozenset(FaultForm)


@dataclass(frozen=True)
class Fault:
    """One known fault.

    Attributes:
        name: what ``DS4_FAULT`` says.
        effect: what it does.
        forms: where it can be put in.
        caught_by: the contract or scenario that must catch it.
        in_metadata: whether it changes C128A metadata (else it acts on the engine).
    """

    name: str
    effect: str
    forms: frozenset[FaultForm]
    caught_by: str
    in_metadata: bool = True


_FAULTS = (
    Fault(
        "packed-stride",
        "rows are written at the stride of the active width instead of the capacity (the shipped defect)",
        EVERYWHERE,
        "contracts: capture-stable stride, active prefix, replay; serving: two or more decode rows whose "
        "longest context is inside the defect's window, after polluted history; rows after row 0 differ",
    ),
    Fault(
        "packed-stride-last-row",
        "as packed-stride, for the last decode row of each step only",
        EVERYWHERE,
        "contracts: capture-stable stride, row independence; serving: two or more decode rows, the last "
        "one differs",
    ),
    Fault(
        "packed-stride-every-8th-step",
        "as packed-stride, in every eighth decode step only",
        EVERYWHERE,
        "contracts: replay over 8 or more builds; serving: two or more decode rows and 8 or more decode "
        "steps",
    ),
    Fault(
        "stale-tail",
        "columns after a row's entries keep what an earlier step left instead of -1",
        EVERYWHERE,
        "contracts: -1 after the entries; serving cannot see it while the lengths bound what is read",
    ),
    Fault(
        "lengths-off-by-one",
        "each row's length is one too small, so that its newest entry is not read",
        EVERYWHERE,
        "contracts: lengths; serving: exact mode with contexts of 128 tokens or more, every row differs",
    ),
    Fault(
        "neighbour-block-table",
        "each row is resolved through the block table of the next row's request",
        EVERYWHERE,
        "contracts: slots, row independence; serving: two or more decode rows, every row differs",
    ),
    Fault(
        "newest-entry-missing",
        "the newest entry of each row is -1",
        EVERYWHERE,
        "contracts: slots; serving: exact mode with contexts of 128 tokens or more, every row differs (a "
        "noisy floor hides it)",
    ),
    Fault(
        "wrong-dcp-owner",
        "entries are assigned to the next rank of the decode context parallel group",
        frozenset({FaultForm.GPU, FaultForm.CONTRACT}),
        "contracts: ownership under decode context parallelism",
    ),
    Fault(
        "abort-under-load",
        "the engine aborts after DS4_FAULT_STEPS decode steps with DS4_FAULT_ROWS rows or more",
        frozenset({FaultForm.CPU_EMULATED, FaultForm.GPU}),
        "serving: any scenario that holds that many requests in decode for that many steps; the server dies",
        in_metadata=False,
    ),
)

CATALOGUE: Mapping[str, Fault] = {fault.name: fault for fault in _FAULTS}


def requested_fault(environment: Mapping[str, str], form: FaultForm) -> Fault | None:
    """Read which fault is wanted.

    Args:
        environment: the process's environment.
        form: where it would be put in.

    Returns:
        The fault, or None if none is named.

    Raises:
        ValueError: the name is unknown, the fault has no such form, or the confirmation is missing or without
            fault.
    """
    name, confirmation = environment.get(FAULT_VARIABLE, ""), environment.get(CONFIRM_VARIABLE, "")
    if not name:
        if confirmation:
            raise ValueError(
                f"{CONFIRM_VARIABLE} is set but {FAULT_VARIABLE} names no fault: unset it, or name one"
            )
        return None
    if name not in CATALOGUE:
        raise ValueError(f"{FAULT_VARIABLE}={name!r} is unknown; known faults: {', '.join(CATALOGUE)}")
    fault = CATALOGUE[name]
    if form not in fault.forms:
        forms = ", ".join(sorted(f.value for f in fault.forms))
        raise ValueError(f"{FAULT_VARIABLE}={name} has no {form.value} form (it has: {forms})")
    if confirmation != CONFIRMATION:
        raise ValueError(
            f"{FAULT_VARIABLE}={name} would break this server on purpose; to confirm, also set "
            f"{CONFIRM_VARIABLE}={CONFIRMATION} (now {confirmation!r}), or unset {FAULT_VARIABLE}"
        )
    return fault
