// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Counts tokens with js-tiktoken.

import { serve } from './peer.mjs';
import { Tiktoken } from 'js-tiktoken/lite';
import cl100k_base from 'js-tiktoken/ranks/cl100k_base';
import o200k_base from 'js-tiktoken/ranks/o200k_base';

const encodings = { cl100k_base: new Tiktoken(cl100k_base), o200k_base: new Tiktoken(o200k_base) };

serve({ count: ({ name, texts }) => texts.map((t) => encodings[name].encode(Buffer.from(t, 'base64').toString('utf8'), [], []).length) });
