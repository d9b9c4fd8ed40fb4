// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// accpSession is one process's part of a session.
func accpSession(t *testing.T, s store.Store) *accp.Session {
	session, err := accp.NewSession("server", "s1", &accp.SessionOptions{Store: store.Sub(s, "accp/")})
	require.NoError(t, err)
	return session
}

// TestACCPSession: several processes are one side of a session. Each number is
// given once, each frame is taken by one of them, and they share the tiers.
func TestACCPSession(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		ctx := t.Context()
		sessions := []*accp.Session{accpSession(t, p.open(t)), accpSession(t, p.open(t)), accpSession(t, p.open(t))}
		const each = 8
		var mu sync.Mutex
		numbers := map[int64]int{}
		var wg sync.WaitGroup
		for _, s := range sessions {
			wg.Go(func() {
				for range each {
					sent, err := s.Send(ctx, &accp.Message{Intent: accp.IntentPing, Op: "heartbeat"})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					numbers[sent.Message.Meta.Seq.N]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		total := int64(each * len(sessions))
		for n := int64(1); n <= total; n++ {
			require.Equal(t, 1, numbers[n], "number %d", n)
		}
		for n := total + 1; n <= total+each; n++ {
			frame := fmt.Appendf(nil, "@a>ping:heartbeat{}[mid:%012x,seq:%d,ts:%d]", 0xa0000+n, n, time.Now().Unix())
			var accepted atomic.Int64
			for _, s := range sessions {
				wg.Go(func() {
					if _, err := s.Receive(ctx, frame); err == nil {
						accepted.Add(1)
					} else if !errors.Is(err, accp.ErrDuplicate) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, 1, accepted.Load(), "frame %d", n)
		}
		for i, scope := range []accp.Scope{accp.ScopeWarm, accp.ScopeCold} {
			require.NoError(t, sessions[i].Put(ctx, scope, fmt.Sprint("k", i), accp.String("shared"), 0))
		}
		for i, ref := range []string{"warm.k0", "cold.k1"} {
			v, err := sessions[2].Resolve(ctx, ref)
			require.NoError(t, err, ref)
			text, _ := v.Text()
			require.Equal(t, "shared", text, i)
		}

		// A later process continues at the same state.
		later := accpSession(t, p.open(t))
		sent, err := later.Send(ctx, &accp.Message{Intent: accp.IntentPing, Op: "heartbeat"})
		require.NoError(t, err)
		require.Greater(t, sent.Message.Meta.Seq.N, total)
	})
}
