"""The shipped scenarios: readable in all profiles, fit for their servers, and telling what they are for."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from qualify.feasibility import unfulfillable
from qualify.inputs import read_inputs
from qualify.release import Release
from qualify.scenario import schema
from qualify.scenario.catalogue import table
from qualify.scenario.expansion import profiles_of
from qualify.scenario.reading import ScenarioFile, read_scenario
from qualify.yamlsource import Source

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios").glob("*.yaml"))
SCHEMA = ROOT / "scenarios/schema.json"
NAMES = [path.stem for path in FILES]
# what a profile is meant for; files without profiles are read with the releases that name them
SERVERS = {"smoke": "ds4-cpu", "gate": "ds4-h200", "soak": "ds4-h200"}


FAMILIES = [
    pytest.param(path, profile, id=f"{path.stem}-{profile}")
    for path in FILES
    for profile in profiles_of(Source(path))
]


def read(path: Path, profile: str | None) -> ScenarioFile:
    found = read_scenario(Source(path), profile)
    assert isinstance(found, ScenarioFile), found
    return found


@pytest.mark.parametrize(("path", "profile"), FAMILIES)
def test_fits_the_server_that_its_profile_is_meant_for(path, profile):
    file = read(path, profile)
    assert file.scenario.name == path.stem
    assert file.scenario.field_cases
    release = read_inputs(ROOT / "images" / SERVERS[profile]).release
    assert unfulfillable(file.scenario, file.expansion, _able(release, file)) == []


def _able(release: Release, file: ScenarioFile) -> Release:
    """The release with the features that a scenario is about: prefix caching, speculation."""
    arguments = release.serving.arguments | {"enable-prefix-caching": True}
    if file.scenario.requires.speculation:
        arguments |= {"speculative-config": '{"method": "ngram", "num_speculative_tokens": 3}'}
    return release.model_copy(update={"serving": release.serving.model_copy(update={"arguments": arguments})})


@pytest.mark.parametrize(("path", "profile"), FAMILIES)
def test_smoke_is_small_and_soak_is_long(path, profile):
    asked = [one for phase in read(path, profile).scenario.phases for one in phase.asked * phase.repeat]
    tokens = sum(one.context_tokens + one.decode_tokens for one in asked)
    if profile == "smoke":
        assert tokens < 6_000
    if profile == "soak":
        assert tokens > 50_000
        gate = [one for phase in read(path, "gate").scenario.phases for one in phase.asked * phase.repeat]
        assert tokens > sum(one.context_tokens + one.decode_tokens for one in gate)


def test_every_axis_of_the_field_cases_is_asked_for():
    """Axes (a) to (l): each by a requirement that is measured, or by the order and names of requests."""
    asked = {path.stem: read(path, "gate" if profiles_of(Source(path)) else None).scenario for path in FILES}
    assert {3, 5, 15} <= set(asked["between-captures"].requires.rows)
    assert asked["between-captures"].requires.padded_rows
    assert set(asked["straddling"].requires.straddled_tokens) == {16_512, 32_896}
    victims = [
        [one.prompt for one in phase.asked].index(None) / (len(phase.asked) - 1)
        for phase in asked["identical-prompts"].phases
    ]
    assert victims == [0, pytest.approx(0.5, abs=0.1), 1]
    assert [phase.judged for phase in asked["freed-pages"].phases] == [False, False, False, True]
    assert asked["warm-up"].requires.warmup_requests >= 256
    assert asked["long-decode"].requires.decoded_tokens == 4096
    assert read(ROOT / "scenarios/long-decode.yaml", "soak").scenario.requires.decoded_tokens == 16384
    assert set(range(1, 10)) == set(asked["prompt-tails"].requires.prompt_tails)
    assert asked["prefix-hits"].requires.prefix_hit_tokens > 2048
    assert any(one.ask and one.prefix for phase in asked["prefix-hits"].phases for one in phase.asked)
    assert asked["kv-pressure"].requires.preemptions
    assert asked["prefill-during-decode"].requires.prefill_during_decode
    rising, falling = ([one.context_tokens for one in phase.asked] for phase in asked["length-order"].phases)
    assert rising == sorted(rising) == falling[::-1]
    assert asked["speculation"].requires.speculation is True


def test_documentation_shows_the_catalogue_as_it_is():
    assert table(ROOT / "scenarios") in (ROOT / "docs/scenarios.md").read_text(), (
        "run: python -m qualify.scenario.catalogue scenarios"
    )


def test_smoke_is_driven_or_its_absence_is_explained():
    text = (ROOT / "docs/scenarios.md").read_text()
    absent = text[text.index("Not in `smoke`") :]
    driven = {scenario.name for scenario in read_inputs(ROOT / "images/ds4-cpu").scenarios}
    for path in FILES:
        known = profiles_of(Source(path))
        if "smoke" in known:
            assert path.stem in driven
        elif known:
            assert f"`{path.stem}`" in absent


def test_schema_is_what_the_types_say():
    assert SCHEMA.read_text() == schema.text(), "run: python -m qualify.scenario.schema scenarios/schema.json"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_schema_accepts_the_catalogue(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"seeed": 1},
        {"seed": "many"},
        {"phases": [{"include": "a.yaml", "judged": True}]},
        {"phases": [{"name": "judge", "context_tokens": ["$Long"], "decode_tokens": 3}]},
        {"phases": [{"name": "judge", "context_tokens": [3], "decode_tokens": 0}]},
        {"phases": [{"name": "judge", "context_tokens": [3], "arrival": {"kind": "later"}}]},
        {"requires": {"rows": 3}},
        {"profiles": {"huge": {}}},
    ],
)
def test_schema_refuses_what_a_reader_refuses(change):
    data = yaml.safe_load((ROOT / "scenarios/mixed-contexts.yaml").read_text()) | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(SCHEMA.read_text()))
