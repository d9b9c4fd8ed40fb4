# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""What the Python peers share: they are told by lines of JSON on standard input what to do, one at a time, and
answer each with a line on standard output."""

import asyncio
import inspect
import json
import logging
import sys
import traceback

# Some packages write their log to standard output, which is ours.
_out, sys.stdout = sys.stdout, sys.stderr


def fault(e: BaseException) -> dict:
    """How an exception looks to the test: by its class, as users of the package would tell it."""
    out = {"class": type(e).__name__, "message": str(e)}
    for name in ("code", "details"):
        if getattr(e, name, None) is not None:
            out[name] = getattr(e, name)
    return out


async def _lines():
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def _serve(ops):
    async for request in _lines():
        op = request.pop("op")
        try:
            f = ops[op]
            result = f(**request) if inspect.iscoroutinefunction(f) else await asyncio.to_thread(f, **request)
            if inspect.isawaitable(result):
                result = await result
            answer = {"ok": result}
        except Exception as e:  # whatever a package raises is what the test looks at
            traceback.print_exc(file=sys.stderr)
            answer = {"error": fault(e)}
        _out.write(json.dumps(answer, default=str) + "\n")
        _out.flush()


def serve(ops: dict):
    """Runs until standard input ends. An operation is a function of the members of the request, async or not."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    asyncio.run(_serve(ops))
