# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""Answers three operations of AIR to the conform command: conform codec -- python3 air_testee.py."""

import base64
import hashlib
import json
import sys
import unicodedata

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
STATUS = {"bad_signature": (401, "Bad Signature")}


class Refusal(Exception):
    pass


class Integer(str):
    """The token of a number, which Python must not round."""


class Float(Integer):
    """A number that has no canonical form."""


def base58(data):
    n, out = int.from_bytes(data, "big"), ""
    while n:
        n, r = divmod(n, 58)
        out = ALPHABET[r] + out
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + out


def unbase58(text, size, code):
    n = 0
    if text[:1] != "z" or any(c not in ALPHABET for c in text[1:]) or len(text) > 2 * size:
        raise Refusal(code)
    for c in text[1:]:
        n = n * 58 + ALPHABET.index(c)
    if n >> (8 * size) or "z" + base58(n.to_bytes(size, "big")) != text:
        raise Refusal(code)
    return n.to_bytes(size, "big")


def refuse_word(_):
    raise Refusal("invalid_json")


def unique(pairs):
    if len({unicodedata.normalize("NFC", name) for name, _ in pairs}) < len(pairs):
        raise Refusal("duplicate_key")
    return dict(pairs)


def read(text, code="invalid_json"):
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        if text.startswith("\ufeff"):
            raise ValueError("byte order mark")
        return json.loads(text, object_pairs_hook=unique, parse_float=Float, parse_int=Integer,
                          parse_constant=refuse_word)
    except (ValueError, RecursionError) as e:
        raise Refusal(code) from e


def write(v, depth=0):
    if depth > 64 or (depth == 64 and isinstance(v, (dict, list))):
        raise Refusal("invalid_json")
    if isinstance(v, Float):
        raise Refusal("float_forbidden")
    if isinstance(v, Integer):
        return "0" if v == "-0" else str(v)
    if isinstance(v, list):
        return "[" + ",".join(write(x, depth + 1) for x in v) + "]"
    if isinstance(v, dict):
        names = sorted(v, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(quote(name) + ":" + write(v[name], depth + 1) for name in names) + "}"
    if isinstance(v, str):
        return quote(unicodedata.normalize("NFC", v))
    return json.dumps(v)


def quote(text):
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise Refusal("invalid_json") from e
    return json.dumps(text, ensure_ascii=False)


def signing_input(envelope, form):
    body = {name: v for name, v in envelope.items() if name != "signature"}
    if form == "spec":
        body["signature"] = None
    return write(body)


def an_object(wire):
    v = read(wire)
    write(v)
    if not isinstance(v, dict):
        raise Refusal("invalid_envelope")
    return v


def canonicalize(get):
    return {"canonical": write(read(get("wire")))}


def sign(get):
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(get("seedHex")))
    envelope = an_object(get("envelope"))
    if envelope.get("signature") is not None:
        raise Refusal("already_signed")
    text = signing_input(envelope, get("form", "spec"))
    signature = "z" + base58(key.sign(text.encode()))
    return {"canonical": text, "sha256Hex": hashlib.sha256(text.encode()).hexdigest(), "signature": signature,
            "publicKey": "z" + base58(b"\xed\x01" + key.public_key().public_bytes_raw()),
            "wire": write({**envelope, "signature": signature})}


def verify(get):
    raw = unbase58(get("publicKey"), 34, "bad_key")
    if raw[:2] != b"\xed\x01":
        raise Refusal("bad_key")
    envelope = an_object(get("envelope"))
    signature = envelope.get("signature")
    if signature is not None and (isinstance(signature, Integer) or not isinstance(signature, str)):
        raise Refusal("invalid_envelope")
    if signature is None:
        raise Refusal("bad_signature", "signature field absent or null")
    data = unbase58(signature, 64, "bad_signature")
    for form in ("spec", "deployed"):
        if get("accept", "both") in (form, "both"):
            try:
                key = Ed25519PublicKey.from_public_bytes(raw[2:])
                key.verify(data, signing_input(envelope, form).encode())
                return {"form": form}
            except InvalidSignature:
                continue
    raise Refusal("bad_signature")


OPERATIONS = {"canonicalize": canonicalize, "sign": sign, "verify": verify}


def answer(message):
    if "hello" in message:
        return {"conform": 1, "hello": {"name": "air_testee.py", "version": "1", "protocols": ["air"],
                                        "ops": {"air": list(OPERATIONS)}}}

    def get(name, default=None):
        given = message["in"]
        return base64.b64decode(given[name + "B64"]) if name + "B64" in given else given.get(name, default)

    reply = {"id": message["id"]}
    try:
        reply["answer"] = OPERATIONS[message["op"]](get)
    except Refusal as e:
        status, error = STATUS.get(e.args[0], (400, "Bad Request"))
        reply["refusal"] = {"code": e.args[0], "status": status, "error": error}
        if len(e.args) > 1:
            reply["refusal"]["detail"] = e.args[1]
    except Exception as e:
        reply["broken"] = repr(e)
    return reply


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
