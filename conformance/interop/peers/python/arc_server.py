# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""The servers of arc-sdk: the standalone one and the routers for FastAPI and Starlette, with the same agents."""

from peer import serve  # first: it takes standard output

import asyncio
import socket
import uuid
from datetime import datetime, timezone

import jwt
import uvicorn
from arc.auth import JWTValidator
from arc.core.chat import ChatManager
from arc.core.streaming import create_chat_stream_generator
from arc.core.webhooks import WebhookManager
from arc.exceptions import (
    ARCChatError, ARCTaskError, AgentNotAvailableError, RateLimitExceededError, TaskNotFoundError,
)
from arc.server import ARCServer
from arc.server.sse import SSEResponse, create_chat_stream, create_sse_response

seen = []  # what notifications came in
hooks = []  # what the webhook endpoint of this process got
webhooks = None


def now():
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def text(message):
    return "".join(p["content"] for p in message["parts"] if p["type"] == "TextPart")


def say(words):
    return {"role": "agent", "parts": [{"type": "TextPart", "content": words}], "timestamp": now()}


tasks = {}


def find(params):
    if params["taskId"] not in tasks:
        raise TaskNotFoundError(params["taskId"])
    return tasks[params["taskId"]]


async def move(task, status, event, **data):
    task["status"], task["updatedAt"] = status, now()
    await webhooks.notify(task["taskId"], event, {"status": status, "message": "moved", **data}, trace_id=task["trace"])


def shown(task, *names):
    return {"type": "task", "task": {k: task[k] for k in names if k in task}}


async def task_create(params, context):
    words = text(params["initialMessage"])
    if words == "busy":
        raise RateLimitExceededError()
    if words == "away":
        raise AgentNotAvailableError("py-echo")
    if words == "crash":
        raise RuntimeError("not for the caller")
    task = {
        "taskId": "task-" + uuid.uuid4().hex[:8], "status": "INPUT_REQUIRED" if words == "ask" else "SUBMITTED",
        "createdAt": now(), "messages": [params["initialMessage"]], "artifacts": [], "trace": context["trace_id"],
    }
    tasks[task["taskId"]] = task
    return shown(task, "taskId", "status", "createdAt")


async def task_send(params, context):
    task = find(params)
    if task["status"] != "INPUT_REQUIRED":
        raise ARCTaskError(-42006, "not waiting", {"taskId": task["taskId"]})
    task["messages"].append(params["message"])
    task["artifacts"].append({
        "artifactId": "artifact-1", "name": "answer", "createdAt": now(),
        "parts": [{"type": "DataPart", "mimeType": "application/json", "content": {"heard": text(params["message"]), "n": 9007199254740993}}],
    })
    task["completedAt"] = now()
    await move(task, "COMPLETED", "TASK_COMPLETED", completedAt=task["completedAt"], artifactCount=1, duration=12)
    return {"success": True, "message": "taken"}


async def task_info(params, context):
    task = find(params)
    names = ["taskId", "status", "createdAt", "updatedAt", "completedAt", "canceledAt", "reason"]
    if params.get("includeMessages", True):
        names.append("messages")
    if params.get("includeArtifacts", True):
        names.append("artifacts")
    return shown(task, *names)


async def task_cancel(params, context):
    task = find(params)
    if task["status"] == "COMPLETED":
        raise ARCTaskError(-42002, "done already", {"taskId": task["taskId"]})
    task["canceledAt"], task["reason"] = now(), params.get("reason")
    await move(task, "CANCELED", "TASK_CANCELED", canceledAt=task["canceledAt"])
    return shown(task, "taskId", "status", "canceledAt", "reason")


async def task_subscribe(params, context):
    task = find(params)
    subscription = webhooks.create_subscription(task["taskId"], params["callbackUrl"], params.get("events"))
    return {"type": "subscription", "subscription": subscription.to_dict()}


async def task_notification(params, context):
    seen.append({"params": params, "requestAgent": context["request_agent"], "traceId": context["trace_id"]})
    return {"success": True}


async def words_of(answer):
    for i, word in enumerate(answer.split(" ")):
        await asyncio.sleep(0)
        yield word if i == 0 else " " + word


async def break_off(answer):
    yield answer
    raise RuntimeError("the model is gone")


async def answer(chat, params, message, request_id):
    words = "echo: " + text(message)
    if params.get("stream"):
        content = break_off("partial ") if text(message) == "break" else words_of(words)
        return create_sse_response(create_chat_stream_generator(chat["chatId"], content, request_id))
    return {"type": "chat", "chat": {**chat, "message": say(words)}}


async def chat_start(params, context):
    chat = await context["chat_manager"].create_chat(
        context["request_agent"], metadata=params.get("metadata"), chat_id=params.get("chatId"))
    return await answer(chat, params, params["initialMessage"], context["request_id"])


async def chat_message(params, context):
    chat = await context["chat_manager"].get_chat(params["chatId"])
    if chat["status"] == "CLOSED":
        raise ARCChatError(-43002, "closed", {"chatId": params["chatId"]})
    return await answer(chat, params, params["message"], context["request_id"])


async def chat_end(params, context):
    return {"type": "chat", "chat": await context["chat_manager"].close_chat(params["chatId"], params.get("reason"))}


async def parts_start(params, context):
    """Streams by the helper for messages, which knows of no end."""
    async def messages():
        yield say("first ")
        yield {"type": "TextPart", "content": "second "}
        yield "third"

    return create_chat_stream("chat-parts", messages())


async def whole_start(params, context):
    """Does not stream, whoever asks."""
    return {"type": "chat", "chat": {"chatId": "chat-whole", "status": "CLOSED", "createdAt": now(), "message": say("all at once")}}


async def events_start(params, context):
    """Streams events as a list of dictionaries, and fails on the way."""
    async def events():
        yield {"event": "stream", "data": {"chatId": "chat-events", "message": say("some ")}}
        raise RuntimeError("out of words")

    return SSEResponse(events())


def register(at):
    for method, handler in {
        "task.create": task_create, "task.send": task_send, "task.info": task_info, "task.cancel": task_cancel,
        "task.subscribe": task_subscribe, "task.notification": task_notification,
        "chat.start": chat_start, "chat.message": chat_message, "chat.end": chat_end,
    }.items():
        at.register_agent_handler("py-echo", method, handler)
    at.register_agent_handler("py-parts", "chat.start", parts_start)
    at.register_agent_handler("py-whole", "chat.start", whole_start)
    at.register_agent_handler("py-events", "chat.start", events_start)


class Validator:
    """What JWTValidator would be: that one cannot be made, since it calls PyJWT with a name that this does not have."""

    def __init__(self, jwks, issuer, audience):
        self.keys, self.issuer, self.audience = jwt.PyJWKClient(jwks), issuer, audience

    async def validate_token(self, token):
        key = await asyncio.to_thread(self.keys.get_signing_key_from_jwt, token)
        return jwt.decode(token, key.key, algorithms=["RS256"], issuer=self.issuer, audience=self.audience)


def own_validator(jwks, issuer):
    JWTValidator(jwks, issuer)


async def listen(kind, jwks=None, issuer=None, audience=None, secret=None):
    """Starts one of the servers and returns where it listens."""
    global webhooks
    webhooks = WebhookManager("py-echo", retry_attempts=2, retry_delay=0.01, webhook_secret=secret)
    if kind == "standalone":
        server = ARCServer("py-server", enable_chat_manager=True, chat_manager_agent_id="py-echo")
        if jwks:
            server.use_jwt_validator(Validator(jwks, issuer, audience))
        register(server)
        app = server.get_app()
    elif kind == "fastapi":
        from arc.fastapi import ARCRouter
        from fastapi import FastAPI
        router = ARCRouter(enable_chat_manager=True, chat_manager_agent_id="py-echo")
        register(router)
        app = FastAPI()
        app.include_router(router, prefix="/arc")
    else:
        from arc.starlette import ARCRouter
        from starlette.applications import Starlette
        router = ARCRouter(enable_chat_manager=True, chat_manager_agent_id="py-echo")
        register(router)
        app = Starlette()
        app.mount("/arc", router)
    return await run(app)


async def run(app):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", lifespan="off")
    config.log_config = None
    server = uvicorn.Server(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.01)
    return "http://127.0.0.1:%d" % listener.getsockname()[1]


async def receive_webhooks(secret):
    """An endpoint for webhooks, as a user of the package would write it: it looks at the flat members."""
    from fastapi import FastAPI, Request, Response
    manager = WebhookManager("py-receiver", webhook_secret=secret)
    app = FastAPI()

    @app.post("/hook")
    async def hook(request: Request):
        raw = (await request.body()).decode()
        body = await request.json()
        hooks.append({
            "signed": manager._generate_signature(raw) == request.headers.get("X-ARC-Signature"),
            "header": request.headers.get("X-ARC-Event"),
            "contentType": request.headers.get("Content-Type"),
            "flat": {k: body.get(k) for k in ("arc", "method", "requestAgent", "taskId", "event", "timestamp", "data", "traceId", "subscriptionId")},
            "params": body.get("params"),
        })
        return Response(status_code=200)

    return await run(app)


def take(what):
    items = {"notifications": seen, "hooks": hooks}[what]
    out = list(items)
    items.clear()
    return out


serve({"own_validator": own_validator, "listen": listen, "receive_webhooks": receive_webhooks, "take": take})
