"""The benchmark around its timing: its steps and their bytes, that nothing wrong is timed, and the table."""

import pytest
import torch
from ds4_kernels.bench import __main__ as bench
from ds4_kernels.bench import timing
from ds4_kernels.bench.workload import Lengths, Shape, all_shapes, bytes_moved, make_step
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.faulty import MetadataFault, with_fault
from ds4_kernels.contracts.subjects import Subject, SubjectError, SubjectRequest

CPU = torch.device("cpu")
SHAPES = [Shape(8, 1024, Lengths.ONE_LONG), Shape(1, 128, Lengths.SHORT)]


def subject(builder=reference.build) -> Subject:
    return Subject("some", "1", CPU, builder, SubjectRequest("some"))


@pytest.fixture
def without_gpu(monkeypatch):
    """Replace the clock: every row of launches is run, and takes 2 microseconds a launch."""

    class Timer:
        def __init__(self, device):
            pass

        def microseconds(self, launches):
            for launch in launches:
                launch()
            return 2.0

    monkeypatch.setattr(timing, "GraphTimer", Timer)
    monkeypatch.setattr(timing, "LAUNCHES", 2)
    monkeypatch.setattr(timing, "copy_bytes_per_us", lambda device: 1000.0)
    monkeypatch.setattr(timing, "empty_kernel_us", lambda timer: 1.5)
    monkeypatch.setattr(timing, "host_us", lambda launch: 30.0)
    monkeypatch.setattr(bench, "all_shapes", lambda: SHAPES)


def test_every_row_count_capacity_and_mixture_is_timed():
    shapes = all_shapes()
    assert len(shapes) == len(set(shapes)) == 4 * 3 * 3


@pytest.mark.parametrize(
    ("lengths", "width", "long_rows"),
    [(Lengths.SHORT, 128, 0), (Lengths.ONE_LONG, 1024, 1), (Lengths.LONG, 1024, 8)],
)
def test_contexts_are_what_the_shape_says(lengths, width, long_rows):
    batch = make_step(Shape(8, 1024, lengths), 3, CPU).batch
    entries = (batch.positions + 1) // 128
    assert batch.width == width
    assert int((entries >= 768).sum()) == long_rows
    assert int(entries.max()) <= width


def test_bytes_are_those_that_the_step_cannot_do_without():
    step = make_step(Shape(1, 128, Lengths.SHORT), 0, CPU)
    entries = int(step.batch.positions[0] + 1) // 128
    sectors = -(-(-(-entries // 2) * 4) // 32)
    assert bytes_moved(step) == 4 * 128 + 4 + 20 + 32 * sectors


def test_the_report_has_bound_and_ratios(without_gpu):
    report = bench.run({"cuda": subject(), "vllm": subject()}, CPU)
    large, small = report.lines
    assert large.bound_us == pytest.approx(large.bytes_moved / 1000, abs=1e-3)
    assert small.bound_us == 1.5
    lines = bench.text(report).splitlines()
    assert "vllm/cuda" in lines[-3]
    assert lines[-1].split()[-2:] == ["1.00", "1.33"]


def test_nothing_wrong_is_timed(without_gpu):
    broken = with_fault(reference.build, MetadataFault.NEWEST_ENTRY_MISSING)
    with pytest.raises(
        SubjectError, match="cuda: writes something else than the reference; nothing was timed"
    ):
        bench.run({"cuda": subject(broken)}, CPU)


def test_without_a_gpu_it_says_so(capsys):
    assert bench.main([]) == 4
    assert "no GPU here; there is nothing to time" in capsys.readouterr().err
