// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package transcript_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/accp/transcript"
	"github.com/fivewire/fivewire/store"
)

// A sessionView is all that a session shows of its history.
type sessionView struct {
	version     int64
	state       accp.Params
	checkpoints []accp.Checkpoint
	lines       []string
}

func viewOf(s *accp.Session) (v sessionView) {
	v.version, v.state = s.State()
	v.checkpoints, v.lines = s.Checkpoints(), s.ModelContext(1000, 500).Lines
	return v
}

// replay sends and receives the frames of a transcript again, each at its time, in a new session.
func replay(t *testing.T, tr *transcript.Transcript, self string) *accp.Session {
	var entries []string
	for _, c := range tr.Checkpoints {
		entries = append(entries, c.Frames...)
	}
	entries = append(entries, tr.Frames...)
	id := ""
	opts := &accp.SessionOptions{}
	accptest.SetIDs(opts, func() string { return id })
	s, err := accp.NewSession(self, tr.SessionID, opts)
	require.NoError(t, err)
	for _, entry := range entries {
		m, err := new(accp.Codec).Decode([]byte(entry))
		require.NoError(t, err)
		time.Sleep(time.Until(time.Unix(m.Meta.TS.N, 0)))
		if m.From != self {
			_, err := s.Receive(t.Context(), []byte(entry))
			require.NoError(t, err)
			continue
		}
		id = m.Meta.MID
		var sent *accp.SendResult
		delta, isDelta := m.Params.Get("delta")
		_, state := s.State()
		switch {
		case isDelta:
			sent, err = s.Sync(t.Context(), hook.Apply(state, delta.Entries()).(accp.Params))
		case m.Intent == accp.IntentSync:
			sent, err = s.Snapshot(t.Context())
		default:
			m.Meta = &accp.Meta{CID: m.Meta.CID, AID: m.Meta.AID}
			sent, err = s.Send(t.Context(), m)
		}
		require.NoError(t, err)
		require.Equal(t, entry, string(sent.Frames[0]))
	}
	return s
}

// The frames that a side has in its cold store lead a new session to the same state, checkpoints and context.
func TestSessionReplaysFromItsColdStore(t *testing.T) {
	transcripts, want := map[string]*transcript.Transcript{}, map[string]sessionView{}
	synctest.Test(t, func(t *testing.T) {
		list := map[string]*accp.Session{}
		for _, name := range []string{"a", "b"} {
			s, err := accp.NewSession(name, "s1", &accp.SessionOptions{Persistence: accp.Persistence{Store: store.NewMemory()}})
			require.NoError(t, err)
			list[name] = s
		}
		state := accp.Params{}
		for n := range 40 {
			from, to := list[[]string{"a", "b"}[n%2]], list[[]string{"b", "a"}[n%2]]
			var sent *accp.SendResult
			var err error
			if n%5 == 3 {
				state = state.Set(fmt.Sprint("k", n%4), accp.Int(int64(n)))
				sent, err = from.Sync(t.Context(), state)
			} else {
				intent := []accp.Intent{accp.IntentReq, accp.IntentWait, accp.IntentDone, accp.IntentEsc}[n%4]
				value := accp.Param{Key: "finding", Value: accp.String(fmt.Sprint("number ", n, strings.Repeat(" more", n%7)))}
				sent, err = from.Send(t.Context(), &accp.Message{Intent: intent, Op: "find", Params: accp.Params{value}})
			}
			require.NoError(t, err)
			_, err = to.Receive(t.Context(), sent.Frames[0])
			require.NoError(t, err)
			time.Sleep(time.Duration(n) * time.Second)
		}
		for name, s := range list {
			transcripts[name], want[name] = of(t, s), viewOf(s)
			require.Greater(t, len(want[name].checkpoints), 10)
		}
	})
	for name, tr := range transcripts {
		synctest.Test(t, func(t *testing.T) { // the clock begins again
			require.Equal(t, want[name], viewOf(replay(t, tr, name)))
		})
	}
}

// Sides that count tokens differently, and so make other checkpoints at other times, resolve the addresses of the other side
// to the same texts and have the same state.
func TestSidesWithOtherTokenizersAgreeByAddress(t *testing.T) {
	var list [2]*accp.Session
	for i, divisor := range []int{2, 5} {
		s, err := accp.NewSession([]string{"a", "b"}[i], "s1", &accp.SessionOptions{
			TokenCounter: accp.TokenCounterFunc(func(text string) int { return len(text)/divisor + 1 })})
		require.NoError(t, err)
		list[i] = s
	}
	deliver := func(from int, sent *accp.SendResult, err error) {
		t.Helper()
		require.NoError(t, err)
		for _, f := range sent.Frames {
			_, err := list[1-from].Receive(t.Context(), f)
			require.NoError(t, err, "%s", f)
		}
	}
	state, isOther := accp.Params{}, false
	for n := range 60 {
		from := n % 2
		params := accp.Params{{Key: "finding", Value: accp.String(strings.Repeat("word ", 10+n%9))}}
		cp := list[from].Checkpoints()
		if len(cp) > 0 {
			params = append(params, accp.Param{Key: "after", Value: accp.Ref("warm." + cp[len(cp)-1].ID)})
		}
		sent, err := list[from].Send(t.Context(), &accp.Message{Intent: accp.IntentReq, Op: "find", Params: params})
		deliver(from, sent, err)
		state = state.Set(fmt.Sprint("k", n%5), accp.Int(int64(n)))
		sent, err = list[from].Sync(t.Context(), state)
		deliver(from, sent, err)
		if len(cp) > 0 {
			last := cp[len(cp)-1]
			v, err := list[1-from].Resolve(t.Context(), "warm."+last.ID)
			require.NoError(t, err)
			require.True(t, v.Equal(accp.String(last.Summary)))
			own := list[1-from].Checkpoints()
			isOther = isOther || !slices.ContainsFunc(own, func(c accp.Checkpoint) bool { return c.ID == last.ID })
		}
	}
	require.True(t, isOther, "the sides have other checkpoints")
	va, a := list[0].State()
	vb, b := list[1].State()
	require.Equal(t, va, vb)
	require.True(t, a.Equal(b))
}
