# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""An independent reader and writer of Altar messages. It knows the catalogue, and holds what its peer emits against
it: names and order of the members, their types, the text itself."""

import json
import re
from decimal import Decimal

S, I, B, O, L, A = "string", "integer", "boolean", "object", "list", "any"

# Members in the order of emission: name, type, whether it must be there.
CATALOGUE = {
    "AnnounceRuntime": [("runtime_id", S, 1), ("language", S, 1), ("protocol_version", S, 1), ("capabilities", L, 1), ("metadata", O, 0)],
    "AcknowledgeRuntime": [("host_id", S, 1), ("protocol_version", S, 1), ("capabilities", L, 1)],
    "RequestFulfillment": [("session_id", S, 1)],
    "FulfillTools": [("session_id", S, 1), ("tool_names", L, 1), ("replace", B, 0)],
    "AcknowledgeFulfillment": [("session_id", S, 1), ("fulfilled_tools", L, 1), ("rejected_tools", L, 1)],
    "CreateSession": [("session_id", S, 0), ("ttl_seconds", I, 0), ("security_context", O, 0), ("metadata", O, 0)],
    "SessionCreated": [("session_id", S, 1), ("ttl_seconds", I, 1)],
    "DestroySession": [("session_id", S, 1)],
    "SessionDestroyed": [("session_id", S, 1), ("reason", S, 1)],
    "ToolCall": [("invocation_id", S, 1), ("session_id", S, 1), ("tool_name", S, 1), ("parameters", O, 1), ("metadata", O, 0), ("timeout_ms", I, 0), ("accept_stream", B, 0), ("credit", I, 0), ("resume_from", I, 0)],
    "ToolResult": [("invocation_id", S, 1), ("status", S, 1), ("payload", A, 0), ("error", O, 0), ("runtime_metadata", O, 0)],
    "StreamChunk": [("invocation_id", S, 1), ("chunk_id", I, 1), ("payload", A, 0), ("error", O, 0), ("is_final", B, 1)],
    "ListTools": [("session_id", S, 1)],
    "ToolList": [("session_id", S, 1), ("tools", L, 1)],
    "StreamCredit": [("invocation_id", S, 1), ("session_id", S, 1), ("credit", I, 1)],
    "CancelCall": [("invocation_id", S, 1), ("session_id", S, 1), ("reason", S, 0)],
    "Ping": [], "Pong": [],
    "Error": [("error", O, 1)],
}
COMMON = [("request_id", S, 0), ("correlation_id", S, 0)]
CODES = {"TOOL_NOT_FOUND", "INVALID_PARAMETERS", "RUNTIME_UNAVAILABLE", "SESSION_INVALID", "AUTHORIZATION_FAILED", "EXECUTION_TIMEOUT", "EXECUTION_FAILED", "INTERNAL_ERROR"}
TYPES = {S: str, B: bool, O: dict, L: list}
_TOKEN = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\bfnrt]|u00[01][0-9a-f]))*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[\[\]{}:,]')


class Violation(Exception):
    """The peer broke a rule of the specification."""


def _object(pairs):
    names = [k for k, _ in pairs]
    if len(names) != len(set(names)):
        raise Violation("a name twice: %s" % names)
    return dict(pairs)


def parse(text: str):
    return json.loads(text, object_pairs_hook=_object, parse_float=Decimal)


def decode(data: bytes) -> dict:
    """Reads one message and checks everything about it."""
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise Violation("not UTF-8: %s" % e) from e
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise Violation("white space or an escape that is not needed at %d: %r" % (at, text[at:at + 30]))
        at = found.end()
    m = parse(text)
    if not isinstance(m, dict) or m.get("type") not in CATALOGUE:
        raise Violation("no message: %r" % text[:200])
    fields = [("type", S, 1)] + CATALOGUE[m["type"]] + COMMON
    order = [name for name, _, _ in fields if name in m]
    if list(m) != order:
        raise Violation("%s has the members %s" % (m["type"], list(m)))
    for name, kind, needed in fields:
        if name not in m:
            if needed:
                raise Violation("%s lacks %s" % (m["type"], name))
            continue
        v = m[name]
        if kind == I and (isinstance(v, bool) or not isinstance(v, int)) or kind in TYPES and not isinstance(v, TYPES[kind]):
            raise Violation("%s.%s is %r" % (m["type"], name, v))
    for e in [m["error"]] if "error" in m else [r["error"] for r in m.get("rejected_tools", [])]:
        if e["code"] not in CODES or not e["message"] or set(e) - {"code", "message", "details"} or e.get("details") == {}:
            raise Violation("error %r" % e)
    if m["type"] == "ToolResult" and (("payload" in m) == ("error" in m) or m["status"] != ("error" if "error" in m else "success")):
        raise Violation("neither or both: %r" % text[:200])
    if m["type"] == "StreamChunk" and "error" in m and ("payload" in m or not m["is_final"]):
        raise Violation("an error chunk that goes on: %r" % text[:200])
    if m.get("accept_stream") is True or m.get("resume_from") == 0 or m.get("replace") is False:
        raise Violation("a default that is left out: %r" % text[:200])
    return m


def _number(v):
    if isinstance(v, Decimal):
        return float(v)
    raise TypeError(type(v))


def encode(kind: str, /, **members) -> bytes:
    """Makes a message, with a blank here and there, which is as legal."""
    return json.dumps({"type": kind, **members}, ensure_ascii=False, default=_number).encode()
