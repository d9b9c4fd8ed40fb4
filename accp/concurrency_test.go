// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// historyOf returns the number of occurrences of each frame in the cold state of a session.
func historyOf(t testing.TB, s *accp.Session) map[string]int {
	t.Helper()
	require.NoError(t, s.Reload(t.Context()))
	frames := map[string]int{}
	for _, cp := range s.Checkpoints() {
		v, err := s.Resolve(t.Context(), "cold."+cp.ID)
		require.NoError(t, err)
		require.Equal(t, cp.Frames, v.Len(), cp.ID)
		for _, f := range v.Elements() {
			text, _ := f.Text()
			frames[text]++
		}
	}
	return frames
}

// Concurrent checkpoints of any number of processes put every frame into the history once
// (ACCP-088, ACCP-097). Frames that arrive while hot state is frozen wait.
func TestCheckpointsWhileFramesArrive(t *testing.T) {
	for _, processes := range []int{1, 3} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			kv := store.NewMemory()
			var all []*accp.Session
			for range processes {
				all = append(all, session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}, Summaries: accp.SummaryOptions{Summarizer: func(_ context.Context, facts []accp.Fact, _ []string, _ int) (string, error) {
					for range 20 {
						runtime.Gosched() // lets other goroutines run
					}
					return fmt.Sprint(len(facts)), nil
				}}}))
			}
			var mu sync.Mutex
			want := map[string]bool{}
			add := func(f []byte) {
				mu.Lock()
				defer mu.Unlock()
				want[string(f)] = true
			}
			var wg, makers sync.WaitGroup
			var finished atomic.Bool
			for i, s := range all {
				for range 2 {
					wg.Go(func() {
						for k := range 40 {
							sent, err := s.Send(t.Context(), msg("req", "a", text("k", fmt.Sprint(i, "_", k))))
							if err != nil {
								t.Error(err)
								return
							}
							add(sent.Frames[0])
						}
					})
				}
				makers.Go(func() {
					for !finished.Load() {
						if _, err := s.Checkpoint(t.Context()); err != nil {
							t.Error(err)
							return
						}
						s.ModelContext(500, 0)
						if _, err := s.Budget(t.Context()); err != nil {
							t.Error(err)
							return
						}
						runtime.Gosched()
					}
				})
			}
			wg.Go(func() { // a peer whose frames any process may get
				for n := int64(1); n <= 60; n++ {
					f := frame("wait:x{}", n)
					if _, err := all[n%int64(processes)].Receive(t.Context(), f); err != nil {
						t.Error(err)
						return
					}
					add(f)
				}
			})
			wg.Wait()
			finished.Store(true)
			makers.Wait()
			for _, s := range all {
				_, err := s.Checkpoint(t.Context())
				require.NoError(t, err)
			}
			got := historyOf(t, session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}}))
			require.Len(t, got, len(want))
			for f, n := range got {
				require.True(t, want[f], f)
				require.Equal(t, 1, n, f)
			}
		})
	}
}

// A session opened while another process writes to it has one consistent state, and later states
// later.
func TestRestoreWhileWriting(t *testing.T) {
	kv := store.NewMemory()
	opts := &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}}
	writer := session(t, opts)
	var wg sync.WaitGroup
	var finished atomic.Bool
	const rounds = 150
	wg.Go(func() {
		defer finished.Store(true)
		for i := 1; i <= rounds; i++ {
			if _, err := writer.Sync(t.Context(), accp.Params{{Key: "n", Value: accp.Int(int64(i))}, text("m", fmt.Sprint(i))}); err != nil {
				t.Error(err)
				return
			}
			if _, err := writer.Send(t.Context(), &accp.Message{Intent: "cancel", Op: "a", Meta: &accp.Meta{CID: fmt.Sprint("c", i)}}); err != nil {
				t.Error(err)
				return
			}
			if i%5 == 0 {
				if _, err := writer.Send(t.Context(), msg("done", "a", text("k", fmt.Sprint(i)))); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	check := func(s *accp.Session, before int64, checkpoints int) (int64, int) {
		if err := s.Reload(t.Context()); err != nil {
			t.Error(err)
			return before, checkpoints
		}
		version, state := s.State()
		n, _ := state.Get("n")
		if got, _ := n.Int(); got != version || version > 0 && state.Text("m") != fmt.Sprint(version) || version < before {
			t.Errorf("version %d after %d, state %v", version, before, state)
		}
		if version > 1 && !s.IsCancelled(fmt.Sprint("c", version-1)) {
			t.Errorf("at version %d chain c%d is not cancelled", version, version-1)
		}
		infos := s.Checkpoints()
		if len(infos) < checkpoints {
			t.Errorf("%d checkpoints after %d", len(infos), checkpoints)
		}
		for _, cp := range infos {
			for _, ref := range []string{"warm." + cp.ID, "cold." + cp.ID, "cold." + cp.ID + "_facts"} {
				if _, err := s.Resolve(t.Context(), ref); err != nil {
					t.Errorf("%s: %v", ref, err)
				}
			}
		}
		return version, len(infos)
	}
	for range 2 {
		wg.Go(func() {
			version, checkpoints := int64(0), 0
			stays, err := accp.NewSession("server", "s1", opts)
			if err != nil {
				t.Error(err)
				return
			}
			seen, made := int64(0), 0
			for !finished.Load() && !t.Failed() {
				s, err := accp.NewSession("server", "s1", opts)
				if err != nil {
					t.Error(err)
					return
				}
				version, checkpoints = check(s, version, checkpoints)
				seen, made = check(stays, seen, made)
			}
		})
	}
	wg.Wait()
	version, checkpoints := check(session(t, opts), 0, 0)
	require.EqualValues(t, rounds, version)
	require.GreaterOrEqual(t, checkpoints, rounds/5)
}

// A frame never reaches what another session stored, wherever in it the reference
// stands and whether or not there is anything (ACCP-133, ACCP-134, ACCP-D59).
func TestReferencesAcrossSessions(t *testing.T) {
	kv, shared := store.NewMemory(), store.NewMemory()
	open := func(id string) *accp.Session {
		s, err := accp.NewSession("server", id, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv, SharedStore: shared}})
		require.NoError(t, err)
		return s
	}
	s, other := open("s1"), open("other")
	for _, scope := range []accp.Scope{accp.ScopeHot, accp.ScopeWarm, accp.ScopeCold} {
		require.NoError(t, other.Put(t.Context(), scope, "k", accp.String("secret"), 0))
	}
	sent, err := other.Send(t.Context(), msg("req", "a", text("k", strings.Repeat("secret", 10))))
	require.NoError(t, err)
	moved, ok := sent.Message.Params[0].Value.Ref()
	require.True(t, ok)
	named := strings.Replace(moved, "cold.", "cold.other.", 1)

	n := int64(0)
	answers := map[accp.Code]map[string]bool{}
	refused := func(code accp.Code, ref string) {
		t.Helper()
		for _, body := range []string{"{x:%s}", "{x:[1,%s]}", "{x:{a:{b:[%s]}}}", "{schema:TX|txn:t1|acc:%s}"} {
			n++
			f := frame("req:a"+fmt.Sprintf(body, "$"+ref), n, "cid:c1")
			_, err := s.Receive(t.Context(), f)
			require.ErrorIs(t, err, code, "%s", f)
			reply, err := s.SendError(t.Context(), err, f)
			require.NoError(t, err)
			n++
			require.NotContains(t, string(reply.Frames[0]), "secret")
			text, _, _ := strings.Cut(string(reply.Frames[0]), "[")
			if answers[code] == nil {
				answers[code] = map[string]bool{}
			}
			answers[code][text] = true
		}
		require.Len(t, answers[code], 1, "the answer tells nothing of what was named")
	}
	for _, ref := range []string{"ctx.other.k", "warm.other.k", "cold.other.k", named, "cold.other.absent", "cold.nobody.k"} {
		refused(accp.ErrUnauthorizedRef, ref)
	}
	refused(accp.ErrRefNotFound, moved) // the same text under the own name
	refused(accp.ErrRefNotFound, "cold.k")

	s.AllowSession("other")
	n++
	r := receive(t, s, frame("req:a{x:[$cold.other.k,$"+named+"]}", n))
	require.Contains(t, accp.Render(r.Message), "secretsecret")
	refused(accp.ErrRefNotFound, "cold.other.absent")
	refused(accp.ErrUnauthorizedRef, "cold.nobody.k")
	_, err = other.Receive(t.Context(), frame("req:a{x:$cold.s1.k}", 2))
	require.ErrorIs(t, err, accp.ErrUnauthorizedRef, "leave is given in one direction")
	require.NoError(t, other.End(t.Context(), &accp.EndSessionOptions{DeleteShared: true}))
	refused(accp.ErrRefNotFound, "cold.other.k")
	refused(accp.ErrRefNotFound, named)

	fresh := open("s1") // the harness gives permissions, again after a restart
	_, err = fresh.Receive(t.Context(), frame("req:a{x:$cold.other.k}", n+1))
	require.ErrorIs(t, err, accp.ErrUnauthorizedRef)
}
