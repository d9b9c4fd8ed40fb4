// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// ARC-006: each target gets its own token.
func TestTargetTokens(t *testing.T) {
	src := TokenSourceFunc(func(_ context.Context, target string) (string, error) {
		return map[string]string{"b": "tb", "d": "td"}[target], nil
	})
	p := &peer{do: []reaction{ok(`{}`), ok(`{}`), ok(`{}`)}}
	c := newTestClient(t, p, &ClientOptions{TokenSource: src})
	for _, target := range []string{"b", "c", "d"} {
		_, err := c.Call(t.Context(), target, "x.y", nil, nil)
		require.NoError(t, err)
	}
	require.Equal(t, "Bearer tb", p.sent[0].Header.Get("Authorization"))
	require.Empty(t, p.sent[1].Header.Get("Authorization"))
	require.Equal(t, "Bearer td", p.sent[2].Header.Get("Authorization"))
}

// ARC-D71: a token that would become something else in a header is not sent, and not
// shown.
func TestBadTokens(t *testing.T) {
	for _, token := range []string{"a b", "a\r\nX: y", "gehe\u00efm", "a\x7f"} {
		p := &peer{}
		_, err := newTestClient(t, p, &ClientOptions{TokenSource: StaticTokenSource(token)}).GetTask(t.Context(), "b", infoOf("t"), nil)
		require.ErrorIs(t, err, errToken)
		require.NotContains(t, err.Error(), token)
		require.Empty(t, p.sent)
	}
	no := errors.New("no token today")
	c := newTestClient(t, &peer{}, &ClientOptions{TokenSource: TokenSourceFunc(func(context.Context, string) (string, error) { return "", no })})
	_, err := c.GetTask(t.Context(), "b", infoOf("t"), nil)
	require.ErrorIs(t, err, no)
	_, _, err = collect(startStream(c, t.Context(), nil))
	require.ErrorIs(t, err, no)
}

func TestRefreshTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		src := NewRefreshingTokens(func(context.Context) (string, time.Time, error) {
			time.Sleep(time.Second)
			n++
			return fmt.Sprint("t", n), time.Now().Add(10 * time.Minute), nil
		}, time.Minute)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				got, err := src.Token(t.Context(), "b")
				if err != nil || got != "t1" {
					t.Errorf("%q, %v", got, err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, n, "one asks for all")
		time.Sleep(9*time.Minute - 1)
		got, err := src.Token(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, "t1", got)
		time.Sleep(time.Nanosecond)
		got, err = src.Token(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, "t2", got, "a minute before it expires")

		src.(TokenInvalidator).InvalidateToken("b", "t1")
		got, err = src.Token(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, "t2", got, "the refused one was an older one")
		src.(TokenInvalidator).InvalidateToken("b", "t2")

		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			got, err := src.Token(t.Context(), "b")
			if err != nil || got != "t3" {
				t.Errorf("%q, %v", got, err)
			}
		})
		synctest.Wait()
		time.AfterFunc(time.Millisecond, cancel)
		_, err = src.Token(ctx, "b")
		require.ErrorIs(t, err, context.Canceled, "who waits can leave")
		wg.Wait()
	})
}

// A token that lives shortly is not asked for at every call.
func TestRefreshTokensShortLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		src := NewRefreshingTokens(func(context.Context) (string, time.Time, error) {
			n++
			return "t", time.Now().Add(20 * time.Second), nil
		}, 0)
		for range 20 {
			_, err := src.Token(t.Context(), "b")
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		require.Equal(t, 2, n)

		forever := NewRefreshingTokens(func(context.Context) (string, time.Time, error) { n++; return "t", time.Time{}, nil }, 0)
		for range 3 {
			_, err := forever.Token(t.Context(), "b")
			require.NoError(t, err)
			time.Sleep(time.Hour)
		}
		require.Equal(t, 3, n)
	})
}

// The callers that wait during a failed refresh share its error, unless the context of its caller has ended.
func TestRefreshTokensFailTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := errors.New("no answer")
		src := NewRefreshingTokens(func(ctx context.Context) (string, time.Time, error) {
			select {
			case <-time.After(10 * time.Second):
				return "", time.Time{}, silent
			case <-ctx.Done():
				return "", time.Time{}, ctx.Err()
			}
		}, 0)
		canceled, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 6)
		get := func(ctx context.Context) {
			_, err := src.Token(ctx, "b")
			errs <- err
		}
		go get(canceled)
		synctest.Wait()
		for range 5 {
			go get(t.Context())
		}
		time.Sleep(time.Second)
		cancel()
		require.ErrorIs(t, <-errs, context.Canceled)
		start := time.Now()
		for range 5 {
			require.ErrorIs(t, <-errs, silent)
		}
		require.Equal(t, 10*time.Second, time.Since(start))
		get(t.Context())
		require.ErrorIs(t, <-errs, silent)
		require.Equal(t, 20*time.Second, time.Since(start), "a later caller refreshes again")
	})
}

// A refused token is replaced, but the call that it failed is not repeated.
func TestRefusedToken(t *testing.T) {
	n := 0
	src := NewRefreshingTokens(func(context.Context) (string, time.Time, error) {
		n++
		return fmt.Sprint("t", n), time.Time{}, nil
	}, 0)
	p := &peer{do: []reaction{arcFault(401, ErrTokenExpired), reply(401, "text/plain", "no"), arcFault(403, ErrInsufficientScope),
		arcFault(401, ErrTokenInvalid), stream(doneEvent)}}
	c := newTestClient(t, p, &ClientOptions{TokenSource: src})
	for _, want := range []string{"t1", "t2", "t3"} {
		_, err := c.GetTask(t.Context(), "b", infoOf("t"), nil)
		require.Error(t, err)
		require.Equal(t, "Bearer "+want, p.sent[len(p.sent)-1].Header.Get("Authorization"))
	}
	_, _, err := collect(startStream(c, t.Context(), nil))
	require.ErrorIs(t, err, ErrTokenInvalid)
	require.Equal(t, "Bearer t3", p.sent[3].Header.Get("Authorization"))
	_, _, err = collect(startStream(c, t.Context(), nil))
	require.NoError(t, err)
	require.Equal(t, "Bearer t4", p.sent[4].Header.Get("Authorization"))
}
