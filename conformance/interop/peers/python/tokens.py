# Copyright 2026 The Fivewire Authors
# SPDX-License-Identifier: Apache-2.0
"""Counts tokens with tiktoken, offline. Its vocabularies come out of a package of another registry: they are put
where tiktoken keeps what it fetched, and it holds them against the hash sums that it knows."""

from peer import serve

import base64
import hashlib
import os
import re


def load(ranks, folder):
    """Takes vocabularies as js-tiktoken ships them, and returns the names of those that tiktoken accepts."""
    os.environ["TIKTOKEN_CACHE_DIR"] = folder
    import tiktoken
    for name, path in ranks.items():
        with open(path, encoding="utf-8") as f:
            packed = re.search(r'"bpe_ranks":"([^"]*)"', f.read())[1].replace("\\n", "\n")
        tokens = []
        for line in packed.split("\n"):
            if line:
                _, first, *rest = line.split(" ")
                tokens += enumerate(rest, int(first))
        data = b"".join(b"%s %d\n" % (t.encode(), rank) for rank, t in sorted(tokens))
        url = "https://openaipublic.blob.core.windows.net/encodings/%s.tiktoken" % name
        with open(os.path.join(folder, hashlib.sha1(url.encode()).hexdigest()), "wb") as f:
            f.write(data)
        encodings[name] = tiktoken.get_encoding(name)
    return [e.name for e in encodings.values()]


encodings = {}


def count(name, texts):
    return [len(encodings[name].encode_ordinary(base64.b64decode(t).decode())) for t in texts]


serve({"load": load, "count": count})
