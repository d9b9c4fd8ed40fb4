// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Sealed boxes with @noble/curves, @noble/hashes and @noble/ciphers, from section 14 of the specification.

import { serve } from './peer.mjs';
import { randomBytes } from 'node:crypto';
import { chacha20poly1305 } from '@noble/ciphers/chacha.js';
import { ed25519, x25519 } from '@noble/curves/ed25519.js';
import { hkdf } from '@noble/hashes/hkdf.js';
import { sha256, sha512 } from '@noble/hashes/sha2.js';
import bs58 from 'bs58';
import canonicalize from 'canonicalize';

const ALG = 'x25519-hkdf-sha256-chacha20poly1305';
const text = (s) => Buffer.from(s, 'utf8');
const b64 = (b) => Buffer.from(b).toString('base64url');

function aad(env) {
  const parts = [env.id, env.from, env.to, env.thread_id];
  if (parts.some((p) => p === '' || p.includes('\0'))) throw new Error('bad aad');
  return text(parts.join('\0'));
}

const keyOf = (shared, epk) => hkdf(sha256, shared, new Uint8Array(0), Buffer.concat([text('air-msg/e2e/v1'), epk]), 32);

function scalar(seed) {
  const s = sha512(Buffer.from(seed, 'hex')).slice(0, 32);
  s[0] &= 248;
  s[31] = (s[31] & 127) | 64;
  return s;
}

function seal({ recipient, env, body }) {
  const to = ed25519.utils.toMontgomery(bs58.decode(recipient.slice(1)).slice(2));
  const secret = randomBytes(32);
  const epk = x25519.getPublicKey(secret);
  const nonce = randomBytes(12);
  const box = chacha20poly1305(keyOf(x25519.getSharedSecret(secret, to), epk), nonce, aad(env));
  return {
    type: 'encrypted', alg: ALG, v: 1,
    epk: 'z' + bs58.encode(Buffer.concat([Buffer.from([0xec, 0x01]), epk])),
    nonce: b64(nonce), ct: b64(box.encrypt(text(canonicalize(JSON.parse(body))))),
  };
}

function open({ seed, env, body }) {
  if (body.alg !== ALG || body.v !== 1) throw new Error('another suite');
  const epk = bs58.decode(body.epk.slice(1));
  if (epk[0] !== 0xec || epk[1] !== 1 || epk.length !== 34) throw new Error('bad epk');
  const shared = x25519.getSharedSecret(scalar(seed), epk.slice(2));
  const box = chacha20poly1305(keyOf(shared, epk.slice(2)), Buffer.from(body.nonce, 'base64url'), aad(env));
  return Buffer.from(box.decrypt(Buffer.from(body.ct, 'base64url'))).toString('utf8');
}

serve({ seal: ({ boxes }) => boxes.map(seal), open: ({ boxes }) => boxes.map(open) });
