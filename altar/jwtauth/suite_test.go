// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth

import (
	"context"
	"errors"
	"testing"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/tokens"
	"github.com/fivewire/fivewire/internal/tokens/tokenstest"
)

// The suite of all verifiers: ALT-134 to ALT-136 and attacks.
func TestSuite(t *testing.T) {
	tokenstest.Run(t, func(issuers []tokens.Issuer, o tokens.Options) (tokenstest.Verify, error) {
		list := make([]Issuer, len(issuers))
		for n, i := range issuers {
			list[n] = Issuer(i)
		}
		v, err := NewVerifier(list, &VerifierOptions{HTTPClient: o.HTTPClient, MinRefreshInterval: o.MinRefresh, KeyTTL: o.MaxAge})
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, token string) (string, error) {
			id, err := v.VerifyToken(ctx, token)
			var e *altar.Error
			switch {
			case errors.Is(err, ErrTokenExpired):
				return "", tokens.Expired
			case errors.Is(err, ErrTokenInvalid):
				return "", tokens.Invalid(err.Error())
			case errors.As(err, &e) && e.Cause != nil:
				return "", e.Cause
			case err != nil:
				t.Error("neither of the token nor of the protocol:", err)
				return "", err
			}
			return id.ID, nil
		}, nil
	})
}
