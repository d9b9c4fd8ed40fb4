// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/sim"
)

var profiles = map[string]func(w *sim.World){
	"lease": playLease, "once": playOnce, "peek": playPeek, "outbox": playOutbox, "streamlog": playStreamlog,
	"journal": playJournal,
	"memory":  playMemory,
}

func TestSeed(t *testing.T) {
	for _, name := range []string{"lease", "once", "peek", "outbox", "streamlog", "journal", "memory"} {
		t.Run(name, func(t *testing.T) { sim.Seeds(t, profiles[name]) })
	}
}

func TestMutantsAreFound(t *testing.T) {
	if race.Enabled || testing.Short() {
		t.Skip("builds the package with all mutants")
	}
	sim.Mutants(t, "../../..")
}

var quiet = slog.New(slog.DiscardHandler)

const (
	prefix = "p/"
	ttl    = 15 * time.Second
)

// An epoch is a lease that a node acquires, with the world around it.
type epoch struct {
	*sim.View
	*lease.Lease
}

// acquire acquires a lease for an instance of a node.
func acquire(v *sim.View) (epoch, error) {
	ctx, cancel := context.WithTimeout(v.Context, time.Minute)
	defer cancel()
	l, err := lease.Acquire(ctx, v.Store, lease.Options{Prefix: prefix, TTL: ttl, Logger: quiet})
	return epoch{v, l}, err
}

// Close ends the goroutines of a crashed lease.
func (e epoch) Close() { _ = e.Release(context.Background()) }

// A tenure is an epoch of the lease of an instance, as of some time.
type tenure struct {
	epoch
	owner lease.Owner
	ctx   context.Context
}

func (e epoch) tenure() tenure { return tenure{e, e.Owner(), e.Lease.Context()} }

// isHeld reports whether the lease is honored: the instance runs, its epoch has not ended, and the store,
// whose clock may jump, has the lease.
func (t tenure) isHeld(w *sim.World) bool {
	if t.IsCrashed() || t.ctx.Err() != nil {
		return false
	}
	instance, _, _ := strings.Cut(string(t.owner), "@")
	e, _ := w.Data().Get(context.Background(), prefix+"lease/"+instance)
	return !w.IsClockWrong() || string(content(e.Value)) == string(t.owner)
}

// clientOf returns random numbers for a decision that has a name and a number.
func clientOf(w *sim.World, name string, n int) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name)
	return rand.New(rand.NewPCG(w.Seed(), h.Sum64()+uint64(n)))
}

// pick returns the instance of one of several nodes, or false if that node is down.
func pick[T sim.Instance](r *rand.Rand, nodes []*sim.Node) (T, bool) {
	i, ok := nodes[r.IntN(len(nodes))].Instance().(T)
	return i, ok
}

func startNodes(w *sim.World, n int, start func(v *sim.View) (sim.Instance, error)) (nodes []*sim.Node) {
	for i := range n {
		nodes = append(nodes, w.Node(fmt.Sprint("n", i), start))
		_ = w.Sleep(context.Background(), time.Duration(i+1)*123_456_789)
	}
	return nodes
}

// isChosen reports whether the seed is one of eight, which have a longer end.
func isChosen(w *sim.World) bool { return w.Seed()%8 == 0 }

// retry calls f until it succeeds or ctx ends.
func retry(ctx context.Context, w *sim.World, f func() error) (err error) {
	for {
		if err = f(); err == nil || ctx.Err() != nil {
			return err
		}
		if w.Sleep(ctx, 500*time.Millisecond) != nil {
			return errors.Join(err, ctx.Err())
		}
	}
}
