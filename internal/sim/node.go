// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

// An Instance is one start of a node. Close ends its goroutines after its crash: its store and its
// connections fail by then, so nothing that Close does has an effect.
type Instance interface{ Close() }

// A Node is a process of the world, for example a server or a client. A crash ends its instance and
// keeps the data of the store; a restart makes a new instance.
type Node struct {
	w     *World
	name  string
	start func(v *View) (Instance, error)
	wg    sync.WaitGroup // of instances

	mu       sync.Mutex // guards all below
	resumed  time.Duration
	view     *View    // nil: crashed
	instance Instance // nil: crashed or starting
	plans    []*fault.Plan
}

// A View is what one instance of a node has of the world.
type View struct {
	Store   store.Store
	Context context.Context // ends with the crash
	Node    *Node
	plan    *fault.Plan
	cancel  context.CancelFunc
}

// Node adds a node and starts it. The function makes an instance; after an error it is called again.
func (w *World) Node(name string, start func(v *View) (Instance, error)) *Node {
	n := &Node{w: w, name: name, start: start}
	w.mu.Lock()
	w.nodes = append(w.nodes, n)
	w.mu.Unlock()
	n.Restart()
	return n
}

// isResumed reports whether a pause has ended at this nanosecond.
func (n *Node) isResumed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.resumed == n.w.Now()
}

// Name returns the name of the node.
func (n *Node) Name() string { return n.name }

// Instance returns the running instance, or nil.
func (n *Node) Instance() Instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.instance
}

func (n *Node) isUp() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.view != nil
}

// IsCrashed reports whether the instance of a view has crashed.
func (v *View) IsCrashed() bool { return v.Context.Err() != nil }

// InstanceID returns the id under which the process of a node holds its lease. In a third of the runs it is the name of
// the node, so that the next process takes over at once. Otherwise it is empty.
func (v *View) InstanceID() string {
	if mix(v.Node.w.seed^fnvBasis)%3 == 0 {
		return v.Node.name
	}
	return ""
}

// permit decides whether a fault of the store is injected.
func (n *Node) permit(f *fault.Fault) bool {
	parts := []string{n.name, string(f.Action), f.Op, f.Name}
	switch {
	case f.Action == fault.Delay || f.Action == fault.LandLater:
		f.Delay = n.w.between(1, 5*time.Second, append(parts, "delay")...)
	case f.Delay > 0 || f.Action == fault.Reorder: // ends at another nanosecond than a context of the same length
		f.Delay = cmp.Or(f.Delay, time.Second) + n.w.between(1, time.Millisecond, append(parts, "delay")...)
	}
	if f.Action == fault.ErrorAfter && f.Op == "list" {
		f.Entries = int(n.w.draw(append(parts, "entries")...) % 9)
	}
	id := fmt.Sprintf("%s/%s/%08x", n.name, f.Action, n.w.draw(append(parts, "id")...)>>32)
	isPermitted := n.w.permit(id, fmt.Sprintf("%s: %s of %s %s", n.name, f.Action, f.Op, f.Name))
	if isPermitted {
		n.w.Event(n.name, "fault", f.Name, string(f.Action))
	}
	return isPermitted
}

// Restart starts a crashed node. It does not wait until the instance runs.
func (n *Node) Restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.view != nil {
		return
	}
	plan := &fault.Plan{Rules: n.w.rules(n.name)}
	plan.OnFault = n.permit
	v := &View{Node: n, plan: plan, Store: &spread{fault.Store(&transit{n.w, n.name}, plan), n}}
	v.Context, v.cancel = context.WithCancel(context.Background())
	n.view, n.plans = v, append(n.plans, plan)
	n.w.Event(n.name, "start", "", "")
	n.wg.Go(func() { n.run(v) })
}

// run makes the instance and closes it after the crash.
func (n *Node) run(v *View) {
	for v.Context.Err() == nil {
		i, err := n.start(v)
		if err != nil {
			_ = n.w.Sleep(v.Context, time.Second)
			continue
		}
		n.mu.Lock()
		if n.view == v {
			n.instance = i
		}
		n.mu.Unlock()
		<-v.Context.Done()
		i.Close()
	}
}

// Crash ends the instance: from this nanosecond its store and its connections fail.
func (n *Node) Crash() {
	n.mu.Lock()
	v := n.view
	n.view, n.instance = nil, nil
	n.mu.Unlock()
	if v == nil {
		return
	}
	n.w.Event(n.name, "crash", "", "")
	v.plan.Crash()
	n.w.network.crash(n.name)
	v.cancel()
}

// Pause withholds answers of the store and deliveries of the network until Resume. Timers fire.
func (n *Node) Pause() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.view != nil {
		n.w.Event(n.name, "pause", "", "")
		n.view.plan.Pause()
		n.w.network.pause(n.name)
	}
}

// Resume ends a Pause.
func (n *Node) Resume() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.view != nil {
		n.w.Event(n.name, "resume", "", "")
		n.resumed = n.w.Now()
		n.view.plan.Resume()
		n.w.network.resume(n.name)
	}
}

// wait waits for the ends of all instances and of their changes in transit.
func (n *Node) wait() {
	n.wg.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.plans {
		p.Close()
	}
}
