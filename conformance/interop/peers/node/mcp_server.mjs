// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// A server of the official TypeScript SDK of MCP over standard streams. Its tool twice answers with a frame, written by
// hand from the specification; the tool plain has never heard of frames.

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { z } from 'zod';

const server = new McpServer({ name: 'ts-desk', version: '1.0.0' });
let seq = 0;

// value writes a text: what the grammar needs for itself gets a backslash, and after a first \_ spaces are underscores.
const value = (s) => '\\_' + s.replace(/[\\|{}[\],:_]/g, '\\$&').replaceAll(' ', '_');

// frame answers the request whose frame came along.
function frame(request, params) {
  const [, intent, meta] = /^@[^>]+>([^{]*)\{.*\}\[(.*)\]$/s.exec(request);
  const of = Object.fromEntries(meta.split(',').map((m) => [m.slice(0, m.indexOf(':')), m.slice(m.indexOf(':') + 1)]));
  if (intent !== 'req:tool') throw new Error('not a call: ' + request);
  const mid = String(++seq).padStart(12, '0');
  return `@tsdesk>done:tool{${params}}[mid:${mid},seq:${seq},ts:${Math.floor(Date.now() / 1000)},sid:${of.sid},cid:${of.cid ?? of.mid}]`;
}

server.registerTool('twice', { inputSchema: { text: z.string() } }, async ({ text }, { _meta }) => {
  const out = frame(_meta['accp/frame'], `res:${value(text + ' ' + text)}|schema:TC|stat:ok|tool:twice`);
  return { content: [{ type: 'resource', resource: { uri: 'accp://frames/x', mimeType: 'application/accp', text: out } }] };
});
server.registerTool('plain', { inputSchema: { text: z.string() } }, async ({ text }) => ({ content: [{ type: 'text', text: text + '!' }] }));
await server.connect(new StdioServerTransport());
