// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sparing keeps verifiers of tokens from asking an issuer for its keys as
// often as somebody sends a forged token.
package sparing

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// MaxDocument bounds a discovery document or a key set in bytes.
const MaxDocument = 1 << 20

// ErrTooLarge reports an answer of more than [MaxDocument] bytes.
var ErrTooLarge = errors.New("document over the size limit")

// ErrNotJSON reports a document that is not one JSON text, or one that may be
// read in two ways.
var ErrNotJSON = errors.New("document is not JSON")

// Transport asks for a URL once in a while only, and answers what it knows in
// between. Keys are fetched whenever a signature matches none, so without it
// forged tokens would become requests to the issuer. Several goroutines may use
// it; those who ask at the same time wait for one request. So requests carry no
// context of a caller, whose end would be an answer to all; they do carry a
// deadline, and that it passed is an answer like others.
type Transport struct {
	Next  http.RoundTripper // nil means the default transport
	Pause time.Duration     // between two requests for one URL

	mu    sync.Mutex
	known map[string]*answer // by URL, none older than a pause when one is added; guarded by mu
}

type answer struct {
	at     time.Time
	status int
	header http.Header
	body   []byte
	err    error
}

// RoundTrip answers as the last request for the URL was answered, an error
// included, unless that is [Transport.Pause] ago.
func (s *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	url := req.URL.String()
	a := s.known[url]
	if a == nil || time.Since(a.at) >= s.Pause {
		a = s.fetch(req)
		if s.known == nil {
			s.known = map[string]*answer{}
		}
		// An issuer may redirect to another URL each time.
		maps.DeleteFunc(s.known, func(_ string, old *answer) bool { return time.Since(old.at) >= s.Pause })
		s.known[url] = a
	}
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{Status: http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header.Clone(), Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)), Request: req}, nil
}

func (s *Transport) fetch(req *http.Request) *answer {
	next := s.Next
	if next == nil {
		next = http.DefaultTransport
	}
	a := &answer{}
	defer func() { a.at = time.Now() }() // a pause after the answer, which may have taken long
	res, err := next.RoundTrip(req)
	if err != nil {
		a.err = err
		return a
	}
	defer res.Body.Close()
	a.status, a.header = res.StatusCode, res.Header
	a.body, a.err = io.ReadAll(io.LimitReader(res.Body, MaxDocument+1))
	switch {
	case a.err != nil:
	case len(a.body) > MaxDocument:
		a.err = ErrTooLarge
	case a.status == http.StatusOK:
		if _, err := strictjson.Check(a.body, strictjson.Options{MaxDepth: 32}); err != nil {
			a.err = fmt.Errorf("%w: %w", ErrNotJSON, err)
		}
	}
	return a
}
