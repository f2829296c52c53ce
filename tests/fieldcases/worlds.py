"""Small releases, one for each family of scenarios: what a family asks for, in seconds on the fake server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.projects import Project, make_project

HELD = {"kind": "held"}
CONTEXTS = [200, 30, 500, 80, 310, 60, 150, 90]


@dataclass(frozen=True)
class World:
    """A scenario in small, and the server that it needs.

    Attributes:
        family: The scenario of `scenarios/` that it is the small form of.
        phases: As in a scenario file.
        decode: Ways of decoding.
        requires: What its load must reach.
        environment: Of all arms' servers.
        arguments: Of all arms' servers.
        rows: Rows that a decode step must have had.
        sequences: The server's limit of rows.
        deadline_s: Of a request; half of it without a token is a hang.
        known_answers: Known answers that the baseline must get right.
    """

    family: str
    phases: list[dict[str, Any]]
    decode: tuple[str, ...] = ("free", "forced")
    requires: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    rows: int = 8
    sequences: int = 16
    deadline_s: float = 30.0
    known_answers: int = 0


def phase(name: str, **what: Any) -> dict[str, Any]:
    return {"name": name, **what}


MIXED = phase("judge", context_tokens=CONTEXTS, decode_tokens=12, arrival=HELD)
SPECULATES = {"FAKE_SPECULATES": "1", "FAKE_NOISE": "0"}
SPECULATION = {"speculative-config": '{"method": "ngram", "num_speculative_tokens": 3}'}

WORLDS = {
    "mixed": World("mixed-contexts", [MIXED | {"name": "pollute", "judged": False}, MIXED]),
    "few": World("open-traffic", [MIXED], deadline_s=8.0),
    "staircase": World(
        "between-captures",
        [MIXED | {"decode_tokens": [5, 6, 8, 10, 12, 14, 16, 18]}],
        requires={"rows": [1, 2, 3, 4, 5, 6, 7, 8]},
    ),
    "identical": World(
        "identical-prompts",
        [
            phase(
                "judge",
                decode_tokens=12,
                arrival=HELD,
                requests=[
                    {"count": 4, "context_tokens": 200, "prompt": "same"},
                    {"context_tokens": 420},
                    {"count": 4, "context_tokens": 200, "prompt": "same"},
                ],
            )
        ],
        requires={"identical_prompts": 8},
    ),
    "alone": World("identical-prompts", [MIXED], decode=("free", "forced", "alone")),
    "crowd": World(
        "warm-up",
        [
            phase(
                "warm-up",
                judged=False,
                context_tokens={"count": 256, "shortest": 4, "longest": 20},
                decode_tokens=2,
                arrival={"kind": "closed", "concurrency": 16},
            ),
            phase("judge", context_tokens={"count": 126, "shortest": 20, "longest": 60}, decode_tokens=14),
        ],
        decode=("free", "forced", "alone"),
        requires={"warmup_requests": 256, "in_flight": 126},
        environment={"FAKE_STEP_S": "0.03"},
        rows=100,
        sequences=128,
        deadline_s=12.0,
    ),
    "prefix": World(
        "prefix-hits",
        [
            phase(
                "fill",
                judged=False,
                decode_tokens=2,
                requests=[{"tail_tokens": 64, "prefix": {"name": "document", "tokens": 2304}}],
            ),
            phase(
                "judge",
                decode_tokens=10,
                arrival=HELD,
                requests=[
                    {
                        "tail_tokens": [40, 4, 120, 3, 9, 160],
                        "prefix": {"name": "document", "tokens": 2304},
                    },
                    {"context_tokens": [90, 400]},
                ],
            ),
        ],
        requires={"prefix_hits": True, "prefix_hit_tokens": 2304, "prompt_tails": [4]},
        environment={"FAKE_PREFIX_CACHE": "1"},
        arguments={"enable-prefix-caching": True},
    ),
    "late": World(
        "prefill-during-decode",
        [
            phase(
                "judge",
                requests=[
                    {"context_tokens": CONTEXTS, "decode_tokens": 60},
                    {"context_tokens": 700, "decode_tokens": 8, "after": {"request": 0, "tokens": 20}},
                ],
            )
        ],
        decode=("free", "forced", "alone"),
        requires={"prefill_during_decode": True},
        environment={"FAKE_STEP_S": "0.005"},
    ),
    "known": World(
        "known-answers",
        [
            phase(
                "judge",
                decode_tokens=12,
                arrival=HELD,
                requests=[{"context_tokens": [200, 48, 500, 80, 310, 60, 150, 90], "ask": "echo"}],
            )
        ],
        environment={"FAKE_ECHOES": "1"},
        known_answers=7,
    ),
    "long": World(
        "long-decode",
        [phase("judge", context_tokens=CONTEXTS, decode_tokens=400, arrival=HELD)],
        requires={"decoded_tokens": 400},
        environment={"FAKE_STEP_S": "0.0005"},
    ),
    "speculation": World(
        "speculation",
        [phase("judge", context_tokens=CONTEXTS, decode_tokens=160, arrival=HELD)],
        decode=("free",),
        environment=SPECULATES | {"FAKE_STEP_S": "0.02"},
        arguments=SPECULATION,
        sequences=32,
    ),
    "pressure": World(
        "kv-pressure",
        [phase("judge", context_tokens=CONTEXTS, decode_tokens=40)],
        decode=("free",),
        requires={"preemptions": 1},
        environment=SPECULATES | {"FAKE_KV_TOKENS": "1500"},
        arguments=SPECULATION,
    ),
}


def make(root: Path, world: World) -> Project:
    """Writes a world's release.

    Args:
        root: An empty directory.
        world: The world.
    """
    project = make_project(root)
    scenario = {
        "format": "qualify/scenario/1",
        "name": "mixed",
        "description": "A family in small.",
        "seed": 3,
        "deadline_s": world.deadline_s,
        "decode": list(world.decode),
        "phases": world.phases,
        "requires": world.requires,
    }
    (root / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    policy = yaml.safe_load((root / "policy.yaml").read_text())
    policy["coverage"]["minimum_rows"] = world.rows
    policy["coverage"]["known_answers"] = world.known_answers
    (root / "policy.yaml").write_text(yaml.safe_dump(policy))
    environment = yaml.safe_load(project.release.read_text())["serving"]["environment"]
    project.change(
        serving__environment=environment | world.environment,
        serving__arguments=world.arguments,
        serving__max_num_seqs=world.sequences,
    )
    return project
