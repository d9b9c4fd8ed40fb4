// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"context"
	"errors"
	"testing"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/tokens"
	"github.com/fivewire/fivewire/internal/tokens/tokenstest"
)

// The suite of all verifiers: ARC-168, and attacks on it.
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
			p, err := v.VerifyToken(ctx, token)
			switch {
			case errors.Is(err, arc.ErrTokenExpired):
				return "", tokens.Expired
			case errors.Is(err, arc.ErrTokenInvalid):
				return "", tokens.Invalid(err.Error())
			case err != nil:
				return "", err
			}
			return p.ID, nil
		}, nil
	})
}
