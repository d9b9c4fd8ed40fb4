# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""The standalone server of arc-sdk with the fixture "open" of conformance/fixtures/arc.md: it prints its URL and serves
until it is killed. With the argument media, answers have the media type of the protocol, which hides all other differences."""

import asyncio
import json
import re
import socket
import sys
import uuid
from datetime import datetime, timezone

import uvicorn
from arc.core.streaming import create_chat_stream_generator
from arc.exceptions import ARCChatError, ARCTaskError, ChatAlreadyClosedError, TaskNotFoundError
from arc.server import ARCServer
from arc.server.sse import create_sse_response

tasks, chats = {}, {}


def now():
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def text(message):
    return "".join(p["content"] for p in message["parts"] if p["type"] == "TextPart")


def say(words):
    return {"role": "agent", "parts": [{"type": "TextPart", "content": words}], "timestamp": now()}


def artifact(name, words):
    return {"artifactId": "artifact-1", "name": name, "parts": [{"type": "TextPart", "content": words}], "createdAt": now()}


def find(params, context):
    task = tasks.get(params["taskId"])
    if task is None or task["agent"] != context["target_agent"]:
        raise TaskNotFoundError(params["taskId"])
    return task


def shown(task, *names):
    return {"type": "task", "task": {k: task[k] for k in names if k in task}}


async def task_create(params, context):
    agent, words = context["target_agent"], text(params["initialMessage"])
    task = {"taskId": "task-" + uuid.uuid4().hex, "agent": agent, "status": "SUBMITTED", "createdAt": now(), "updatedAt": now(),
            "messages": [{"timestamp": now(), **params["initialMessage"]}], "artifacts": []}
    tasks[task["taskId"]] = task
    answer = shown(task, "taskId", "status", "createdAt")
    if agent == "echo-01":
        task["artifacts"].append(artifact("echo", words))
        task["messages"].append(say(words))
        task.update(status="COMPLETED", completedAt=now())
    elif agent == "ask-01":
        task["messages"].append(say("Which one?"))
        task.update(status="INPUT_REQUIRED", reason="text", first=words)
    elif agent == "slow-01":
        task.update(status="WORKING")
    else:
        task.update(status="FAILED", reason="boom", error={"code": -42004, "message": "boom"})
    return answer


def refuse_ended(task):
    code = {"COMPLETED": -42002, "CANCELED": -42003, "FAILED": -42006}.get(task["status"])
    if code:
        raise ARCTaskError(code, "has ended", {"taskId": task["taskId"]})


async def task_send(params, context):
    task = find(params, context)
    refuse_ended(task)
    if task["status"] != "INPUT_REQUIRED":
        raise ARCTaskError(-42006, "not waiting", {"taskId": task["taskId"]})
    task["messages"].append({"timestamp": now(), **params["message"]})
    task["artifacts"].append(artifact("answer", task["first"] + " / " + text(params["message"])))
    del task["reason"]
    task.update(status="COMPLETED", completedAt=now())
    return {"success": True, "message": "taken"}


async def task_info(params, context):
    task = find(params, context)
    names = ["taskId", "status", "createdAt", "updatedAt", "completedAt", "canceledAt", "reason", "error"]
    names += ["messages"] if params.get("includeMessages") is not False else []
    names += ["artifacts"] if params.get("includeArtifacts") is not False else []
    return shown(task, *names)


async def task_cancel(params, context):
    task = find(params, context)
    refuse_ended(task)
    task.update(status="CANCELED", canceledAt=now(), reason=params.get("reason"))
    return shown(task, "taskId", "status", "createdAt", "canceledAt", "reason")


async def task_subscribe(params, context):
    task = find(params, context)
    events = list(dict.fromkeys(params.get("events") or ["TASK_COMPLETED", "TASK_FAILED"]))
    return {"type": "subscription", "subscription": {
        "subscriptionId": "sub-" + uuid.uuid4().hex, "taskId": task["taskId"], "callbackUrl": params["callbackUrl"],
        "events": events, "createdAt": now(), "active": True}}


async def acknowledge(params, context):
    return {"success": True, "message": "taken"}


async def pieces(words):
    for word in re.findall(r"[^ ]* |[^ ]+$", words):
        yield word


def answer(chat, params, words, context):
    if params.get("stream"):
        return create_sse_response(create_chat_stream_generator(chat["chatId"], pieces(words), context["request_id"]))
    return {"type": "chat", "chat": {**chat, "message": say(words)}}


async def chat_start(params, context):
    is_once = context["target_agent"] == "once-01"
    chat = {"chatId": params.get("chatId") or "chat-" + uuid.uuid4().hex, "status": "CLOSED" if is_once else "ACTIVE", "createdAt": now()}
    if context["target_agent"] == "fail-01":
        raise ARCChatError(-43003, "failed", {"chatId": chat["chatId"]})
    if not is_once:
        chats[chat["chatId"]] = chat
    return answer(chat, params, ("once: " if is_once else "echo: ") + text(params["initialMessage"]), context)


def open_chat(params):
    chat = chats.get(params["chatId"])
    if chat is None:
        raise ARCChatError(-43001, "no such chat", {"chatId": params["chatId"]})
    if chat["status"] == "CLOSED":
        raise ChatAlreadyClosedError(params["chatId"])
    return chat


async def chat_message(params, context):
    return answer(open_chat(params), params, "echo: " + text(params["message"]), context)


async def chat_end(params, context):
    chat = open_chat(params)
    chat.update(status="CLOSED", closedAt=now())
    return {"type": "chat", "chat": {**chat, **({"reason": params["reason"]} if "reason" in params else {})}}


async def debug_echo(params, context):
    return {"params": params, "method": context["method"], "requestAgent": context["request_agent"], "traceId": context.get("trace_id") or ""}


async def debug_fail(params, context):
    raise ARCTaskError(params["code"], params["message"], params.get("details"))


async def debug_panic(params, context):
    raise RuntimeError("requested by debug.panic")


async def debug_list(params, context):
    return [1]


server = ARCServer("arc-server")
work = {"task.create": task_create, "task.send": task_send, "task.info": task_info, "task.cancel": task_cancel, "task.subscribe": task_subscribe}
talk = {"chat.start": chat_start, "chat.message": chat_message, "chat.end": chat_end}
debug = {"debug.echo": debug_echo, "debug.fail": debug_fail, "debug.panic": debug_panic, "debug.list": debug_list}
for agent, methods in {
    "echo-01": {**work, **talk, **debug, "task.notification": acknowledge}, "ask-01": work, "slow-01": work,
    "fail-01": {**work, "chat.start": chat_start}, "once-01": {"chat.start": chat_start},
}.items():
    for method, handler in methods.items():
        server.register_agent_handler(agent, method, handler)


def with_media_type(app):
    async def wrapped(scope, receive, send):
        async def change(event):
            if event["type"] == "http.response.start" and scope["path"].rstrip("/") == "/arc":
                event["headers"] = [(k, b"application/arc+json" if (k.lower(), v) == (b"content-type", b"application/json") else v) for k, v in event["headers"]]
            await send(event)
        await app(scope, receive, change)
    return wrapped


async def main():
    app = with_media_type(server.get_app()) if sys.argv[1:] == ["media"] else server.get_app()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="off")
    config.log_config = None
    print(json.dumps({"url": "http://127.0.0.1:%d" % listener.getsockname()[1]}), flush=True)
    sys.stdout = sys.stderr
    await uvicorn.Server(config).serve(sockets=[listener])


asyncio.run(main())
