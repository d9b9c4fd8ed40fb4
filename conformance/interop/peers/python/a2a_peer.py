# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""The client and the server of the Python SDK of A2A."""

import asyncio
import socket

import httpx
import uvicorn
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from a2a.utils.signing import create_signature_verifier
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette

from peer import serve

client = http = None


async def connect(url, binding, token):
    """Finds the card of an agent, and makes a client for one binding."""
    global client, http
    http = httpx.AsyncClient(headers={"Authorization": "Bearer " + token}, timeout=60)
    card = await A2ACardResolver(http, url).get_agent_card()
    factory = ClientFactory(ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], use_client_preference=True))
    client = factory.create(card)
    return MessageToDict(card)


async def verify(url, pem, algorithm):
    """Verifies the signatures of a card, as parsed by the SDK."""
    async with httpx.AsyncClient() as h:
        card = await A2ACardResolver(h, url).get_agent_card()
    keys = []

    def key(kid, jku):
        keys.append(kid)
        return load_pem_public_key(pem.encode())

    create_signature_verifier(key, [algorithm])(card)
    return keys


async def send(message):
    """Sends a message, and returns the events of its stream."""
    request = ParseDict(message, pb.SendMessageRequest())
    return [MessageToDict(event) async for event in client.send_message(request)]


async def call(name, request, type):
    """Calls a method with one result."""
    result = await getattr(client, name)(ParseDict(request, getattr(pb, type)()))
    return MessageToDict(result) if result is not None else None


async def subscribe(task):
    return [MessageToDict(event) async for event in client.subscribe(pb.SubscribeToTaskRequest(id=task))]


class Painter(AgentExecutor):
    """Asks for a color, and returns it in an artifact of two chunks."""

    async def execute(self, context, queue):
        text = context.get_user_input()
        if not context.current_task:
            await queue.enqueue_event(pb.Task(id=context.task_id, context_id=context.context_id, history=[context.message],
                                              status=pb.TaskStatus(state=pb.TASK_STATE_SUBMITTED)))
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        agent = lambda text: updater.new_agent_message([pb.Part(text=text)])
        if text == "wait":
            await updater.start_work(agent("waiting"))
            await asyncio.sleep(3600)
        elif text == "fail":
            await updater.failed(agent("no paint"))
        elif not context.current_task:
            await updater.start_work(agent("started"))
            await updater.requires_input(agent("which color?"))
        else:
            for i in range(2):
                await updater.add_artifact([pb.Part(text=text)], artifact_id="paint", name="paint", append=i > 0, last_chunk=i == 1)
            await updater.complete(agent("done"))

    async def cancel(self, context, queue):
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


async def listen():
    """Serves the painter over both bindings, and returns the address of its card."""
    s = socket.create_server(("127.0.0.1", 0))
    url = "http://127.0.0.1:%d" % s.getsockname()[1]
    card = pb.AgentCard(name="painter", description="paints", version="1", default_input_modes=["text/plain"],
                        default_output_modes=["text/plain"], capabilities=pb.AgentCapabilities(streaming=True),
                        skills=[pb.AgentSkill(id="paint", name="paint", description="paints", tags=["paint"])],
                        supported_interfaces=[pb.AgentInterface(url=url + "/rpc", protocol_binding="JSONRPC", protocol_version="1.0"),
                                              pb.AgentInterface(url=url + "/rest", protocol_binding="HTTP+JSON", protocol_version="1.0")])
    handler = DefaultRequestHandler(agent_executor=Painter(), task_store=InMemoryTaskStore(), agent_card=card)
    app = Starlette(routes=create_agent_card_routes(card) + create_jsonrpc_routes(handler, rpc_url="/rpc")
                    + create_rest_routes(handler, path_prefix="/rest"))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    asyncio.ensure_future(server.serve(sockets=[s]))
    while not server.started:
        await asyncio.sleep(0.01)
    return url


serve({"connect": connect, "verify": verify, "send": send, "call": call, "subscribe": subscribe, "listen": listen})
