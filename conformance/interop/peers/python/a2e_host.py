# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""An independent A2E host on the standard library: with the argument stdio it serves its standard streams, else it
is told on them to serve HTTP with server-sent events."""

import http.server
import json
import queue
import re
import sys
import threading
import time
import uuid

import a2e
from a2e import Violation, decode, encode

BEGAN = time.time()
TOOLS = [
    {"name": "add", "description": "Adds two integers", "input_parameters": [
        {"name": "a", "type": "integer", "description": "first", "required": True},
        {"name": "b", "type": "integer", "description": "second", "required": True}],
     "output_parameters": [], "streaming": False, "idempotent": True, "tags": ["math"], "version": "1.0.0", "defer_loading": False},
    {"name": "say", "description": "Says it back, in pieces", "input_parameters": [
        {"name": "text", "type": "string", "description": "what", "required": True}],
     "output_parameters": [], "streaming": True, "idempotent": False, "tags": [], "version": "1.0.0", "defer_loading": False,
     "x_unknown": {"kept": 12345678901234567890}},
]
CAPABILITY = {"tool": "tools"}


class Host:
    """One session. write takes whole lines; handle is told of one line at a time."""

    def __init__(self, write, token="secret"):
        self.write, self.token = write, token
        self.session, self.caps, self.violations = "", None, []
        self.open = True

    def send(self, kind, /, **members):
        self.write(encode(kind, **members))

    def error(self, req, code, message, retryable=False, capability="", **detail):
        self.send("error", req_id=req, code=code, message=message, detail=detail, retryable=retryable, capability_name=capability)

    def handle(self, line):
        try:
            m = decode(line)
        except Violation as e:
            self.violations.append("%s in %r" % (e, line[:300]))
            self.error("", "parse_error", str(e))
            return
        kind, req = m["type"], m["id"]
        if kind == "ping":
            self.send("pong", req_id=req, uptime_seconds=round(time.time() - BEGAN, 3))
        elif kind == "shutdown":
            self.open = False
        elif kind == "handshake/req":
            self.handshake(m)
        elif not self.session:
            self.error(req, "unauthorized", "shake hands first", reason="no_handshake")
        elif kind.endswith(("/resp", "/event")) or kind in ("error", "pong"):
            pass
        else:
            namespace = CAPABILITY.get(kind.split("/")[0])
            if namespace is None:
                self.error(req, "invalid_message", "nobody handles this", reason="unknown_type", type=kind)
            elif namespace not in self.caps:
                self.error(req, "capability_missing", "not agreed on", capability=namespace, reason="not_negotiated")
            elif m.get("session_id", "") not in ("", self.session):
                self.error(req, "unauthorized", "another session", capability=namespace, reason="session_id")
            elif kind == "tool/list/req":
                self.send("tool/list/resp", req_id=req, tools=[t for t in TOOLS if m["query"] in t["name"]])
            elif kind == "tool/call/req":
                self.call(m)
            else:
                self.error(req, "invalid_message", "not served", capability=namespace, reason="unsupported")

    def handshake(self, m):
        for name in ("agent_id", "agent_caps", "auth_token"):
            if name not in m:
                self.violations.append("handshake without %s" % name)
        answer = {"req_id": m["id"], "session_id": "", "accepted_caps": [], "max_parallel": 0, "ok": False, "reason": ""}
        if m["auth_token"] != self.token:
            answer["reason"] = "auth_failed"
        else:
            self.session = self.session or uuid.uuid4().hex
            self.caps = [c for c in m["agent_caps"] if c in CAPABILITY.values()]
            answer.update(session_id=self.session, max_parallel=2, ok=True, accepted_caps=[
                {"capability": c, "enabled": True, "metadata": {"name": "python", "type": c, "priority": 0, "exclusive": False}} for c in self.caps])
        self.send("handshake/resp", **answer)

    def call(self, m):
        req, name, arguments = m["id"], m["tool_name"], m["arguments"]
        result = {"success": True, "tool_name": name, "data": None, "truncated": False, "duration_ms": 1, "events": []}
        if name == "echo":
            result["data"] = arguments
        elif name == "add":
            result["data"] = arguments["a"] + arguments["b"]
        elif name == "say":
            if arguments["text"] == "fail":
                return self.error(req, "tool_error", "it failed", capability="tools", retryable=True, why=["a", 1])
            if arguments["text"] == "unsuccessful":
                result.update(success=False, error="no luck", error_code="tool_error")
            words = arguments["text"].split(" ")
            if m["streaming"]:
                for i, word in enumerate(words):
                    self.send("tool/event", kind="progress", req_id=req, data={"pct": 100 * (i + 1) // len(words), "message": word}, seq=i)
            result["data"] = {"said": arguments["text"]}
        else:
            return self.error(req, "unknown_tool", "no tool has this name", capability="tools")
        self.send("tool/call/resp", req_id=req, data=result, created_at=time.time())


def stdio():
    out = sys.stdout.buffer

    def write(line):
        out.write(line)
        out.flush()

    host = Host(write)
    for line in sys.stdin.buffer:
        host.handle(line[:-1] if line.endswith(b"\n") else line)
        if not host.open:
            break
    for v in host.violations:
        print("violation:", v, file=sys.stderr)


class Session:
    token = "secret"

    def __init__(self):
        self.lines = queue.Queue()
        self.host = Host(self.lines.put, Session.token)
        self.sent = []  # what went out, for readers that come back
        self.lock = threading.Lock()


sessions, known = {}, []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def session(self):
        name = self.headers.get("X-Session-Id")
        if not name:
            self.answer(400, {"detail": "Missing X-Session-Id"})
        elif name not in sessions:
            self.answer(404, {"detail": "Session not found"})
        else:
            return sessions[name]

    def over(self, s):
        sessions.pop(self.headers["X-Session-Id"])
        s.lines.put(None)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/session":
            name = uuid.uuid4().hex
            sessions[name] = Session()
            known.append(sessions[name])
            return self.answer(200, {"session_id": name})
        if self.path == "/send" and (s := self.session()):
            if b"\n" in body:
                s.host.violations.append("a body of more than one message: %r" % body)
            for line in body.splitlines():
                s.host.handle(line)
            if not s.host.open:
                self.over(s)
            self.answer(200, {"ok": True})
        elif self.path != "/send":
            self.answer(404, {"detail": "Not Found"})

    def do_DELETE(self):
        if s := self.session():
            self.over(s)
            self.answer(200, {"ok": True})

    def do_GET(self):
        if self.path == "/health":
            return self.answer(200, {"status": "ok"})
        if self.path != "/stream":
            return self.answer(405 if self.path in ("/session", "/send") else 404, {"detail": "Not Found"})
        if not (s := self.session()):
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with s.lock:
            after = int(self.headers.get("Last-Event-ID") or 0)
            for i, line in enumerate(s.sent[after:], after + 1):
                self.wfile.write(b"id: %d\ndata: %s\n\n" % (i, line))
            # Line ends and comments of other kinds are legal too.
            self.wfile.write(b": hello\r\n\r\nretry: 10\n\n")
            while (line := s.lines.get()) is not None:
                s.sent.append(line[:-1])
                if b"\"cut\"" in line:
                    return  # the connection breaks, and the message is in the replay
                self.wfile.write(b"id: %d\r\ndata: %s\r\n\r\n" % (len(s.sent), line[:-1]))


def listen(token="secret"):
    Session.token = token
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return "http://127.0.0.1:%d" % server.server_port


def violations():
    return [v for s in known for v in s.host.violations]


if __name__ == "__main__":
    if sys.argv[1:] == ["stdio"]:
        stdio()
    elif sys.argv[1:] == ["fixture"]:  # for conform server
        a2e._ID = re.compile(r"\S+\Z")  # its agents choose short ids
        print(json.dumps({"url": listen("s3cret")}), flush=True)
        threading.Event().wait()
    else:
        from peer import serve
        serve({"listen": listen, "violations": violations})
