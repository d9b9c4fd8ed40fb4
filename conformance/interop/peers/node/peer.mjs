// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// What the JavaScript peers share: they are told by lines of JSON on standard input what to do, one at a time, and
// answer each with a line on standard output.

import { createInterface } from 'node:readline';

const write = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr); // packages may print

export async function serve(ops) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { op, ...rest } = JSON.parse(line);
    let answer;
    try {
      answer = { ok: (await ops[op](rest)) ?? null };
    } catch (e) {
      console.error(e);
      answer = { error: { class: e?.constructor?.name ?? typeof e, code: e?.code ?? null, message: String(e?.message ?? e), details: e?.data ?? null } };
    }
    write(JSON.stringify(answer) + '\n');
  }
  process.exit(0);
}
