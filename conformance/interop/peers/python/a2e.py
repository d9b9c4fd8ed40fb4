# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""An independent reader and writer of A2E messages, on the standard library alone. It is strict about what it
reads, so that what its peer emits is held against the specification letter by letter."""

import json
import re
import time
import uuid
from decimal import Decimal

# What lies between the tokens of a JSON text: nothing, in compact encoding.
_TOKEN = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[\[\]{}:,]')
_TS = re.compile(r"\d+(?:\.\d{1,6})?\Z")
_ID = re.compile(r"[0-9a-f]{32}\Z")


class Violation(Exception):
    """The peer broke a rule of the message format."""


def _object(pairs):
    names = [k for k, _ in pairs]
    if len(names) != len(set(names)):
        raise Violation("a name twice: %s" % names)
    return dict(pairs)


def decode(line: bytes) -> dict:
    """Reads one line, without its line feed, and checks the base message schema and the encoding rules."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as e:
        raise Violation("not UTF-8: %s" % e) from e
    if "\r" in text or "\n" in text:
        raise Violation("a raw line end inside a message")
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise Violation("not compact JSON at %d: %r" % (at, text[at:at + 20]))
        at = found.end()
    for raw in "\x85\u2028\u2029":
        if raw in text:
            raise Violation("raw %r, at which line readers of peers break" % raw)
    m = json.loads(text, object_pairs_hook=_object, parse_float=Decimal)
    if not isinstance(m, dict):
        raise Violation("not an object")
    if list(m)[:4] != ["a2e", "type", "id", "ts"]:
        raise Violation("base members: %s" % list(m)[:4])
    if m["a2e"] != "1.0":
        raise Violation("version %r" % m["a2e"])
    if not isinstance(m["type"], str) or not _ID.match(m["id"]):
        raise Violation("type %r, id %r" % (m["type"], m["id"]))
    ts = re.match(r'\{"a2e":"1\.0","type":"[^"]*","id":"[^"]*","ts":([^,}]*)', text)
    if not ts or not _TS.match(ts[1]) or ("." in ts[1] and ts[1].endswith("0")):
        raise Violation("ts: %r" % (ts and ts[1]))
    return m


def encode(kind: str, /, **members) -> bytes:
    """Makes a line. The members come in the order given."""
    base = {"a2e": "1.0", "type": kind, "id": members.pop("id", None) or uuid.uuid4().hex, "ts": round(time.time(), 6)}
    return json.dumps({**base, **members}, separators=(",", ":"), ensure_ascii=False, default=_number).encode() + b"\n"


def _number(v):
    if isinstance(v, Decimal):
        return float(v)
    raise TypeError(type(v))


class Sequence:
    """Checks that the events of each request count from 0 and end before the answer."""

    def __init__(self):
        self.next, self.over = {}, set()

    def see(self, m: dict):
        req = m.get("req_id", "")
        if m["type"].endswith("/event"):
            if req in self.over:
                raise Violation("an event after the answer")
            if m["seq"] != self.next.get(req, 0):
                raise Violation("seq %s after %s" % (m["seq"], self.next.get(req, 0)))
            self.next[req] = m["seq"] + 1
        elif m["type"].endswith("/resp") or (m["type"] == "error" and req):
            if req in self.over and m.get("detail", {}).get("reason") != "duplicate_id":
                raise Violation("two answers to one request")
            self.over.add(req)
