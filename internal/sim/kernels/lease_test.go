// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

// A work value is the record of a work item. By is the epoch that wrote it.
type work struct{ Owner, By lease.Owner }

func (r work) encode() []byte {
	b, _ := json.Marshal(r)
	return b
}

// content returns the value that store.Modify wrote.
func content(value []byte) []byte {
	e, _ := store.Content(store.Entry{Value: value})
	return e.Value
}

func decodeWork(value []byte) (r work) {
	_ = json.Unmarshal(content(value), &r)
	return r
}

// A leases value is the model of the profile: work items that last for a while or until the end of the run.
type leases struct {
	w     *sim.World
	nodes []*sim.Node

	mu      sync.Mutex
	isTaken map[string]bool // by record and former owner
}

// playLease lets three nodes create and end work items and take over those of each other.
func playLease(w *sim.World) {
	m := &leases{w: w, isTaken: map[string]bool{}}
	w.OnChange(m.check)
	m.nodes = startNodes(w, 3, m.start)
	items := 0
	w.Play(30*time.Second, 3, 3*time.Second, func(c *sim.Client) {
		e, ok := pick[*worker](c.Rand, m.nodes)
		if !ok {
			return
		}
		m.mu.Lock()
		items++
		id := fmt.Sprint("i", items)
		m.mu.Unlock()
		ctx, cancel := context.WithTimeout(c.Context, time.Duration(1+c.IntN(10))*time.Second)
		defer cancel()
		length := time.Duration(c.Int64N(int64(30 * time.Second)))
		_, _ = w.Call(c.ID, "start "+id, func() (string, error) { return "", e.create(ctx, id, length) })
	})
	w.Settle()
	m.checkEnd()
}

// check holds each change to L1, L2 and L4.
func (m *leases) check(c sim.Change) {
	id, isRecord := strings.CutPrefix(c.Key, "record/")
	if isRecord && !bytes.Equal(c.Old, c.Value) {
		m.checkRecord(id, c)
	}
	name, isEntry := strings.CutPrefix(c.Key, prefix+"work/")
	if isEntry && c.Value == nil {
		_, id, _ := strings.Cut(name, "/k/")
		m.requireEntry(id, c, decodeWork(c.Lookup("record/"+id)))
	}
}

func (m *leases) checkRecord(id string, c sim.Change) {
	old, now := decodeWork(c.Old), decodeWork(c.Value)
	isTaken := c.Old != nil && now.Owner != "" && now.Owner != old.Owner
	switch {
	case c.Old != nil && now.By != old.Owner && !isTaken:
		m.w.Failf("L2", c.Node, "record %s of %s: changed by %s", id, old.Owner, now.By)
	case isTaken:
		instance, _, _ := strings.Cut(string(old.Owner), "@")
		if string(content(c.Lookup(prefix+"lease/"+instance))) == string(old.Owner) {
			m.w.Failf("L2", c.Node, "record %s: taken over by %s although %s holds its lease", id, now.Owner, old.Owner)
		}
	}
	m.requireEntry(id, c, now)
}

// requireEntry requires an index entry of an unfinished record.
func (m *leases) requireEntry(id string, c sim.Change, r work) {
	if r.Owner == "" || len(c.Keys(prefix+"work/", "/k/"+id)) > 0 {
		return
	}
	m.w.Failf("L1", c.Node, "record %s of %s has no index entry", id, r.Owner)
}

// checkEnd holds the records to L3.
func (m *leases) checkEnd() {
	live := map[lease.Owner]bool{}
	for _, n := range m.nodes {
		if e, ok := n.Instance().(*worker); ok {
			live[e.Owner()] = true
		}
	}
	for e := range m.w.Data().List(context.Background(), "record/") {
		if r := decodeWork(e.Value); r.Owner != "" && !live[r.Owner] {
			m.w.Failf("L3", "", "%s: owner %s is not alive", e.Key, r.Owner)
		}
	}
}

// A worker is one instance of a node.
type worker struct {
	epoch
	m       *leases
	mu      sync.Mutex
	running map[string]lease.Owner
}

func (m *leases) start(v *sim.View) (sim.Instance, error) {
	e, err := acquire(v)
	if err != nil {
		return nil, err
	}
	k := &worker{epoch: e, m: m, running: map[string]lease.Owner{}}
	k.Adopt("k", k.adopt)
	return k, nil
}

var errTaken = errors.New("taken")

// edit changes a record by compare-and-set.
func (k *worker) edit(ctx context.Context, id string, change func(r *work, found bool) error) error {
	_, err := store.Modify(ctx, k.Store, "record/"+id, 0, func(old store.Entry, found bool) ([]byte, error) {
		var r work
		_ = json.Unmarshal(old.Value, &r)
		if err := change(&r, found); err != nil {
			return nil, err
		}
		return r.encode(), nil
	})
	return err
}

func (k *worker) create(ctx context.Context, id string, length time.Duration) error {
	owner, err := k.Lease.Start(ctx, "k", id)
	if err != nil {
		return err
	}
	err = k.edit(ctx, id, func(r *work, found bool) error {
		*r = work{owner, owner}
		return nil
	})
	if err != nil {
		return err // the record may be created: the entry stays
	}
	go k.work(id, owner, length)
	return nil
}

// work ends the item after a time, unless it lasts.
func (k *worker) work(id string, owner lease.Owner, length time.Duration) {
	ctx := k.Lease.Context()
	k.mu.Lock()
	isRunning := k.running[id] == owner
	k.running[id] = owner
	k.mu.Unlock()
	if isRunning || length > 20*time.Second || k.m.w.Sleep(k.View.Context, length) != nil {
		return
	}
	err := retry(ctx, k.m.w, func() error {
		err := k.edit(ctx, id, func(r *work, found bool) error {
			if r.Owner != owner {
				return errTaken
			}
			*r = work{By: owner}
			return nil
		})
		if errors.Is(err, errTaken) {
			return nil
		}
		return err
	})
	if err == nil {
		_ = k.Finish(ctx, owner, "k", id)
	}
}

func (k *worker) adopt(ctx context.Context, id string, _, to lease.Owner) (lease.Found, error) {
	found := lease.Absent
	var from lease.Owner
	err := k.edit(ctx, id, func(r *work, isPresent bool) error {
		from = r.Owner
		isAlive, err := k.Alive(ctx, r.Owner)
		k.mu.Lock()
		isRunning := k.running[id] == to
		k.mu.Unlock()
		switch {
		case err != nil:
			return err
		case !isPresent:
			found = lease.Absent
		case r.Owner == "":
			found = lease.Ended
		case r.Owner == to && !isRunning:
			found = lease.Taken
			return store.ErrUnchanged
		case isAlive || r.Owner == to:
			found = lease.Held
		default:
			found = lease.Taken
			*r = work{to, to}
			return nil
		}
		return store.ErrUnchanged
	})
	if err != nil || found != lease.Taken {
		return found, err
	}
	if from != to {
		k.m.requireOnce(id, from)
	}
	go k.work(id, to, 10*time.Second)
	return found, nil
}

// requireOnce holds take-overs to L4. Each owner had the record once.
func (m *leases) requireOnce(id string, from lease.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := fmt.Sprint(id, " ", from)
	if m.isTaken[key] {
		m.w.Failf("L4", "", "record %s of %s is taken over twice", id, from)
	}
	m.isTaken[key] = true
}
