// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sim runs services deterministically: nodes, their store and network, crashes, pauses and
// faults, all from one seed, in a bubble of testing/synctest. Only tests import it.
//
// # Profile
//
// A profile is a function of a World in a test package below internal/sim. It has a model of the promises
// of the service, and checkers that compare them with the store and the answers:
//
//	func play(w *sim.World) {
//		m := &model{w: w}
//		w.OnChange(m.checkChange)                    // an invariant of every change of the store
//		nodes := []*sim.Node{w.Node("n0", m.start)}  // start returns a sim.Instance; its Close ends goroutines
//		w.Play(time.Minute, 3, 2*time.Second, func(c *sim.Client) {
//			s, ok := nodes[c.IntN(len(nodes))].Instance().(*server)
//			if !ok {
//				return // the node is down
//			}
//			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
//			defer cancel()
//			_, err := w.Call(c.ID, "put x", func() (string, error) { return s.put(ctx, "x") })
//			m.note("x", err)                     // after nil it is acknowledged, otherwise unknown
//		})
//		w.Settle()                                   // two minutes without faults
//		m.checkEnd()                                 // w.Failf("P1", node, "item %s is lost", x)
//	}
//
//	func TestSeed(t *testing.T) { t.Run("put", func(t *testing.T) { sim.Seeds(t, play) }) }
//
// An instance gets a View. View.Store is the node's way to the store: its calls take time, fail by the faults of
// the run, stop during a pause, and all fail after a crash. View.Context ends with the crash. View.Listen,
// View.Dial and View.RoundTripper are the node's network; a profile that uses it calls World.UseNetwork first. Package
// kernels is an example with five profiles, package arc one with servers, clients and a network.
//
// # Rules
//
// Two runs of a seed have the same trace: if those of more than one seed in ten differ, the test fails and names the first
// event that differs. So a profile, and the code under test, must not depend on the order of a map, on a select with
// several ready cases, on real time, or on math/rand. Randomness comes from Client, from World.Draw, from crypto/rand,
// which is that of the seed in a run, or from randid.Rand. A mutex does not block durably: virtual time stops while a goroutine waits
// for one that is held during a call of the store. World.Sleep ends at a nanosecond without another event; two timers of one nanosecond fire in any order.
// The end of a context that many goroutines share, like Client.Context, is such a moment.
//
// A checker is short, at most 150 lines, and each invariant has a mutant in testdata/mutants.json: a defect of the code
// under test which the invariant finds. The test of the mutants builds the package once with all of them. A profile can
// also test its checkers by Broken, with a store, a handler or a client that has a defect.
//
// # Faults
//
// A third of the runs has one kind of fault, a third two or three, and a third all: the actions of package
// fault for the store and the network, late notices of appends, crashes, pauses, partitions in one direction, and
// a clock of the store with an offset, a drift and jumps. World.Play ends all of them; then liveness can be judged.
// A lease is not honored while the clock jumps (World.IsClockWrong).
//
// # Seeds
//
// Seeds runs the kept seeds of testdata/seeds/NAME, each a line with the seed and the defect that it has found, and
// then the seeds 1 to 300, with SIM_SEEDS=100000 so many random ones. A failure prints the command that replays it:
//
//	go test ./internal/sim/kernels -run '^TestSeed$/^lease$' -args -seed 0x1f
//
// With -shrink faults are removed while the seed fails; -keep injects only the named ones; -events sets the number of
// printed events.
package sim
