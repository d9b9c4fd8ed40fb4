// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
)

// A buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A buyer makes a low offer, gets a counter, and accepts it. The next process has the thread.
func TestSeller(t *testing.T) {
	network, err := airtest.NewNetwork(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	seller, err := network.RegisterAgent("AIR-5E11-E000-0001")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.json")
	if err := air.SaveIdentity(file, seller); err != nil {
		t.Fatal(err)
	}
	buyer, err := network.RegisterAgent("AIR-B0B0-0000-0002")
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := network.Resolver()
	if err != nil {
		t.Fatal(err)
	}
	defer resolver.Close()
	counters := make(chan *air.Delivery, 1)
	b, err := air.NewAgent(buyer, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		counters <- d
		return nil
	}), &air.AgentOptions{Resolver: resolver})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	go b.Run(t.Context())
	offer := &air.Offer{Description: "a page", Price: air.MinorUnits(100, "USD"), Expires: time.Now().Add(time.Hour)}
	if _, err := b.Send(t.Context(), seller.DID(), offer, &air.SendOptions{Seal: true}); err != nil {
		t.Fatal(err)
	}
	var out buffer
	args := []string{"-identity", file, "-store", filepath.Join(dir, "agent.db"), "-registry", network.RegistryURL, "-loopback"}
	serve := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- run(ctx, args, &out) }()
		return func() {
			cancel()
			if err := <-result; err != nil {
				t.Error(err)
			}
		}
	}
	stop := serve()
	d := <-counters
	stop()
	if _, ok := d.Body.(*air.Counter); !ok || !d.Sealed {
		t.Fatal(d.Body)
	}
	if _, err := b.NewNegotiation(seller.DID(), d.Envelope.ThreadID, true).Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop = serve()
	defer stop()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), "sent Accept"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(out.String())
		}
	}
}

func TestFlags(t *testing.T) {
	var out buffer
	for _, args := range [][]string{{"-no-such-flag"}, {"-identity", "missing"}} {
		if err := run(t.Context(), args, &out); err == nil {
			t.Fatal(args)
		}
	}
}
