// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// The client of the official TypeScript SDK of MCP.

import { serve } from './peer.mjs';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

let client;

serve({
  connect: async ({ url, command, env }) => {
    client = new Client({ name: 'ts-client', version: '1.0.0' });
    await client.connect(url ? new StreamableHTTPClientTransport(new URL(url)) : new StdioClientTransport({ command, env }));
    return { version: client.transport.protocolVersion, server: client.getServerVersion(), instructions: client.getInstructions() ?? null };
  },
  tools: async () => (await client.listTools()).tools,
  call: ({ name, args, meta }) => client.callTool({ name, arguments: args, ...(meta ? { _meta: meta } : {}) }),
  resources: async () => (await client.listResources()).resources,
  read: async ({ uri }) => (await client.readResource({ uri })).contents,
  close: () => client.close(),
});
