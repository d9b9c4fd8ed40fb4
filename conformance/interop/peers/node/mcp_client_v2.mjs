// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// The client of the second official TypeScript SDK of MCP. A mode negotiates the version: legacy or auto.

import { serve } from './peer.mjs';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

let client;

serve({
  connect: async ({ url, mode }) => {
    client = new Client({ name: 'ts-client', version: '2.0.0' }, { versionNegotiation: { mode } });
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return { version: client.getNegotiatedProtocolVersion() };
  },
  tools: async () => (await client.listTools()).tools,
  call: ({ name, args }) => client.callTool({ name, arguments: args }),
  close: () => client.close(),
});
