// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// A TokenSource supplies the access token for a request to agent target (ARC-006).
// It is called for every request and must be safe for concurrent use. An empty token
// sends no header.
type TokenSource interface {
	Token(ctx context.Context, target string) (string, error)
}

// A TokenInvalidator is a [TokenSource] that is called after a server has refused a
// token.
type TokenInvalidator interface {
	InvalidateToken(target, token string)
}

// TokenSourceFunc makes a function a [TokenSource].
type TokenSourceFunc func(ctx context.Context, target string) (string, error)

// Token calls f.
func (f TokenSourceFunc) Token(ctx context.Context, target string) (string, error) {
	return f(ctx, target)
}

// StaticTokenSource returns a source of always the same token.
func StaticTokenSource(token string) TokenSource {
	return TokenSourceFunc(func(context.Context, string) (string, error) { return token, nil })
}

// refreshingTokens keeps a token. One of several goroutines gets the new token, the others
// wait for it or for its error.
type refreshingTokens struct {
	refresh func(ctx context.Context) (token string, expires time.Time, err error)
	early   time.Duration
	turn    chan struct{} // held during a refresh

	mu      sync.Mutex
	token   string    // guarded by mu, as all below
	begins  time.Time // when it was got
	expires time.Time

	failure  error // of the last failed refresh
	failedAt time.Time
}

// NewRefreshingTokens returns a source that calls refresh for a new token the given
// time before the previous one expires, or after a server has refused it. Zero means 30 s.
// A token with a lifetime under twice that time is refreshed after half of it; one whose
// expiry is the zero time does not expire. The source is safe for concurrent use.
func NewRefreshingTokens(
	refresh func(ctx context.Context) (token string, expires time.Time, err error), early time.Duration,
) TokenSource {
	if early <= 0 {
		early = 30 * time.Second
	}
	return &refreshingTokens{refresh: refresh, early: early, turn: make(chan struct{}, 1)}
}

// Token returns the present token, or a new one.
func (r *refreshingTokens) Token(ctx context.Context, _ string) (string, error) {
	if t := r.present(); t != "" {
		return t, nil
	}
	start := time.Now()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if t := r.present(); t != "" { // refreshed by a concurrent call
		return t, nil
	}
	if err := r.failedSince(start); err != nil {
		return "", err
	}
	begins := time.Now()
	token, expires, err := r.refresh(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			r.failure, r.failedAt = err, time.Now()
		}
		return "", err
	}
	r.token, r.begins, r.expires = token, begins, expires
	return token, nil
}

// failedSince returns the error of a concurrent call whose refresh has failed since start.
func (r *refreshingTokens) failedSince(start time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failedAt.After(start) {
		return r.failure
	}
	return nil
}

func (r *refreshingTokens) present() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.token != "" && !r.expires.IsZero() {
		early := min(r.early, r.expires.Sub(r.begins)/2)
		if !time.Now().Before(r.expires.Add(-early)) {
			r.token = ""
		}
	}
	return r.token
}

// InvalidateToken forgets the token, unless there is a newer one.
func (r *refreshingTokens) InvalidateToken(_, token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.token == token {
		r.token = ""
	}
}

// errToken does not show the token.
var errToken = errors.New("arc: access token holds characters that a header cannot carry")

func setToken(h http.Header, token string) error {
	if token == "" {
		return nil
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] >= 0x7f {
			return errToken
		}
	}
	h["Authorization"] = []string{"Bearer " + token}
	return nil
}
