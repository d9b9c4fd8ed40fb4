// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/httpx"
)

// MaxMessage is the default bound of an envelope in bytes (AIR-D09).
const MaxMessage = 65536

// CodeMethod is the code of a method that is not allowed (AIR-D67).
const CodeMethod = "method_not_allowed"

// writeTimeout bounds the time in which a caller takes 64 KiB of a response.
const writeTimeout = 30 * time.Second

// CheckHeaders refuses a request with an ambiguous header. The message is for the peer.
func CheckHeaders(r *http.Request) (message string, ok bool) {
	_, err := httpx.CheckRequest(r, nil, SecretHeader, versionHeader)
	var he *httpx.Error
	if errors.As(err, &he) {
		return he.Message, false
	}
	return "", err == nil
}

// A BodyError is a body that was not read. Code and Message are for the peer.
type BodyError struct {
	Code, Message string
	Cause         error
}

// ReadBody reads the body of a request, at most limit bytes, which arrives within the timeout.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int, timeout time.Duration) ([]byte, *BodyError) {
	data, err := httpx.Body(w, r, int64(limit), timeout)
	var he *httpx.Error
	switch {
	case err == nil:
		return data, nil
	case errors.As(err, &he) && he.Status == http.StatusRequestEntityTooLarge:
		return nil, &BodyError{Code: "too_large", Message: "the envelope is too large"}
	}
	return nil, &BodyError{"invalid_json", "the request could not be read", err}
}

// JSONContent reports whether envelopes may have a content type (AIR-D70).
func JSONContent(contentType string) bool {
	if contentType == "" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return (err == nil || errors.Is(err, mime.ErrInvalidMediaParameter)) && t == JSONType
}

// SecretMatches compares in constant time, independent of the lengths. An empty secret matches
// nothing.
func SecretMatches(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return want != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// WriteJSON writes a response. A caller that has disconnected or is slow is not reported.
func WriteJSON(w http.ResponseWriter, status int, body []byte) {
	_ = httpx.Respond(w, status, JSONType, body, writeTimeout)
}

// SetRetryAfter sets the header of a delay, in whole seconds.
func SetRetryAfter(h http.Header, d time.Duration) {
	if d > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10))
	}
}

// IsAIRID reports whether s has the form AIR-XXXX-XXXX-XXXX with groups of digits and upper-case
// letters (AIR-D30).
func IsAIRID(s string) bool {
	if len(s) != 18 || s[:4] != "AIR-" {
		return false
	}
	for i := 4; i < len(s); i++ {
		c := s[i]
		if i%5 == 3 {
			if c != '-' {
				return false
			}
		} else if c-'0' >= 10 && c-'A' >= 26 {
			return false
		}
	}
	return true
}

// AIRIDOf returns the AIR ID of a DID, "" if it has none.
func AIRIDOf(did string) string {
	if id := did[strings.LastIndexByte(did, ':')+1:]; IsAIRID(id) {
		return id
	}
	return ""
}

// ServiceInbox is the type of the service in a DID document that names an agent's inbox.
const ServiceInbox = "A2AInbox"

// A DID is the parsed name of an agent.
type DID struct {
	Host  string // the registry, such as agentidentityregistry.org
	AIRID string // the AIR ID, the last segment
}

// MaxDID bounds a DID, in bytes.
const MaxDID = 500

// ParseDID parses did:wba:host:...:AIR-ID (AIR-D32).
func ParseDID(text string) (d DID, ok bool) {
	rest, ok := strings.CutPrefix(text, "did:wba:")
	host, path, hasPath := strings.Cut(rest, ":")
	if !ok || !hasPath || len(text) > MaxDID || host == "" || len(host) > 253 || !isName(host, '.', '-') {
		return d, false
	}
	for segment := range strings.SplitSeq(path, ":") {
		if segment == "" || !isName(segment, '_', '-') {
			return d, false
		}
		d.AIRID = segment
	}
	d.Host = host
	return d, IsAIRID(d.AIRID)
}

// isName reports whether s consists of letters, digits and two other bytes.
func isName(s string, a, b byte) bool {
	for i := range len(s) {
		if c := s[i]; !IsAlphanumeric(c) && c != a && c != b {
			return false
		}
	}
	return true
}

// IsAlphanumeric reports whether c is an ASCII letter or digit.
func IsAlphanumeric(c byte) bool { return c-'0' < 10 || c|0x20-'a' < 26 }
