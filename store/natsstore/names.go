// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

const upperHex = "0123456789ABCDEF"

// plain reports whether c may appear unescaped in a token of a subject. Other printable characters
// have a meaning to NATS or to its administrators.
func plain(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("-_:@+,", c) >= 0
}

// appendTokens appends key as tokens of a subject: a slash divides them, so that
// NATS finds what begins with a folder, and every byte that is not plain is
// written as =XX. An empty token is =. Different keys get different subjects,
// of at most three times their length.
func appendTokens(dst []byte, key string) []byte {
	start := len(dst)
	for i := 0; i < len(key); i++ {
		switch c := key[i]; {
		case c == '/':
			if len(dst) == start {
				dst = append(dst, '=')
			}
			dst = append(dst, '.')
			start = len(dst)
		case plain(c):
			dst = append(dst, c)
		default:
			dst = append(dst, '=', upperHex[c>>4], upperHex[c&15])
		}
	}
	if len(dst) == start {
		dst = append(dst, '=')
	}
	return dst
}

// keyOf converts tokens back into the key. It reports false for tokens that appendTokens never
// writes.
func keyOf(tokens string) (string, bool) {
	key := make([]byte, 0, len(tokens))
	for i, token := range strings.Split(tokens, ".") {
		if i > 0 {
			key = append(key, '/')
		}
		if token == "=" {
			continue
		}
		if token == "" {
			return "", false
		}
		for j := 0; j < len(token); j++ {
			if token[j] != '=' {
				key = append(key, token[j])
				continue
			}
			if j+2 >= len(token) {
				return "", false
			}
			high, low := strings.IndexByte(upperHex, token[j+1]), strings.IndexByte(upperHex, token[j+2])
			if high < 0 || low < 0 {
				return "", false
			}
			key = append(key, byte(high<<4|low))
			j += 2
		}
	}
	return string(key), true
}

// folder returns the tokens that all keys with that prefix begin with.
func folder(prefix string) string {
	i := strings.LastIndexByte(prefix, '/')
	if i < 0 {
		return ""
	}
	return string(appendTokens(nil, prefix[:i])) + "."
}

// digest names a stream or an id in a subject. No operation lists these, so they need not be
// decoded, and a fixed length keeps subjects short.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
