// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A replay window: only the first Create of a key succeeds.
func ExampleNewMemory() {
	ctx := context.Background()
	s := store.NewMemory()

	for _, nonce := range []string{"n-1", "n-2", "n-1"} {
		_, err := s.Create(ctx, "nonce/"+nonce, nil, 5*time.Minute)
		switch {
		case errors.Is(err, store.ErrExists):
			fmt.Println(nonce, "is a replay")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println(nonce, "is new")
		}
	}
	// Output:
	// n-1 is new
	// n-2 is new
	// n-1 is a replay
}

// A value with many writers: read it, compute, and repeat after a conflict.
func ExampleKV() {
	ctx := context.Background()
	var kv store.KV = store.NewMemory()

	if _, err := kv.Create(ctx, "task/7", []byte("queued"), 0); err != nil {
		log.Fatal(err)
	}
	for {
		e, err := kv.Get(ctx, "task/7")
		if err != nil {
			log.Fatal(err)
		}
		_, err = kv.Update(ctx, "task/7", append(e.Value[:0:0], "running"...), e.Revision, 0)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		break
	}
	for e, err := range kv.List(ctx, "task/") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s is %s\n", e.Key, e.Value)
	}
	// Output: task/7 is running
}

// An inbox: what is sent twice is kept once, and it stays until it has been
// dealt with.
func ExampleLog() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var l store.Log = store.NewMemory()

	go func() {
		for _, id := range []string{"m-1", "m-1", "m-2"} {
			_, err := l.Append(ctx, "inbox/bob", id, []byte("hello from "+id), 24*time.Hour)
			if err != nil && !errors.Is(err, store.ErrDuplicate) {
				log.Fatal(err)
			}
		}
	}()

	for seen := 0; seen < 2; {
		if err := l.Wait(ctx, "inbox/bob", 0); err != nil {
			log.Fatal(err)
		}
		records, err := l.Read(ctx, "inbox/bob", 0, 10)
		if err != nil {
			log.Fatal(err)
		}
		for _, r := range records {
			fmt.Println(string(r.Value))
			if err := l.Ack(ctx, "inbox/bob", r.Seq); err != nil {
				log.Fatal(err)
			}
			seen++
		}
	}
	// Output:
	// hello from m-1
	// hello from m-2
}

// Several parts of a program share one store, each with the keys to itself.
func ExampleSub() {
	ctx := context.Background()
	whole := store.NewMemory()
	relay := store.Sub(whole, "relay/")

	if _, err := relay.Create(ctx, "agents/bob", []byte("known"), 0); err != nil {
		log.Fatal(err)
	}
	for e := range relay.List(ctx, "") {
		fmt.Println("the relay sees", e.Key)
	}
	for e := range whole.List(ctx, "") {
		fmt.Println("the store holds", e.Key)
	}
	// Output:
	// the relay sees agents/bob
	// the store holds relay/agents/bob
}
