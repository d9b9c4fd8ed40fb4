// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/air/internal/signature"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
)

// identify finds the address, the mailbox and the rights of a caller, and counts the address. It reports
// whether the mailbox has a valid name.
func (s *Server) identify(w http.ResponseWriter, req *http.Request, x *call) (isName bool, err error) {
	if s.opts.ClientAddr == nil && s.proxies.First(req.Header) {
		s.opts.Logger.WarnContext(req.Context(), server.ProxyMessage, "peer", req.RemoteAddr)
	}
	if x.addr, err = server.Address(req, s.opts.ClientAddr); err != nil {
		return false, err
	}
	x.to, isName = parseRecipient(x.recipient)
	if err := s.authorize(w, req, x); err != nil {
		return isName, err
	}
	if !x.pulls && !x.isAuthenticated() {
		if delay := s.guests.Address(x.addr); delay > 0 {
			return isName, limited("too many envelopes of this address in this minute", delay)
		}
	}
	return isName, nil
}

// authorize checks the secret in constant time, before the directory and the store are used
// (AIR-091, AIR-D64). The address of the caller decides nothing: behind a proxy all are local.
func (s *Server) authorize(w http.ResponseWriter, req *http.Request, x *call) error {
	a := &s.opts.Auth
	want, isOpen := a.PushSecret, a.AllowAnonymous || a.AllowAnonymousPush
	if x.pulls {
		want, isOpen = "", a.AllowAnonymous
		if a.InboxSecret != nil && x.to.airID != "" {
			place, err := s.budget.Scope(x.addr, "").Reserve(budget.Unauthenticated, 1)
			if err != nil {
				return overBudget(err)
			}
			defer place.Release()
			if want, err = s.inboxSecret(x.to.airID); err != nil {
				return because(air.ErrRelay, "", err)
			}
		}
	}
	switch {
	case server.SecretMatches(req.Header.Get(exchange.SecretHeader), want):
		x.principal = x.to.airID
		return nil
	case x.pulls && a.Resolver != nil && x.to.airID != "" && signature.Is(req.Header):
		return s.verifySignature(w, req, x)
	case want == "" && isOpen:
		x.principal = x.addr
		return nil
	}
	return air.Errorf(air.ErrUnauthorized, "the secret is missing or wrong")
}

// inboxSecret returns the secret of a mailbox.
func (s *Server) inboxSecret(airID string) (secret string, err error) {
	err = guard.Call("inbox secret", func() error {
		secret = s.opts.Auth.InboxSecret(airID)
		return nil
	})
	return secret, err
}

// mayContinue reports whether the secret or the key of a stream is still that of its mailbox. A registry that does not
// answer ends no stream.
func (s *Server) mayContinue(req *http.Request, x *call) bool {
	a := &s.opts.Auth
	switch {
	case x.verify != nil:
		isValid, err := s.checkKey(req.Context(), x.signer, x.verify)
		return isValid || err != nil
	case a.InboxSecret == nil:
		return true
	}
	want, err := s.inboxSecret(x.to.airID)
	return err == nil && (server.SecretMatches(req.Header.Get(exchange.SecretHeader), want) || want == "" && a.AllowAnonymous)
}

// verifySignature authorizes a request that is signed by the agent of the mailbox.
func (s *Server) verifySignature(w http.ResponseWriter, req *http.Request, x *call) error {
	place, err := s.budget.Scope(x.addr, "").Reserve(budget.Unauthenticated, 1)
	if err != nil {
		return overBudget(err)
	}
	defer place.Release()
	if x.method == http.MethodPost {
		if x.body, err = readBody(w, req, maxAnswer, s.opts.Timing.ReadTimeout); err != nil {
			return err
		}
	}
	now, refused := time.Now(), air.Errorf(air.ErrUnauthorized, "the signature of the request is not valid")
	r := signature.Of(req.Method, s.publicURL(req))
	r.Body = x.body
	verify, err := r.Read(req.Header, now)
	if err != nil {
		return air.Errorf(air.ErrUnauthorized, "%v", err)
	}
	if name.AIRIDOf(r.DID) != x.to.airID || x.to.did != "" && x.to.did != r.DID {
		return refused
	}
	isValid, err := s.checkKey(req.Context(), r.DID, verify)
	if err == nil && !isValid && s.refetches.Add(r.DID, "", sumID(r.DID), now.Add(refetchInterval)) == nil {
		s.opts.Auth.Resolver.Invalidate(x.to.airID) // the key may have been replaced
		isValid, err = s.checkKey(req.Context(), r.DID, verify)
	}
	if err != nil {
		return because(air.ErrBadGateway, "the registry is out of reach", err)
	}
	if !isValid {
		return refused
	}
	nonce := sumID(r.Nonce)
	if s.nonces.Add(r.DID, "", nonce, now.Add(2*signature.MaxAge)) != nil { // the last check
		return refused
	}
	x.principal, x.signer, x.verify = x.to.airID, r.DID, verify
	return nil
}

// checkKey reports whether a signature verifies with the key of an agent in the registry. The error is
// that of an unreachable registry.
func (s *Server) checkKey(ctx context.Context, did string, verify func(key ed25519.PublicKey) error) (bool, error) {
	doc, err := s.opts.Auth.Resolver.Resolve(ctx, did)
	if errors.Is(err, air.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	key, err := doc.SigningKey(did)
	return err == nil && verify(key.Bytes()) == nil, nil
}

// publicURL returns the URL that the caller of a request has used.
func (s *Server) publicURL(req *http.Request) *url.URL {
	u := *req.URL
	u.Scheme, u.Host = "http", req.Host
	if req.TLS != nil {
		u.Scheme = "https"
	}
	if s.public.Host != "" {
		u.Scheme, u.Host = s.public.Scheme, s.public.Host
		path, _ := url.JoinPath(s.public.EscapedPath(), req.URL.EscapedPath())
		u.Path, _ = url.PathUnescape(path)
		u.RawPath = path
	}
	return &u
}
