// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

func TestPlanIsJSON(t *testing.T) {
	want := &fault.Plan{Seed: 7, Rules: []fault.Rule{
		{Action: fault.LandLater, Op: "update|append", Match: "tasks/", After: 1, Every: 2, Probability: 0.5, Limit: 3, Delay: 4},
		{},
	}}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	require.JSONEq(t, `{"seed":7,"rules":[{"action":"land-later","op":"update|append","match":"tasks/","after":1,
		"every":2,"probability":0.5,"limit":3,"delay":4},{}]}`, string(text))
	got := &fault.Plan{}
	require.NoError(t, json.Unmarshal(text, got))
	require.Equal(t, want, got)
}

func TestUnknownActionHasNoEffect(t *testing.T) {
	plan := &fault.Plan{Rules: []fault.Rule{{Action: "hangs"}}}
	_, err := fault.Store(store.NewMemory(), plan).Get(t.Context(), "k")
	require.Equal(t, store.ErrNotFound, err)
	require.Empty(t, plan.Log())
}

func TestFullRefusesWritesOnly(t *testing.T) {
	eachOp(t, fault.Rule{Action: fault.Full}, func(t *testing.T, b *bench) {
		err := b.call(t.Context())
		if b.op == "create" || b.op == "update" || b.op == "append" {
			requireUnknown(t, err)
			require.Equal(t, unchanged, state(t, b.below))
			return
		}
		require.NoError(t, err)
		require.Zero(t, b.plan.Count(fault.Full))
	})
}

func TestEverySelectsEachNthCall(t *testing.T) {
	s := fault.Store(store.NewMemory(), &fault.Plan{Rules: []fault.Rule{{Op: "wait|get", After: 1, Every: 3}}})
	got := ""
	for range 8 {
		_, err := s.Get(t.Context(), "k")
		if got += "."; err != store.ErrNotFound {
			got = got[:len(got)-1] + "F"
		}
	}
	require.Equal(t, "...F..F.", got)
}

func TestLogHasInjectedFaultsThatHookPermits(t *testing.T) {
	plan := &fault.Plan{Rules: []fault.Rule{{Op: "get"}}}
	plan.OnFault = func(f *fault.Fault) bool { return f.Name != "b" }
	s := fault.Store(store.NewMemory(), plan)
	before := time.Now()
	for _, key := range []string{"a", "b", "c"} {
		_, err := s.Get(t.Context(), key)
		require.Equal(t, key == "b", err == store.ErrNotFound)
		_, err = s.Read(t.Context(), key, 0, 0)
		require.NoError(t, err)
	}
	log := plan.Log()
	require.Len(t, log, 2)
	require.False(t, log[0].Time.Before(before))
	for i := range log {
		log[i].Time, log[i].Entries = time.Time{}, 0
	}
	require.Equal(t, []fault.Fault{
		{Call: 1, Op: "get", Name: "a", Action: fault.ErrorBefore},
		{Call: 5, Op: "get", Name: "c", Action: fault.ErrorBefore},
	}, log)
}

func TestLogIsBounded(t *testing.T) {
	plan := &fault.Plan{Rules: []fault.Rule{{}}}
	s := fault.Store(store.NewMemory(), plan)
	for range 5000 {
		_, _ = s.Get(t.Context(), "k")
	}
	log := plan.Log()
	require.Len(t, log, 4096)
	require.Equal(t, 5000, log[4095].Call)
}
