"""Scenario files: profiles, includes and traces written out, and everything refused with file and line."""

import json
from pathlib import Path

import pytest

from qualify.scenario.reading import ScenarioFile, read_scenario
from qualify.yamlsource import Source

HEAD = """\
format: qualify/scenario/1
name: some
description: For tests.
seed: 1
"""
PROFILES = """\
profiles:
  smoke: {contexts: [30, 40], decode: 4}
  gate: {contexts: [3000, 4000], decode: 40}
phases:
  - name: judge
    context_tokens: $contexts
    decode_tokens: $decode
"""
POLLUTE = """\
phases:
  - name: pollute
    context_tokens: [900, 700]
    decode_tokens: 2
"""


def write(folder: Path, text: str, name: str = "some.yaml", head: str = HEAD) -> Source:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + text)
    return Source(path)


def read(source: Source, profile: str | None = None) -> ScenarioFile:
    found = read_scenario(source, profile)
    assert isinstance(found, ScenarioFile), found
    return found


def problems(source: Source, profile: str | None = None) -> list[str]:
    found = read_scenario(source, profile)
    assert isinstance(found, list), found
    return [f"{Path(problem.where).name}: {problem.what}" for problem in found]


def test_profile_gives_its_parameters(tmp_path):
    source = write(tmp_path, PROFILES)
    for profile, contexts, decode in (("smoke", [30, 40], 4), ("gate", [3000, 4000], 40)):
        (phase,) = read(source, profile).scenario.phases
        assert [asked.context_tokens for asked in phase.asked] == contexts
        assert {asked.decode_tokens for asked in phase.asked} == {decode}


def test_file_without_profiles_is_the_same_in_all(tmp_path):
    source = write(tmp_path, "phases: [{name: judge, context_tokens: [5], decode_tokens: 2}]\n")
    assert read(source, "gate").scenario == read(source).scenario


def test_all_profiles_are_checked_whichever_is_chosen(tmp_path):
    source = write(tmp_path, PROFILES.replace("[3000, 4000]", "[3000, none]"))
    (said,) = problems(source, "smoke")
    assert said.startswith("some.yaml:7:")
    assert "valid integer" in said


def test_include_takes_the_phases_and_keeps_their_files(tmp_path):
    write(tmp_path, POLLUTE, "parts/pollute.yaml")
    judge = "  - {name: judge, context_tokens: [50], decode_tokens: 2}\n"
    source = write(tmp_path, f"phases:\n  - {{include: parts/pollute.yaml, judged: false}}\n{judge}")
    file = read(source)
    assert [(phase.name, phase.judged) for phase in file.scenario.phases] == [
        ("pollute", False),
        ("judge", True),
    ]
    assert sorted(file.expansion.texts) == ["parts/pollute.yaml", "some.yaml"]


def test_include_follows_the_profile(tmp_path):
    write(tmp_path, PROFILES, "part.yaml")
    source = write(tmp_path, "phases: [{include: part.yaml}]\n")
    assert read(source, "gate").scenario.phases[0].asked[0].context_tokens == 3000
    (said,) = problems(source, "soak")
    assert said == "some.yaml:5:11: part.yaml has profiles smoke, gate, and soak is asked for"


def test_problem_of_an_included_phase_names_the_included_file(tmp_path):
    write(tmp_path, POLLUTE.replace("decode_tokens: 2", "decode_tokens: 0"), "pollute.yaml")
    source = write(tmp_path, "phases: [{include: pollute.yaml}]\n")
    (said,) = problems(source)
    assert said.startswith("pollute.yaml:8:")


def test_includes_that_go_round_are_refused(tmp_path):
    write(tmp_path, "phases: [{include: b.yaml}]\n", "a.yaml")
    write(tmp_path, "phases: [{include: some.yaml}]\n", "b.yaml")
    source = write(tmp_path, "phases: [{include: a.yaml}]\n")
    assert problems(source) == ["b.yaml:5:11: includes itself: some.yaml -> a.yaml -> b.yaml -> some.yaml"]


@pytest.mark.parametrize("name", ["../outside.yaml", "/etc/passwd", "link.yaml"])
def test_only_files_of_the_folder_are_read(tmp_path, name):
    folder = tmp_path / "scenarios"
    write(tmp_path, POLLUTE, "outside.yaml")
    source = write(folder, f"phases: [{{include: {name}}}]\n")
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (said,) = problems(source)
    assert said.startswith("some.yaml:5:")
    assert "outside the scenario's folder" in said


def trace(folder: Path, *lines: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "t.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


TRACED = "phases: [{name: judge, arrival: {kind: trace, file: t.jsonl}}]\n"


def test_trace_gives_times_and_lengths(tmp_path):
    trace(
        tmp_path,
        {"offset_s": 0, "context_tokens": 50, "decode_tokens": 3},
        {"offset_s": 0.5, "context_tokens": 20, "decode_tokens": 7},
    )
    file = read(write(tmp_path, TRACED))
    (phase,) = file.scenario.phases
    assert [(asked.context_tokens, asked.decode_tokens) for asked in phase.asked] == [(50, 3), (20, 7)]
    assert phase.arrival.offsets(2) == (0, 0.5)
    assert "t.jsonl" in file.expansion.texts


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"offset_s": 0, "context_tokens": 5}], "t.jsonl:1: not a request of a trace"),
        (
            [
                {"offset_s": 0, "context_tokens": 5, "decode_tokens": 2},
                {"offset_s": 0, "context_tokens": -5, "decode_tokens": 2},
            ],
            "t.jsonl:2: not a request of a trace",
        ),
        (
            [
                {"offset_s": 2, "context_tokens": 5, "decode_tokens": 2},
                {"offset_s": 1, "context_tokens": 5, "decode_tokens": 2},
            ],
            "t.jsonl:2: offset_s is earlier than the line before's",
        ),
        ([], "some.yaml:5:47: t.jsonl has no request"),
    ],
)
def test_wrong_traces_are_refused_by_line(tmp_path, lines, said):
    trace(tmp_path, *lines)
    assert said in "\n".join(problems(write(tmp_path, TRACED)))


JUDGE = "phases:\n  - name: judge\n    context_tokens: [30, 40]\n    decode_tokens: 8\n"
ONE_BY_ONE = f"{JUDGE}    arrival: {{kind: closed, concurrency: 1}}\n"
OTHER = JUDGE.replace("phases:\n", "").replace("judge", "other").replace("[30, 40]", "[30]")
PREFILLED = JUDGE.replace("decode_tokens: 8", "decode_tokens: 1")
TWO_OF_FOUR = (
    "phases:\n  - name: judge\n    decode_tokens: 8\n    arrival: {kind: closed, concurrency: 2}\n"
    "    requests: [{count: 4, context_tokens: 9, prompt: same}]\n"
)
GROUPS = "phases:\n  - name: judge\n    decode_tokens: 8\n    requests:\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        # parameters and profiles
        (PROFILES, 5, "a profile must be chosen: smoke, gate"),
        (JUDGE.replace("8", "$decode"), 8, "there are no profiles, hence no parameter 'decode'"),
        ("profiles: {smoke: {a: 1}, gate: {b: 1}}\n" + JUDGE, 5, "profile 'smoke' lacks b"),
        ("profiles: {smoke: {a: 1}}\n" + JUDGE, 5, "parameter 'a' is not used"),
        ("profiles: {huge: {a: 1}}\n" + JUDGE.replace("8", "$a"), 5, "there is no profile 'huge'"),
        ("profiles: [smoke]\n" + JUDGE, 5, "give parameters by profile"),
        # includes and traces
        ("phases: [{include: none.yaml}]\n", None, "none.yaml cannot be read"),
        ("phases: [{include: some.yaml, as: x}]\n", 5, "unknown key 'as' beside include"),
        ("phases: [{include: some.yaml, judged: true}]\n", 5, "kept from being judged: false"),
        ("phases: {}\n", 5, "phases is a list"),
        ("phases: [{include: .}]\n", 5, "cannot be read"),
        ('phases: [{include: "\\ud800"}]\n', 5, "is no name of a file"),
        (TRACED, 5, "t.jsonl cannot be read"),
        (
            TRACED.replace("name: judge", "name: judge, decode_tokens: 2"),
            5,
            "no meaning with arrival 'trace'",
        ),
        # requests
        (JUDGE.replace("8", "[8, 9, 10]"), 6, "3 decode_tokens for 2 requests"),
        (JUDGE.replace("    decode_tokens: 8\n", ""), 6, "decode_tokens is missing"),
        (JUDGE.replace("[30, 40]", "{count: 9, shortest: 5, longest: 4}"), 7, "longer than longest 4"),
        (JUDGE.replace("[30, 40]", "{count: 9, shortest: 5}"), 7, "longest' is missing"),
        (JUDGE.replace("    context_tokens: [30, 40]\n", ""), 6, "either context_tokens or requests"),
        (GROUPS + "      - {count: 2}\n", 9, "give either context_tokens, or prefix and tail_tokens"),
        (GROUPS + "      - {tail_tokens: 2}\n", 9, "tail_tokens needs a prefix"),
        (GROUPS + "      - {count: 3, context_tokens: [1, 2]}\n", 9, "disagree about the number"),
        (
            GROUPS + "      - {context_tokens: 9, prefix: {name: a, tokens: 9}}\n",
            9,
            "must exceed the prefix of 9 tokens",
        ),
        (
            GROUPS + "      - {context_tokens: 9, prompt: a, prefix: {name: a, tokens: 3}}\n",
            9,
            "prompt and prefix exclude each other",
        ),
        # arrival
        (JUDGE + "    arrival: {kind: poisson}\n", 9, "'poisson' needs per_s"),
        (JUDGE + "    arrival: {kind: closed, per_s: 3}\n", 9, "'closed' needs concurrency"),
        (JUDGE + "    arrival: {kind: held, concurrency: 3}\n", 9, "concurrency has no meaning"),
        (JUDGE.replace("[30, 40]", "[30]") + "    arrival: {kind: blocker}\n", 9, "needs a second request"),
        (
            "deadline_s: 4\n" + JUDGE.replace("[30, 40]", str([9] * 41)) + "    arrival: {kind: held}\n",
            10,
            "41 requests are held one after another, 0.05 s each: more than half of the deadline of 4 s",
        ),
        ("stream: false\n" + JUDGE + "    arrival: {kind: blocker}\n", 10, "'blocker' needs stream: true"),
        (
            GROUPS + "      - {context_tokens: 9, after: {request: 0, tokens: 2}}\n",
            9,
            "waits for request 0, which is not before it",
        ),
        (
            GROUPS
            + "      - {context_tokens: 9}\n      - {context_tokens: 9, after: {request: 0, tokens: 9}}\n",
            10,
            "waits for token 9 of request 0, which generates 8",
        ),
        (
            GROUPS + "      - {context_tokens: 9, after: {request: 0}}\n",
            9,
            "either seconds, or request and tokens",
        ),
        (
            GROUPS + "      - {context_tokens: 9, after: {seconds: 1}}\n    arrival: {kind: blocker}\n",
            9,
            "after has no meaning with arrival 'blocker'",
        ),
        # requirements that the scenario itself cannot reach
        ("requires: {rows: [3]}\n" + JUDGE, 5, "3 requests at one time are required"),
        ("requires: {rowz: [3]}\n" + JUDGE, 5, "unknown key 'requires.rowz'"),
        ("requires: {in_flight: 3}\n" + JUDGE, 5, "no phase has more than 2"),
        ("requires: {identical_prompts: 2}\n" + JUDGE, 5, "at most 0 of a phase name the same prompt"),
        ("requires: {straddled_tokens: [100]}\n" + JUDGE, 5, "within 100 tokens beside one that goes beyond"),
        ("requires: {decoded_tokens: 9}\n" + JUDGE, 5, "asks for more than 8"),
        ("requires: {warmup_requests: 1}\n" + JUDGE, 5, "and there are 0"),
        ("requires: {prefix_hits: true}\n" + JUDGE, 5, "nothing can be hit"),
        ("requires: {prefix_hit_tokens: 64}\n" + JUDGE, 5, "requests share at most 0"),
        ("requires: {prompt_tails: [2]}\n" + JUDGE, 5, "no request has tail_tokens of 2"),
        ("requires: {preemptions: 1}\n" + JUDGE.replace("[30, 40]", "[30]"), 5, "never preempted"),
        (
            "requires: {prefill_during_decode: true}\n" + JUDGE.replace("[30, 40]", "[30]"),
            5,
            "one request at a time",
        ),
        (f"requires: {{prefill_during_decode: true}}\n{ONE_BY_ONE}{OTHER}", 5, "one request at a time"),
        (f"requires: {{prefill_during_decode: true}}\n{PREFILLED}", 5, "one request at a time"),
        (f"requires: {{rows: [2]}}\n{PREFILLED}", 5, "no phase has more than 0"),
        (f"requires: {{rows: [2]}}\n{ONE_BY_ONE}", 5, "no phase has more than 1"),
        (f"requires: {{straddled_tokens: [35]}}\n{ONE_BY_ONE}", 5, "beside one that goes beyond"),
        (f"requires: {{straddled_tokens: [35]}}\n{PREFILLED}", 5, "beside one that goes beyond"),
        (
            "requires: {straddled_tokens: [100]}\n" + JUDGE.replace("[30, 40]", "[99]"),
            5,
            "beside one that goes beyond",
        ),
        (f"requires: {{identical_prompts: 3}}\n{TWO_OF_FOUR}", 5, "at most 2 of a phase"),
    ],
)
def test_refused_with_its_place(tmp_path, text, line, said):
    found = problems(write(tmp_path, text))
    assert said in "\n".join(found)
    if line is not None:
        assert any(said in one and one.startswith(f"some.yaml:{line}:") for one in found), found


def test_lengths_of_a_spread(tmp_path):
    def contexts(spread: str) -> list[int]:
        source = write(
            tmp_path, JUDGE.replace("[30, 40]", f"{{count: 5, shortest: 10, longest: 160, {spread}}}")
        )
        return [asked.context_tokens for asked in read(source).scenario.phases[0].asked]

    assert contexts("spacing: geometric, order: rising") == [10, 20, 40, 80, 160]
    assert contexts("order: falling") == [160, 122, 85, 48, 10]
    shuffled = contexts("order: shuffled")
    assert shuffled == contexts("order: shuffled")
    assert sorted(shuffled) == contexts("order: rising") != shuffled


@pytest.mark.parametrize(
    "requires",
    [
        "{rows: [2]}",
        "{straddled_tokens: [35]}",
        "{prefill_during_decode: true}",
        "{straddled_tokens: [35], rows: [1, 2]}",
    ],
)
def test_what_two_requests_at_once_can_reach_is_accepted(tmp_path, requires):
    assert read(write(tmp_path, f"requires: {requires}\n{JUDGE}")).scenario
