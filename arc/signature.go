// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"unicode/utf16"
	"unicode/utf8"
)

// SignWebhook returns the value of the header X-ARC-Signature for a body (ARC-D43).
func SignWebhook(secret, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)
	return "sha256=" + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// VerifyWebhook reports whether signature is that of body. It takes the same time
// whatever is wrong. Without a secret nothing is valid.
func VerifyWebhook(secret, body []byte, signature string) bool {
	return len(secret) > 0 && hmac.Equal([]byte(SignWebhook(secret, body)), []byte(signature))
}

// VerifyWebhookPython is [VerifyWebhook] that also accepts what the Python SDK
// sends: it signs the text that its JSON module prints by default and then sends
// the same JSON in compact form, so the signature does not match the body.
func VerifyWebhookPython(secret, body []byte, signature string) bool {
	return VerifyWebhook(secret, body, signature) || VerifyWebhook(secret, pythonText(body), signature)
}

// pythonText converts compact JSON to the format of Python: a space after commas and
// colons, and escapes for characters outside ASCII.
func pythonText(body []byte) []byte {
	out := make([]byte, 0, len(body)+len(body)/4)
	inString := false
	for i := 0; i < len(body); {
		c := body[i]
		switch {
		case inString && c == '\\' && i+1 < len(body):
			out = append(out, c, body[i+1])
			i += 2
			continue
		case c == '"':
			inString = !inString
		case !inString && (c == ',' || c == ':'):
			out = append(out, c, ' ')
			i++
			continue
		case inString && c > 0x7e:
			r, n := utf8.DecodeRune(body[i:])
			if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
				out = appendEscape(appendEscape(out, hi), lo)
			} else {
				out = appendEscape(out, r)
			}
			i += n
			continue
		}
		out = append(out, c)
		i++
	}
	return out
}

func appendEscape(b []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}
