# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""The client of arc-sdk, and what else of it a program on the asking side uses."""

from peer import serve  # first: it takes standard output

import arc
from arc.auth import OAuth2ClientCredentials
from arc.client import ARCClient, ThreadManager
from arc.core.webhooks import WebhookManager
from arc.utils import agent_card

clients = {}
streams = {}
threads = {}


def version():
    return arc.get_version()


async def open_client(name, endpoint, agent=None, token=None, timeout=30.0):
    clients[name] = ARCClient(endpoint, token=token, request_agent=agent, timeout=timeout)


async def call(client, method, args):
    group, name = method.split(".")
    return await getattr(getattr(clients[client], group), name)(**args)


async def send(client, method, target, params, trace=None):
    return await clients[client].send_request(method, target, params, trace_id=trace)


async def stream_open(client, method, args):
    streams[client] = await call(client, method, {**args, "stream": True})


async def stream_next(client):
    """One event, or null at the end."""
    async for event in streams[client]:
        return event
    return None


async def thread_send(client, agent, message, stream=False):
    manager = threads.setdefault(client, ThreadManager(clients[client]))
    return await manager.send_to_agent(agent, message, stream=stream)


def thread_id(client, agent):
    return threads[client].get_thread_id(agent)


async def thread_cleanup(client):
    return await threads.pop(client).cleanup_all(reason="over")


async def token(url, client_id, client_secret, scope):
    source = OAuth2ClientCredentials(url, client_id, client_secret, scope=scope)
    return (await source.get_token()).access_token


async def webhook_send(agent, secret, url, task, event, data, trace=None, events=None, attempts=1):
    manager = WebhookManager(agent, retry_attempts=attempts, retry_delay=0.01, webhook_secret=secret)
    try:
        subscription = manager.create_subscription(task, url, events or [event])
        outcome = await manager.notify(task, event, data, trace_id=trace)
        return {"outcome": outcome, "active": subscription.active, "id": subscription.subscription_id}
    finally:
        await manager.close()


def webhook_signature(secret, payload):
    return WebhookManager("verifier", webhook_secret=secret)._generate_signature(payload)


def webhook_verify(secret, payload, signature):
    return WebhookManager("verifier", webhook_secret=secret).verify_signature(payload, signature)


serve({
    "version": version,
    "open": open_client,
    "call": call,
    "send": send,
    "stream_open": stream_open,
    "stream_next": stream_next,
    "thread_send": thread_send,
    "thread_id": thread_id,
    "thread_cleanup": thread_cleanup,
    "token": token,
    "webhook_send": webhook_send,
    "webhook_signature": webhook_signature,
    "webhook_verify": webhook_verify,
    "card_create": agent_card.create_agent_card,
    "card_validate": agent_card.validate_agent_card,
})
