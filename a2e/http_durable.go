// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/store"
)

// offerDelay is the longest time after which the store has the number of a sent message (A2E-D67).
const offerDelay = time.Second

// storeFailed returns the answer to a request that the store or the lease prevents.
func storeFailed(w http.ResponseWriter, err error) error {
	if _, isOver := errors.AsType[*budget.Error](err); isOver {
		return unavailable(w, err, "Too many stored messages")
	}
	if errors.Is(err, store.ErrInvalid) {
		return &httpx.Error{Status: http.StatusRequestEntityTooLarge, Message: "Message too large", Cause: err}
	}
	w.Header().Set("Retry-After", "1")
	return &httpx.Error{Status: http.StatusServiceUnavailable, Message: "store unavailable", Cause: err}
}

// durableKey returns the key of a session that is not one before its handshake, or "".
func (x *HTTPHandler) durableKey(r *http.Request) string {
	secret := r.Header.Get(sessionHeader)
	if x.host.durable == nil || secret == "" {
		return ""
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sessions[secret] != nil {
		return ""
	}
	return sessionKey(secret)
}

// record returns the record of a session, which may be that of an ended session only for a reader.
// Else it answers the request and returns nil.
func (x *HTTPHandler) record(w http.ResponseWriter, r *http.Request, key string, isReader bool) *sessionRecord {
	if k := x.host.durable.local(key); k != nil && !isReader {
		if k.isOver() {
			writeDetail(w, http.StatusNotFound, "Session not found")
			return nil
		}
		return &sessionRecord{scope: k.session.budgetScope()}
	}
	record, err := x.host.durable.load(r.Context(), key)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && record.IsEnded && !isReader:
		writeDetail(w, http.StatusNotFound, "Session not found")
	case err != nil:
		x.refuse(w, r, storeFailed(w, err))
	default:
		return &record
	}
	return nil
}

func (x *HTTPHandler) sendDurable(w http.ResponseWriter, r *http.Request, key string) {
	record := x.record(w, r, key, false)
	if record == nil {
		return
	}
	scope := record.scope
	if scope == nil {
		scope = x.host.budget.Scope(principalName(record.Principal, record.Peer, ""), "")
	}
	data, hold, err := x.body(w, r, scope, x.host.codec.maxBytes())
	defer hold.Release()
	if err == nil && len(data) > 0 {
		if err = x.host.durable.deliver(r.Context(), key, scope, inboxBody, data); err != nil {
			err = storeFailed(w, err)
		}
	}
	if err != nil {
		x.refuse(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, `{"ok":true}`)
}

func (x *HTTPHandler) dropDurable(w http.ResponseWriter, r *http.Request, key string) {
	if x.record(w, r, key, false) == nil {
		return
	}
	if err := x.host.durable.deliver(r.Context(), key, nil, inboxEnd, nil); err != nil {
		x.refuse(w, r, storeFailed(w, err))
		return
	}
	x.host.durable.closeReader(key)
	writeJSON(w, http.StatusOK, `{"ok":true}`)
}

func (x *HTTPHandler) followDurable(w http.ResponseWriter, r *http.Request, key string) {
	record := x.record(w, r, key, true)
	if record == nil {
		return
	}
	d := x.host.durable
	after, err := d.offered(r.Context(), key)
	if last, bad := strconv.ParseUint(r.Header.Get("Last-Event-ID"), 10, 63); bad == nil {
		after = last
	}
	switch {
	case err != nil:
		x.refuse(w, r, storeFailed(w, err))
		return
	case record.IsEnded && after >= record.Last:
		writeDetail(w, http.StatusNotFound, "Session not found")
		return
	}
	out := x.newStream(w)
	defer out.Close()
	if out.Start() == nil {
		d.follow(r.Context(), out, key, &after)
	}
}

// A streamReader is the only reader of a session in this process.
type streamReader struct{ cancel context.CancelFunc }

func (d *durable) hasReader(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.readers[key] != nil
}

func (d *durable) closeReader(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.readers[key]; r != nil {
		r.cancel()
	}
}

// offered returns the number of the last message that a reader got.
func (d *durable) offered(ctx context.Context, key string) (uint64, error) {
	ctx, cancel := lazy.WithTimeout(ctx, storeOutage)
	defer cancel()
	e, err := d.db.Get(ctx, offerKey(key))
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	if err == nil {
		e, err = store.Content(e)
	}
	if err != nil {
		return 0, err
	}
	return parseOffer(e.Value)
}

func parseOffer(value []byte) (uint64, error) {
	data, err := state.Data(value)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(data), 10, 64)
}

// offer stores the number of the last message that a reader got.
func (d *durable) offer(ctx context.Context, key string, n uint64) {
	ctx, cancel := lazy.WithTimeout(context.WithoutCancel(ctx), storeOutage)
	defer cancel()
	_, err := store.Modify(ctx, d.db, offerKey(key), storeKeep, func(old store.Entry, found bool) ([]byte, error) {
		if found {
			if last, err := parseOffer(old.Value); err == nil && last >= n {
				return nil, store.ErrUnchanged
			}
		}
		return state.Value(strconv.FormatUint(n, 10)), nil
	})
	if err != nil {
		d.host.log.WarnContext(ctx, "a2e: position of a stream not stored", "err", err)
	}
}

// follow sends the messages of a session after a number, until the stream, the session or ctx ends. It
// replaces the earlier reader in this process.
func (d *durable) follow(ctx context.Context, out *sse.Writer, key string, after *uint64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own := &streamReader{cancel}
	d.mu.Lock()
	if old := d.readers[key]; old != nil {
		old.cancel()
	}
	d.readers[key] = own
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.readers[key] == own {
			delete(d.readers, key)
		}
	}()
	stop := context.AfterFunc(d.ctx, cancel)
	defer stop()
	go func() { // ends with ctx
		life := time.NewTicker(max(d.host.patience()/3, time.Second))
		defer life.Stop()
		for {
			select {
			case <-out.Done():
				cancel()
			case <-ctx.Done():
				return
			case <-life.C:
				d.notify(ctx, key)
			}
		}
	}()
	r, err := d.reader(ctx, key, *after)
	if err == nil {
		defer r.Close()
		err = d.copy(ctx, out, r, key, after)
	}
	if err != nil && ctx.Err() == nil {
		d.host.log.DebugContext(ctx, "a2e: stream ended", "err", err)
	}
}

// notify restarts the idle timer at the owner of a session.
func (d *durable) notify(ctx context.Context, key string) {
	if k := d.local(key); k != nil {
		k.touch()
		return
	}
	l, _, err := d.parts()
	if err != nil {
		return
	}
	if r, err := d.load(ctx, key); err == nil {
		_ = l.Tell(ctx, r.Owner, sessionKind, []byte(key))
	}
}

// reader returns a reader after a number, or after the trimmed messages.
func (d *durable) reader(ctx context.Context, key string, after uint64) (*streamlog.Reader, error) {
	_, streams, err := d.parts()
	if err != nil {
		return nil, err
	}
	r, err := streams.Read(ctx, key, "", after)
	var gap *streamlog.GapError
	switch {
	case errors.As(err, &gap):
		return streams.Read(ctx, key, "", gap.First-1)
	case errors.Is(err, streamlog.ErrAhead):
		n, offerErr := d.offered(ctx, key)
		if offerErr != nil {
			return nil, offerErr
		}
		return streams.Read(ctx, key, "", n)
	}
	return r, err
}

// copy sends the messages of r. It stores their numbers a second later, and at the end.
func (d *durable) copy(ctx context.Context, out *sse.Writer, r *streamlog.Reader, key string, after *uint64) (err error) {
	stored, storedAt := *after, time.Now()
	defer func() {
		if stored != *after {
			d.offer(ctx, key, *after)
		}
	}()
	for buf := make([]streamlog.Item, 0, 64); ; {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if stored != *after {
			wait, cancel = context.WithDeadline(ctx, storedAt.Add(offerDelay))
		}
		items, err := r.Next(wait, buf)
		isDue := wait.Err() != nil || stored != *after && time.Since(storedAt) >= offerDelay
		cancel()
		if err != nil && (!isDue || ctx.Err() != nil) {
			return cmp.Or(context.Cause(ctx), err)
		}
		for _, item := range items {
			if err := out.Send(ctx, "", strconv.FormatUint(item.N, 10), item.Data); err != nil {
				return err
			}
			if stored == *after {
				storedAt = time.Now()
			}
			*after = item.N
		}
		if isDue && stored != *after {
			d.offer(ctx, key, *after)
			stored, storedAt = *after, time.Now()
		}
	}
}
