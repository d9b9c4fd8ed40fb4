// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// maxDocument bounds a discovery document or a key set in bytes.
const maxDocument = 1 << 20

var errDocumentTooLarge = errors.New("jwtauth: document over the size limit")

// sparing is a transport that asks for a URL once in a while only, and answers
// what it knows in between. Keys are fetched whenever a signature matches none,
// so without it forged tokens would become requests to the issuer.
type sparing struct {
	next  http.RoundTripper // nil means the default transport
	pause time.Duration

	mu    sync.Mutex
	known map[string]*answer // by URL, of which there are two; guarded by mu
}

type answer struct {
	at     time.Time
	status int
	header http.Header
	body   []byte
	err    error
}

func (s *sparing) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	url := req.URL.String()
	a := s.known[url]
	if a == nil || time.Since(a.at) >= s.pause {
		a = s.fetch(req)
		if req.Context().Err() == nil { // a caller who went away proves nothing
			if s.known == nil {
				s.known = map[string]*answer{}
			}
			s.known[url] = a
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{Status: http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header.Clone(), Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)), Request: req}, nil
}

func (s *sparing) fetch(req *http.Request) *answer {
	next := s.next
	if next == nil {
		next = http.DefaultTransport
	}
	a := &answer{at: time.Now()}
	res, err := next.RoundTrip(req)
	if err != nil {
		a.err = err
		return a
	}
	defer res.Body.Close()
	a.status, a.header = res.StatusCode, res.Header
	a.body, a.err = io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	if a.err == nil && len(a.body) > maxDocument {
		a.err = errDocumentTooLarge
	}
	return a
}
