// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A WebhookSecret is what the sender and the receiver of a webhook share. With
// the prefix whsec_ it is, for the Standard Webhooks headers, Base64 of the key;
// in every other use its bytes are the key.
type WebhookSecret string

// String hides the secret, so that it gets into no log.
func (WebhookSecret) String() string { return "whsec_..." }

// GoString hides the secret too.
func (WebhookSecret) GoString() string { return "arc.WebhookSecret(...)" }

func (s WebhookSecret) standardKey() []byte {
	if text, ok := strings.CutPrefix(string(s), "whsec_"); ok {
		if key, err := base64.StdEncoding.DecodeString(text); err == nil && len(key) > 0 {
			return key
		}
	}
	return []byte(s)
}

// The headers of ARC webhooks (ARC-D43) and of the Standard Webhooks specification.
const (
	headerEvent             = "X-Arc-Event"
	headerDelivery          = "X-Arc-Delivery"
	headerSubscription      = "X-Arc-Subscription"
	headerSignature         = "X-Arc-Signature"
	headerStandardID        = "Webhook-Id"
	headerStandardTime      = "Webhook-Timestamp"
	headerStandardSignature = "Webhook-Signature"
)

// sign adds the signatures of a body to the headers of its request. ARC has room
// for one signature, by the first secret; Standard Webhooks has room for all of
// them, so that a receiver can go from one secret to the next at leisure.
func sign(h http.Header, secrets []WebhookSecret, id string, now time.Time, body []byte) {
	if len(secrets) == 0 {
		return
	}
	h.Set(headerSignature, SignWebhook([]byte(secrets[0]), body))
	seconds := strconv.FormatInt(now.Unix(), 10)
	h.Set(headerStandardID, id)
	h.Set(headerStandardTime, seconds)
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(standardMAC(s, id, seconds, body))
	}
	h.Set(headerStandardSignature, strings.Join(signatures, " "))
}

func standardMAC(s WebhookSecret, id, seconds string, body []byte) []byte {
	mac := hmac.New(sha256.New, s.standardKey())
	mac.Write([]byte(id + "." + seconds + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// verifyStandard reports whether the Standard Webhooks headers are present, fresh,
// and signed with one of the secrets.
func verifyStandard(h http.Header, secrets []WebhookSecret, now time.Time, tolerance time.Duration, body []byte) bool {
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
