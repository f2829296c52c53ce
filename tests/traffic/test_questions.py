"""Questions with known answers: exact lengths, the same every time, and answers that are right."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from qualify.compare.traits import contains
from qualify.errors import UsageError
from qualify.scenario import Scenario
from qualify.traffic.prompts import Vocabulary, expected_requests, plan_rounds, prompt_digest
from qualify.traffic.questions import Asking, Question, question

PLAIN = list(range(3, 500))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer with merges of its own, so that spaces and digits are joined as in real ones."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    texts = ["The secret number of the blue box is 48213. 12 + 35 = 47\nQuestion: What is Answer:"] * 40
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def asking(kind: str, tokens: int, tokenizer: Path | None = None, **more: object) -> Asking:
    base = Asking(
        kind=kind,  # type: ignore[arg-type]
        seed=7,
        name="judge",
        index=0,
        tokens=tokens,
        tokenizer=tokenizer,
        bos=None,
    )
    return replace(base, **more)


def answered(made: Question, tokens: list[int]) -> bool:
    return any(contains(np.array(tokens, dtype=np.int32), way) for way in made.answers)


@pytest.mark.parametrize("kind", ["needle", "arithmetic", "echo"])
@pytest.mark.parametrize("tokens", [200, 201, 1500])
def test_prompts_have_their_length_and_are_the_same_again(kind: str, tokens: int, tokenizer: Path) -> None:
    one = asking(kind, tokens, tokenizer)
    made = question(one, PLAIN)
    assert len(made.prompt) == tokens
    assert question(one, PLAIN) == made
    for other in (replace(one, index=1), replace(one, seed=8), replace(one, name="other")):
        assert question(other, PLAIN) != made


def test_the_needle_lies_in_the_text_once_and_is_the_answer(tokenizer: Path) -> None:
    reader = Tokenizer.from_file(str(tokenizer))
    for index in range(20):
        made = question(asking("needle", 300, tokenizer, index=index, bos=1), PLAIN)
        text = reader.decode(list(made.prompt[1:]))
        (thing, number), *others = re.findall(r"secret number of the ([a-z ]+) is (\d{5})\.", text)
        assert not others
        assert f"What is the secret number of the {thing}?" in text
        assert made.prompt[0] == 1
        assert answered(made, reader.encode(f"is {number}.\n").ids)
        assert not answered(made, reader.encode(f"is {int(number) + 1}.\n").ids)


def test_the_sum_is_right_and_so_are_the_ones_before_it(tokenizer: Path) -> None:
    reader = Tokenizer.from_file(str(tokenizer))
    made = question(asking("arithmetic", 200, tokenizer), PLAIN)
    *shown, last = reader.decode(list(made.prompt)).splitlines()
    assert len(shown) > 5
    for line in shown[1:]:  # the first one may be cut
        left, right, total = map(int, re.split(r" [+=] ", line))
        assert left + right == total
    found = re.fullmatch(r"(\d+) \+ (\d+) =", last)
    assert found
    total = int(found[1]) + int(found[2])
    assert answered(made, reader.encode(f" {total}\n").ids)
    assert not answered(made, reader.encode(f" {total + 1}\n").ids)


def test_an_echo_goes_on_where_the_stretch_begins_and_needs_no_tokenizer() -> None:
    made = question(asking("echo", 40), PLAIN)
    stretch = made.prompt[-16:]
    assert made.prompt[-32:-16] == stretch
    assert answered(made, [*stretch, *stretch])
    assert not answered(made, list(stretch[8:]))


@pytest.mark.parametrize(("kind", "tokens"), [("needle", 30), ("arithmetic", 3), ("echo", 31)])
def test_too_short_prompts_are_refused_with_what_they_need(kind: str, tokens: int, tokenizer: Path) -> None:
    with pytest.raises(UsageError, match="it needs") as refused:
        question(asking(kind, tokens, tokenizer), PLAIN)
    needed = int(re.findall(r"it needs (\d+)", str(refused.value))[0])
    question(asking(kind, needed, tokenizer), PLAIN)


def test_text_needs_a_tokenizer_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the model has no tokenizer\.json"):
        question(asking("needle", 300), PLAIN)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="the tokenizer cannot be read"):
        question(asking("needle", 300, tmp_path / "tokenizer.json"), PLAIN)


def test_a_scenario_asks_and_its_plan_knows_the_answers() -> None:
    scenario = Scenario.model_validate(
        {
            "format": "qualify/scenario/1",
            "name": "known",
            "description": "For tests.",
            "seed": 1,
            "phases": [
                {
                    "name": "judge",
                    "decode_tokens": 12,
                    "requests": [{"context_tokens": [64, 80], "ask": "echo"}, {"context_tokens": 50}],
                }
            ],
        }
    )
    vocabulary = Vocabulary(size=500, special=(0,))
    expected = expected_requests(scenario, vocabulary)
    sent = [request for round_ in plan_rounds(scenario, vocabulary) for request in round_.requests]
    assert [len(request.prompt) for request in sent] == [64, 80, 50]
    assert [bool(request.answer_ids) for request in expected] == [True, True, False]
    assert [request.prompt_sha256 for request in expected] == [prompt_digest(each.prompt) for each in sent]


def test_a_question_excludes_a_shared_prompt() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        Scenario.model_validate(
            {
                "format": "qualify/scenario/1",
                "name": "known",
                "description": "For tests.",
                "seed": 1,
                "phases": [
                    {
                        "name": "judge",
                        "decode_tokens": 4,
                        "requests": [{"context_tokens": 64, "ask": "echo", "prompt": "same"}],
                    }
                ],
            }
        )


@pytest.mark.parametrize("kind", ["needle", "arithmetic", "echo"])
def test_a_question_can_come_after_a_shared_prefix(kind: str, tokenizer: Path) -> None:
    prefix = {"name": "document", "tokens": 320}
    scenario = Scenario.model_validate(
        {
            "format": "qualify/scenario/1",
            "name": "some",
            "description": "For tests.",
            "seed": 1,
            "phases": [
                {
                    "name": "judge",
                    "decode_tokens": 8,
                    "requests": [
                        {"tail_tokens": [150, 200], "prefix": prefix, "ask": kind},
                        {"tail_tokens": 9, "prefix": prefix},
                    ],
                }
            ],
        }
    )
    vocabulary = Vocabulary(size=500, special=(0, 1, 2), bos=0, tokenizer=tokenizer)
    (round_,) = plan_rounds(scenario, vocabulary)
    prompts = [request.prompt for request in round_.requests]
    assert [len(prompt) for prompt in prompts] == [470, 520, 329]
    assert len({prompt[:320] for prompt in prompts}) == 1
    assert len({prompt[320:329] for prompt in prompts}) == 3
    # the text's beginning is not in its middle
    assert all(0 not in prompt for prompt in prompts)
    expected = expected_requests(scenario, vocabulary)
    assert [prompt_digest(prompt) for prompt in prompts] == [request.prompt_sha256 for request in expected]
    assert [bool(request.answer_ids) for request in expected] == [True, True, False]
    asked = round_.requests[0]
    assert asked.question is not None
    assert prompts[0][320:] == asked.question.prompt
    assert expected[0].answer_ids == asked.question.answers
