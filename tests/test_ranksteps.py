"""Step logs of several ranks side by side."""

from qualify.ranksteps import compare_ranks
from qualify.steps import Step, StepMetadata, StepRow

FULL = "FULL CUDA graph replay"


def step(kind: str = "decode", replay: str = FULL, *, rows: str = "ab", crc32: int = 1, wrong=()) -> Step:
    placed = tuple(
        StepRow(server_request_id=name, row=row, computed_tokens=9, scheduled_tokens=1)
        for row, name in enumerate(rows)
    )
    seen = StepMetadata(crc32=crc32, wrong_rows=wrong)
    return Step(kind=kind, rows=placed, replay=replay, metadata=seen)


def ranks(*logs: list[Step]):
    return compare_ranks(lambda rank: iter(logs[rank]), len(logs), FULL)


def test_equal_ranks():
    log = [step("prefill", "none"), step(), step(replay="PIECEWISE CUDA graph replay")]
    first, second = ranks(log, log)
    assert (second.steps, second.replayed, second.decode, second.whole) == (3, 2, 2, 1)
    assert (first.rank, second.rank, second.other, second.disagreed, second.wrong) == (0, 1, "", 0, 0)


def test_the_first_difference_is_kept():
    right = [step(), step(), step()]
    for other, said in (
        ([step(), step("mixed"), step()], "step 1 is a step of kind mixed; on rank 0: decode"),
        ([step(), step(rows="ba"), step()], "step 1 has rows of b, a; on rank 0: a, b"),
        ([step(replay="none"), step(), step()], f"step 0 was replayed by none; on rank 0: {FULL}"),
        ([step(), step()], "step 2 was recorded by rank 0 only"),
        ([*right, step()], "rank 0 has no step 3"),
        ([], "step 0 was recorded by rank 0 only"),
    ):
        assert ranks(right, other)[1].other == said


def test_wrong_rows_and_disagreement_are_counted_by_rank():
    right = [step(), step(), step()]
    first, second = ranks(right, [step(), step(crc32=2, wrong=(1,)), step(crc32=2, wrong=(1, 3))])
    assert (first.wrong, first.wrong_rows) == (0, ())
    assert (second.looked, second.wrong, second.wrong_rows, second.disagreed) == (3, 2, (1, 3), 2)
