// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

// The requests of the plugin of notes. Its state has the notes of a session.
const (
	noteAdd    = "notes/add/req"
	noteAwait  = "notes/await/req"
	noteShow   = "notes/show/req"
	noteForget = "notes/forget/req"
)

type noteRequest struct {
	Note  string `json:"note,omitempty"`
	About string `json:"subagent_id,omitempty"`
}

type noteResponse struct {
	Notes []string `json:"notes"`
}

// notes are the state of a session.
type notes struct {
	mu   sync.Mutex
	list []string // guarded by mu
}

func (n *notes) add(note string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if note != "" {
		n.list = append(n.list, note)
	}
	return slices.Clone(n.list)
}

func noteTypes() []a2e.Type {
	var list []a2e.Type
	for _, name := range []string{noteAdd, noteAwait, noteShow, noteForget} {
		request := a2e.TypeOf[noteRequest](name)
		list = append(list, request, a2e.TypeOf[noteResponse](request.Response))
	}
	return list
}

// notePlugin returns the plugin. Its state moves with the session, and to the next one of the agent if the host keeps
// snapshots.
func (w *world) notePlugin() *a2e.Plugin {
	route := func(name string, f func(ctx context.Context, call *a2e.Call, r *noteRequest) error) a2e.Route {
		return a2e.NewRoute(name, func(ctx context.Context, call *a2e.Call, r *noteRequest) (*noteResponse, error) {
			if err := f(ctx, call, r); err != nil {
				return nil, err
			}
			state, ok := call.PluginState().(*notes)
			if !ok {
				return nil, errDown
			}
			return &noteResponse{Notes: state.add(r.Note)}, nil
		})
	}
	pause := func(ctx context.Context, _ *a2e.Call, _ *noteRequest) error {
		return w.Sleep(ctx, 700*time.Millisecond)
	}
	await, show := route(noteAwait, pause), route(noteShow, pause)
	await.Waiting, show.Control = true, true
	return &a2e.Plugin{Name: "notes", Capability: "notes",
		Open: func(*a2e.Session) (any, error) { return &notes{}, nil },
		Snapshot: &a2e.PluginSnapshot{
			Save: func(_ context.Context, state any) (json.RawMessage, error) {
				list := state.(*notes).add("")
				if w.broken.forgets && len(list) > 0 {
					list = list[1:]
				}
				return json.Marshal(noteResponse{Notes: list})
			},
			Restore: func(_ context.Context, state any, object json.RawMessage) error {
				var r noteResponse
				err := json.Unmarshal(object, &r)
				state.(*notes).list = r.Notes
				return err
			},
		},
		Routes: []a2e.Route{
			route(noteAdd, func(context.Context, *a2e.Call, *noteRequest) error { return nil }), await, show,
			route(noteForget, func(ctx context.Context, call *a2e.Call, _ *noteRequest) error {
				return call.Session.DeleteSnapshots(ctx)
			}),
		}}
}

// keepNotes lets a host keep the notes of an agent from one session to the next, in half of the runs.
func (w *world) keepNotes(o *a2e.HostOptions, db store.Store) {
	if w.isShared {
		o.Persistence.Snapshots = store.Sub(db, "notes/")
		o.Persistence.SnapshotKey = func(s *a2e.Session) string { return s.AgentID() }
	}
}

// note makes requests to the plugin of notes, some at once.
func (w *world) note(c *sim.Client, a *agent) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var calls sync.WaitGroup
	for i := range 1 + c.IntN(4) {
		name, r := noteAdd, &noteRequest{Note: w.next(a.view.Node.Name() + "-note")}
		switch c.IntN(6) {
		case 0:
			name, r = noteAwait, &noteRequest{About: "x"}
		case 1, 2:
			name, r = noteShow, &noteRequest{About: []string{"", "x"}[c.IntN(2)]}
		case 3:
			if c.IntN(3) == 0 {
				name, r = noteForget, &noteRequest{}
			}
		}
		session := a.client.SessionID()
		calls.Go(func() {
			_ = w.Sleep(ctx, time.Duration(i+1)*time.Millisecond)
			earlier := w.notesOf(session)
			_, _ = w.Call(c.ID, name+" "+r.Note, func() (string, error) {
				got, err := a2e.CallAs[noteResponse](ctx, a.client, name, r, nil)
				if err == nil {
					w.noted(a.view.Node.Name(), session, r.Note, earlier, got.Notes)
				}
				return "", err
			})
		})
	}
	calls.Wait()
}

// finish ends the session of an agent.
func (w *world) finish(c *sim.Client, a *agent) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = w.Call(c.ID, "finish", func() (string, error) { return "", a.client.Shutdown(ctx) })
}

// replace shuts a host down, and starts it again.
func (w *world) replace(c *sim.Client) {
	n := w.hosts[c.IntN(hosts)]
	p, isUp := n.Instance().(*process)
	if !isUp {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = w.Call(c.ID, "replace "+n.Name(), func() (string, error) { return "", p.host.Shutdown(ctx) })
	if n.Instance() == p {
		n.Crash()
		n.Restart()
	}
}
