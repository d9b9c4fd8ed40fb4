// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package signature signs notifications and verifies their signatures.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Sign returns the value of the header X-ARC-Signature for a body (ARC-D43).
func Sign(secret, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)
	return "sha256=" + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Verify reports whether signature is that of body. It takes the same time
// whatever is wrong. Without a secret nothing is valid.
func Verify(secret, body []byte, signature string) bool {
	return len(secret) > 0 && hmac.Equal([]byte(Sign(secret, body)), []byte(signature))
}

// VerifyPython is [Verify] that also accepts what the Python SDK
// sends: it signs the text that its JSON module prints by default and then sends
// the same JSON in compact form, so the signature does not match the body.
func VerifyPython(secret, body []byte, signature string) bool {
	return Verify(secret, body, signature) || Verify(secret, pythonText(body), signature)
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

// standardKey returns the key of a secret for Standard Webhooks.
func standardKey(s string) []byte {
	if text, ok := strings.CutPrefix(s, "whsec_"); ok {
		if key, err := base64.StdEncoding.DecodeString(text); err == nil && len(key) > 0 {
			return key
		}
	}
	return []byte(s)
}

// The headers of ARC webhooks (ARC-D43) and of the Standard Webhooks specification.
const (
	HeaderEvent             = "X-Arc-Event"
	HeaderDelivery          = "X-Arc-Delivery"
	HeaderSubscription      = "X-Arc-Subscription"
	HeaderSignature         = "X-Arc-Signature"
	headerStandardID        = "Webhook-Id"
	headerStandardTime      = "Webhook-Timestamp"
	headerStandardSignature = "Webhook-Signature"
)

// Add adds the signatures of a body to the headers of its request. ARC has room
// for one signature, by the first secret; Standard Webhooks has room for all of
// them, so that a receiver can go from one secret to the next at leisure.
func Add(h http.Header, secrets []string, id string, now time.Time, body []byte) {
	if len(secrets) == 0 {
		return
	}
	h.Set(HeaderSignature, Sign([]byte(secrets[0]), body))
	seconds := strconv.FormatInt(now.Unix(), 10)
	h.Set(headerStandardID, id)
	h.Set(headerStandardTime, seconds)
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(standardMAC(s, id, seconds, body))
	}
	h.Set(headerStandardSignature, strings.Join(signatures, " "))
}

func standardMAC(s string, id, seconds string, body []byte) []byte {
	mac := hmac.New(sha256.New, standardKey(s))
	mac.Write([]byte(id + "." + seconds + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// VerifyStandard reports whether the Standard Webhooks headers are present, fresh,
// and signed with one of the secrets.
func VerifyStandard(h http.Header, secrets []string, now time.Time, tolerance time.Duration, body []byte) bool {
	id, text := h.Get(headerStandardID), h.Get(headerStandardTime)
	seconds, err := strconv.ParseInt(text, 10, 64)
	if id == "" || err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return false
	}
	ok := false
	// The header is bounded by the server's limit, and so is the number of tries.
	given := strings.Fields(h.Get(headerStandardSignature))
	if len(given) > maxSignatures {
		return false
	}
	for _, s := range secrets {
		want := standardMAC(s, id, text, body)
		for _, g := range given {
			version, encoded, _ := strings.Cut(g, ",")
			mac, err := base64.StdEncoding.DecodeString(encoded)
			if version == "v1" && err == nil && s != "" && hmac.Equal(mac, want) {
				ok = true
			}
		}
	}
	return ok
}

// maxSignatures bounds how many signatures of one delivery are tried.
const maxSignatures = 16
