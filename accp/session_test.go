// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

func session(t testing.TB, opts *accp.SessionOptions) *accp.Session {
	t.Helper()
	s, err := accp.NewSession("server", "s1", opts)
	require.NoError(t, err)
	return s
}

// peerSession is the other side of a session.
func peerSession(t testing.TB, opts *accp.SessionOptions) *accp.Session {
	t.Helper()
	s, err := accp.NewSession("peer", "s1", opts)
	require.NoError(t, err)
	return s
}

// frame returns a frame of agent a with this body and number.
func frame(body string, seq int64, more ...string) []byte {
	meta := fmt.Sprintf("mid:%012x,seq:%d,ts:%d", 0xa0000+seq, seq, time.Now().Unix())
	for _, m := range more {
		meta += "," + m
	}
	return []byte("@a>" + body + "[" + meta + "]")
}

func receive(t testing.TB, s *accp.Session, f []byte) *accp.ReceiveResult {
	t.Helper()
	r, err := s.Receive(t.Context(), f)
	require.NoError(t, err, "%s", f)
	return r
}

func msg(intent accp.Intent, op string, p ...accp.Param) *accp.Message {
	return &accp.Message{Intent: intent, Op: op, Params: p}
}

func text(key, value string) accp.Param { return accp.Param{Key: key, Value: accp.String(value)} }

// OnWarning concerns processed messages only: one that is refused has an error instead.
func TestRefusedMessageIsNoWarning(t *testing.T) {
	warnings := 0
	s := session(t, &accp.SessionOptions{Budget: accp.BudgetEnforce, OnWarning: func(*accp.Message, string) { warnings++ }})
	m := msg("req", "pay", text("schema", "TX"), text("transaction_id", "t1"), text("currency", "x"))
	_, err := s.Send(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, 1, warnings)
	m.Params = append(m.Params, text("reference", strings.Repeat("long ", 500)))
	_, err = s.Send(t.Context(), m)
	require.ErrorIs(t, err, accp.ErrBudgetExceeded)
	require.Equal(t, 1, warnings)
}

// Every frame that is sent has the whole envelope: mid of 12 hex digits, all
// different (ACCP-038), seq that rises by one (ACCP-039), ts (ACCP-040), sid
// (ACCP-043); cid (ACCP-041), aid (ACCP-042) and ttl (ACCP-044) as given.
func TestEnvelopeOfWhatIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session(t, nil)
		seen := map[string]bool{}
		for i := range 20 {
			m := msg(accp.IntentReq, "plan")
			m.Meta = &accp.Meta{CID: "c1", AID: "m0", TTL: accp.NewOptionalInt(9)}
			sent, err := s.Send(t.Context(), m)
			require.NoError(t, err)
			var c accp.Codec
			got, err := c.DecodeEnvelope(sent.Frames[0])
			require.NoError(t, err)
			require.Regexp(t, `^[0-9a-f]{12}$`, got.Meta.MID)
			require.False(t, seen[got.Meta.MID])
			seen[got.Meta.MID] = true
			require.Equal(t, accp.NewOptionalInt(int64(i+1)), got.Meta.Seq)
			require.Equal(t, accp.NewOptionalInt(time.Now().Unix()), got.Meta.TS)
			require.Equal(t, []string{"c1", "m0", "s1"}, []string{got.Meta.CID, got.Meta.AID, got.Meta.SID})
			require.Equal(t, accp.NewOptionalInt(9), got.Meta.TTL)
			require.Equal(t, "server", got.From, "the header names the sender (ACCP-D66)")
			require.True(t, got.Equal(sent.Message))
		}
		for _, meta := range []*accp.Meta{{MID: "x"}, {Seq: accp.NewOptionalInt(1)}, {TS: accp.NewOptionalInt(1)}, {SID: "s1"},
			{Ext: accp.Params{text("part", "1/2")}}} {
			_, err := s.Send(t.Context(), &accp.Message{Intent: "req", Op: "plan", Meta: meta})
			require.ErrorIs(t, err, accp.ErrInvalidType)
		}
		sent, err := s.Send(t.Context(), msg(accp.IntentReq, "plan"))
		require.NoError(t, err)
		require.Equal(t, int64(21), sent.Message.Meta.Seq.N, "a refused message uses up no number")
	})
}

// The checks come in their order (ACCP-D27): each frame below fails two, and the
// earlier one answers.
func TestOrderOfChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().Unix()
		tests := []struct {
			name, frame string
			code        accp.Code
			used        bool // whether the number is used up
		}{
			{"grammar before intent", "@a>x:b{k:}[mid:000000000001,seq:2,ts:1]", accp.ErrParse, false},
			{"intent before type", "@a>x:b{k:007}[mid:000000000001,seq:2,ts:1]", accp.ErrInvalidIntent, false},
			{"type before envelope", "@a>req:b{k:007}", accp.ErrInvalidType, false},
			{"missing field before form of mid", "@a>req:b{}[mid:xyz,ts:1]", accp.ErrParse, false},
			{"envelope before session", "@a>req:b{}[mid:xyz,seq:2,ts:1,sid:other]", accp.ErrInvalidType, false},
			{"session before ttl", fmt.Sprintf("@a>req:b{}[mid:000000000001,seq:2,ts:%d,sid:other,ttl:1]", now-9), accp.ErrPolicyDenied, false},
			{"replay before order", fmt.Sprintf("@a>req:b{}[mid:0000000a0001,seq:1,ts:%d]", now), accp.ErrDuplicate, false},
			{"order before parts", fmt.Sprintf("@a>req:b{}[mid:000000000001,seq:1,ts:%d,part:x]", now), accp.ErrSequenceGap, false},
			{"parts before cancel", fmt.Sprintf("@a>cancel:b{}[mid:000000000001,seq:2,ts:%d,part:2/2]", now), accp.ErrParse, true},
			{"cancel before schema", fmt.Sprintf("@a>cancel:b{schema:ZZ}[mid:000000000001,seq:2,ts:%d]", now), accp.ErrParse, true},
			{"schema before clash", fmt.Sprintf("@a>req:b{schema:ZZ|d:1|data:2}[mid:000000000001,seq:2,ts:%d]", now), accp.ErrUnknownSchema, true},
			{"clash before reference", fmt.Sprintf("@a>req:b{d:1|data:$cold.no}[mid:000000000001,seq:2,ts:%d]", now), accp.ErrParse, true},
			{"reference before type", fmt.Sprintf(`@a>req:b{schema:TX|amt:x|acc:$cold.no}[mid:000000000001,seq:2,ts:%d]`, now), accp.ErrRefNotFound, true},
			{"type before chain", fmt.Sprintf("@a>stream:b{schema:ST|idx:x}[mid:000000000001,seq:2,ts:%d]", now), accp.ErrInvalidType, true},
			{"chain", fmt.Sprintf("@a>stream:b{schema:ST|idx:0}[mid:000000000001,seq:2,ts:%d]", now), accp.ErrParse, true},
			{"state", fmt.Sprintf("@a>sync:state{v:x|delta:{}}[mid:000000000001,seq:2,ts:%d]", now), accp.ErrInvalidType, true},
		}
		for _, tt := range tests {
			s := session(t, nil)
			receive(t, s, frame("req:b{}", 1))
			_, err := s.Receive(t.Context(), []byte(tt.frame))
			require.ErrorIs(t, err, tt.code, tt.name)
			_, err = s.Receive(t.Context(), frame("req:b{}", 2))
			if tt.used {
				require.ErrorIs(t, err, accp.ErrSequenceGap, "%s: the number is used up", tt.name)
			} else {
				require.NoError(t, err, tt.name)
			}
			require.Equal(t, tt.used, err != nil)
			require.EqualValues(t, 3, s.Stats().Received)
		}
	})
}

// Numbers of a session (ACCP-067, ACCP-D24, ACCP-D25).
func TestSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := func(err error) string {
			var e *accp.Error
			if errors.As(err, &e) {
				return string(e.Code)
			}
			return "ok"
		}
		type step struct {
			from string
			seq  int64
			want string
		}
		run := func(s *accp.Session, steps []step) {
			t.Helper()
			for i, st := range steps {
				f := fmt.Sprintf("@%s>req:b{}[mid:%012x,seq:%d,ts:%d]", st.from, i+1, st.seq, time.Now().Unix())
				_, err := s.Receive(t.Context(), []byte(f))
				require.Equal(t, st.want, code(err), "step %d: %+v", i, st)
			}
		}
		run(session(t, nil), []step{ // shared by all senders
			{"a", 5, "ok"}, {"b", 5, "ok"}, {"b", 6, "ok"}, {"a", 6, "ok"}, {"a", 6, "E3003"}, {"c", 1, "ok"},
			{"a", 9, "E3003"}, {"a", 10, "ok"}, {"a", 2000, "E3003"}, {"a", 11, "ok"}, {"a", 1012, "E3003"}, {"a", 1013, "ok"},
			{"a", 2014, "E3003"}, {"a", 2015, "ok"},
		})
		run(session(t, &accp.SessionOptions{SeqPerSender: true}), []step{
			{"a", 5, "ok"}, {"b", 100, "ok"}, {"a", 6, "ok"}, {"a", 6, "E3003"}, {"b", 102, "E3003"}, {"b", 103, "ok"},
			{"a", 2000, "E3003"}, {"a", 7, "ok"},
		})
		run(session(t, nil), []step{{"a", 0, "ok"}, {"a", math.MaxInt64, "E3003"}, {"a", 1, "ok"}})
		s := session(t, nil)
		run(s, []step{{"a", math.MaxInt64, "ok"}, {"b", math.MaxInt64, "ok"}})
		_, err := s.Send(t.Context(), msg("req", "b"))
		require.ErrorIs(t, err, accp.ErrInternal, "no number is left")

		s = session(t, nil) // what we send counts
		_, err = s.Send(t.Context(), msg("req", "b"))
		require.NoError(t, err)
		run(s, []step{{"a", 1, "ok"}, {"a", 3, "E3003"}, {"a", 4, "ok"}})
		sent, err := s.Send(t.Context(), msg("req", "b"))
		require.NoError(t, err)
		require.Equal(t, int64(5), sent.Message.Meta.Seq.N)
	})
}

// Time to live (ACCP-045, ACCP-070, ACCP-D23): an expired frame is dropped without a
// word, even a replay, and uses up its number.
func TestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session(t, &accp.SessionOptions{MaxClockSkew: time.Minute})
		f := frame("req:b{}", 1, "ttl:5")
		time.Sleep(5 * time.Second)
		receive(t, s, f)
		time.Sleep(time.Second)
		r := receive(t, s, f) // a replay that expired
		require.Equal(t, accp.OutcomeDropped, r.Outcome)
		require.Equal(t, "ttl", r.Reason)
		late := frame("req:b{}", 2, "ttl:1")
		time.Sleep(2 * time.Second)
		require.Equal(t, accp.OutcomeDropped, receive(t, s, late).Outcome)
		_, err := s.Receive(t.Context(), frame("req:c{}", 2))
		require.ErrorIs(t, err, accp.ErrDuplicate, "its mid is remembered")
		receive(t, s, frame("req:b{}", 3))
		require.EqualValues(t, 2, s.Stats().Expired)
		huge := fmt.Sprintf("@a>req:b{}[mid:00000000ffff,seq:4,ts:0,ttl:%d]", int64(math.MaxInt64))
		require.Equal(t, accp.OutcomeDelivered, receive(t, s, []byte(huge)).Outcome, "the sum saturates")
		ahead := fmt.Sprintf("@a>req:b{}[mid:00000000fffe,seq:5,ts:%d,ttl:1]", time.Now().Unix()+61)
		_, err = s.Receive(t.Context(), []byte(ahead))
		require.ErrorIs(t, err, accp.ErrPolicyDenied)
	})
}

// A peer whose times are milliseconds is accepted without a MaxClockSkew.
func TestAnyClockSkew(t *testing.T) {
	s := session(t, &accp.SessionOptions{MaxClockSkew: -1})
	for i, ts := range []int64{time.Now().UnixMilli(), math.MaxInt64} {
		f := fmt.Sprintf("@a>req:b{}[mid:00000000fff%d,seq:%d,ts:%d,ttl:5]", i, i+1, ts)
		require.Equal(t, accp.OutcomeDelivered, receive(t, s, []byte(f)).Outcome)
	}
}

// The replay window is bounded; an older frame fails the order (ACCP-D26).
func TestReplayWindow(t *testing.T) {
	s := session(t, &accp.SessionOptions{DisableAutoCheckpoint: true})
	require.Equal(t, 65536, accp.SetReplayWindow(s, 1024), "the window of the draft")
	first := frame("ping:heartbeat{}", 1)
	receive(t, s, first)
	for i := int64(2); i <= 1030; i++ {
		receive(t, s, frame("ping:heartbeat{}", i))
	}
	_, err := s.Receive(t.Context(), first)
	require.ErrorIs(t, err, accp.ErrSequenceGap)
	_, err = s.Receive(t.Context(), frame("ping:heartbeat{}", 100))
	require.ErrorIs(t, err, accp.ErrDuplicate)
}

// cancel ends the work of its chain (ACCP-069, ACCP-080): contexts, later frames,
// own answers, also before the chain began (ACCP-D28).
func TestCancelEndsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session(t, nil)
		ctx, done := s.ChainContext(t.Context(), "c1")
		defer done()
		other, done2 := s.ChainContext(t.Context(), "c2")
		defer done2()
		r := receive(t, s, frame("cancel:b{}", 1, "cid:c1"))
		require.Equal(t, accp.OutcomeCancelled, r.Outcome)
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.NoError(t, other.Err())
		late, done3 := s.ChainContext(t.Context(), "c1")
		defer done3()
		require.Error(t, late.Err(), "a chain that ended stays so")
		require.Equal(t, "cancelled", receive(t, s, frame("req:b{}", 2, "cid:c1")).Reason)
		m := msg("done", "b")
		m.Meta = &accp.Meta{CID: "c1"}
		sent, err := s.Send(t.Context(), m)
		require.NoError(t, err)
		require.True(t, sent.Dropped)
		require.EqualValues(t, 2, s.Stats().Cancelled)
	})
}

// A message in parts (ACCP-036, ACCP-D38), and its errors.
func TestParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part := func(body string, seq int64, p string) []byte { return frame(body, seq, "cid:c1", "part:"+p) }
		s := session(t, nil)
		require.Equal(t, accp.OutcomePending, receive(t, s, part("req:b{k:1|schema:TA}", 1, "1/3")).Outcome)
		r := receive(t, s, part("req:b{l:2|schema:TA}", 2, "2/3"))
		require.Equal(t, []int{2, 3}, []int{r.PartsReceived, r.PartsTotal})
		r = receive(t, s, part("req:b{schema:TA|t:3}", 3, "3/3"))
		require.Equal(t, accp.OutcomeDelivered, r.Outcome)
		require.Equal(t, int64(1), r.Message.Meta.Seq.N)
		require.Empty(t, r.Message.Meta.Ext)
		require.Equal(t, "medium", r.Message.Params.Text("priority"))
		require.Len(t, r.Message.Params, 6)

		breaks := map[string][]byte{
			"first missing": part("req:b{k:1}", 5, "2/3"), "key again": part("req:b{k:1}", 5, "2/2"),
			"other count": part("req:b{l:1}", 5, "2/3"), "other operation": part("req:c{l:1}", 5, "2/2"),
			"other intent": part("qry:b{l:1}", 5, "2/2"), "schema appears": part("req:b{l:1|schema:TA}", 5, "2/2"),
			"malformed": part("req:b{l:1}", 5, "02/2"), "zero": part("req:b{l:1}", 5, "0/2"),
			"beyond": part("req:b{l:1}", 5, "3/2"), "one of one": part("req:b{l:1}", 5, "1/1"),
			"65": part("req:b{l:1}", 5, "2/65"), "integer": part("req:b{l:1}", 5, "5"),
			"other chain": frame("req:b{l:1}", 5, "cid:c2", "part:2/2"),
			"ttl":         frame("req:b{l:1}", 5, "cid:c1", "ttl:9", "part:2/2"),
		}
		for name, f := range breaks {
			s := session(t, nil)
			receive(t, s, part("req:b{k:1}", 4, "1/2"))
			_, err := s.Receive(t.Context(), f)
			require.ErrorIs(t, err, accp.ErrParse, name)
			require.EqualValues(t, 1, s.Stats().DroppedParts, name)
			_, err = s.Receive(t.Context(), part("req:b{m:1}", 6, "2/2"))
			require.ErrorIs(t, err, accp.ErrParse, "%s: the group is gone", name)
		}
		s = session(t, nil)
		receive(t, s, part("req:b{k:1}", 1, "1/3"))
		receive(t, s, part("req:b{l:1}", 2, "2/3"))
		require.Equal(t, 2, receive(t, s, part("req:b{k:1}", 3, "1/2")).DroppedParts)
		require.Equal(t, 1, receive(t, s, frame("req:b{}", 4)).DroppedParts)
	})
}

// A long message is split (ACCP-122) and joined again by the other side, as it
// was; each frame keeps to the limits (ACCP-035, ACCP-D37).
func TestSplitAndJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := session(t, nil), peerSession(t, nil)
		m := msg("req", "execute", text("schema", "TA"), text("assignee", "dev"))
		for i := range 60 {
			m.Params = append(m.Params, text(fmt.Sprintf("note%02d", i), "some words about the task at hand"))
		}
		sent, err := a.Send(t.Context(), m)
		require.NoError(t, err)
		require.Greater(t, len(sent.Frames), 3)
		for i, budget := range sent.Budget {
			require.NotContains(t, budget.Hard, "body")
			require.NotContains(t, budget.Hard, "total")
			r := receive(t, b, sent.Frames[i])
			if i < len(sent.Frames)-1 {
				require.Equal(t, accp.OutcomePending, r.Outcome)
				continue
			}
			require.Equal(t, accp.OutcomeDelivered, r.Outcome)
			for _, p := range m.Params {
				v, ok := r.Message.Params.Get(p.Key)
				require.True(t, ok && v.Equal(p.Value), p.Key)
			}
		}
		long := text("k", strings.Repeat("words ", 400))
		none := session(t, &accp.SessionOptions{Budget: accp.BudgetOff})
		sent, err = none.Send(t.Context(), msg("req", "b", long))
		require.NoError(t, err)
		require.Len(t, sent.Frames, 1)
		require.Contains(t, sent.Budget[0].Hard, "body")
		m = msg("req", "b")
		for i := range 250 {
			m.Params = append(m.Params, text(fmt.Sprint("k", i), strings.Repeat("words ", 40)))
		}
		sent, err = a.Send(t.Context(), m)
		require.NoError(t, err)
		require.Len(t, sent.Frames, 1, "more than 64 parts")
		require.EqualValues(t, 1, a.Stats().OverBudget)
	})
}

// Long values travel through the shared store (ACCP-032, ACCP-D35, ACCP-D36): once
// for equal ones, checked when they come back.
func TestSharedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := store.NewMemory()
		opts := &accp.SessionOptions{Persistence: accp.Persistence{SharedStore: shared}, DisableAutoCheckpoint: true}
		a, b := session(t, opts), peerSession(t, opts)
		long := strings.Repeat("word", 13)
		m := msg("done", "b", text("x", long), accp.Param{Key: "y", Value: accp.Array(accp.String(long), accp.String("short"))},
			text("z", strings.Repeat("w", 50)))
		sent, err := a.Send(t.Context(), m)
		require.NoError(t, err)
		require.Regexp(t, `x:\$cold\.h[0-9a-f]{8}\|y:\[\$cold\.h[0-9a-f]{8},short\]\|z:w{50}`, string(sent.Frames[0]))
		budget, err := a.Budget(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, budget.Cold.Entries, "equal values share one entry")
		r := receive(t, b, sent.Frames[0])
		require.Equal(t, long, r.Message.Params.Text("x"))
		ref, ok := r.Unresolved.Params[0].Value.Ref()
		require.True(t, ok, "for models it stays a reference (ACCP-088, ACCP-125)")
		require.NotContains(t, accp.Render(r.Unresolved), long)
		require.Contains(t, accp.Render(r.Unresolved), "$"+ref)

		// Another program writes a different value under that address.
		key := "accp-shared/s1/cold/" + strings.TrimPrefix(ref, "cold.")
		e, err := shared.Get(t.Context(), key)
		require.NoError(t, err)
		_, err = shared.Update(t.Context(), key, append(e.Value[:8:8], "other"...), e.Revision, 0)
		require.NoError(t, err)
		_, err = b.Resolve(t.Context(), ref)
		require.ErrorIs(t, err, accp.ErrRefNotFound)

		sent, err = a.Send(t.Context(), msg("done", "b", accp.Param{Key: "list", Value: func() accp.Value {
			var v []accp.Value
			for i := range 300 {
				v = append(v, accp.Int(int64(i)))
			}
			return accp.Array(v...)
		}()}))
		require.NoError(t, err)
		require.Regexp(t, `\{list:\$cold\.h[0-9a-f]{8}\}`, string(sent.Frames[0]), "a param that fits no frame is stored whole")
		r = receive(t, b, sent.Frames[0])
		v, _ := r.Message.Params.Get("list")
		require.Equal(t, 300, v.Len())
	})
}

// References stay inside the session (ACCP-133, ACCP-134, ACCP-D59) and expire
// (ACCP-053, ACCP-054, ACCP-063).
func TestReferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := store.NewMemory()
		s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
		other, err := accp.NewSession("x", "other", &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
		require.NoError(t, err)
		odd, err := accp.NewSession("x", "../s1/"+strings.Repeat("é", 200), &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
		require.NoError(t, err)
		put := func(s *accp.Session, scope accp.Scope, key, value string, ttl time.Duration) {
			require.NoError(t, s.Put(t.Context(), scope, key, accp.String(value), ttl))
		}
		put(s, accp.ScopeHot, "k", "hot", time.Second)
		put(s, accp.ScopeCold, "k", "cold", 0)
		put(s, accp.ScopeWarm, "w", "warm", time.Second)
		put(other, accp.ScopeCold, "k", "theirs", 0)
		put(odd, accp.ScopeCold, "k", "odd", 0)
		get := func(s *accp.Session, ref string) string {
			v, err := s.Resolve(t.Context(), ref)
			var e *accp.Error
			if errors.As(err, &e) {
				return string(e.Code)
			}
			require.NoError(t, err)
			got, _ := v.Text()
			return got
		}
		require.Equal(t, "odd", get(odd, "cold.k"))
		for ref, want := range map[string]string{
			"k": "hot", "w": "warm", "ctx.k": "hot", "cold.k": "cold", "cold.s1.k": "cold", "cold.x": "E2001",
			"cold": "E2001", "cold.a.b.c": "E2001", "nowhere": "E2001", "a.b": "E2001",
			"cold.other.k": "E5002", "cold.other.absent": "E5002", "cold.nobody.k": "E5002",
		} {
			require.Equal(t, want, get(s, ref), ref)
		}
		s.AllowSession("other")
		require.Equal(t, "theirs", get(s, "cold.other.k"))
		require.Equal(t, "E2001", get(s, "cold.other.absent"))
		time.Sleep(time.Second)
		require.Equal(t, "E2002", get(s, "ctx.k"))
		require.Equal(t, "E2002", get(s, "w"))
		require.Equal(t, "cold", get(s, "k"), "the bare key goes on to the next tier")
		require.ErrorIs(t, s.Put(t.Context(), "hot", "k", accp.Int(1), 0), accp.ErrInvalidType)
		require.ErrorIs(t, s.Put(t.Context(), accp.ScopeCold, "a.b", accp.Int(1), 0), accp.ErrInvalidType)
		put(s, accp.ScopeCold, "r", "x", 0)
		require.NoError(t, s.Put(t.Context(), accp.ScopeCold, "r", accp.Ref("cold.k"), 0))
		r := receive(t, s, frame("req:b{x:[{y:$cold.r}]}", 1))
		require.Contains(t, accp.Render(r.Message), "$cold.k", "what was stored is not searched for references (ACCP-D11)")
	})
}

// A change that makes the shared state too large is refused and changes nothing (ACCP-D45, ACCP-D76).
func TestLargeStateIsRefused(t *testing.T) {
	s := peerSession(t, nil)
	list := "[" + strings.Repeat("1,", 3999) + "1]"
	for v := 1; ; v++ {
		_, err := s.Receive(t.Context(), fmt.Appendf(nil, "@server>sync:state{delta:{k%d:%s}|v:%d}[mid:%012x,seq:%d,ts:0]", v, list, v, v, v))
		version, state := s.State()
		if err != nil {
			require.ErrorIs(t, err, accp.ErrBudgetExceeded)
			require.EqualValues(t, 16, version)
			require.Len(t, state, 16)
			return
		}
		require.EqualValues(t, v, version)
	}
}

// The state of both sides (ACCP-099, ACCP-D45, ACCP-D46).
func TestStateSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := session(t, nil), peerSession(t, nil)
		p := func(s string) accp.Params {
			var p accp.Params
			require.NoError(t, p.UnmarshalJSON([]byte(s)))
			return p
		}
		for _, st := range []string{`{"a":1,"b":{"c":[1,null]}}`, `{"a":1,"b":{"c":[1,null],"d":null}}`, `{"b":{}}`, `{}`} {
			sent, err := a.Sync(t.Context(), p(st))
			require.NoError(t, err)
			for _, f := range sent.Frames {
				receive(t, b, f)
			}
			va, sa := a.State()
			vb, sb := b.State()
			require.Equal(t, va, vb)
			require.True(t, sa.Equal(sb), "%v %v", sa, sb)
		}
		v, _ := b.State()
		require.EqualValues(t, 3, v, "no frame where nothing changed")
		mid := 0
		for body, code := range map[string]error{
			"sync:state{delta:{}}": accp.ErrInvalidType, "sync:state{v:4}": accp.ErrInvalidType,
			"sync:state{v:4|delta:{}|state:{}}": accp.ErrInvalidType, "sync:state{v:4|delta:[]}": accp.ErrInvalidType,
			"sync:state{v:3|delta:{}}": accp.ErrDuplicate, "sync:state{v:5|delta:{}}": accp.ErrSequenceGap,
			"sync:state{v:99999999999999999999|delta:{}}": accp.ErrInvalidType,
		} {
			mid++
			_, err := b.Receive(t.Context(), []byte("@server>"+body+fmt.Sprintf("[mid:%012x,seq:%d,ts:0]", mid, b.Stats().Received+1)))
			require.ErrorIs(t, err, code, body)
		}
		c := peerSession(t, nil)
		sent, err := a.Snapshot(t.Context())
		require.NoError(t, err)
		receive(t, c, sent.Frames[0])
		v, _ = c.State()
		require.EqualValues(t, 3, v)
	})
}

// Registries (ACCP-113, ACCP-114, ACCP-115, ACCP-D48): after at most one delta each,
// both sides have the schemas of both.
func TestNegotiation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schema := func(code string) accp.Schema {
			return accp.Schema{Name: "schema_" + strings.ToLower(code), Code: code, Version: 1, Fields: []string{"x"}}
		}
		for name, codes := range map[string][2][]string{
			"equal": {}, "one side": {{"AA"}, {}}, "other side": {{}, {"BB"}}, "both": {{"AA", "AB"}, {"BB"}},
		} {
			a, err := accp.NewSession("a", "s", nil)
			require.NoError(t, err)
			b, err := accp.NewSession("b", "s", nil)
			require.NoError(t, err)
			for _, c := range codes[0] {
				err := a.Registry().Register(schema(c))
				require.NoError(t, err)
			}
			for _, c := range codes[1] {
				err := b.Registry().Register(schema(c))
				require.NoError(t, err)
			}
			sent, err := a.AnnounceRegistry(t.Context())
			require.NoError(t, err)
			sides, frames := []*accp.Session{a, b}, sent.Frames
			synced := [2]bool{}
			turn := 1
			rounds := 0
			for ; len(frames) > 0; rounds++ {
				reply, isSynced, err := sides[turn].ReceiveRegistry(t.Context(), frames[0])
				require.NoError(t, err, name)
				synced[turn] = isSynced
				frames = nil
				if reply != nil {
					frames = reply.Frames
				}
				turn = 1 - turn
			}
			require.LessOrEqual(t, rounds, 4, name)
			// The sender of the last frame gets no confirmation: the exchange has ended.
			require.Contains(t, synced, true, name)
			require.Equal(t, a.Registry().Hash(), b.Registry().Hash(), name)
		}
		s := session(t, nil)
		for body, code := range map[string]error{
			"sync:registry{v:1|hash:abc}": accp.ErrInvalidType, "sync:registry{v:1|hash:abcdeg}": accp.ErrInvalidType,
			"sync:registry{v:1}": accp.ErrInvalidType, "sync:registry{v:x|hash:abcdef}": accp.ErrInvalidType,
			"sync:registry{v:1|hash:abcdef|delta:{}}": accp.ErrPolicyDenied, "sync:registry{v:1|hash:abcdef|delta:[]}": accp.ErrInvalidType,
			"sync:registry{v:1|hash:123456}": accp.ErrInvalidType, "req:plan{}": accp.ErrInvalidIntent,
		} {
			_, _, err := s.ReceiveRegistry(t.Context(), frame(body, s.Stats().Received+1))
			require.ErrorIs(t, err, code, body)
		}
		lenient := session(t, &accp.SessionOptions{Lenient: true})
		_, isSynced, err := lenient.ReceiveRegistry(t.Context(), frame("sync:registry{v:1|hash:123456}", 1))
		require.NoError(t, err)
		require.False(t, isSynced)
	})
}

// Schemas of a peer are valid for its session only (ACCP-135, ACCP-D49).
func TestRegistryOfASession(t *testing.T) {
	r := accp.NewRegistry()
	s := session(t, &accp.SessionOptions{Registry: r})
	err := s.Registry().Register(accp.Schema{Name: "n", Code: "NN", Version: 1, Fields: []string{"x"}})
	require.NoError(t, err)
	require.Empty(t, r.Codes())
	require.Equal(t, []string{"NN"}, s.Registry().Codes())
}

// The answer to a refused frame (ACCP-047, ACCP-065, ACCP-D52).
func TestErrorReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session(t, nil)
		sent, err := s.SendError(t.Context(), accp.ErrSequenceGap, frame("req:b{}", 7, "cid:c1"))
		require.NoError(t, err)
		require.Contains(t, string(sent.Frames[0]), "@server>fail:error{code:E3003|msg:sequence_gap|retry:true|schema:ER}")
		require.Contains(t, string(sent.Frames[0]), "cid:c1,aid:0000000a0007")
		var c accp.Codec
		m, err := c.Decode(sent.Frames[0])
		require.NoError(t, err)
		e := accp.ErrorFromMessage(m)
		require.ErrorIs(t, e, accp.ErrSequenceGap)
		require.True(t, e.Remote)

		secret := fmt.Errorf("opening /etc/passwd: %w", errors.New("denied"))
		sent, err = s.SendError(t.Context(), secret, frame("req:b{}", 7))
		require.NoError(t, err)
		require.Contains(t, string(sent.Frames[0]), "code:E9999|msg:internal_error|retry:true")
		require.NotContains(t, string(sent.Frames[0]), "passwd")
		sent, err = s.SendError(t.Context(), accp.ErrParse, frame("fail:error{code:E1001|schema:ER}", 7))
		require.NoError(t, err)
		require.Empty(t, sent.Frames)
		sent, err = s.SendError(t.Context(), accp.ErrParse, []byte("junk"))
		require.NoError(t, err)
		require.NotContains(t, string(sent.Frames[0]), "cid:")
		sent, err = s.SendError(t.Context(), accp.ErrParse, frame("req:b{}", 7, "cid:"+strings.Repeat("words_", 65460/6)))
		require.NoError(t, err)
		require.NotContains(t, string(sent.Frames[0]), "cid:", "too long to be named")
	})
}

// Debug mode (ACCP-131, ACCP-D63).
func TestDebugLog(t *testing.T) {
	var b strings.Builder
	var mu sync.Mutex
	s := session(t, &accp.SessionOptions{
		Logger: slog.New(slog.NewTextHandler(&syncWriter{&mu, &b}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Redactor: func(key string, v accp.Value) accp.Value {
			if key == "account" {
				return accp.String("***")
			}
			return v
		},
	})
	receive(t, s, frame("req:transaction{acc:secret9|amt:1.5|schema:TX|txn:t1}", 1))
	_, err := s.Receive(t.Context(), []byte("@a>req:b{acc:secret9"))
	require.Error(t, err)
	require.Contains(t, b.String(), "transaction_id")
	require.Contains(t, b.String(), "***")
	require.NotContains(t, b.String(), "secret9")
}

type syncWriter struct {
	mu *sync.Mutex
	b  *strings.Builder
}

func (w *syncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

// A session may be used by many at once; every frame gets its own number.
func TestSessionConcurrency(t *testing.T) {
	s := session(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seqs := map[int64]bool{}
	for range 8 {
		wg.Go(func() {
			for range 50 {
				sent, err := s.Send(t.Context(), msg("req", "b", text("k", "v")))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				seqs[sent.Message.Meta.Seq.N] = true
				mu.Unlock()
				_, _ = s.Receive(t.Context(), []byte("junk"))
				_, _ = s.Budget(t.Context())
				s.ModelContext(100, 0)
				s.State()
				s.Checkpoints()
			}
		})
	}
	wg.Wait()
	require.Len(t, seqs, 400)
	require.EqualValues(t, 400, s.Stats().Rejected)
}

// A dropped frame ends an open message of parts like any other, and reports it (ACCP-D28,
// ACCP-D38).
func TestDroppedFrameEndsParts(t *testing.T) {
	s := session(t, nil)
	receive(t, s, frame("cancel:a{}", 1, "cid:gone"))
	receive(t, s, frame("req:x{k:1}", 2, "part:1/3"))
	receive(t, s, frame("req:x{l:1}", 3, "part:2/3"))
	r := receive(t, s, frame("req:y{}", 4, "cid:gone"))
	require.Equal(t, accp.OutcomeDropped, r.Outcome)
	require.Equal(t, "cancelled", r.Reason)
	require.Equal(t, 2, r.DroppedParts)
	require.EqualValues(t, 2, s.Stats().DroppedParts)
}

// A nil message, or a nil part of one, is an error.
func TestNoMessage(t *testing.T) {
	s, err := accp.NewSession("a", "s", nil)
	require.NoError(t, err)
	_, err = s.Send(t.Context(), nil)
	require.ErrorContains(t, err, "no message")
	_, err = s.Send(t.Context(), &accp.Message{Intent: accp.IntentDone})
	require.ErrorContains(t, err, "no operation")
	c, err := accp.NewClient("http://127.0.0.1:1/", "a", nil)
	require.NoError(t, err)
	_, err = c.Call(t.Context(), nil, nil)
	require.ErrorContains(t, err, "no message")
}
