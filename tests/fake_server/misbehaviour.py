"""What the fake server can do wrong, and its other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Misbehaviour(StrEnum):
    NONE = ""
    # before it listens
    DIE_WHILE_LOADING = "die-while-loading"  # traceback, exit code 1
    ABORT_WHILE_LOADING = "abort-while-loading"
    EXIT_WHILE_LOADING = "exit-while-loading"  # exit code 0, no word
    OUT_OF_MEMORY = "out-of-memory"  # says "Cannot allocate memory"
    CROWDED_OUT = "crowded-out"  # says "CUDA out of memory" where another server is on its card (FAKE_CARD)
    NEVER_READY = "never-ready"  # /health answers 503 for ever
    WRONG_NAME = "wrong-name"  # lists another model
    # in its answers
    HTTP_500 = "http-500"
    ERROR_IN_STREAM = "error-in-stream"
    TRUNCATED_JSON = "truncated-json"
    NO_LOGPROBS = "no-logprobs"
    NO_TOKEN_IDS = "no-token-ids"
    WRONG_COUNTS = "wrong-counts"
    FEW_TOP = "few-top"
    OTHER_PROMPT = "other-prompt"  # echoes another prompt than the one sent
    EARLY_STOP = "early-stop"
    NO_DONE = "no-done"  # the stream ends in an orderly way, but too soon
    DISCONNECT = "disconnect"
    NAN_LOGPROBS = "nan-logprobs"
    MINUS_INFINITY = "minus-infinity"
    WRONG_ROW = "wrong-row"  # rows other than 0 answer from another distribution
    IGNORE_FORCED = "ignore-forced"
    NO_SERVER_INFO = "no-server-info"  # /server_info answers 404
    NO_PAUSE = "no-pause"  # /pause answers 404
    NO_RESET = "no-reset"  # /reset_prefix_cache answers 404
    KEEPS_BLOCKS = "keeps-blocks"  # its prefix cache can never be emptied
    BAD_RESUME = "bad-resume"  # /resume answers 500
    # under load
    DIE_UNDER_LOAD = "die-under-load"  # aborts
    EXIT_UNDER_LOAD = "exit-under-load"  # exit code 0, no word
    ENGINE_DIES = "engine-dies"  # its worker process is killed
    ENGINE_ABORTS = "engine-aborts"  # its worker process aborts by itself
    TOLD_TO_STOP = "told-to-stop"  # answers end early, as when vLLM's engine gets SIGTERM, and it lingers
    HANG = "hang"
    # on its last rank alone (FAKE_RANKS)
    RANK_SILENT = "rank-silent"  # records no steps
    RANK_EAGER = "rank-eager"  # replays nothing
    RANK_APART = "rank-apart"  # runs steps of another kind
    RANK_WRONG = "rank-wrong"  # has wrong metadata, and rows other than 0 answer from another distribution
    # at the end
    IGNORE_SIGTERM = "ignore-sigterm"


@dataclass(frozen=True)
class Settings:
    misbehaviour: Misbehaviour
    after_tokens: int
    load_s: float
    step_s: float
    noise: float
    step_log: Path | None
    ranks: int
    wrong_ranks: tuple[int, ...]
    card: Path | None
    graph_mode: list[int]
    case: str
    prefix_cache: bool
    kv_tokens: int
    speculates: bool
    echoes: bool
    emulated: bool

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        misbehaviour = Misbehaviour(environment.get("FAKE_MISBEHAVE", ""))
        if environment.get("DS4_FAULT") and environment.get("DS4_FAULT_CONFIRM") == "yes-break-this-server":
            misbehaviour = Misbehaviour.WRONG_ROW
        step_log = environment.get("DS4_STEP_LOG")
        ranks = int(environment.get("FAKE_RANKS", "1"))
        named = environment.get("DS4_FAULT_RANKS", "")
        wrong = [int(rank) for rank in named.split(",")] if named else list(range(ranks))
        if misbehaviour is Misbehaviour.RANK_WRONG:
            wrong = [ranks - 1]
        return cls(
            misbehaviour=misbehaviour,
            after_tokens=int(environment.get("FAKE_AFTER_TOKENS", "40")),
            load_s=float(environment.get("FAKE_LOAD_S", "0")),
            step_s=float(environment.get("FAKE_STEP_S", "0.002")),
            noise=float(environment.get("FAKE_NOISE", "0")),
            step_log=Path(step_log) if step_log else None,
            ranks=ranks,
            wrong_ranks=tuple(wrong),
            card=Path(environment["FAKE_CARD"]) if "FAKE_CARD" in environment else None,
            case=environment.get("FAKE_CASE", ""),
            prefix_cache="FAKE_PREFIX_CACHE" in environment,
            kv_tokens=int(environment.get("FAKE_KV_TOKENS", "0")),
            speculates="FAKE_SPECULATES" in environment,
            echoes="FAKE_ECHOES" in environment,
            graph_mode=[int(mode) for mode in environment.get("FAKE_GRAPH_MODE", "0").split(",")],
            emulated=environment.get("DS4_REPLAY") == "emulated",
        )

    @property
    def wrong_rows(self) -> bool:
        """Whether rows other than 0 are wrong."""
        return self.misbehaviour in (Misbehaviour.WRONG_ROW, Misbehaviour.RANK_WRONG)

    def rank_line(self, rank: int, line: dict) -> dict | None:
        """One rank's line of the step log, made of that of an engine with one rank."""
        last = self.ranks > 1 and rank == self.ranks - 1
        match self.misbehaviour if last else Misbehaviour.NONE:
            case Misbehaviour.RANK_SILENT:
                return None
            case Misbehaviour.RANK_EAGER:
                line = line | {"replay": "none", "rows_replayed": 0}
            case Misbehaviour.RANK_APART:
                line = line | {"kind": "mixed"}
        if self.ranks > 1 and line["rows_replayed"]:
            wrong = list(range(1, len(line["rows"]))) if self.wrong_rows and rank in self.wrong_ranks else []
            line = line | {"metadata": {"crc32": hash(tuple(wrong)) & 0xFFFF, "wrong_rows": wrong}}
        return line
