"""Time the C128A metadata kernels: this package's and vLLM's against what the GPU could do at best.

Every kernel is timed inside CUDA graphs, 64 different steps behind one another, with an emptied L2. The bound
is the larger of an empty kernel in a graph and the step's bytes at the bandwidth of a large copy. Beside it
stands what torch's fill takes for the same prefixes, reading nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ds4_kernels.bench.workload import Lengths, Shape, Step, all_shapes, bytes_moved, make_step
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.layout import Buffers, Builder
from ds4_kernels.contracts.run import device_name, software_versions
from ds4_kernels.contracts.subjects import Subject, SubjectError, SubjectRequest, resolve

CANNOT_RUN = 4


@dataclass(frozen=True)
class Line:
    """What was measured for one shape.

    Attributes:
        rows: decode rows.
        capacity: entries of a row of the buffers.
        lengths: kind of contexts.
        width: columns that the step initialises.
        bytes_moved: bytes that the step cannot do without.
        bound_us: physical bound.
        fill_us: torch's fill of the active prefixes with one value, which reads nothing.
        kernel_us: microseconds of each kernel in a graph, by subject.
    """

    rows: int
    capacity: int
    lengths: str
    width: int
    bytes_moved: int
    bound_us: float
    fill_us: float
    kernel_us: dict[str, float]


@dataclass(frozen=True)
class Report:
    """A benchmark run.

    Attributes:
        device: the GPU.
        software: versions of Python, torch and Triton.
        subjects: version of each subject.
        copy_gb_s: bandwidth of a large copy, bytes read plus written.
        empty_kernel_us: an empty kernel in a graph.
        host_us: what a call costs the CPU outside a graph, by subject.
        lines: one for each shape.
    """

    device: str
    software: dict[str, str]
    subjects: dict[str, str]
    copy_gb_s: float
    empty_kernel_us: float
    host_us: dict[str, float]
    lines: tuple[Line, ...]


def run(subjects: dict[str, Subject], device: torch.device) -> Report:
    """Check and time every subject at every shape.

    Args:
        subjects: what to time, by name.
        device: the GPU.

    Returns:
        The report.

    Raises:
        SubjectError: a subject wrote something wrong.
    """
    from ds4_kernels.bench import timing  # needs Triton, which this command line must not need

    timer = timing.GraphTimer(device)
    bandwidth, empty = timing.copy_bytes_per_us(device), timing.empty_kernel_us(timer)
    lines = []
    for shape in all_shapes():
        steps = [make_step(shape, seed, device) for seed in range(timing.LAUNCHES)]
        times = {}
        for name, subject in subjects.items():
            _check(name, subject.builder, steps[0])
            launches = [_launch(subject.builder, step) for step in steps]
            times[name] = round(timer.microseconds(launches), 3)
        fill = timer.microseconds([_fill(step) for step in steps])
        lines.append(_line(shape, steps[0], empty, bandwidth, fill, times))
    step = make_step(Shape(8, 1024, Lengths.LONG), 0, device)
    host = {name: timing.host_us(_launch(subject.builder, step)) for name, subject in subjects.items()}
    return Report(
        device=device_name(device),
        software=software_versions(),
        subjects={name: subject.version for name, subject in subjects.items()},
        copy_gb_s=round(bandwidth / 1000, 1),
        empty_kernel_us=round(empty, 3),
        host_us={name: round(value, 1) for name, value in host.items()},
        lines=tuple(lines),
    )


def _line(
    shape: Shape, step: Step, empty: float, bandwidth: float, fill: float, times: dict[str, float]
) -> Line:
    moved = bytes_moved(step)
    return Line(
        rows=shape.rows,
        capacity=shape.capacity,
        lengths=shape.lengths.value,
        width=step.batch.width,
        bytes_moved=moved,
        bound_us=round(max(empty, moved / bandwidth), 3),
        fill_us=round(fill, 3),
        kernel_us=times,
    )


def _fill(step: Step) -> Callable[[], object]:
    prefix = step.buffers.decode[:, : step.batch.width]
    return lambda: prefix.fill_(-1)


def _launch(builder: Builder, step: Step) -> Callable[[], object]:
    return lambda: builder(step.batch, step.buffers)


def _check(name: str, builder: Builder, step: Step) -> None:
    """Compare one step with the reference, so that nothing wrong is timed."""
    batch, buffers = step.batch, step.buffers
    buffers.decode.fill_(-77)
    builder(batch, buffers)
    right = Buffers.allocate(batch.num_tokens, buffers.capacity, buffers.decode.device, fill=-77)
    reference.build(batch, right)
    equal = torch.equal(right.decode, buffers.decode) and torch.equal(right.lens, buffers.lens)
    if not equal:
        raise SubjectError(f"{name}: writes something else than the reference; nothing was timed")


def text(report: Report) -> str:
    """Lay a report out as a table.

    Args:
        report: what was measured.

    Returns:
        Lines to print; for vLLM, how many times its time this package's kernels need less.
    """
    names = list(report.subjects)
    head = f"{'rows':>4} {'capacity':>8} {'lengths':<20} {'width':>5} {'bound':>7} {'fill':>7} "
    head += " ".join(f"{name:>8}" for name in names)
    own = [name for name in names if name != "vllm"] if "vllm" in names else []
    head += " ".join([""] + [f"vllm/{name:<7}" for name in own] + [f"{name}/bound" for name in own])
    versions = ", ".join(f"{name} {version}" for name, version in report.subjects.items())
    host = ", ".join(f"{name} {value} us" for name, value in report.host_us.items())
    lines = [
        f"{report.device}; {report.software}; {versions}",
        f"copy {report.copy_gb_s} GB/s, empty kernel {report.empty_kernel_us} us",
        f"a call outside a graph costs the CPU: {host}",
        "microseconds of one launch in a CUDA graph:",
        head,
    ]
    for line in report.lines:
        cells = f"{line.rows:>4} {line.capacity:>8} {line.lengths:<20} {line.width:>5} "
        cells += f"{line.bound_us:>7.2f} {line.fill_us:>7.2f} "
        cells += " ".join(f"{line.kernel_us[name]:>8.2f}" for name in names)
        for name in own:
            cells += f" {line.kernel_us['vllm'] / line.kernel_us[name]:>12.2f}"
        for name in own:
            cells += f" {line.kernel_us[name] / line.bound_us:>{len(name) + 6}.2f}"
        lines.append(cells)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: command line, without the program's name; None takes the process's own.

    Returns:
        0 when everything was timed, 4 when it cannot be.
    """
    parser = argparse.ArgumentParser(prog="python -m ds4_kernels.bench", description=__doc__)
    parser.add_argument("--subject", action="append", choices=("triton", "cuda", "vllm"), help="default: all")
    parser.add_argument("--vllm-root", type=Path, metavar="DIR", help="time the vllm package in this folder")
    parser.add_argument("--json", type=Path, metavar="F", help="write the report as JSON")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("error: no GPU here; there is nothing to time", file=sys.stderr)
        return CANNOT_RUN
    try:
        subjects = {
            name: resolve(SubjectRequest(name, options.vllm_root if name == "vllm" else None))
            for name in options.subject or ("triton", "cuda", "vllm")
        }
        report = run(subjects, torch.device("cuda", torch.cuda.current_device()))
    except SubjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return CANNOT_RUN
    print(text(report))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(dataclasses.asdict(report), indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
