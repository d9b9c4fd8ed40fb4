# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""Signs and verifies envelopes with rfc8785 and cryptography: air_check.py IN OUT, a line for each."""

import hashlib
import json
import sys
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


with open(sys.argv[1], encoding="utf-8") as cases, open(sys.argv[2], "w", encoding="utf-8") as out:
    for line in cases:
        out.write(check(json.loads(line)) + "\n")
