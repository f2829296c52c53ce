"""Small releases on the fake server, run through the command line as a user would."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@dataclass
class Project:
    """A release on the fake server, in a directory of its own."""

    root: Path

    @property
    def release(self) -> Path:
        return self.root / "release.yaml"

    def change(self, **changes) -> None:
        data = yaml.safe_load(self.release.read_text())
        for path, value in changes.items():
            *parents, last = path.split("__")
            node = data
            for key in parents:
                node = node.setdefault(key, {})
            node[last] = value
        self.release.write_text(yaml.safe_dump(data))

    def misbehave(self, arm: str, how: str, **more: str) -> None:
        self.change(**{f"arms__{arm}__environment": {"FAKE_MISBEHAVE": how, **more}})

    def start(self, *options: str) -> subprocess.Popen:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "qualify",
                "run",
                str(self.release),
                "--bundles",
                str(self.root / "bundles"),
                "--models",
                str(self.root / "models"),
                *options,
            ],
            env=ENVIRONMENT,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, within_s: float = 120) -> "Outcome":
        process = self.start(*options)
        out, err = process.communicate(timeout=within_s)
        assert not self.left_over()
        return Outcome(process.returncode, out, err)

    def bundles(self) -> list[Path]:
        return sorted((self.root / "bundles").glob("*"))

    def bundle(self) -> Path:
        return self.bundles()[-1]

    def read(self, name: str):
        return json.loads((self.bundle() / name).read_bytes())

    def left_over(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "tests.fake_server" in words and any(str(self.root) in word for word in words):
                found.append(process)
        return found


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def judge(bundle: Path) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "qualify", "judge", str(bundle)],
        env=ENVIRONMENT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def assert_judged_again_the_same(project: Project) -> None:
    again = judge(project.bundle())
    assert again.out.encode() == (project.bundle() / "verdict.json").read_bytes()
    assert (
        again.code
        == {"qualified": 0, "rejected": 1, "inconclusive": 3}[project.read("verdict.json")["result"]]
    )


def wait_for(project: Project, arm: str, process: subprocess.Popen) -> psutil.Process:
    """The arm's server, once its first requests have been answered."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        for bundle in project.bundles():
            answered = list((bundle / f"arms/{arm}").glob("*.run*.jsonl"))
            if any(path.stat().st_size for path in answered):
                return next(
                    server for server in project.left_over() if f"arms/{arm}" in str(server.environ())
                )
        time.sleep(0.05)
    raise AssertionError("no server in time")


def make_project(root: Path) -> Project:
    """Writes a small release on the fake server into a directory."""
    (root / "model").mkdir()
    (root / "model/config.json").write_text(
        json.dumps({"model_type": "fake", "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 1})
    )
    phase = {
        "context_tokens": [200, 30, 500, 80, 310, 60, 150, 90],
        "decode_tokens": 12,
        "arrival": {"kind": "held"},
    }
    scenario = {
        "format": "qualify/scenario/1",
        "name": "mixed",
        "description": "For tests.",
        "seed": 3,
        "deadline_s": 60.0,
        "phases": [{"name": "pollute", "judged": False, **phase}, {"name": "judge", **phase}],
    }
    policy = {
        "format": "qualify/policy/1",
        "name": "test",
        "coverage": {"minimum_rows": 8, "replay_share": 0.9, "judged_positions": 50},
    }
    release = {
        "format": "qualify/release/1",
        "name": "fake",
        "description": "For tests.",
        "replay": "emulated",
        "model": {"kind": "local", "path": "model"},
        "serving": {
            "python": sys.executable,
            "module": "tests.fake_server",
            "served_name": "fake",
            "max_model_len": 32768,
            "max_num_seqs": 16,
            "ready_within_s": 20.0,
            "stop_within_s": 5.0,
            "environment": {"PYTHONPATH": str(ROOT), "FAKE_NOISE": "0.002"},
        },
        "arms": {
            "baseline": {},
            "candidate": {},
            "control": {"fault": "packed-stride", "caught_in": ["mixed"]},
        },
        "scenarios": ["scenario.yaml"],
        "policy": "policy.yaml",
    }
    for name, data in (("scenario", scenario), ("policy", policy), ("release", release)):
        (root / f"{name}.yaml").write_text(yaml.safe_dump(data))
    return Project(root)
