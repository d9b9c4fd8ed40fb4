// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/sim"
)

// stray lets a party of a negotiation send a move that follows no other.
func (w *world) stray(ctx context.Context, c *sim.Client) {
	w.model.mu.Lock()
	threads := w.threads
	w.model.mu.Unlock()
	if len(threads) == 0 {
		return
	}
	t := threads[c.IntN(len(threads))]
	from, to := t.from, t.to
	if c.IntN(2) == 0 {
		from, to = to, from
	}
	p, isUp := w.agents[from].Instance().(*process)
	if !isUp {
		return
	}
	d := &air.Draft{ThreadID: t.id, InReplyTo: air.NewID()}
	price := air.MinorUnits(7, "USD")
	switch c.IntN(4) {
	case 0:
		d.Body = &air.Counter{Price: price, Expires: time.Now().Add(24 * time.Hour)}
	case 1:
		d.Body = &air.Accept{Price: price}
	case 2:
		d.Body = &air.Decline{}
	default:
		d.InReplyTo, d.Body = "", &air.Withdraw{WithdrawnID: air.NewID()}
	}
	d.ID, d.To = air.NewID(), w.identity(to).DID()
	w.model.mu.Lock()
	w.strays[d.ID] = true
	w.model.mu.Unlock()
	_, _ = w.Call(c.ID, "stray "+d.ID, func() (string, error) { // it may be queued behind another move, and be refused later
		_, err := p.Client.Send(ctx, d, nil)
		return "", err
	})
}

// refuse requires that a client refuses moves which break the rules of a thread, and that they change nothing.
func (w *world) refuse(ctx context.Context, p *process, peer, thread string, before air.Thread) {
	if len(before.Moves) == 0 {
		return
	}
	send := func(what, inReplyTo string, body air.Body) {
		d := &air.Draft{ID: air.NewID(), To: peer, ThreadID: thread, InReplyTo: inReplyTo, Body: body}
		if _, err := p.Client.Send(ctx, d, nil); err == nil {
			w.Failf("M5", p.Node.Name(), "thread %s in %s: %s was accepted", thread, before.State, what)
		}
	}
	last := before.Moves[len(before.Moves)-1]
	for i, m := range before.Moves {
		if !m.IsOwn || i < len(before.Moves)-1 {
			send("the withdrawal of a superseded or foreign move", "", &air.Withdraw{WithdrawnID: m.ID})
		}
	}
	send("another price", last.ID, &air.Accept{Price: air.MinorUnits(999_999, "EUR")})
	after, err := p.NewNegotiation(peer, thread, false).Thread(ctx)
	if err != nil || after.State != before.State || after.LastMessageID != before.LastMessageID {
		w.Failf("M5", p.Node.Name(), "thread %s after refused moves: %s after %s, %v", thread, after.State, after.LastMessageID, err)
	}
}

// retry lets an agent put its refused notes back into the queue.
func (w *world) retry(ctx context.Context, p *process) {
	messages, err := p.Outbox(ctx)
	if err != nil {
		return
	}
	for _, m := range messages {
		if !m.Failed.IsZero() && strings.HasPrefix(m.ThreadID, noteThreads) {
			_ = p.Retry(ctx, m.ID)
		}
	}
}

// forgetful refuses the cursors of pulls for 40 of 80 seconds, as a relay that has lost them, until the end of the faults.
func (w *world) forgetful(rt http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		isPull := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pull")
		if !isPull || w.IsCalm() || time.Now().Unix()/40%2 != 0 {
			return rt.RoundTrip(r)
		}
		data, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		var request struct {
			Cursor string `json:"cursor"`
		}
		if json.Unmarshal(data, &request) == nil && request.Cursor != "" {
			body := `{"error":{"code":"bad_request","message":"unknown cursor"}}`
			return &http.Response{StatusCode: http.StatusBadRequest, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(data))
		return rt.RoundTrip(r)
	})
}
