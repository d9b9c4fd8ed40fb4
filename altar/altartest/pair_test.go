// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altartest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func upper(rt *altar.Runtime) {
	rt.Handle("upper", altar.HandlerFunc(func(context.Context, *altar.ToolCall) (any, error) { return "HELLO", nil }))
}

func contracts(t *testing.T) *altar.Manifest {
	t.Helper()
	m, err := altar.DecodeManifest([]byte(manifest))
	require.NoError(t, err)
	return m
}

// The Authorizer of a test decides about the client, not about the pair.
func TestNewPairWithAuthorizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var principals []string
		opts := &altartest.PairOptions{Manifest: contracts(t), Tools: upper}
		opts.Host = &altar.HostOptions{Auth: altar.Auth{Authorizer: altar.AuthorizerFunc(func(_ context.Context, r *altar.AuthorizeRequest) error {
			principals = append(principals, r.Principal.ID)
			return errors.New("no")
		})}}
		_, client := altartest.NewPair(t, opts)
		session, err := client.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		_, err = session.Call(t.Context(), "upper", nil, nil)
		require.ErrorIs(t, err, altar.ErrAuthorizationFailed)
		require.Equal(t, []string{"client"}, principals)
	})
}

// WaitTools fails with the number of tools.
func TestWaitToolsFailureHasNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, _ := altartest.NewPair(t, &altartest.PairOptions{Manifest: contracts(t), Tools: upper})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f := &fatal{TB: t, ctx: ctx}
		done := make(chan struct{})
		go func() {
			defer close(done)
			altartest.WaitTools(f, host, 2)
		}()
		<-done
		require.Equal(t, "altartest: a session can call 1 tools, want 2: context deadline exceeded", f.text)
	})
}

// A fatal notes the failure of a test.
type fatal struct {
	testing.TB
	ctx  context.Context
	text string
}

func (f *fatal) Context() context.Context { return f.ctx }

func (f *fatal) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
