// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package transcript_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/transcript"
	"github.com/fivewire/fivewire/store"
)

// sides returns both sides of a session after some messages, states and checkpoints.
func sides(t *testing.T) (list [2]*accp.Session) {
	for i, name := range []string{"a", "b"} {
		o := &accp.SessionOptions{DisableAutoCheckpoint: i == 1}
		if i == 0 {
			o.Persistence.Store = store.NewMemory()
		}
		s, err := accp.NewSession(name, "s1", o)
		require.NoError(t, err)
		list[i] = s
	}
	ctx := t.Context()
	pass := func(from int, sent *accp.SendResult, err error) {
		t.Helper()
		require.NoError(t, err)
		for _, f := range sent.Frames {
			_, err := list[1-from].Receive(ctx, f)
			require.NoError(t, err)
		}
	}
	state := accp.Params{}
	for n := range 6 {
		finding := accp.Param{Key: "finding", Value: accp.String(fmt.Sprint("number ", n))}
		sent, err := list[n%2].Send(ctx, &accp.Message{Intent: accp.IntentDone, Op: "find", Params: accp.Params{finding}})
		pass(n%2, sent, err)
		state = state.Set(fmt.Sprint("k", n%3), accp.Int(int64(n)))
		sent, err = list[n%2].Sync(ctx, state)
		pass(n%2, sent, err)
	}
	sent, err := list[0].Snapshot(ctx)
	require.NoError(t, err)
	_, err = list[1].Receive(ctx, sent.Frames[0])
	require.NoError(t, err)
	_, err = list[1].Checkpoint(ctx)
	require.NoError(t, err)
	return list
}

func of(t *testing.T, s *accp.Session) *transcript.Transcript {
	tr, err := transcript.Of(t.Context(), s)
	require.NoError(t, err)
	return tr
}

// A session accepts frames without its id, longer and deeper ones by its limits, and those of the lenient grammar.
func TestTranscriptHasEachAcceptedFrame(t *testing.T) {
	for name, c := range map[string]struct {
		opts   accp.SessionOptions
		frames []string
	}{
		"no session id": {accp.SessionOptions{}, []string{"@a>req:x{k:1}[mid:00000000000a,seq:1,ts:1]"}},
		"strict":        {accp.SessionOptions{}, []string{"@a>sync:state{v:1|state:{a:null,b:1}}[mid:00000000000a,seq:1,ts:1]"}},
		"lenient": {accp.SessionOptions{Lenient: true}, []string{"@a-b>req:x{ k:null | f:[rev:1] }[msg_id:m1, seq:1, sid:s]",
			"@a-b>sync:state{v:1|state:{a:null,b:007}}[mid:m2,seq:2]", "@a-b>sync:state{v:2|delta:{c:null,d:1}}[mid:m3,seq:3]"}},
		"large": {accp.SessionOptions{FrameLimits: accp.FrameLimits{MaxFrame: 1 << 20, MaxDepth: 7, MaxName: 100, MaxNumber: 200}}, []string{
			"@a>req:x{" + strings.Repeat("k", 80) + ":" + strings.Repeat("x", 100_000) + "}[mid:00000000000a,seq:1,ts:1]",
			"@a>req:x{k:[[[[[[" + strings.Repeat("9", 150) + "]]]]]]}[mid:00000000000b,seq:2,ts:1]"}},
	} {
		c.opts.DisableAutoCheckpoint = true
		s, err := accp.NewSession("me", "s", &c.opts)
		require.NoError(t, err, name)
		for _, f := range c.frames {
			_, err := s.Receive(t.Context(), []byte(f))
			require.NoError(t, err, name)
		}
		tr := of(t, s)
		require.NoError(t, tr.Verify(), name)
		require.Len(t, tr.Frames, len(c.frames), name)
		tr.SessionID = "other"
		if name == "lenient" {
			require.Error(t, tr.Verify(), "the id of the first frame")
		}
	}
}

// The work for a transcript of a stranger is bounded: deltas without a base follow from all states of the version before.
func TestTranscriptWithManyStatesIsRefused(t *testing.T) {
	tr := &transcript.Transcript{SessionID: "s"}
	for version := range 50 {
		for i := range 50 {
			tr.Frames = append(tr.Frames, fmt.Sprintf("@a>sync:state{v:%d|delta:{k%d:%d}}[mid:00000000000a,seq:1,ts:1]", version+1, version, i))
		}
	}
	require.ErrorContains(t, tr.Verify(), "too many versions")
}

// Both sides have the same frames and states, whatever their checkpoints are, and each verifies offline.
func TestSidesHaveTheSameFrames(t *testing.T) {
	list := sides(t)
	a, b := of(t, list[0]), of(t, list[1])
	require.NotEmpty(t, a.Frames, "messages after the last checkpoint")
	require.Greater(t, len(a.Checkpoints), len(b.Checkpoints))
	require.Nil(t, transcript.Diff(a, b))
	require.Equal(t, a.States, b.States)
	require.Len(t, a.States, 6)
	for _, tr := range []*transcript.Transcript{a, b} {
		data, err := transcript.Append(nil, tr)
		require.NoError(t, err)
		decoded, err := transcript.Decode(data)
		require.NoError(t, err)
		require.NoError(t, decoded.Verify())
		require.Nil(t, transcript.Diff(tr, decoded))
		second, err := transcript.Append(nil, decoded)
		require.NoError(t, err)
		require.Equal(t, string(data), string(second))
	}
}

// Each changed part is noticed, and the first other frame is found.
func TestVerifyNoticesChanges(t *testing.T) {
	list := sides(t)
	for name, change := range map[string]func(tr *transcript.Transcript){
		"frame of a checkpoint": func(tr *transcript.Transcript) { replace(&tr.Checkpoints[1].Frames[0], "k0:", "k9:") },
		"summary":               func(tr *transcript.Transcript) { tr.Checkpoints[0].Summary.Text += "." },
		"refined summary": func(tr *transcript.Transcript) {
			tr.Checkpoints[0].Refined = []transcript.Summary{{ID: tr.Checkpoints[0].Summary.ID, Text: "other"}}
		},
		"hash":            func(tr *transcript.Transcript) { tr.Checkpoints[0].Hash = tr.Checkpoints[1].Hash },
		"short id":        func(tr *transcript.Transcript) { tr.Checkpoints[0].Summary.ID = "cp" },
		"prefix of an id": func(tr *transcript.Transcript) { replace(&tr.Checkpoints[0].Summary.ID, "cp", "") },
		"state":           func(tr *transcript.Transcript) { tr.States[2].Digest = tr.States[1].Digest },
		"version":         func(tr *transcript.Transcript) { tr.States[2].Version++ },
		"base": func(tr *transcript.Transcript) {
			tr.Frames = tr.Frames[:1]
			replace(&tr.Frames[0], "base:", "base:0")
		},
		"later state":        func(tr *transcript.Transcript) { tr.Frames = tr.Frames[:0] },
		"frame of a session": func(tr *transcript.Transcript) { replace(&tr.Frames[0], "sid:s1", "sid:s2") },
		"no frame":           func(tr *transcript.Transcript) { tr.Frames[0] = "frame" },
		"missing frames":     func(tr *transcript.Transcript) { tr.Checkpoints = tr.Checkpoints[3:] },
	} {
		t.Run(name, func(t *testing.T) {
			tr := of(t, list[0])
			change(tr)
			require.Error(t, tr.Verify())
		})
	}
	a, b := of(t, list[0]), of(t, list[1])
	replace(&a.Checkpoints[1].Frames[0], "k0:", "k9:")
	d := transcript.Diff(a, b)
	require.Equal(t, 1, d.Index)
	require.Equal(t, d.A, strings.Replace(d.B, "k0:", "k9:", 1))
	short := of(t, list[0])
	short.Frames = nil
	require.Equal(t, of(t, list[0]).Frames[0], transcript.Diff(of(t, list[0]), short).A)
	require.Empty(t, transcript.Diff(of(t, list[0]), short).B)
}

func replace(text *string, old, new string) { *text = strings.Replace(*text, old, new, 1) }

// A session with many checkpoints in a store has more frames than Decode reads. Append does not write them.
func TestAppendRefusesLongTranscripts(t *testing.T) {
	tr := &transcript.Transcript{Format: "accp-transcript-1", Frames: []string{""}}
	data, err := transcript.Append([]byte("x"), tr)
	require.NoError(t, err)
	tr.Frames[0] = strings.Repeat("f", 64<<20-len(data)+1)
	data, err = transcript.Append([]byte("x"), tr)
	require.NoError(t, err)
	_, err = transcript.Decode(data[1:])
	require.NoError(t, err)
	tr.Frames[0] += "f"
	data, err = transcript.Append([]byte("x"), tr)
	require.ErrorContains(t, err, "too long")
	require.Equal(t, "x", string(data))
}

func TestDecodeRefuses(t *testing.T) {
	other := of(t, sides(t)[0])
	other.Format = "accp-transcript-2"
	data, err := transcript.Append(nil, other)
	require.NoError(t, err)
	_, err = transcript.Decode(data)
	require.ErrorContains(t, err, "accp-transcript-2")
	for _, text := range []string{``, `{}`, `{"format":"x"}`, `{"format":"accp-transcript-1"}x`} {
		_, err := transcript.Decode([]byte(text))
		require.Error(t, err, text)
	}
}
