// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abinding

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/accp/profile"
)

// NewClient returns a client that sends frames to an A2A agent as agent self. The caller destroys
// the A2A client. HTTPClient and Header of the options are not used. Errors are those of the
// frames, and:
//
//   - an answer without a frame is [accp.ErrInvalidType],
//   - a task that ended without a frame is [accp.ErrInternal], or [accp.ErrPolicyDenied]
//     if it was rejected or requires authentication,
//   - an unsupported method is [accp.ErrInvalidIntent], a malformed request [accp.ErrParse],
//   - a lost connection is [accp.ErrTimeout].
//
// Leaving a call before its end, and the end of its context, cancel the task.
func NewClient(client *a2aclient.Client, self string, opts *accp.ClientOptions) (*accp.Client, error) {
	if client == nil {
		return nil, errors.New("accp: new client: no A2A client")
	}
	var o accp.ClientOptions
	if opts != nil {
		o = *opts
	}
	t := &transport{a2a: client, open: map[string]a2a.TaskID{}, split: map[string]string{}, perSender: o.Session.SeqPerSender,
		codec: accp.Codec{Lenient: o.Session.Lenient, FrameLimits: o.Session.FrameLimits}}
	o.HTTPClient = &http.Client{Transport: t}
	o.Header = nil
	hook.SkipGreeting(&o) // other agents than those of this package know requests only
	return accp.NewClient("http://localhost"+accp.FramesPath, self, &o)
}

// A transport answers the frames that an [accp.Client] posts over A2A.
type transport struct {
	a2a       *a2aclient.Client
	codec     accp.Codec
	perSender bool

	mu      sync.Mutex
	context string                // A2A context id, assigned by the agent
	open    map[string]a2a.TaskID // waiting tasks by the chain of their request
	split   map[string]string     // the chain of the last frame by session id
	last    int64                 // number of the last frame written for the agent, if it counts its own
}

// RoundTrip sends one frame. The answers arrive while the body is read.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	frame, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		return nil, err
	}
	m, err := t.codec.DecodeRaw(frame)
	if err != nil {
		return nil, err // unreachable: the session wrote the frame
	}
	message := a2a.NewMessage(a2a.MessageRoleUser, part(frame))
	t.mu.Lock()
	chain := m.Chain()
	if i, _ := partOf(m); i > 1 && m.Meta.CID == "" {
		chain = t.split[m.Meta.SID] // the chain of the first part, sent before
	}
	t.split[m.Meta.SID] = chain
	message.ContextID, message.TaskID = t.context, t.open[chain]
	t.mu.Unlock()
	b := &body{t: t, ctx: r.Context(), m: m, chain: chain, seen: map[uint64]struct{}{}}
	b.next, b.stop = iter.Pull2(t.a2a.SendStreamingMessage(r.Context(), &a2a.SendMessageRequest{Message: message}))
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {accp.MediaType}}, Body: b,
	}, nil
}

// maxOpen is the maximum number of recorded waiting tasks. A frame in the chain of a dropped task
// starts a new task.
const maxOpen = 1024

// keep records whether the task of a chain waits for a frame.
func (t *transport) keep(chain string, task a2a.TaskID, state a2a.TaskState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, chain)
	if task == "" || state.Terminal() {
		return
	}
	for old := range t.open {
		if len(t.open) < maxOpen {
			break
		}
		delete(t.open, old)
	}
	t.open[chain] = task
}

var seed = maphash.MakeSeed() // never changes

// A body reads the frames that answer m, one per line.
type body struct {
	t     *transport
	ctx   context.Context
	m     *accp.Message
	chain string
	next  func() (a2a.Event, error, bool)
	stop  func()

	buf      []byte
	seen     map[uint64]struct{} // hashes of frames, since a task repeats the frames of its events
	events   int
	other    bool // a part without a frame was received
	task     a2a.TaskID
	state    a2a.TaskState // of the task
	finished bool
	err      error
}

func (b *body) Read(p []byte) (int, error) {
	for len(b.buf) == 0 && b.err == nil {
		b.fill()
	}
	if len(b.buf) > 0 {
		n := copy(p, b.buf)
		b.buf = b.buf[n:]
		return n, nil
	}
	return 0, b.err
}

// fill processes the next event.
func (b *body) fill() {
	event, err, ok := b.next()
	switch {
	case !ok && b.cut():
		b.err = io.ErrUnexpectedEOF
	case !ok:
		b.end()
	case err != nil:
		b.err = err
		if code := codeOf(err); code != "" && b.ctx.Err() == nil {
			b.finished, b.err = true, io.EOF
			b.fail(code, "")
		}
	default:
		b.events++
		if b.event(event); b.finished {
			b.end()
		}
	}
}

// end ends the body after the last event.
func (b *body) end() {
	b.finished, b.err = true, io.EOF
	b.close()
}

// cut reports whether the events ended before the task. An agent that does not stream answers with
// one task, which may still be working.
func (b *body) cut() bool {
	return b.task != "" && !b.finished && !(b.events == 1 && b.state == a2a.TaskStateWorking)
}

func (b *body) event(event a2a.Event) {
	switch e := event.(type) {
	case *a2a.Message:
		b.conversation(e.ContextID)
		b.parts(e.Parts)
		b.finished = true // a message is the whole answer
	case *a2a.Task:
		b.conversation(e.ContextID)
		b.task, b.state = e.ID, e.Status.State
		for _, artifact := range e.Artifacts {
			b.parts(artifact.Parts)
		}
		b.status(e.Status)
	case *a2a.TaskStatusUpdateEvent:
		b.conversation(e.ContextID)
		b.task, b.state = e.TaskID, e.Status.State
		b.status(e.Status)
	case *a2a.TaskArtifactUpdateEvent:
		b.task = e.TaskID
		if e.Artifact != nil {
			b.parts(e.Artifact.Parts)
		}
	}
}

func (b *body) conversation(id string) {
	if id != "" {
		b.t.mu.Lock()
		b.t.context = id
		b.t.mu.Unlock()
	}
}

func (b *body) status(s a2a.TaskStatus) {
	if s.Message != nil {
		b.parts(s.Message.Parts)
	}
	b.finished = b.finished || s.State.Terminal() || s.State == a2a.TaskStateInputRequired || s.State == a2a.TaskStateAuthRequired
}

func (b *body) parts(parts a2a.ContentParts) {
	frames := ExtractFrames(parts)
	b.other = b.other || len(frames) < len(parts)
	for _, f := range frames {
		key := maphash.Bytes(seed, f)
		if _, ok := b.seen[key]; !ok {
			b.seen[key] = struct{}{}
			b.buf = append(append(b.buf, f...), '\n')
		}
	}
}

// close reports the end of the events if they held no frame.
func (b *body) close() {
	switch {
	case len(b.seen) > 0 || b.ctx.Err() != nil:
	case b.other:
		b.fail(accp.ErrInvalidType, "the answer holds no frame")
	case b.task == "" && b.events > 0: // an empty message: no answer
	case b.state == a2a.TaskStateRejected, b.state == a2a.TaskStateAuthRequired:
		b.fail(accp.ErrPolicyDenied, "the task is "+stateName(b.state))
	case b.state == a2a.TaskStateCompleted, b.state == a2a.TaskStateInputRequired:
		b.fail(accp.ErrInvalidType, "the answer holds no frame")
	default:
		b.fail(accp.ErrInternal, "the task is "+stateName(b.state))
	}
}

// Close ends the call, and cancels its task if that is running.
func (b *body) Close() error {
	b.stop()
	if b.finished || b.task == "" {
		b.t.keep(b.chain, b.task, b.state)
		return nil
	}
	b.finished = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), 5*time.Second)
	defer cancel()
	_, err := b.t.a2a.CancelTask(ctx, &a2a.CancelTaskRequest{ID: b.task})
	if err != nil && !errors.Is(err, a2a.ErrTaskNotCancelable) && !errors.Is(err, a2a.ErrTaskNotFound) {
		return fmt.Errorf("accp: cancelling task %s: %w", b.task, err)
	}
	return nil
}

// codeOf returns the code for an A2A error, or "" for any other error.
func codeOf(err error) accp.Code {
	for _, c := range []struct {
		err  error
		code accp.Code
	}{
		{a2a.ErrUnsupportedContentType, accp.ErrInvalidType},
		{a2a.ErrInvalidAgentResponse, accp.ErrInvalidType},
		{a2a.ErrParseError, accp.ErrParse},
		{a2a.ErrInvalidRequest, accp.ErrParse},
		{a2a.ErrInvalidParams, accp.ErrParse},
		{a2a.ErrMethodNotFound, accp.ErrInvalidIntent},
		{a2a.ErrUnsupportedOperation, accp.ErrInvalidIntent},
		{a2a.ErrInternalError, accp.ErrInternal},
		{a2a.ErrServerError, accp.ErrInternal},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return ""
}

// fail writes an error frame in the name of the agent. A fail frame is never answered (ACCP-D52).
func (b *body) fail(code accp.Code, detail string) {
	if b.m.Intent == accp.IntentFail {
		return
	}
	info := code.Info()
	if detail == "" {
		detail = strings.ToLower(info.Name)
	}
	// The number of the request, not the next one: the agent does not see this frame and would
	// detect a gap.
	seq := b.m.Meta.Seq.N
	if b.t.perSender {
		b.t.mu.Lock()
		b.t.last++
		seq = b.t.last
		b.t.mu.Unlock()
	}
	frame, err := b.t.codec.Append(nil, &accp.Message{
		From: "a2a", Intent: accp.IntentFail, Op: profile.OpError, Meta: envelope(b.m, seq),
		Params: accp.Params{
			{Key: "code", Value: accp.String(string(code))},
			{Key: "message", Value: accp.String(detail)},
			{Key: "retryable", Value: accp.Bool(info.Retryable)},
			{Key: "schema", Value: accp.String(profile.SchemaError)},
		}})
	if err != nil {
		b.err = err
		return
	}
	b.buf = append(append(b.buf, frame...), '\n')
}
