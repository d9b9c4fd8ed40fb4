// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Answers three operations of AIR to the conform command: conform codec -- node air_testee.mjs.

import { createHash, createPrivateKey, createPublicKey, sign as signData, verify as verifyData } from 'node:crypto';
import { createInterface } from 'node:readline';

const ALPHABET = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';
const SPKI = Buffer.from('302a300506032b6570032100', 'hex');
const PKCS8 = Buffer.from('302e020100300506032b657004220420', 'hex');

class Refusal extends Error {
  constructor(code, detail) { super(code); Object.assign(this, { code, detail }); }
}
const refuse = (code, detail) => { throw new Refusal(code, detail); };

class Token { constructor(text) { this.text = text; } } // of a number, which JavaScript must not round

function base58(data) {
  let out = '', n = data.length ? BigInt('0x' + Buffer.from(data).toString('hex')) : 0n;
  for (; n; n /= 58n) out = ALPHABET[Number(n % 58n)] + out;
  return '1'.repeat(Math.max(0, data.findIndex((b) => b))) + out;
}

function unbase58(text, size, code) {
  if (text[0] !== 'z' || text.length > 2 * size || [...text.slice(1)].some((c) => !ALPHABET.includes(c))) refuse(code);
  const n = [...text.slice(1)].reduce((n, c) => n * 58n + BigInt(ALPHABET.indexOf(c)), 0n);
  if (n >> BigInt(8 * size)) refuse(code);
  const data = Buffer.from(n.toString(16).padStart(2 * size, '0'), 'hex');
  return 'z' + base58(data) === text ? data : refuse(code);
}

// read parses JSON: integers stay exact, and duplicate names are refused.
function read(text) {
  if (typeof text !== 'string') {
    try { text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(text); } catch { refuse('invalid_json'); }
  }
  let at = 0, isDuplicate = false;
  const take = (re) => { re.lastIndex = at; const m = re.exec(text); if (m) at = re.lastIndex; return m?.[0]; };
  const space = () => take(/[ \t\n\r]*/y);
  const expect = (c) => { space(); if (text[at++] !== c) refuse('invalid_json'); };
  const string = () => { const s = take(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y); return s === undefined ? refuse('invalid_json') : JSON.parse(s); };
  function list(end, item) {
    at++; space();
    if (text[at] === end) { at++; return; }
    for (;;) { item(); space(); if (text[at] === end) { at++; return; } expect(','); space(); }
  }
  function value(depth) {
    if (depth > 2000) refuse('invalid_json');
    space();
    const names = new Set(), object = new Map(), array = [];
    switch (text[at]) {
      case '{':
        list('}', () => {
          const name = string();
          isDuplicate ||= names.size === names.add(name.normalize('NFC')).size;
          expect(':'); object.set(name, value(depth + 1));
        });
        return object;
      case '[': list(']', () => array.push(value(depth + 1))); return array;
      case '"': return string();
    }
    const word = take(/true|false|null/y);
    if (word) return JSON.parse(word);
    return new Token(take(/-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y) ?? refuse('invalid_json'));
  }
  const v = value(0);
  space();
  if (at !== text.length) refuse('invalid_json');
  return isDuplicate ? refuse('duplicate_key') : v;
}

const quote = (s) => (s.isWellFormed() ? JSON.stringify(s) : refuse('invalid_json'));

function write(v, depth = 0) {
  const nested = v instanceof Map || Array.isArray(v);
  if (depth > 64 || (depth === 64 && nested)) refuse('invalid_json');
  if (v instanceof Token) return /[.eE]/.test(v.text) ? refuse('float_forbidden') : v.text === '-0' ? '0' : v.text;
  if (Array.isArray(v)) return '[' + v.map((x) => write(x, depth + 1)).join() + ']';
  if (v instanceof Map) return '{' + [...v.keys()].sort().map((k) => quote(k) + ':' + write(v.get(k), depth + 1)).join() + '}';
  return typeof v === 'string' ? quote(v.normalize('NFC')) : JSON.stringify(v);
}

function signingInput(envelope, form) {
  const body = new Map(envelope);
  body.delete('signature');
  if (form === 'spec') body.set('signature', null);
  return write(body);
}

function anObject(wire) {
  const v = read(wire);
  write(v);
  return v instanceof Map ? v : refuse('invalid_envelope');
}

const OPERATIONS = {
  canonicalize: (get) => ({ canonical: write(read(get('wire'))) }),
  sign(get) {
    const key = createPrivateKey({ key: Buffer.concat([PKCS8, Buffer.from(get('seedHex'), 'hex')]), format: 'der', type: 'pkcs8' });
    const envelope = anObject(get('envelope'));
    if ((envelope.get('signature') ?? null) !== null) refuse('already_signed');
    const canonical = signingInput(envelope, get('form', 'spec'));
    const signature = 'z' + base58(signData(null, Buffer.from(canonical), key));
    const raw = createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(SPKI.length);
    return { canonical, sha256Hex: createHash('sha256').update(canonical).digest('hex'), signature,
      publicKey: 'z' + base58(Buffer.concat([Buffer.from([0xed, 1]), raw])), wire: write(new Map(envelope).set('signature', signature)) };
  },
  verify(get) {
    const raw = unbase58(get('publicKey'), 34, 'bad_key');
    if (raw[0] !== 0xed || raw[1] !== 1) refuse('bad_key');
    const envelope = anObject(get('envelope')), signature = envelope.get('signature') ?? null;
    if (signature === null) refuse('bad_signature', 'signature field absent or null');
    if (typeof signature !== 'string') refuse('invalid_envelope');
    const data = unbase58(signature, 64, 'bad_signature');
    const key = createPublicKey({ key: Buffer.concat([SPKI, raw.subarray(2)]), format: 'der', type: 'spki' });
    const forms = ['spec', 'deployed'].filter((form) => [form, 'both'].includes(get('accept', 'both')));
    const form = forms.find((form) => verifyData(null, Buffer.from(signingInput(envelope, form)), key, data));
    return form ? { form } : refuse('bad_signature');
  },
};

function answer(message) {
  if (message.hello) return { conform: 1, hello: { name: 'air_testee.mjs', version: '1', protocols: ['air'], ops: { air: Object.keys(OPERATIONS) } } };
  const { id, op, in: given } = message;
  const get = (name, value) => (name + 'B64' in given ? Buffer.from(given[name + 'B64'], 'base64') : given[name] ?? value);
  try {
    return { id, answer: OPERATIONS[op](get) };
  } catch (e) {
    if (!(e instanceof Refusal)) return { id, broken: String(e) };
    const [status, error] = e.code === 'bad_signature' ? [401, 'Bad Signature'] : [400, 'Bad Request'];
    return { id, refusal: { code: e.code, status, error, detail: e.detail } };
  }
}

for await (const line of createInterface({ input: process.stdin })) process.stdout.write(JSON.stringify(answer(JSON.parse(line))) + '\n');
