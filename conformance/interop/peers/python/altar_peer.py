# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""An independent Altar client, Runtime and Host. It is told on its standard streams which of them to be."""

from peer import serve

import http.client
import itertools
import queue
import socket
import threading
import urllib.parse
import uuid

from websockets.sync.client import connect as ws_connect
from websockets.sync.server import serve as ws_serve

from altar import Violation, decode, encode

violations = []


def tcp(address):
    host, port = address.rsplit(":", 1)
    return Lines(socket.create_connection((host, int(port)), 30))


class Lines:
    """Messages as lines."""

    def __init__(self, sock):
        self.sock, self.file, self.lock = sock, sock.makefile("rb"), threading.Lock()

    def send(self, data):
        with self.lock:
            self.sock.sendall(data + b"\r\n")  # the carriage return is to be tolerated

    def raw(self, data):
        self.sock.sendall(data)

    def receive(self):
        line = self.file.readline()
        if line and (not line.endswith(b"\n") or line.endswith(b"\r\n")):
            raise Violation("line end: %r" % line[-3:])
        return line[:-1]

    def close(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
        self.sock.close()


class Socket:
    """Messages as text frames."""

    def __init__(self, ws):
        self.ws = ws

    def send(self, data):
        self.ws.send(data.decode())

    def raw(self, data):
        self.ws.send(data.decode())

    def receive(self):
        try:
            data = self.ws.recv()
        except Exception:
            return b""
        if isinstance(data, bytes):
            raise Violation("a binary frame")
        return data.encode()

    def close(self):
        self.ws.close()


def dial(how, address, headers=None):
    if how == "tcp":
        return tcp(address)
    ws = ws_connect(address + "/altar/v1/ws", subprotocols=["altar.v1"], additional_headers=headers or {}, max_size=1 << 24)
    if ws.subprotocol != "altar.v1":
        raise Violation("subprotocol %r" % ws.subprotocol)
    return Socket(ws)


def messages(link):
    """Every message, checked, until the connection ends."""
    while True:
        try:
            data = link.receive()
        except OSError:
            return
        if not data:
            return
        try:
            yield decode(data)
        except Violation as e:
            violations.append(str(e))
            yield {"type": "violation", "text": str(e)}


# ---- as a client


connections = {}


class Connection:
    def __init__(self, link):
        self.link, self.inbox = link, queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for m in messages(self.link):
            self.inbox.put(m)
        self.inbox.put(None)


def connect(name, how, address, headers=None):
    connections[name] = Connection(dial(how, address, headers))


def send(name, message):
    connections[name].link.send(encode(message.pop("type"), **message))


def send_raw(name, text):
    connections[name].link.raw(text.encode())


def receive(name):
    return connections[name].inbox.get(timeout=20)


def ask(name, message):
    """Sends a message and returns the next one."""
    send(name, message)
    return receive(name)


def call(name, message):
    """Makes a call and returns every message of it."""
    send(name, message)
    out = []
    while True:
        m = receive(name)
        if m is None or m.get("invocation_id", message["invocation_id"]) == message["invocation_id"]:
            out.append(m)
            if m is None or m["type"] in ("ToolResult", "Error") or m["type"] == "StreamChunk" and m["is_final"]:
                return out


def close(name):
    connections.pop(name).link.close()


def post(url, message, accept=None, headers=None):
    at = urllib.parse.urlsplit(url)
    c = http.client.HTTPConnection(at.hostname, at.port, timeout=30)
    c.request("POST", "/altar/v1/messages", encode(message.pop("type"), **message),
              {"Content-Type": "application/json; charset=utf-8", **({"Accept": accept} if accept else {}), **(headers or {})})
    r = c.getresponse()
    body = r.read()
    kind = r.headers.get("Content-Type", "").split(";")[0]
    found = []
    if kind == "application/json":
        found = [decode(body.rstrip(b"\n"))]
    elif kind == "application/x-ndjson":
        found = [decode(line) for line in body.split(b"\n")[:-1]]
    elif kind == "text/event-stream":
        for block in body.decode().split("\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            m = decode(fields["data"].encode())
            if fields["event"] != m["type"] or fields.get("id", "") != str(m.get("chunk_id", "")):
                raise Violation("event %r" % fields)
            found.append(m)
    c.close()
    return {"status": r.status, "type": kind, "messages": found}


# ---- as a Runtime


heard = []  # what the Host told the Runtime, beside calls


def runtime(id, how, address, headers=None, capabilities=("streaming", "cancellation", "session_events", "deadlines"), standing=False, version="1.0.0"):
    """Brings math/add, text/words, bad/* and wait, and returns how the Host greeted."""
    link = dial(how, address, headers)
    ready = queue.Queue()
    canceled = {}
    link.send(encode("AnnounceRuntime", runtime_id=id, language="python", protocol_version=version, capabilities=list(capabilities), metadata={"a": "b"}, request_id="r1"))

    names = ["math/add", id + "/text/words", "bad/status", "bad/gap", "bad/code", "bad/order", "wait", "no/such"]

    def fulfil(session):
        link.send(encode("FulfillTools", session_id=session, tool_names=names, request_id="f-" + session))

    def run():
        for m in messages(link):
            kind = m["type"]
            if kind == "ToolCall":
                canceled[m["invocation_id"]] = threading.Event()
                threading.Thread(target=work, args=(link, m, canceled[m["invocation_id"]]), daemon=True).start()
                continue
            if kind == "CancelCall" and m["invocation_id"] in canceled:
                canceled[m["invocation_id"]].set()
            if kind == "RequestFulfillment":
                fulfil(m["session_id"])
            if kind == "Ping":
                link.send(encode("Pong", **{k: v for k, v in m.items() if k == "request_id"}))
            if kind in ("AcknowledgeRuntime", "Error"):
                ready.put(m)
                if standing and kind == "AcknowledgeRuntime":
                    fulfil("*")
            heard.append(m)
        heard.append({"type": "closed"})
        ready.put(None)

    threading.Thread(target=run, daemon=True).start()
    return ready.get(timeout=20)


def work(link, m, stop):
    inv, p = m["invocation_id"], m["parameters"]
    tool = m["tool_name"].split("/", 1)[1]
    heard.append({"call": tool, "parameters": p, "timeout_ms": m.get("timeout_ms"), "metadata": m.get("metadata"), "correlation_id": m.get("correlation_id")})
    if tool == "math/add":
        total = p["a"] + p["b"]
        if abs(total) >= 1 << 63:
            link.send(encode("ToolResult", invocation_id=inv, status="error", error={"code": "EXECUTION_FAILED", "message": "overflow", "details": {"sum": str(total)}}))
        else:
            link.send(encode("ToolResult", invocation_id=inv, status="success", payload=total, runtime_metadata={"execution_time_ms": 1, "host": "py"}))
    elif tool == "text/words":
        words = p["text"].split(" ")
        for i, word in enumerate(words):
            if word == "fail":
                return link.send(encode("StreamChunk", invocation_id=inv, chunk_id=i, error={"code": "EXECUTION_FAILED", "message": "no more"}))
            link.send(encode("StreamChunk", invocation_id=inv, chunk_id=i, payload=word, is_final=i == len(words) - 1))
    elif tool == "bad/order":
        for i in (1, 0, 1, 2):
            link.send(encode("StreamChunk", invocation_id=inv, chunk_id=i, payload=i, is_final=i == 2))
    elif tool == "bad/status":
        link.send(encode("ToolResult", invocation_id=inv, status="done", payload=1))
    elif tool == "bad/gap":
        link.send(encode("StreamChunk", invocation_id=inv, chunk_id=17, payload=1, is_final=False))
    elif tool == "bad/code":
        link.send(encode("ToolResult", invocation_id=inv, status="error", error={"type": "OUT_OF_PAPER", "message": ""}))
    elif tool == "wait":
        stop.wait(20)
        heard.append({"canceled": inv})


def take():
    out = list(heard)
    heard.clear()
    return out


# ---- as a Host


class Host:
    """A Host without policy: the flows of the specification and nothing else."""

    CONTRACTS = {"math/add": False, "text/words": True}

    def __init__(self):
        self.lock, self.sessions, self.runtimes, self.calls = threading.RLock(), {}, {}, {}
        self.numbers = itertools.count(1)

    def connection(self, link):
        runtime = None
        try:
            for m in messages(link):
                with self.lock:
                    runtime = self.handle(link, m, runtime)
        finally:
            with self.lock:
                if runtime:
                    del self.runtimes[runtime]
                    for s in self.sessions.values():
                        for tools in s.values():
                            tools[:] = [r for r in tools if r != runtime]
                    for inv, (client, at) in list(self.calls.items()):
                        if at == runtime:
                            self.finish(inv, {"code": "RUNTIME_UNAVAILABLE", "message": "gone", "details": {"reason": "disconnected"}})
            link.close()

    def finish(self, inv, error):
        client, _ = self.calls.pop(inv)
        client.send(encode("ToolResult", invocation_id=inv, status="error", error=error))

    def handle(self, link, m, runtime):
        kind = m["type"]
        echo = {k: m[k] for k in ("request_id", "correlation_id") if k in m}

        def fail(code, reason):
            error = {"code": code, "message": reason, "details": {"reason": reason}}
            if kind == "ToolCall":
                link.send(encode("ToolResult", invocation_id=m["invocation_id"], status="error", error=error))
            else:
                link.send(encode("Error", error=error, **echo))

        if kind == "AnnounceRuntime":
            if m["protocol_version"].split(".")[0] != "1":
                fail("INVALID_PARAMETERS", "unsupported_version")
                return runtime
            runtime = m["runtime_id"]
            self.runtimes[runtime] = link
            link.send(encode("AcknowledgeRuntime", host_id="py-host", protocol_version="1.0.0", capabilities=m["capabilities"], **echo))
            for s in self.sessions:
                link.send(encode("RequestFulfillment", session_id=s))
        elif kind == "FulfillTools":
            taken, refused = [], []
            for name in m["tool_names"]:
                bare = name[len(runtime) + 1:] if name.startswith(runtime + "/") else name
                if bare not in self.CONTRACTS:
                    refused.append({"tool_name": name, "error": {"code": "TOOL_NOT_FOUND", "message": "unknown", "details": {"reason": "unknown_contract"}}})
                    continue
                taken.append(runtime + "/" + bare)
                for s in self.sessions.values() if m["session_id"] == "*" else [self.sessions[m["session_id"]]]:
                    if runtime not in s[bare]:
                        s[bare].append(runtime)
            link.send(encode("AcknowledgeFulfillment", session_id=m["session_id"], fulfilled_tools=taken, rejected_tools=refused, **echo))
        elif kind == "CreateSession":
            name = m.get("session_id") or "py-session-%d" % next(self.numbers)
            self.sessions[name] = {c: [] for c in self.CONTRACTS}
            for r in self.runtimes.values():
                r.send(encode("RequestFulfillment", session_id=name))
            link.send(encode("SessionCreated", session_id=name, ttl_seconds=m.get("ttl_seconds", 60), **echo))
        elif kind == "DestroySession":
            if self.sessions.pop(m["session_id"], None) is None:
                fail("SESSION_INVALID", "unknown_session")
            else:
                for r in self.runtimes.values():
                    r.send(encode("SessionDestroyed", session_id=m["session_id"], reason="destroyed"))
                link.send(encode("SessionDestroyed", session_id=m["session_id"], reason="destroyed", **echo))
        elif kind == "ListTools":
            tools = [{"name": c, "description": "", "parameters": [], "streaming": self.CONTRACTS[c], "runtimes": r}
                     for c, r in self.sessions[m["session_id"]].items() if r]
            link.send(encode("ToolList", session_id=m["session_id"], tools=tools, **echo))
        elif kind == "Ping":
            link.send(encode("Pong", **echo))
        elif kind == "ToolCall":
            uuid.UUID(m["invocation_id"])
            session = self.sessions.get(m["session_id"])
            name = m["tool_name"]
            pin, _, bare = ("", "", name) if name in self.CONTRACTS else name.partition("/")
            if session is None:
                fail("SESSION_INVALID", "unknown_session")
            elif bare not in self.CONTRACTS:
                fail("TOOL_NOT_FOUND", "unknown_contract")
            elif not (found := [r for r in session[bare] if pin in ("", r)]):
                fail("TOOL_NOT_FOUND", "not_fulfilled")
            else:
                self.calls[m["invocation_id"]] = (link, found[0])
                forward = {k: v for k, v in m.items() if k in ("metadata", "timeout_ms", "correlation_id")}
                self.runtimes[found[0]].send(encode("ToolCall", invocation_id=m["invocation_id"], session_id=m["session_id"],
                                                    tool_name=found[0] + "/" + bare, parameters=m["parameters"], **forward))
        elif kind in ("ToolResult", "StreamChunk"):
            client, at = self.calls.get(m["invocation_id"], (None, None))
            if at == runtime and client:
                client.send(encode(kind, **{k: v for k, v in m.items() if k != "type"}))
                if kind == "ToolResult" or m["is_final"]:
                    del self.calls[m["invocation_id"]]
        elif kind == "CancelCall":
            client, at = self.calls.get(m["invocation_id"], (None, None))
            if client is link:
                self.runtimes[at].send(encode("CancelCall", invocation_id=m["invocation_id"], session_id=m["session_id"], reason="cancelled"))
                self.finish(m["invocation_id"], {"code": "EXECUTION_FAILED", "message": "cancelled", "details": {"reason": "cancelled"}})
        elif kind not in ("Pong", "StreamCredit", "violation"):  # this Host gives no credit to its Runtimes
            violations.append("a Host got %s" % m)
        return runtime


def host():
    h = Host()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=h.connection, args=(Lines(sock),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    web = ws_serve(lambda ws: h.connection(Socket(ws)), "127.0.0.1", 0, subprotocols=["altar.v1"])
    threading.Thread(target=web.serve_forever, daemon=True).start()
    return {"tcp": "127.0.0.1:%d" % listener.getsockname()[1], "ws": "ws://127.0.0.1:%d" % web.socket.getsockname()[1]}


serve({
    "connect": connect, "send": send, "send_raw": send_raw, "receive": receive, "ask": ask, "call": call, "close": close, "post": post,
    "runtime": runtime, "take": take, "host": host, "violations": lambda: violations,
})
