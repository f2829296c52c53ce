"""The fake server's engine: one token a step for every request, rows in order of admission."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field

from tests.fake_server.misbehaviour import Misbehaviour, Settings

TOP = 24
_WORKER = (
    "import sys, signal; signal.signal(signal.SIGUSR1, lambda *_: __import__('os').abort()); sys.stdin.read()"
)


@dataclass
class Token:
    """One emitted token: its id and logprob, and the most probable ones, best first."""

    id: int
    logprob: float
    top: dict[int, float]


@dataclass
class Request:
    request_id: str
    prompt: list[int]
    max_tokens: int
    forced: list[int]
    tokens: list[Token] = field(default_factory=list)
    out: asyncio.Queue[Token | None] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.internal_id = f"cmpl-{self.request_id}-0-{uuid.uuid4().hex[:8]}"
        self.seed = hashlib.sha256(json.dumps(self.prompt).encode()).hexdigest()


class Engine:
    def __init__(self, settings: Settings, vocabulary: int) -> None:
        self.settings = settings
        self.vocabulary = vocabulary
        self.paused = False
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.generated = 0
        self.steps = 0
        self.noise = random.Random(os.urandom(8))
        self.worker = subprocess.Popen(
            ["VLLM::EngineCore", "-X", "faulthandler", "-c", _WORKER],
            executable=sys.executable,
            stdin=subprocess.PIPE,
        )

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.settings.step_s)
            if self.worker.poll() is None and not self.paused and (self.waiting or self.running):
                self.step()

    def step(self) -> None:
        if self._under_load():
            return
        rows = [(request, 1, len(request.prompt) + len(request.tokens) - 1) for request in self.running]
        rows += [(request, len(request.prompt), 0) for request in self.waiting]
        self.running += self.waiting
        new = len(self.waiting)
        self.waiting = []
        self._log(rows, "decode" if not new else "prefill" if new == len(rows) else "mixed")
        for row, request in enumerate(list(self.running)):
            request.tokens.append(self._token(request, row))
            self.generated += 1
            request.out.put_nowait(request.tokens[-1])
            early = self.settings.misbehaviour is Misbehaviour.EARLY_STOP and len(request.tokens) == 2
            if early or len(request.tokens) == request.max_tokens:
                request.out.put_nowait(None)
                self.running.remove(request)

    def _under_load(self) -> bool:
        if self.generated < self.settings.after_tokens:
            return False
        match self.settings.misbehaviour:
            case Misbehaviour.DIE_UNDER_LOAD:
                os.abort()
            case Misbehaviour.EXIT_UNDER_LOAD:
                os._exit(0)
            case Misbehaviour.ENGINE_DIES:
                self.worker.kill()
            case Misbehaviour.ENGINE_ABORTS:
                self.worker.send_signal(signal.SIGUSR1)
            case Misbehaviour.TOLD_TO_STOP:
                print("[shutdown] EngineCore: trigger received signal=SIGTERM", flush=True)
                for request in self.running:
                    request.out.put_nowait(None)
                self.running.clear()
                return True
            case Misbehaviour.HANG:
                return True
        return False

    def _token(self, request: Request, row: int) -> Token:
        position = len(request.tokens)
        last = request.tokens[-1].id if request.tokens else -1
        wrong = self.settings.misbehaviour is Misbehaviour.WRONG_ROW and row > 0
        top = self._distribution(f"{request.seed}/{position}/{last}/{wrong}")
        chosen = max(top, key=lambda token: top[token])
        if request.forced and self.settings.misbehaviour is not Misbehaviour.IGNORE_FORCED:
            chosen = request.forced[position]
        logprob = top.get(chosen, -12.0)
        match self.settings.misbehaviour:
            case Misbehaviour.NAN_LOGPROBS:
                logprob = math.nan
            case Misbehaviour.MINUS_INFINITY:
                logprob = -9999.0
        return Token(chosen, logprob, top)

    def _distribution(self, seed: str) -> dict[int, float]:
        dice = random.Random(seed)
        noise = self.settings.noise
        logits = [dice.gauss(0.0, 2.0) + self.noise.gauss(0.0, noise) for _ in range(TOP)]
        # one more, which stands for the rest of the vocabulary
        total = math.log(sum(math.exp(value) for value in [*logits, 0.0]))
        return {
            token: value - total
            for token, value in zip(dice.sample(range(self.vocabulary), TOP), logits, strict=True)
        }

    def _log(self, rows: list[tuple[Request, int, int]], kind: str) -> None:
        number, self.steps = self.steps, self.steps + 1
        if self.settings.step_log is None:
            return
        replayed = self.settings.emulated and kind == "decode"
        line = {
            "step": number,
            "time_s": time.time(),
            "kind": kind,
            "replay": "emulated replay" if replayed else "none",
            "rows_replayed": len(rows) if replayed else 0,
            "rows": [
                {
                    "request_id": request.internal_id,
                    "row": row,
                    "scheduled_tokens": scheduled,
                    "computed_tokens": computed,
                }
                for row, (request, scheduled, computed) in enumerate(rows)
            ],
        }
        with self.settings.step_log.open("a") as log:
            log.write(json.dumps(line) + "\n")
