// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package airtest_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
)

func TestNetwork(t *testing.T) {
	n, err := airtest.NewNetwork(&airtest.Options{Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Seen", "yes")
			next.ServeHTTP(w, r)
		})
	}})
	require.NoError(t, err)
	defer n.Close()
	id, err := n.RegisterAgent("AIR-TEST-0000-0001")
	require.NoError(t, err)
	r, err := n.Resolver()
	require.NoError(t, err)
	d, err := r.Resolve(t.Context(), id.DID())
	require.NoError(t, err)
	key, err := d.SigningKey(id.DID())
	require.NoError(t, err)
	require.True(t, key.Equal(id.PublicKey()))
	e, err := d.Inbox(id.DID(), &air.EndpointOptions{AllowLoopback: true})
	require.NoError(t, err)
	require.Equal(t, n.Endpoint(id), e.URL)
	res, err := http.Get(e.Pull)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "yes", res.Header.Get("Seen"))

	_, err = r.Resolve(t.Context(), airtest.DID("AIR-TEST-0000-0002"))
	require.ErrorIs(t, err, air.ErrNotFound)
	n.Registry.SetFailure(http.StatusServiceUnavailable)
	_, err = r.Resolve(t.Context(), airtest.DID("AIR-TEST-0000-0002"))
	require.ErrorIs(t, err, air.ErrBadGateway)
	n.Registry.SetFailure(0)
	require.Equal(t, 3, n.Registry.LookupCount())

	bare := airtest.Document(id.DID(), id.PublicKey().String(), "")
	d, err = air.DecodeDocument(bare)
	require.NoError(t, err)
	_, err = d.Inbox(id.DID(), nil)
	require.ErrorIs(t, err, air.ErrUnreachable)
	_, err = n.RegisterAgent("not an id")
	require.ErrorIs(t, err, air.ErrBadAIRID)
}
