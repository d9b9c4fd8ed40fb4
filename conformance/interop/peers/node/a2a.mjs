// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// The client and the server of the official JavaScript SDK of A2A. The server has the executors of its documentation, a
// greeting and a task with an artifact, and one that answers with frames written by hand from the specification.

import { serve } from './peer.mjs';
import { randomUUID } from 'node:crypto';
import { ClientFactory } from '@a2a-js/sdk/client';
import { DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { agentCardHandler, jsonRpcHandler, UserBuilder } from '@a2a-js/sdk/server/express';
import express from 'express';

let client;

const message = ({ text, mimeType, taskId, contextId }) => ({
  message: {
    kind: 'message', messageId: randomUUID(), role: 'user', ...(taskId ? { taskId, contextId } : {}),
    parts: [{ kind: 'text', text, ...(mimeType ? { metadata: { mimeType } } : {}) }],
  },
});

async function stream(request) {
  const out = [];
  for await (const event of client.sendMessageStream(message(request))) out.push(event);
  return out;
}

class Executor {
  constructor(run) {
    this.run = run;
  }

  async execute({ taskId, contextId, userMessage, task }, bus) {
    const text = userMessage.parts[0].text;
    const say = (words, mimeType) => ({
      kind: 'message', messageId: randomUUID(), role: 'agent', contextId, parts: [{ kind: 'text', text: words, ...(mimeType ? { metadata: { mimeType } } : {}) }],
    });
    const begin = () => task || bus.publish({ kind: 'task', id: taskId, contextId, status: { state: 'submitted' }, history: [userMessage] });
    const status = (state, final, m) => bus.publish({ kind: 'status-update', taskId, contextId, final, status: { state, ...(m ? { message: { ...m, taskId } } : {}) } });
    const artifact = (parts) => bus.publish({ kind: 'artifact-update', taskId, contextId, artifact: { artifactId: 'a-1', parts } });
    await this.run({ text, say, begin, status, artifact, publish: (e) => bus.publish(e) });
    bus.finished();
  }

  async cancelTask() {}
}

// answer writes a frame to the sender of another one.
let seq = 0;
function answer(request, intent, params) {
  const [, op, meta] = /^@[^>]+>req:([a-z]+)\{.*\}\[(.*)\]$/s.exec(request);
  const of = Object.fromEntries(meta.split(',').map((m) => [m.slice(0, m.indexOf(':')), m.slice(m.indexOf(':') + 1)]));
  const mid = String(++seq).padStart(12, '0');
  return `@jsdesk>${intent}:${op}{${params}}[mid:${mid},seq:${seq},ts:${Math.floor(Date.now() / 1000)},sid:${of.sid},cid:${of.cid ?? of.mid}]`;
}

const executors = {
  hello: ({ say, publish }) => publish(say('Hello, world!')),
  report: ({ begin, artifact, status }) => {
    begin();
    artifact([{ kind: 'text', text: 'This is the analysis.' }]);
    status('completed', true);
  },
  frames: ({ text, say, begin, status }) => {
    begin();
    status('working', false, say(answer(text, 'ack', ''), 'application/accp'));
    status('completed', true, say(answer(text, 'done', 'class:invoice'), 'application/accp'));
  },
};

async function listen({ kind }) {
  const card = {
    name: kind, description: kind, protocolVersion: '0.3.0', version: '0.1.0', url: '', preferredTransport: 'JSONRPC', skills: [],
    capabilities: { streaming: true, pushNotifications: false }, defaultInputModes: ['text'], defaultOutputModes: ['text'],
  };
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Executor(executors[kind]));
  const app = express();
  app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler }));
  app.use('/a2a', jsonRpcHandler({ requestHandler, userBuilder: UserBuilder.noAuthentication }));
  const server = await new Promise((resolve) => {
    const s = app.listen(0, '127.0.0.1', () => resolve(s));
  });
  const url = `http://127.0.0.1:${server.address().port}`;
  card.url = url + '/a2a';
  return url;
}

serve({
  connect: async ({ url }) => {
    client = await new ClientFactory().createFromUrl(url);
  },
  send: (request) => client.sendMessage(message(request)),
  stream,
  get: ({ id }) => client.getTask({ id }),
  listen,
});
