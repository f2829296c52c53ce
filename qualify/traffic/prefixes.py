"""Empties a server's prefix cache before a run, so that no prompt is found there from the run before.

Every run asks the same prompts. A forced run that found those of the free run would compute hardly any of
them, and would hit the cache whatever it asks.
"""

from __future__ import annotations

import asyncio
import time

import httpx2
import msgspec

from qualify.loopback import http_client

_ANSWER_WITHIN_S = 30.0
# A server frees the blocks of its last requests a step or two after their answers, and refuses until then.
_EMPTY_WITHIN_S = 10.0
_EVERY_S = 0.1


class _Answer(msgspec.Struct):
    success: bool | None = None


async def forget_prefixes(url: str) -> str:
    """Empties the server's prefix cache; nothing may be in flight.

    vLLM has ``POST /reset_prefix_cache`` where ``VLLM_SERVER_DEV_MODE=1``, and says whether it did
    (read in 0.26.0, 0.27.1, 0.32.0 and 0.33.0).

    Args:
        url: The server.

    Returns:
        Why its prompts of before may still be found; empty where the cache is empty.
    """
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    try:
        async with http_client(url, timeout_s=_ANSWER_WITHIN_S) as client:
            while True:
                response = await client.post("/reset_prefix_cache")
                if response.status_code != 200:
                    return f"POST /reset_prefix_cache was answered with {response.status_code}"
                success = _success(response.content)
                if success:
                    return ""
                if success is None:
                    return "the server does not say whether it emptied its prefix cache"
                if time.monotonic() >= deadline:
                    return "the server says that blocks of its prefix cache are still in use"
                await asyncio.sleep(_EVERY_S)
    except httpx2.TransportError as error:
        # a server that is gone is noticed by the first request
        return f"POST /reset_prefix_cache was not answered ({type(error).__name__})"


def _success(body: bytes) -> bool | None:
    try:
        return msgspec.json.decode(body, type=_Answer).success
    except msgspec.DecodeError:
        return None
