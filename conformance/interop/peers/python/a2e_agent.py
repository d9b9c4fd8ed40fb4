# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""An independent A2E agent on the standard library. It is told on its standard streams whom to ask, and what; bytes
that no encoder would make can be sent too."""

from peer import _out as out, serve

import base64
import http.client
import json
import queue
import socket
import subprocess
import sys
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


class Socket:
    """A host behind TCP."""

    def __init__(self, url):
        at = urllib.parse.urlsplit(url)
        self.sock = socket.create_connection((at.hostname, at.port), timeout=60)

    def write(self, data):
        self.sock.sendall(data)

    def lines(self):
        yield from self.sock.makefile("rb")

    def close(self):
        self.sock.shutdown(2)
        self.sock.close()


class Session:
    """The agent as a client of the conform command: actions, and events about their results."""

    def __init__(self, url, emit):
        self.over, self.emit, self.calls, self.next, self.state = Socket(url), emit, {}, {}, "new"
        self.waiting, self.running, self.most, self.lock = [], {}, 4, threading.RLock()
        threading.Thread(target=self.read, daemon=True).start()

    def send(self, call, kind, **members):
        req = uuid.uuid4().hex
        self.calls[req] = call
        self.over.write(encode(kind, id=req, **members))
        return req

    def done(self, req, **result):
        self.running.pop(req, None)
        self.emit({"done": {"call": self.calls.pop(req), **result}})
        self.start()

    def start(self):
        """Sends the calls that may run."""
        while self.waiting and self.state == "open" and len(self.running) < self.most:
            name, kind, fields = self.waiting.pop(0)
            self.running[self.send(name, kind, **fields)] = kind
        if self.state == "draining" and not self.running:
            self.over.write(encode("shutdown", timeout=0))
            self.end()

    def act(self, action):
        if "connect" in action:
            self.state = "connecting"
            self.send("connect", "handshake/req", **action["connect"])
        elif "call" in action:
            c = action["call"]
            if self.state not in ("connecting", "open"):
                self.emit({"done": {"call": c["name"], "err": {"code": "not_connected" if self.state == "new" else "closed"}}})
                return
            defaults = {"session_id": "", "correlation_id": "", "streaming": False, "timeout": 30} if c["type"] == "tool/call/req" else {}
            self.waiting.append((c["name"], c["type"], {**defaults, **c.get("fields", {})}))
            self.start()
        elif "ping" in action:
            if self.state == "closed":
                self.emit({"done": {"call": action["ping"]["name"], "err": {"code": "closed"}}})
                return
            self.send(action["ping"]["name"], "ping")
        elif "shutdown" in action:
            self.state = "draining"
            self.start()
        elif "close" in action:
            self.over.write(encode("shutdown", timeout=0))
            self.end()

    def read(self):
        try:
            for line in self.over.lines():
                with self.lock:
                    self.see(json.loads(line))
        except (OSError, ValueError, KeyError, TypeError) as e:
            print("closed, or not a message:", repr(e), file=sys.stderr)
        self.end()

    def see(self, m):
        req, kind = m.get("req_id"), m["type"]
        if kind == "env/close/resp" and not req:  # as deployed hosts send it
            req = next((r for r, want in self.running.items() if want == "env/close/req"), None)
        if kind == "ping":
            self.over.write(encode("pong", req_id=m["id"], uptime_seconds=1))
        elif kind == "mcp/root/list/req":
            self.over.write(encode("mcp/root/list/resp", req_id=m["id"], server_id=m.get("server_id", ""), mcp_request_id=m.get("mcp_request_id", ""),
                                   roots=[{"uri": "file:///project", "name": "project"}]))
        elif kind.endswith("/event"):
            if req not in self.calls:
                self.emit({"push": {"json": m}})
                return
            last = self.next.get(req, -1)
            self.next[req] = max(m["seq"], last)
            order = "ok" if m["seq"] == last + 1 else "gap" if m["seq"] > last else "repeat" if m["seq"] == last else "regress"
            self.emit({"events": {"call": self.calls[req], "order": order, "json": m}})
        elif req not in self.calls:
            if not kind.endswith("/resp"):
                self.emit({"push": {"json": m}})
        elif kind == "error":
            self.done(req, err={"code": m["code"], "remote": True, "retryable": m.get("retryable", False), "reason": m.get("detail", {}).get("reason", "")})
        elif kind == "handshake/resp" and not m.get("ok", True):
            self.done(req, err={"code": "handshake_rejected", "reason": m.get("reason", "")})
            self.end()
        else:
            if kind == "handshake/resp":
                self.state, self.most, m = "open", m.get("max_parallel", 4), {"ok": True, **m}
            want = self.running.get(req, kind)
            if want.endswith("/req") and kind.replace("_", "-") != want.replace("_", "-")[:-4] + "/resp":
                self.done(req, err={"code": "unexpected_response"})
            else:
                self.done(req, ok={"json": m})

    def end(self):
        with self.lock:
            self.state = "closed"
            self.cancel()
        try:
            self.over.close()
        except OSError:
            pass  # closed before

    def cancel(self):
        for name, _, _ in self.waiting:
            self.emit({"done": {"call": name, "err": {"code": "closed"}}})
        self.waiting = []
        for req in list(self.calls):
            self.done(req, err={"code": "closed"})


def conform():
    """Answers the conform command."""
    lock, sessions = threading.Lock(), {}

    def write(message):
        with lock:
            print(json.dumps(message), file=out, flush=True)

    for line in sys.stdin:
        m = json.loads(line)
        if "hello" in m:
            write({"conform": 1, "hello": {"name": "a2e-agent", "version": "1", "protocols": ["a2e"]}})
        elif "end" in m:
            if m["id"] in sessions:
                sessions.pop(m["id"]).end()
        else:
            name = m["session"]
            if name not in sessions:
                sessions[name] = Session(m["url"], lambda event, name=name: write({"id": name, "event": event}))
            write({"id": m["id"], "outcomes": [{}]})
            for action in m["do"]:
                s = sessions[name]
                try:
                    with s.lock:
                        s.act(action)
                except OSError:
                    s.end()


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


if sys.argv[1:] == ["conform"]:
    conform()
    sys.exit()
serve({"spawn": spawn, "connect": connect, "ask": ask, "raw": raw, "many": many, "break_off": break_off, "end": end})
