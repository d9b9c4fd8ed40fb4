// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// replays is the window of ARC-D48: a repeated request of the same caller, with the
// same params, gets the stored response. Repeats wait while the first request is in
// progress.
type replays struct {
	db     store.KV
	window time.Duration

	mu      sync.Mutex
	running map[string]chan struct{} // by key, closed when answered; guarded by mu
}

// pendingTTL is the minimum lifetime of the placeholder of a request in progress.
// It names its process, so repeats do not wait if that process has exited.
const pendingTTL = time.Minute

// pending is the placeholder stored while a request is in progress: its process and
// the mark of the request. A process that takes over has the same mark and so finds
// earlier effects: the mark is part of the id of a task, chat or subscription, is
// stored with messages, and in an ended task or chat.
func pending(instance, mark string) []byte { return []byte("?" + instance + "\n" + mark) }

func readPending(b []byte) (instance, mark string, ok bool) {
	text, ok := strings.CutPrefix(string(b), "?")
	if !ok {
		return "", "", false
	}
	return strings.Cut(text, "\n")
}

func newReplays(db store.KV, window time.Duration) *replays {
	return &replays{db: db, window: window, running: map[string]chan struct{}{}}
}

func replayKey(call *Call) string {
	params := strictjson.AppendCompact(nil, strictjson.Value(call.Params))
	return "arc/answer/" + hashOf(call.principalID(), call.RequestAgent, call.TargetAgent, call.Method, string(call.ID), string(params))
}

// do answers a call once.
func (r *replays) do(ctx context.Context, s *Server, x *exchange, run func() *ServerResponse) *ServerResponse {
	key := replayKey(&x.call)
	for {
		r.mu.Lock()
		other := r.running[key]
		if other == nil {
			r.running[key] = make(chan struct{})
		}
		r.mu.Unlock()
		if other == nil {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return s.failure(x, s.internal(ctx, &x.call, context.Cause(ctx)))
		}
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(r.running[key])
		delete(r.running, key)
	}()
	a, rev, err := r.claim(ctx, s, &x.call, key)
	if err != nil {
		return s.failure(x, s.internal(ctx, &x.call, err))
	}
	if a != nil {
		return a
	}
	a = run()
	free := context.WithoutCancel(ctx)
	if a.Error != nil && ctx.Err() != nil {
		// The caller left in the middle: this answer is of that, not of the
		// request, which may be sent again.
		err = r.db.Delete(free, key, rev)
	} else {
		_, err = r.db.Update(free, key, storedAnswer(a), rev, r.window)
	}
	if err != nil {
		s.opts.Logger.ErrorContext(ctx, "arc: cannot keep an answer for repeated requests", "error", err)
	}
	return a
}

// claim returns the stored response, or claims the request for the caller and marks
// the call.
func (r *replays) claim(ctx context.Context, s *Server, call *Call, key string) (*ServerResponse, store.Revision, error) {
	s.tasks.announce() // or others take this process for dead
	mark, ttl := randid.New(""), max(r.window, pendingTTL)
	for {
		rev, err := r.db.Create(ctx, key, pending(s.opts.Persistence.InstanceID, mark), ttl)
		if !errors.Is(err, store.ErrExists) {
			call.mark = mark
			return nil, rev, err
		}
		entry, err := r.db.Get(ctx, key)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		other, mark, ok := readPending(entry.Value)
		if !ok && len(entry.Value) > 0 {
			a, err := readAnswer(entry.Value)
			return a, 0, err
		}
		if ok {
			expired, err := s.tasks.leaseExpired(ctx, other)
			if err != nil {
				return nil, 0, err
			}
			if expired {
				rev, err := r.db.Update(ctx, key, pending(s.opts.Persistence.InstanceID, mark), entry.Revision, ttl)
				if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
					continue
				}
				call.mark, call.isDuplicate = mark, true
				return nil, rev, err
			}
		}
		// Another process is at it.
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		case <-s.ctx.Done():
			return nil, 0, errServerClosed
		}
	}
}

// storedAnswer is the code of the error, a line feed, and the envelope.
func storedAnswer(a *ServerResponse) []byte {
	var code int64
	if a.Error != nil {
		code = int64(a.Error.Code)
	}
	return append(append(appendInt(nil, code), '\n'), a.Data...)
}

func readAnswer(b []byte) (*ServerResponse, error) {
	head, data, _ := bytes.Cut(b, []byte("\n"))
	code, err := strconv.ParseInt(string(head), 10, 64)
	if err != nil {
		return nil, err
	}
	a := &ServerResponse{Data: data}
	if code != 0 {
		res, err := DecodeResponse(data, "")
		if err != nil {
			return nil, err
		}
		a.Error = res.Error
	}
	return a, nil
}
