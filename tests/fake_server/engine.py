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

from tests.fake_server.fieldcases import ACTED, Break, Harm, K, Moment, accepted
from tests.fake_server.harm import TOP, harmed, sure
from tests.fake_server.misbehaviour import Misbehaviour, Settings

BLOCK = 16
ECHO = 16
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
    found: int = 0
    preempted: bool = False
    disturbed: bool = False
    out: asyncio.Queue[Token | None] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.internal_id = f"cmpl-{self.request_id}-0-{uuid.uuid4().hex[:8]}"
        self.luck = random.random()
        self.seed = hashlib.sha256(json.dumps(self.prompt).encode()).hexdigest()
        self.chance = int(self.seed[:8], 16) / 2**32

    @property
    def context(self) -> int:
        return len(self.prompt) + len(self.tokens)


class Engine:
    def __init__(self, settings: Settings, vocabulary: int) -> None:
        self.settings = settings
        self.vocabulary = vocabulary
        self.paused = False
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.generated = 0
        self.steps = self.begun = self.ended = 0
        self.cached: set[int] = set()
        self.queried = self.hits = self.preemptions = self.drafted = 0
        self.accepted = 0.0
        self.poisoned = False
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

    def metrics(self) -> dict[str, float]:
        """As a server's /metrics gives them, by name."""
        values: dict[str, float] = {
            "vllm:num_requests_running": len(self.running),
            "vllm:num_requests_waiting": len(self.waiting),
            "vllm:generation_tokens_total": self.generated,
            "vllm:num_preemptions_total": self.preemptions,
        }
        if self.settings.prefix_cache:
            values["vllm:prefix_cache_queries_total"] = self.queried
            values["vllm:prefix_cache_hits_total"] = self.hits
        if self.settings.kv_tokens:
            values["vllm:kv_cache_usage_perc"] = self._used() / self.settings.kv_tokens
        if self.settings.speculates:
            values["vllm:spec_decode_num_draft_tokens_total"] = self.drafted
            values["vllm:spec_decode_num_accepted_tokens_total"] = self.accepted
        return values

    def forget(self) -> bool:
        """Empties the prefix cache, as vLLM does it: not while any request has its place in it."""
        if self.running or self.settings.misbehaviour is Misbehaviour.KEEPS_BLOCKS:
            return False
        self.cached.clear()
        return True

    def step(self) -> None:
        if self._under_load():
            return
        self._preempt()
        admitted = self._admit()
        rows = [(request, 1, request.context - 1) for request in self.running]
        rows += [(request, request.context - request.found, request.found) for request in admitted]
        for request in self.running if admitted else ():
            request.disturbed = True
        self.running += admitted
        moments = [self._moment(row, bool(admitted)) for row in range(len(self.running))]
        if self._breaks(moments):
            self.waiting, self.running = admitted + self.waiting, self.running[: len(rows) - len(admitted)]
            return
        self._log(rows, "decode" if not admitted else "prefill" if len(admitted) == len(rows) else "mixed")
        for moment, request in zip(moments, list(self.running), strict=True):
            request.tokens.append(self._token(request, moment))
            self.generated += 1
            request.out.put_nowait(request.tokens[-1])
            early = self.settings.misbehaviour is Misbehaviour.EARLY_STOP and len(request.tokens) == 2
            if early or len(request.tokens) == request.max_tokens:
                request.out.put_nowait(None)
                self.running.remove(request)
                self.ended += 1
        if self.settings.speculates and not admitted:
            self.drafted += K * len(rows)
            self.accepted += K * len(rows) * accepted(self.settings.case, self.generated)

    def _used(self) -> int:
        return sum(request.context for request in self.running)

    def _preempt(self) -> None:
        """The newest requests give way where all do not fit, and are computed again later."""
        while self.settings.kv_tokens and self._used() > self.settings.kv_tokens and len(self.running) > 1:
            request = self.running.pop()
            request.preempted = True
            request.found = 0
            self.waiting.insert(0, request)
            self.preemptions += 1

    def _admit(self) -> list[Request]:
        admitted: list[Request] = []
        used = self._used()
        while self.waiting:
            request = self.waiting[0]
            used += request.context
            if self.settings.kv_tokens and used > self.settings.kv_tokens and (self.running or admitted):
                break
            admitted.append(self.waiting.pop(0))
            if not request.tokens:
                self.begun += 1
            if self.settings.prefix_cache:
                self._look_up(request)
        return admitted

    def _look_up(self, request: Request) -> None:
        # F38: what requests share is never found; only the very same prompt meets itself again
        salt = request.seed if self.settings.case == "F38" else ""
        ends = range(BLOCK, len(request.prompt) + 1, BLOCK)
        blocks = [hash((salt, *request.prompt[:end])) for end in ends]
        hits = 0
        # the last token of a prompt is always computed
        while hits < (len(request.prompt) - 1) // BLOCK and blocks[hits] in self.cached:
            hits += 1
        request.found = hits * BLOCK
        self.queried += len(request.prompt)
        self.hits += request.found
        self.cached.update(blocks)

    def _moment(self, row: int, prefill: bool) -> Moment:
        request = self.running[row]
        return Moment(
            row=row,
            rows=len(self.running),
            prefill=prefill,
            context=request.context,
            contexts=tuple(other.context for other in self.running),
            prompt=len(request.prompt),
            position=len(request.tokens),
            twins=sum(other.seed == request.seed for other in self.running[:row]),
            found=request.found,
            chance=request.chance,
            luck=request.luck,
            begun=self.begun,
            ended=self.ended,
            generated=self.generated,
            poisoned=self.poisoned,
            disturbed=request.disturbed,
            preempted=any(other.preempted for other in self.running),
        )

    def _breaks(self, moments: list[Moment]) -> bool:
        """Acts out a case that is about the step; true where the step does not happen."""
        act = ACTED.get(self.settings.case)
        if act is None or not isinstance(act.what, Break):
            return False
        struck = [moment for moment in moments if act.when(moment)]
        if act.what is Break.WARN:
            for _ in struck:
                print("WARNING 12-01 10:00:00 [indexer.py:88] Width 256 was never tuned.", flush=True)
            return False
        if struck and act.what is not Break.HANG:
            print(f"ERROR 12-01 10:00:00 [core.py:71] EngineCore failed: {act.what}", flush=True)
            os.abort()
        return bool(struck)

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

    def _token(self, request: Request, moment: Moment) -> Token:
        position = len(request.tokens)
        last = request.tokens[-1].id if request.tokens else -1
        wrong = self.settings.wrong_rows and moment.row > 0
        top = self._distribution(f"{request.seed}/{position}/{last}/{wrong}")
        if self.settings.echoes and request.prompt[-ECHO:] == request.prompt[-2 * ECHO : -ECHO]:
            top = sure(request.prompt[position % ECHO - ECHO], top)
        act = ACTED.get(self.settings.case)
        struck = act.what if act and isinstance(act.what, Harm) and act.when(moment) else None
        if struck:
            self.poisoned = True
            top = self._harmed(struck, request, top)
        chosen = max(top, key=lambda token: top[token])
        if request.forced and self.settings.misbehaviour is not Misbehaviour.IGNORE_FORCED:
            chosen = request.forced[position]
        logprob = top.get(chosen, -12.0)
        match self.settings.misbehaviour:
            case Misbehaviour.NAN_LOGPROBS:
                logprob = math.nan
            case Misbehaviour.MINUS_INFINITY:
                logprob = -9999.0
        if struck is Harm.NAN:
            chosen, logprob = (chosen if request.forced else 0), math.nan
        return Token(chosen, logprob, top)

    def _harmed(self, what: Harm, request: Request, top: dict[int, float]) -> dict[int, float]:
        position = len(request.tokens)
        last = request.tokens[-1].id if request.tokens else 0
        match what:
            case Harm.OTHERS:
                others = (other.seed for other in self.running if other.seed != request.seed)
                return self._distribution(f"{next(others, 'nobody')}/{position}/{last}/False")
            case Harm.WRONG:
                return self._distribution(f"{request.seed}/{position}/{last}/wrong")
            case Harm.SKIP:
                return self._distribution(
                    f"{request.seed}/{position + 1}/{max(top, key=lambda t: top[t])}/False"
                )
        return harmed(what, position, last, top)

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
        for rank in range(self.settings.ranks):
            own = self.settings.rank_line(rank, line)
            if own is not None:
                name = f"steps.rank{rank}.jsonl" if rank else self.settings.step_log.name
                with self.settings.step_log.with_name(name).open("a") as log:
                    log.write(json.dumps(own) + "\n")
