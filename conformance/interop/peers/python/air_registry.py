# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""The client of agent-identity-registry, one method after the other."""

from peer import serve

from agent_identity_registry import AIRClient
from agent_identity_registry.signing import load_private_key_from_seed, sign_attestation

state = {}


def connect(url, admin_key=None):
    state["client"] = AIRClient(url, admin_key=admin_key, timeout=10, retry_config=None)


async def call(method, args=(), kwargs=None, seed=None):
    kwargs = kwargs or {}
    if seed:
        kwargs["private_key"] = load_private_key_from_seed(seed)
    result = await getattr(state["client"], method)(*(args or ()), **kwargs)
    return result.model_dump(mode="json")


def sign(seed, kwargs):
    return sign_attestation(load_private_key_from_seed(seed), **kwargs)


serve({"connect": connect, "call": call, "sign": sign})
