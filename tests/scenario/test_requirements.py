"""What a scenario demands of its load: read strictly, kept in the plan, absent from old ones."""

import msgspec
import pytest
from pydantic import ValidationError

from qualify.record import ScenarioExpectation
from qualify.requirements import NOTHING, Requirements
from qualify.scenario import Scenario

BASE = {
    "format": "qualify/scenario/1",
    "name": "some",
    "description": "For tests.",
    "seed": 1,
    "phases": [{"name": "judge", "context_tokens": [30] * 5, "decode_tokens": 4}],
}


def test_read_from_plain_values():
    scenario = Scenario.model_validate(BASE | {"requires": {"rows": [3, 5], "prefill_during_decode": True}})
    assert scenario.requires == Requirements(rows=(3, 5), prefill_during_decode=True)
    assert Scenario.model_validate(BASE).requires == NOTHING


@pytest.mark.parametrize(
    "requires",
    [
        {"row": [3]},
        {"rows": ["3"]},
        {"rows": [0]},
        {"preemptions": 1.5},
        {"prefix_hits": 1},
        {"kv_cache_share": 2},
        {"speculation": "on"},
    ],
)
def test_anything_else_is_refused(requires):
    with pytest.raises(ValidationError):
        Scenario.model_validate(BASE | {"requires": requires})


def test_kept_in_the_plan_and_absent_from_old_ones():
    kept = ScenarioExpectation(
        name="some",
        decode_ways=("free",),
        control_can_act=False,
        requests=(),
        requires=Requirements(rows=(3,)),
    )
    encoded = msgspec.json.encode(kept)
    assert msgspec.json.decode(encoded, type=ScenarioExpectation) == kept
    old = msgspec.json.decode(encoded, type=dict)
    del old["requires"]
    assert msgspec.convert(old, ScenarioExpectation).requires == NOTHING
