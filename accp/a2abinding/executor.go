// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abinding

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/bridge"
)

// An Executor answers A2A messages that hold frames. It is safe for concurrent use and keeps no
// state; the agent holds the sessions.
type Executor struct{ agent *accp.Server }

var _ a2asrv.AgentExecutor = (*Executor)(nil)

// NewExecutor returns an executor for agent, which must not be nil, with its sessions, limits,
// middleware and authorizer.
// The request that the authorizer receives has the context of the SDK, in which
// [a2asrv.CallContextFrom] finds the user. Its header is that of the HTTP request, or the metadata of
// the gRPC request.
func NewExecutor(agent *accp.Server) (*Executor, error) {
	if agent == nil {
		return nil, errors.New("accp: new A2A executor: no server")
	}
	return &Executor{agent: agent}, nil
}

// Execute answers the frames of a message. A message without a frame is
// [a2a.ErrUnsupportedContentType].
func (e *Executor) Execute(ctx context.Context, req *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		if err := e.execute(ctx, req, yield); err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// errStopped reports that the SDK takes no more events.
var errStopped = errors.New("accp: the execution has stopped")

func (e *Executor) execute(ctx context.Context, req *a2asrv.ExecutorContext, yield func(a2a.Event, error) bool) error {
	if req.Message == nil {
		return fmt.Errorf("accp: no message: %w", a2a.ErrInvalidParams)
	}
	frames := ExtractFrames(req.Message.Parts)
	if len(frames) == 0 {
		return fmt.Errorf("accp: the message holds no frame: %w", a2a.ErrUnsupportedContentType)
	}
	out := &answer{req: req, yield: yield}
	c := accp.Codec{Lenient: true}   // to classify the frame
	out.task = req.StoredTask != nil // the task waits for this frame
	for _, f := range frames {
		m, err := c.DecodeRaw(f)
		if err != nil {
			continue // the agent reports the error
		}
		out.cancel = out.cancel || m.Intent == accp.IntentCancel
		if opensTask(m) && !out.task {
			out.task = true
			out.write(a2a.NewSubmittedTask(req, req.Message))
		}
	}
	for _, f := range frames {
		e.serve(ctx, f, out)
	}
	return out.finish()
}

// Cancel ends a task. The SDK then ends the context of its execution and of the handler.
func (e *Executor) Cancel(_ context.Context, req *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(req, a2a.TaskStateCanceled, nil), nil)
	}
}

// serve passes one frame to the agent. It records in out that an answer was truncated.
func (e *Executor) serve(ctx context.Context, frame []byte, out *answer) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+accp.FramesPath, bytes.NewReader(frame))
	if err != nil {
		out.broken = true
		return
	}
	if call, ok := a2asrv.CallContextFrom(ctx); ok {
		for k, v := range call.ServiceParams().List() {
			r.Header[http.CanonicalHeaderKey(k)] = v
		}
	}
	r.Header.Set("Content-Type", accp.MediaType)
	out.header, out.status = http.Header{}, 0
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			out.broken = true
		default:
			panic(p)
		}
	}()
	e.agent.ServeHTTP(out, r)
	switch out.status {
	case http.StatusOK, http.StatusBadRequest, http.StatusNoContent:
	default:
		out.broken = true
	}
}

// An answer converts the frames of an agent, one per line, to A2A events.
type answer struct {
	req    *a2asrv.ExecutorContext
	yield  func(a2a.Event, error) bool
	task   bool // a task is running; otherwise all frames go into one message
	cancel bool // a frame cancels the task

	header http.Header
	status int
	line   []byte // the beginning of a frame

	parts    a2a.ContentParts           // for the message
	artifact a2a.ArtifactID             // of the chunks
	isOpen   bool                       // and no final one was written
	last     *a2a.TaskStatusUpdateEvent // held back, since it may be the final one
	frames   int
	broken   bool
	err      error
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.line = append(a.line, p...)
	for {
		frame, rest, ok := bytes.Cut(a.line, []byte{'\n'})
		if !ok {
			return len(p), a.err
		}
		a.frame(frame)
		a.line = bytes.Clone(rest)
	}
}

// frame processes one frame of the agent.
func (a *answer) frame(frame []byte) {
	a.frames++
	if !a.task {
		a.parts = append(a.parts, part(frame))
		return
	}
	m, err := new(accp.Codec).Decode(frame)
	if err != nil {
		m = &accp.Message{} // a frame with a custom schema is forwarded as well
	}
	if m.Intent == accp.IntentStream {
		a.release()
		event := a2a.NewArtifactEvent(a.req, part(frame))
		if a.artifact != "" {
			event = a2a.NewArtifactUpdateEvent(a.req, a.artifact, part(frame))
		}
		a.artifact = event.Artifact.ID
		event.LastChunk = bridge.IsFinal(m)
		a.isOpen = !event.LastChunk
		a.write(event) // at once, for a streaming client
		return
	}
	a.release()
	a.broken = a.broken || m.Intent == accp.IntentEnd && a.isOpen // a truncated stream
	state := taskState(m.Intent)
	if state == a2a.TaskStateUnspecified || state == a2a.TaskStateSubmitted {
		state = a2a.TaskStateWorking
	}
	a.last = a2a.NewStatusUpdateEvent(a.req, state, a2a.NewMessageForTask(a2a.MessageRoleAgent, a.req, part(frame)))
}

// release writes the held status.
func (a *answer) release() {
	if a.last != nil {
		// The task continues after this frame, so the status is not terminal.
		if a.last.Status.State.Terminal() {
			a.last.Status.State = a2a.TaskStateWorking
		}
		a.write(a.last)
		a.last = nil
	}
}

func (a *answer) write(event a2a.Event) {
	if a.err == nil && !a.yield(event, nil) {
		a.err = errStopped
	}
}

// finish ends the answer with the state of the task.
func (a *answer) finish() error {
	if a.err != nil {
		return a.err
	}
	if !a.task {
		if a.broken {
			return fmt.Errorf("accp: the agent cannot answer: %w", a2a.ErrInternalError)
		}
		if a.parts == nil {
			a.parts = a2a.ContentParts{} // A2A has no other form for the absence of an answer
		}
		a.write(a2a.NewMessage(a2a.MessageRoleAgent, a.parts...))
		return a.err
	}
	event := a.last
	if event == nil {
		state := a2a.TaskStateCompleted // a stream that has ended
		switch {
		case a.broken:
			state = a2a.TaskStateFailed
		case a.frames == 0: // the chain was cancelled, or the time to live exceeded
			state = a2a.TaskStateCanceled
		}
		event = a2a.NewStatusUpdateEvent(a.req, state, nil)
	} else if a.broken {
		event.Status.State = a2a.TaskStateFailed
	}
	if a.cancel && event.Status.State != a2a.TaskStateFailed {
		event.Status.State = a2a.TaskStateCanceled
	}
	if event.Status.State == a2a.TaskStateWorking { // the SDK ends no task in this state
		event.Status.State = a2a.TaskStateCompleted
	}
	a.write(event)
	return a.err
}
