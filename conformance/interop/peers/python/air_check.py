# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""Signs and verifies envelopes with rfc8785 and cryptography: air_check.py IN OUT, a line for each. With serve FORM KEY
it is an inbox until standard input ends, which accepts that form of signatures, and prints its port."""

import datetime
import hashlib
import http.server
import json
import sys
import threading
import unicodedata

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def base58_decode(text, size):
    n = 0
    for c in text:
        n = n * 58 + ALPHABET.index(c)
    return n.to_bytes(size, "big")


def base58_encode(data):
    n, out = int.from_bytes(data, "big"), ""
    while n:
        n, r = divmod(n, 58)
        out = ALPHABET[r] + out
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + out


def nfc(v):
    if isinstance(v, str):
        return unicodedata.normalize("NFC", v)
    if isinstance(v, list):
        return [nfc(x) for x in v]
    if isinstance(v, dict):
        return {k: nfc(x) for k, x in v.items()}
    return v


def check(case):
    envelope = json.loads(case["env"])
    signature = envelope.pop("signature")
    if case["form"] == "spec":
        envelope["signature"] = None
    try:
        data = rfc8785.dumps(nfc(envelope))
    except rfc8785.CanonicalizationError as e:
        return "error " + type(e).__name__
    public = Ed25519PublicKey.from_public_bytes(base58_decode(case["pub"][1:], 34)[2:])
    try:
        public.verify(base58_decode(signature[1:], 64), data)
        good = "good"
    except InvalidSignature:
        good = "bad"
    own = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(case["seed"])).sign(data)
    return " ".join([hashlib.sha256(data).hexdigest(), good, "z" + base58_encode(own)])


BODIES = {"Offer", "encrypted", "note"}


def receive(text, form, key):
    """Checks a pushed envelope in the order of 6.2, and returns a status and an error."""
    try:
        envelope = json.loads(text)
        body, at = envelope["body"]["type"], datetime.datetime.fromisoformat(envelope["timestamp"])
    except (ValueError, KeyError, TypeError):
        return 400, "Bad Request"
    if body not in BODIES:
        return 400, "Bad Request"
    signature = envelope.pop("signature", None)
    if form == "spec":
        envelope["signature"] = None
    try:
        public = Ed25519PublicKey.from_public_bytes(base58_decode(key[1:], 34)[2:])
        public.verify(base58_decode(signature[1:], 64), rfc8785.dumps(nfc(envelope)))
    except (InvalidSignature, TypeError):
        return 401, "Bad Signature"
    if abs((datetime.datetime.now(datetime.UTC) - at).total_seconds()) > 300:
        return 409, "Stale Timestamp"
    return 200, "OK"


def inbox(form, key):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            status, error = receive(self.rfile.read(int(self.headers["Content-Length"])), form, key)
            body = json.dumps({"error": error}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if sys.argv[1] == "serve":
    inbox(*sys.argv[2:])
    sys.exit()
with open(sys.argv[1], encoding="utf-8") as cases, open(sys.argv[2], "w", encoding="utf-8") as out:
    for line in cases:
        out.write(check(json.loads(line)) + "\n")
