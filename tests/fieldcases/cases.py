"""The field cases: how each is acted out on the fake server, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.errors import ExitCode


@dataclass(frozen=True)
class Case:
    """One case of the catalogue.

    Attributes:
        id: As in the catalogue.
        saw: What its users saw, in a few words.
        world: The small form of a scenario in which it is acted out; empty where it is not.
        rule: The rule whose finding decides.
        code: Exit code of the run.
        said: Part of what that finding says.
        baseline: What the baseline acts out beside the candidate, where the case is not about graphs alone.
        how: What shows it, for the table.
        elsewhere: Where it is not acted out: the test that has it, as ``file::function``.
        gap: Where nothing shows it: why.
    """

    id: str
    saw: str
    world: str = ""
    rule: str = ""
    code: ExitCode = ExitCode.REJECTED
    said: str = ""
    baseline: str = ""
    how: str = ""
    elsewhere: str = ""
    gap: str = ""


BATCH = "answers at equal prefixes beside the baseline's"
NUMBERS = "NaN among the log probabilities"
DEATH = "the candidate dies where the baseline lives"
WATCHDOG = "watchdog: no token from any request in flight"
ALONE = "the same requests one at a time"
START = "start-up failure where the baseline starts"

CASES = (
    Case("F01", "concurrent identical prompts garbled", "identical", "divergence", how=BATCH),
    Case("F02", "after 256 clean requests, 3 of 10 never end", "crowd", "divergence", how=BATCH),
    Case("F03", "a NaN row becomes token 0", "mixed", "not-finite", how=NUMBERS),
    Case("F04", "other requests' entries where contexts differ", "mixed", "divergence", how=BATCH),
    Case("F05", "wrong entries after prefix hits over 2,048 tokens", "prefix", "divergence", how=BATCH),
    Case(
        "F06",
        "draft acceptance 75.8% to 4.1%, accuracy gone",
        "speculation",
        "acceptance",
        how="draft acceptance over time, beside the baseline's",
    ),
    Case("F07", "illegal access during capture", "mixed", "start-up", said="illegal memory", how=START),
    Case("F08", "assertion on active width at capture", "mixed", "start-up", said="active width", how=START),
    Case(
        "F09", "not contiguous with more than 64 verify rows", "speculation", "start-up", said="", how=START
    ),
    Case("F10", "widths never tuned: 944 warnings", "mixed", "warnings", how="a warning repeated so often"),
    Case("F11", "characters cut, healthy logs", "long", "divergence", how=BATCH),
    Case("F12", "graphs of 8 rows garble, of 4 do not", "staircase", "divergence", how=BATCH),
    Case("F14", "a prompt tail of K+1 tokens replays the wrong graph", "prefix", "divergence", how=BATCH),
    Case("F15", "a batch of 3 padded to 4 crashes", "staircase", "arm-state", said="", how=DEATH),
    Case("F16", "two or more at once: NaN, and poison stays", "mixed", "not-finite", how=NUMBERS),
    Case("F17", "NaN in padded rows, 5 padded to 8", "staircase", "not-finite", how=NUMBERS),
    Case("F18", "doubled words", "mixed", "divergence", how=BATCH),
    Case("F20", "15 of 16 garbled, runs of one character", "identical", "divergence", how=BATCH),
    Case("F21", "accuracy 0.06 with graphs, 0.91 without", "mixed", "divergence", how=BATCH),
    Case("F22", "accuracy 84.6 to 75.1", "crowd", "divergence", how=BATCH),
    Case("F26", "illegal access at 124 to 128 at once", "crowd", "arm-state", said="", how=DEATH),
    Case("F28", "illegal access after a day and a half", "long", "arm-state", said="", how=DEATH),
    Case(
        "F29",
        "hang at prompt 7, without graphs at 45",
        "few",
        "request-failed",
        baseline="F29-eager",
        how=WATCHDOG,
    ),
    Case("F32", "wrong after hundreds of tokens", "long", "divergence", how=BATCH),
    Case("F34", "32 sequences corrupt, alone clean", "crowd", "one-at-a-time", baseline="F34", how=ALONE),
    Case("F36", "preemption with speculation: assertion", "pressure", "arm-state", said="", how=DEATH),
    Case(
        "F37",
        "prompt logprobs wrong under graphs",
        "mixed",
        code=ExitCode.QUALIFIED,
        how="never asked for: the run is qualified and no request names them",
    ),
    Case(
        "F38",
        "runs without prefix hits count as clean",
        "prefix",
        "coverage",
        code=ExitCode.INCONCLUSIVE,
        how="emptied before each run, the cache is hit within it or not at all; none is no prefix scenario",
    ),
    Case("F40", "a prefill beside decode corrupts it", "late", "one-at-a-time", baseline="F40", how=ALONE),
    Case(
        "F41",
        "a needle is missed, by the control too",
        "known",
        code=ExitCode.QUALIFIED,
        baseline="F41",
        how="no defect: an answer that the baseline misses, too, is the model's limit",
    ),
    Case("F42", "garbage after 12,000 tokens", "long", "divergence", how=BATCH),
    Case(
        "F43",
        "draft acceptance 0.45 to 0.015 in five minutes",
        "speculation",
        "acceptance",
        how="draft acceptance over time, beside the baseline's",
    ),
    Case("F44", "batch-wide BOS, acceptance 0", "speculation", "acceptance", how="draft acceptance; NaN"),
    Case(
        "F45",
        "prompts over 64 tokens corrupt in every mode",
        "known",
        "coverage",
        code=ExitCode.INCONCLUSIVE,
        said="known answers that the baseline gets right",
        baseline="F45",
        how="known answers that the baseline itself must get right",
    ),
    Case("F47", "the point of collapse moves: a race", "mixed", "divergence", how=BATCH),
    Case("F49", "four parallel slots: garbage", "alone", "one-at-a-time", baseline="F49", how=ALONE),
    Case("F50", "thirty at once: crash in a padded batch", "crowd", "arm-state", said="", how=DEATH),
    Case("F51", "every request differs at 8 at once", "alone", "one-at-a-time", baseline="F51", how=ALONE),
    Case("F53", "deadlock with 32 at once", "crowd", "request-failed", how=WATCHDOG),
    Case(
        "F56",
        "a fork ships the packed stride",
        elsewhere="tests/kernels/c128a/test_mutations.py::test_an_implementation_without_the_stride_is_caught",
        how="the kernels' contract suite, on the source that the image ships",
    ),
)
