// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Signs and verifies envelopes with canonicalize, @noble/curves and bs58: air_check.mjs IN OUT, a line for each.

import { readFileSync, writeFileSync } from 'node:fs';
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

const [, , from, to] = process.argv;
const lines = readFileSync(from, 'utf8').split('\n').slice(0, -1);
writeFileSync(to, lines.map((l) => check(JSON.parse(l)) + '\n').join(''));
