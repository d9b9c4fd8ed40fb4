// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/store"
)

var benchData = []byte("20 bytes of outcome.")

func benchWork(context.Context, once.Claim) (once.Result, error) {
	return once.Result{Data: benchData}, nil
}

// BenchmarkPairDo compares a call with the Create and the Update of a claim in a
// store in memory. The goal is a ratio of at most 2.
func BenchmarkPairDo(b *testing.B) {
	ctx := b.Context()
	table := once.New(nil, nil, once.Options{})
	defer table.Close()
	calls, writes := 0, 0
	do := func() {
		calls++
		if _, _, err := table.Do(ctx, key(strconv.Itoa(calls)), once.AtMostOnce, benchWork); err != nil {
			b.Fatal(err)
		}
	}
	db := store.NewMemory()
	write := func() {
		writes++
		if writes%20_000 == 0 {
			db = store.NewMemory()
		}
		key := "once/alice/pay/" + strconv.Itoa(writes)
		rev, err := db.Create(ctx, key, benchData, time.Minute)
		if err == nil {
			_, err = db.Update(ctx, key, benchData, rev, time.Minute)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	pair.Ratio(b, pair.Loop(do), pair.Loop(write))
}

func BenchmarkReplay(b *testing.B) {
	table := once.New(nil, nil, once.Options{})
	defer table.Close()
	k := key("1")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := table.Do(b.Context(), k, once.AtMostOnce, benchWork); err != nil {
			b.Fatal(err)
		}
	}
}
