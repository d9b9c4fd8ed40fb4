// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Signs and verifies envelopes with canonicalize, @noble/curves and bs58: air_check.mjs IN OUT, a line for each. With
// serve FORM KEY it is an inbox until standard input ends, which accepts that form of signatures, and prints its port.

import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { ed25519 } from '@noble/curves/ed25519.js';
import { sha256 } from '@noble/hashes/sha2.js';
import bs58 from 'bs58';
import canonicalize from 'canonicalize';

const hex = (b) => Buffer.from(b).toString('hex');

function nfc(v) {
  if (typeof v === 'string') return v.normalize('NFC');
  if (Array.isArray(v)) return v.map(nfc);
  if (v === null || typeof v !== 'object') return v;
  return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, nfc(x)]));
}

function check(c) {
  const envelope = JSON.parse(c.env);
  const signature = envelope.signature;
  delete envelope.signature;
  if (c.form === 'spec') envelope.signature = null;
  const data = Buffer.from(canonicalize(nfc(envelope)), 'utf8');
  const pub = bs58.decode(c.pub.slice(1)).slice(2);
  const good = ed25519.verify(bs58.decode(signature.slice(1)), data, pub) ? 'good' : 'bad';
  const own = c.sign ? 'z' + bs58.encode(ed25519.sign(data, Buffer.from(c.seed, 'hex'))) : '-';
  return [hex(sha256(data)), good, own].join(' ');
}

// receive checks a pushed envelope in the order of 6.2, and returns a status and an error.
function receive(text, form, key) {
  let envelope;
  try {
    envelope = JSON.parse(text);
  } catch {
    return [400, 'Bad Request'];
  }
  const at = Date.parse(envelope.timestamp);
  if (Number.isNaN(at) || !['Offer', 'encrypted', 'note'].includes(envelope.body?.type)) return [400, 'Bad Request'];
  const signature = envelope.signature;
  delete envelope.signature;
  if (form === 'spec') envelope.signature = null;
  if (typeof signature !== 'string') return [401, 'Bad Signature'];
  const data = Buffer.from(canonicalize(nfc(envelope)), 'utf8');
  const pub = bs58.decode(key.slice(1)).slice(2);
  if (!ed25519.verify(bs58.decode(signature.slice(1)), data, pub)) return [401, 'Bad Signature'];
  return Math.abs(Date.now() - at) > 300_000 ? [409, 'Stale Timestamp'] : [200, 'OK'];
}

function inbox(form, key) {
  const server = createServer(async (req, res) => {
    const parts = [];
    for await (const part of req) parts.push(part);
    const [status, error] = req.method === 'POST' ? receive(Buffer.concat(parts).toString('utf8'), form, key) : [501, 'no'];
    res.writeHead(status, { 'content-type': 'application/json' });
    res.end(JSON.stringify({ error }));
  });
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
  process.stdin.resume().on('end', () => process.exit());
}

const [, , from, to, key] = process.argv;
if (from === 'serve') {
  inbox(to, key);
} else {
  const lines = readFileSync(from, 'utf8').split('\n').slice(0, -1);
  writeFileSync(to, lines.map((l) => check(JSON.parse(l)) + '\n').join(''));
}
