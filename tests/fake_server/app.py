"""The fake server's HTTP side."""

from __future__ import annotations

import asyncio
import json
import math
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fake_server.engine import Engine, Request, Token
from tests.fake_server.misbehaviour import Misbehaviour


class HungUpError(Exception):
    """Raised to make the web server drop the connection."""


def make_app(engine: Engine, served_name: str) -> Starlette:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if engine.settings.misbehaviour is Misbehaviour.IGNORE_SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        task = asyncio.create_task(engine.run())
        yield
        task.cancel()

    handlers = Handlers(engine, served_name)
    return Starlette(
        routes=[
            Route("/health", handlers.health),
            Route("/version", handlers.version),
            Route("/metrics", handlers.metrics),
            Route("/server_info", handlers.server_info),
            Route("/v1/models", handlers.models),
            Route("/v1/completions", handlers.completions, methods=["POST"]),
            Route("/pause", handlers.pause, methods=["POST"]),
            Route("/reset_prefix_cache", handlers.reset_prefix_cache, methods=["POST"]),
            Route("/resume", handlers.resume, methods=["POST"]),
        ],
        lifespan=lifespan,
    )


class Handlers:
    def __init__(self, engine: Engine, served_name: str) -> None:
        self.engine = engine
        self.misbehaviour = engine.settings.misbehaviour
        self.served_name = served_name

    async def health(self, _: HttpRequest) -> Response:
        ill = self.misbehaviour is Misbehaviour.NEVER_READY or self.engine.worker.poll() is not None
        return Response(status_code=503 if ill else 200)

    async def version(self, _: HttpRequest) -> Response:
        return JSONResponse({"version": "fake"})

    async def server_info(self, http: HttpRequest) -> Response:
        if self.misbehaviour is Misbehaviour.NO_SERVER_INFO or http.query_params["config_format"] != "json":
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        mode = self.engine.settings.graph_mode
        configuration = {
            "compilation_config": {
                "cudagraph_mode": mode[0] if len(mode) == 1 else mode,
                "cudagraph_capture_sizes": [4, 1, 2] if mode != [0] else [],
            },
            "model_config": {"enforce_eager": mode == [0], "max_model_len": 32768, "hf_token": "hf_secret"},
            "scheduler_config": {"max_num_seqs": 16},
        }
        environment = {"VLLM_SERVER_DEV_MODE": True, "VLLM_LOG_PASSWORD": "hf_secret"}
        return JSONResponse({"vllm_config": configuration, "vllm_env": environment, "system_env": {}})

    async def metrics(self, _: HttpRequest) -> Response:
        return PlainTextResponse(
            "".join(f"{name} {value}\n" for name, value in self.engine.metrics().items())
        )

    async def models(self, _: HttpRequest) -> Response:
        name = "another" if self.misbehaviour is Misbehaviour.WRONG_NAME else self.served_name
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"}]})

    async def pause(self, request: HttpRequest) -> Response:
        if self.misbehaviour is Misbehaviour.NO_PAUSE:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        if request.query_params.get("mode") != "keep":
            return JSONResponse({"error": "only mode=keep"}, status_code=400)
        self.engine.paused = True
        # vLLM's documentation says that clear_cache is ignored with mode=keep; its engine clears all the same
        if request.query_params.get("clear_cache", "true") == "true":
            self.engine.forget()
        return JSONResponse({"status": "paused"})

    async def reset_prefix_cache(self, _: HttpRequest) -> Response:
        if self.misbehaviour is Misbehaviour.NO_RESET:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        return JSONResponse({"success": self.engine.forget()})

    async def resume(self, _: HttpRequest) -> Response:
        if self.misbehaviour is Misbehaviour.BAD_RESUME:
            return JSONResponse({"error": "it broke"}, status_code=500)
        self.engine.paused = False
        return JSONResponse({"status": "resumed"})

    async def completions(self, http: HttpRequest) -> Response:
        body = await http.json()
        if self.misbehaviour is Misbehaviour.HTTP_500:
            return JSONResponse({"error": {"message": "it broke", "code": 500}}, status_code=500)
        if body["model"] != self.served_name:
            return JSONResponse({"error": {"message": "no such model", "code": 404}}, status_code=404)
        if self.engine.settings.case == "F37" and (body.get("prompt_logprobs") or body.get("echo")):
            print("WARNING F37: asked for prompt logprobs, which would be wrong", flush=True)
        forced = (body.get("vllm_xargs") or {}).get("forced_token_ids") or []
        request = Request(http.headers["x-request-id"], body["prompt"], body["max_tokens"], forced)
        if body.get("stream"):
            return StreamingResponse(self._stream(request, body), media_type="text/event-stream")
        return await self._whole(request, body)

    async def _whole(self, request: Request, body: dict[str, Any]) -> Response:
        self.engine.add(request)
        try:
            while await request.out.get():
                pass
        finally:
            self.engine.remove(request)
        text = json.dumps(self._body(request, request.tokens, body, first=True, last=True))
        if self.misbehaviour is Misbehaviour.TRUNCATED_JSON:
            text = text[: len(text) // 2]
        if self.misbehaviour is Misbehaviour.DISCONNECT:
            return StreamingResponse(_half(text), headers={"content-length": str(len(text))})
        return Response(text, media_type="application/json")

    async def _stream(self, request: Request, body: dict[str, Any]) -> AsyncIterator[str]:
        self.engine.add(request)
        try:
            token = await request.out.get()
            first = True
            while token:
                after = await request.out.get()
                text = json.dumps(self._body(request, [token], body, first=first, last=after is None))
                if self.misbehaviour is Misbehaviour.TRUNCATED_JSON and not first:
                    text = text[: len(text) // 2]
                yield f"data: {text}\n\n"
                token, first = after, False
                match self.misbehaviour:
                    case Misbehaviour.DISCONNECT:
                        raise HungUpError
                    case Misbehaviour.NO_DONE:
                        return
                    case Misbehaviour.ERROR_IN_STREAM:
                        yield 'data: {"error": {"message": "it broke", "code": 500}}\n\n'
                        break
            yield "data: [DONE]\n\n"
        finally:
            self.engine.remove(request)

    def _body(
        self, request: Request, tokens: list[Token], body: dict[str, Any], *, first: bool, last: bool
    ) -> dict[str, Any]:
        logprobs: dict[str, Any] | None = {
            "text_offset": [0] * len(tokens),
            "tokens": [f"token_id:{token.id}" for token in tokens],
            "token_logprobs": [_number(token.logprob) for token in tokens],
            "top_logprobs": [self._top(token, body["logprobs"]) for token in tokens],
        }
        choice: dict[str, Any] = {
            "index": 0,
            "text": "",
            "logprobs": logprobs,
            "finish_reason": self._finish_reason(request) if last else None,
            "token_ids": [token.id for token in tokens],
            "prompt_token_ids": request.prompt if first else None,
        }
        match self.misbehaviour:
            case Misbehaviour.NO_LOGPROBS:
                choice["logprobs"] = None
            case Misbehaviour.NO_TOKEN_IDS:
                choice["token_ids"] = None
            case Misbehaviour.WRONG_COUNTS:
                choice["token_ids"].append(5)
            case Misbehaviour.OTHER_PROMPT if first:
                choice["prompt_token_ids"] = [0, *request.prompt]
        return {"id": f"cmpl-{request.request_id}", "object": "text_completion", "choices": [choice]}

    def _finish_reason(self, request: Request) -> str:
        if self.misbehaviour is Misbehaviour.TOLD_TO_STOP:
            return "abort"
        return "length" if len(request.tokens) == request.max_tokens else "stop"

    def _top(self, token: Token, count: int) -> dict[str, float | None]:
        # as vLLM does it: the emitted token first, then the most probable ones
        ranked = sorted(token.top, key=lambda candidate: -token.top[candidate])[:count]
        top = {token.id: token.logprob} | {candidate: token.top[candidate] for candidate in ranked}
        if self.misbehaviour is Misbehaviour.FEW_TOP:
            top = {token.id: token.logprob}
        return {f"token_id:{candidate}": _number(value) for candidate, value in top.items()}


async def _half(text: str) -> AsyncIterator[str]:
    yield text[: len(text) // 2]
    raise HungUpError


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
