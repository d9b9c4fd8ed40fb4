# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""An independent A2E agent on the standard library. It is told on its standard streams whom to ask, and what; bytes
that no encoder would make can be sent too."""

from peer import serve

import base64
import http.client
import json
import queue
import subprocess
import threading
import urllib.parse
import uuid

from a2e import Sequence, Violation, decode, encode


class Pipe:
    """A host that is a child, asked over its standard streams."""

    def __init__(self, argv, env):
        self.child = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def write(self, data):
        self.child.stdin.write(data)
        self.child.stdin.flush()

    def lines(self):
        yield from self.child.stdout

    def close(self):
        self.child.stdin.close()
        return self.child.wait(10)


class Web:
    """A host behind HTTP."""

    def __init__(self, url):
        self.at = urllib.parse.urlsplit(url)
        status, body = self.request("POST", "/session", b"", {})
        if status != 200:
            raise Violation("POST /session: %d %r" % (status, body))
        self.headers = {"X-Session-Id": json.loads(body)["session_id"]}
        self.last = ""

    def request(self, method, path, body, headers):
        c = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=30)
        try:
            c.request(method, path, body, headers)
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def write(self, data):
        status, body = self.request("POST", "/send", data.rstrip(b"\n"), {**self.headers, "Content-Type": "text/plain", "Accept": "text/event-stream"})
        if status != 200 or json.loads(body) != {"ok": True}:
            raise Violation("POST /send: %d %r" % (status, body))

    def lines(self):
        """One connection after the other, each begun where the last one broke off."""
        while True:
            c = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=30)
            c.request("GET", "/stream", headers={**self.headers, "Accept": "text/event-stream", **({"Last-Event-ID": self.last} if self.last else {})})
            r = c.getresponse()
            if r.status == 404:
                return
            if (r.status, r.headers["Content-Type"], r.headers["Cache-Control"]) != (200, "text/event-stream; charset=utf-8", "no-cache"):
                raise Violation("GET /stream: %d %s" % (r.status, r.headers))
            self.stream = c
            name, data = "", b""
            try:
                for line in r:
                    if not line.endswith(b"\n"):
                        break  # cut in the middle
                    if line == b"\n":
                        if data:
                            self.last = name
                            yield data + b"\n"
                        data = b""
                    elif line.startswith(b"id: "):
                        name = line[4:-1].decode()
                    elif line.startswith(b"data: "):
                        if data:
                            raise Violation("two data lines")
                        data = line[6:-1]
                    elif not line.startswith(b":"):
                        raise Violation("a line of the stream: %r" % line)
            except (OSError, ValueError, AttributeError, http.client.HTTPException):
                pass  # cut, by break_off or by the host

    def break_off(self):
        self.stream.sock.shutdown(2)

    def close(self):
        return self.request("DELETE", "/session", b"", self.headers)[0]


agents = {}


class Agent:
    def __init__(self, over):
        self.over, self.inbox, self.violations = over, queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        order = Sequence()
        try:
            for line in self.over.lines():
                if not line.endswith(b"\n"):
                    raise Violation("no line feed at the end: %r" % line)
                m = decode(line[:-1])
                order.see(m)
                self.inbox.put(m)
        except Exception as e:
            self.violations.append(repr(e))
        self.inbox.put(None)


def spawn(name, argv, env):
    agents[name] = Agent(Pipe(argv, env))


def connect(name, url):
    agents[name] = Agent(Web(url))


def ask(name, type, **members):
    """Sends a request and returns everything up to its answer."""
    a, req = agents[name], members.pop("id", None) or uuid.uuid4().hex
    a.over.write(encode(type, id=req, **members))
    return until(a, req)


def until(a, req):
    out = []
    while True:
        m = a.inbox.get(timeout=20)
        if m is None:
            return {"messages": out, "end": True, "violations": a.violations}
        out.append(m)
        if m.get("req_id") == req and not m["type"].endswith("/event"):
            return {"messages": out, "end": False}


def raw(name, data, req=""):
    """Sends bytes as they are and returns everything up to the answer to a request, or to nothing readable."""
    a = agents[name]
    a.over.write(base64.b64decode(data))
    return until(a, req)


def many(name, requests):
    """Sends several requests in one piece and returns the answers in the order in which they came."""
    a = agents[name]
    ids = [uuid.uuid4().hex for _ in requests]
    a.over.write(b"".join(encode(r.pop("type"), id=i, **r) for i, r in zip(ids, requests)))
    got = []
    while len(got) < len(ids):
        m = a.inbox.get(timeout=20)
        if not m["type"].endswith("/event"):
            got.append((ids.index(m["req_id"]), m))
    return [{"request": i, "answer": m} for i, m in got]


def break_off(name):
    agents[name].over.break_off()


def end(name):
    """Ends the connection and returns how that went, and what was wrong until then."""
    a = agents.pop(name)
    return {"result": a.over.close(), "violations": a.violations}


serve({"spawn": spawn, "connect": connect, "ask": ask, "raw": raw, "many": many, "break_off": break_off, "end": end})
