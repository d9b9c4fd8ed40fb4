// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
)

// refetchAge is the minimum age of a cached document that is fetched again after a signature does
// not verify (AIR-D41).
const refetchAge = 5 * time.Second

// maxUnknownWait is how long a pulled envelope waits for the document of its sender (AIR-D81).
const maxUnknownWait = 15 * time.Minute

// A verifier authenticates the senders of envelopes by the registry.
type verifier struct {
	did      string // of the recipient
	resolver *Resolver
	opts     *InboxOptions
	reports  *reports
}

// verify resolves the sender and verifies the signature. Until it has returned, From has no other
// use (AIR-129).
func (v *verifier) verify(ctx context.Context, a *arrival) (Form, *PublicKey, error) {
	found, err := v.resolver.resolve(ctx, a.env.From, lookup{isReceived: true})
	if err != nil {
		return "", nil, v.unknown(ctx, a, err)
	}
	form, key, err := v.verifyWith(a.env, found)
	if isCode(err, ErrBadSignature) && time.Since(found.fetched) >= refetchAge {
		// The sender may have changed its key (AIR-D41).
		if found, err = v.resolver.resolve(ctx, a.env.From, lookup{isReceived: true, notBefore: found.fetched}); err != nil {
			return "", nil, v.unknown(ctx, a, err)
		}
		form, key, err = v.verifyWith(a.env, found)
	}
	switch {
	case isCode(err, ErrBadSignature) && a.via != viaPush && found.requested.Before(a.pulled):
		err = retryable(err)
	case isCode(err, ErrNotFound):
		err = v.unknown(ctx, a, err)
	}
	return form, key, err
}

// unknown returns the error for a sender without a usable document. Pulled mail waits for it, and a
// registry that does not know this agent either is the wrong one (AIR-D81).
func (v *verifier) unknown(ctx context.Context, a *arrival, err error) error {
	var e *Error
	if a.via == viaPush || !errors.As(err, &e) || e.Code != ErrNotFound {
		return err
	}
	if e.Remote {
		if _, own := v.resolver.resolve(ctx, v.did, lookup{isReceived: true}); own != nil {
			return ErrBadGateway.because("the registry does not know this agent either", own)
		}
	}
	if time.Since(a.pulled) < maxUnknownWait {
		return retryable(err)
	}
	return err
}

func (v *verifier) verifyWith(env *Envelope, found cached) (Form, *PublicKey, error) {
	key, err := found.key(env.From)
	if err != nil {
		if isCode(err, ErrBadKey) { // counts as an absent entry (AIR-D31)
			err = ErrNotFound.because("the sender's key entry is unusable", err)
		}
		return "", nil, err
	}
	form, err := env.Verify(key, v.opts.SignatureForms)
	return form, key, err
}

// authorize asks the key policy (AIR-D82).
func (v *verifier) authorize(ctx context.Context, from string, key *PublicKey) error {
	policy := v.opts.Auth.KeyPolicy
	if policy == nil {
		return nil
	}
	err := guard.Call("key policy", func() error { return policy.AuthorizeKey(ctx, from, key) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrKeyRefused):
		v.reports.warn(ctx, "key", "air: key refused", "agent", from, "err", err)
		return holdable(ErrUntrustedKey.because("the sender's key is not trusted here", err))
	}
	v.reports.panicked(ctx, err)
	return ErrRelay.because("", err)
}
