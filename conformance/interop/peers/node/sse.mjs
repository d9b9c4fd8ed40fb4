// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// The package eventsource as a reader of streams, also of those that answer a POST.

import { serve } from './peer.mjs';
import { EventSource } from 'eventsource';

// read collects the events until the connection ends, or until there are enough across connections.
function read({ url, names, body, headers, enough }) {
  return new Promise((resolve) => {
    const out = [];
    const requests = [];
    const source = new EventSource(url, {
      fetch: (to, init) => {
        requests.push(init.headers['Last-Event-ID'] ?? null);
        return fetch(to, { ...init, headers: { ...init.headers, ...headers }, ...(body ? { method: 'POST', body } : {}) });
      },
    });
    const done = () => {
      source.close();
      resolve({ events: out, requests });
    };
    for (const name of names) {
      source.addEventListener(name, (e) => {
        if (typeof e.data !== 'string') return; // an error of the connection, not an event of that name
        out.push({ name, data: e.data, id: e.lastEventId });
        if (enough && out.length >= enough) done();
      });
    }
    source.onerror = (e) => {
      if (e.data === undefined && !(enough && source.readyState === EventSource.CONNECTING)) done();
    };
  });
}

serve({ read, readAll: ({ streams }) => Promise.all(streams.map(read)) });
