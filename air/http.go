// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/netguard"
)

// Conformance returns the label that an implementation of this draft may carry
// until the conformance tests of the specification run it (13.3).
func Conformance() string { return "draft-1-candidate" }

const (
	versionHeader  = "X-A2A-Version"
	wireVersion    = "v1" // of the wire; not a claim of conformance (AIR-D66)
	secretHeader   = "X-Agent-Secret"
	userAgent      = "fivewire-air/draft-1-candidate"
	jsonType       = "application/json"
	requestTimeout = 30 * time.Second
	maxAnswer      = 64 << 10 // of anything but documents and pulls
	maxPull        = 32 << 20 // AIR-D09
)

// outbound returns the client to send with: the caller's own, or one that
// connects to public addresses only; in any case it follows no redirect (AIR-D48).
func outbound(user *http.Client, loopback, private bool) *http.Client {
	if user != nil {
		c := *user
		c.CheckRedirect = netguard.NoRedirect
		return &c
	}
	t := (&netguard.Guard{AllowLoopback: loopback, AllowPrivate: private}).Transport()
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{}
	}
	t.TLSClientConfig.MinVersion = tls.VersionTLS12 // 7.1; newer versions come first by themselves
	return &http.Client{Transport: t, CheckRedirect: netguard.NoRedirect}
}

// A reply is an answer that was read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// errAnswerTooLarge reports an answer beyond the limit.
var errAnswerTooLarge = errors.New("the answer is too large")

func exchange(ctx context.Context, c *http.Client, method, url string, body []byte, secret string, limit int64) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := newRequest(ctx, method, url, body, secret)
	if err != nil {
		return nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, errAnswerTooLarge
	}
	return &reply{status: res.StatusCode, header: res.Header, body: data}, nil
}

func newRequest(ctx context.Context, method, url string, body []byte, secret string) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return nil, err
	}
	req.Header.Set(versionHeader, wireVersion)
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", jsonType)
	if body != nil {
		req.Header.Set("Content-Type", jsonType)
	}
	if secret != "" {
		req.Header.Set(secretHeader, secret)
	}
	return req, nil
}

// readBody reads a request up to limit bytes.
func readBody(r *http.Request, limit int) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, ErrTooLarge.err("the envelope is too large")
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(io.LimitReader(r.Body, int64(limit)+1)); err != nil {
		return nil, ErrInvalidJSON.because("the request could not be read", err)
	}
	if buf.Len() > limit {
		return nil, ErrTooLarge.err("the envelope is too large")
	}
	return buf.Bytes(), nil
}

// jsonContent reports whether a content type may hold an envelope (AIR-D70).
func jsonContent(contentType string) bool {
	if contentType == "" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return (err == nil || errors.Is(err, mime.ErrInvalidMediaParameter)) && t == jsonType
}

// secretMatches compares in constant time and tells nothing about lengths.
func secretMatches(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", jsonType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a caller that has gone needs no answer
}

// writeError answers with an error of 9.3. Anything but an [*Error] is a failure of
// this side and shows nothing (AIR-124).
func writeError(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Code: ErrRelay}
	}
	if e.Code == ErrRateLimited && e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	writeJSON(w, e.Status(), e.Body())
}
