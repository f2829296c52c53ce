"""Starts the fake server as the harness starts vLLM."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import psutil
import uvicorn

from tests.fake_server.app import make_app
from tests.fake_server.engine import Engine
from tests.fake_server.fieldcases import AT_START, VERIFY_ROWS, K
from tests.fake_server.misbehaviour import Misbehaviour, Settings


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    options, _ = parser.parse_known_args()
    settings = Settings.read(os.environ)
    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    print("loading", options.model, flush=True)
    if settings.card:
        (settings.card / str(os.getpid())).touch()
    time.sleep(settings.load_s)
    if settings.case in AT_START:
        raise RuntimeError(AT_START[settings.case])
    if settings.case == "F09" and settings.speculates and options.max_num_seqs * (K + 1) > VERIFY_ROWS:
        raise RuntimeError("k_scale must be contiguous")
    match settings.misbehaviour:
        case Misbehaviour.DIE_WHILE_LOADING:
            raise RuntimeError("no kernel for this shape")
        case Misbehaviour.ABORT_WHILE_LOADING:
            os.abort()
        case Misbehaviour.EXIT_WHILE_LOADING:
            sys.exit(0)
        case Misbehaviour.CROWDED_OUT if settings.card and _others_on(settings.card):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        case Misbehaviour.OUT_OF_MEMORY:
            raise OSError(12, "Cannot allocate memory")
    engine = Engine(settings, vocabulary)
    app = make_app(engine, options.served_model_name)
    uvicorn.run(app, host=options.host, port=options.port, timeout_graceful_shutdown=1)


def _others_on(card: Path) -> bool:
    return any(psutil.pid_exists(int(path.name)) for path in card.iterdir() if path.name != str(os.getpid()))


main()
