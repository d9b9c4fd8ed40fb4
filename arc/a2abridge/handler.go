// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/lease"
)

// HandlerOptions adjust a [Handler], which copies them.
type HandlerOptions struct {
	// Client are options of the client of the SDK, such as its HTTP client and interceptors with credentials. An HTTP
	// client here has to bound the responses of the agent, as the default one does: to 64 MiB and 3 min.
	Client []a2aclient.FactoryOption

	// Tenant is the tenant of each request.
	Tenant string

	// MaxFailures is the number of consecutive failures to read the task after which it fails. Zero means 10; a
	// negative value removes the bound.
	MaxFailures int
}

// A Handler gives the tasks of an ARC agent to an A2A agent. It implements arc.TaskHandler: messages, artifacts,
// questions and the end of the remote task are those of the ARC task, and its cancelation or failure cancels the
// remote one, also if the first answer of the agent, which names that, arrives up to 10 s later. Artifacts arrive when
// the remote task waits or ends; one that changes later arrives again, with a number behind its id. The end of a remote
// task that waits is noticed within 5 minutes. A task that another process continues finds its remote task, and no
// message is sent twice to an agent that handles a messageId once. A task that waits for input after a restart has no
// handler: its end leaves the remote task.
type Handler struct {
	client *a2aclient.Client
	opts   HandlerOptions
}

var _ arc.TaskHandler = (*Handler)(nil)

// NewHandler returns a Handler for the agent of a card. The handler needs a Close.
func NewHandler(card *a2a.AgentCard, opts *HandlerOptions) (*Handler, error) {
	if card == nil {
		return nil, errors.New("a2abridge: handler: no card")
	}
	h := &Handler{}
	if opts != nil {
		h.opts = *opts
	}
	if h.opts.MaxFailures == 0 {
		h.opts.MaxFailures = 10
	}
	options := h.opts.Client
	if !slices.Contains(options, a2aclient.WithDefaultsDisabled()) {
		web := &http.Client{Timeout: responseTimeout, Transport: boundedTransport{}}
		options = append([]a2aclient.FactoryOption{a2aclient.WithJSONRPCTransport(web), a2aclient.WithRESTTransport(web)}, options...)
	}
	client, err := a2aclient.NewFromCard(context.Background(), card, options...)
	if err != nil {
		return nil, fmt.Errorf("a2abridge: handler: %w", err)
	}
	h.client = client
	return h, nil
}

// The bounds of a response. A stream that exceeds them continues with another one.
const (
	maxResponse     = 64 << 20
	responseTimeout = 3 * time.Minute
)

// A boundedTransport bounds the responses of the default transport, which the SDK reads as a whole.
type boundedTransport struct{}

// RoundTrip implements [http.RoundTripper].
func (boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		res.Body = http.MaxBytesReader(nil, res.Body, maxResponse)
	}
	return res, err
}

// Close releases the client of the SDK.
func (h *Handler) Close() error { return h.client.Destroy() }

// A relay is one task of a [Handler].
type relay struct {
	*Handler
	run       *arc.TaskRun
	id        a2a.TaskID
	context   string
	question  string                       // the newest answered one
	messages  map[string]bool              // ids of the added ones
	artifacts map[string][sha256.Size]byte // the contents of the added ones by id; nil before it is known
	hasEnded  bool
}

// The delays between two attempts to follow a task, those between two reads of one that waits for input, and the time
// for the cancelation of a task.
const (
	minFollowDelay = 100 * time.Millisecond
	maxFollowDelay = 5 * time.Second
	minWatchDelay  = 5 * time.Second
	maxWatchDelay  = 5 * time.Minute
	cancelTimeout  = 10 * time.Second
)

// ServeTask implements arc.TaskHandler.
func (h *Handler) ServeTask(ctx context.Context, run *arc.TaskRun) (err error) {
	r := &relay{Handler: h, run: run, messages: map[string]bool{}}
	r.context = arc.TraceIDFromContext(ctx)
	defer func() { r.cancel(ctx, err) }()
	first, err := r.send(ctx, run.Message())
	if err != nil {
		return err
	}
	if first.IsMessage { // an answer without a task
		return nil
	}
	r.id, r.context = first.ID, first.ContextID
	for {
		task, err := r.follow(ctx)
		if err != nil {
			return err
		}
		r.hasEnded = task.Status.State.Terminal()
		required := textOf(task.Status.Message)
		switch task.Status.State {
		case a2a.TaskStateCompleted:
			return nil
		case a2a.TaskStateRejected:
			return Reject(required)
		case a2a.TaskStateInputRequired:
		case a2a.TaskStateAuthRequired:
			required = AuthRequired
		default:
			return arc.Errorf(arc.ErrTaskExecutionFailed, "%s", required)
		}
		answer, err := r.wait(ctx, required)
		if err != nil {
			return err
		}
		if answer == nil { // the remote task has ended
			continue
		}
		r.question = questionOf(&task.Status)
		next, err := r.send(ctx, answer)
		if err != nil {
			return err
		}
		r.question = next.Question
	}
}

// sent is the kept result of a message.
type sent struct {
	ID        a2a.TaskID
	ContextID string
	IsMessage bool   // an answer without a task, which was added
	Question  string // that the message has answered
}

// questionOf returns the key of a question among those of its task.
func questionOf(s *a2a.TaskStatus) string {
	var key string
	if s.Message != nil {
		key = s.Message.ID
	}
	if s.Timestamp != nil {
		key += s.Timestamp.UTC().Format(" " + time.RFC3339Nano)
	}
	return key
}

// hasPaused reports whether the remote task has ended or waits, and not for an answer that was sent: the agent may not
// have seen that yet.
func (r *relay) hasPaused(s *a2a.TaskStatus) bool {
	return s.State.Terminal() || isPaused(s.State) && questionOf(s) != r.question
}

// send sends a message once. The answer to the first one, which names the remote task, is awaited for cancelTimeout
// after a cancelation.
func (r *relay) send(ctx context.Context, m *arc.Message) (sent, error) {
	return arc.Step(ctx, r.run, "a2a.send", func(ctx context.Context, stepID string) (sent, error) {
		if r.id == "" {
			var stop func()
			ctx, stop = untilCanceled(ctx)
			defer stop()
		}
		out := fromMessage(m, a2a.TaskInfo{TaskID: r.id, ContextID: r.context}, 0)
		out.ID, out.Role = stepID, a2a.MessageRoleUser
		res, err := r.client.SendMessage(ctx, &a2a.SendMessageRequest{Tenant: r.opts.Tenant, Message: out,
			Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
		if err != nil {
			return sent{}, fmt.Errorf("a2abridge: send message: %w", err)
		}
		info := res.TaskInfo()
		answer, isMessage := res.(*a2a.Message)
		if isMessage {
			return sent{info.TaskID, info.ContextID, true, r.question}, r.addMessages(ctx, answer) // it may be too large for the result
		}
		r.id = info.TaskID
		return sent{info.TaskID, info.ContextID, false, r.question}, nil
	})
}

// follow returns the task when it has ended or waits. After a cut it reads the task and subscribes again.
func (r *relay) follow(ctx context.Context) (*a2a.Task, error) {
	failures := 0
	for delay := minFollowDelay; ; delay = min(2*delay, maxFollowDelay) {
		if err := r.stream(ctx); err != nil {
			return nil, err
		}
		task, err := r.client.GetTask(ctx, &a2a.GetTaskRequest{Tenant: r.opts.Tenant, ID: r.id})
		switch {
		case err == nil && r.hasPaused(&task.Status):
			return task, r.addTask(ctx, task)
		case err == nil:
			failures = 0
			if err := r.addMessages(ctx, messagesOf(task)...); err != nil {
				return nil, err
			}
		default:
			failures++
			if failures == r.opts.MaxFailures || errors.Is(err, a2a.ErrTaskNotFound) {
				return nil, fmt.Errorf("a2abridge: get task: %w", err)
			}
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// wait returns the answer to a question, or nil if the remote task has ended without it.
func (r *relay) wait(ctx context.Context, required string) (*arc.Message, error) {
	wait, stop := context.WithCancelCause(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		if r.watchEnd(wait) {
			stop(errRemoteEnd)
		}
	})
	answer, err := r.run.WaitInput(wait, required)
	stop(nil)
	watcher.Wait()
	if errors.Is(context.Cause(wait), errRemoteEnd) {
		return nil, nil
	}
	return answer, err
}

var errRemoteEnd = errors.New("a2abridge: the remote task has ended")

// watchEnd reports true when the remote task has ended, and false when ctx has.
func (r *relay) watchEnd(ctx context.Context) bool {
	for delay := minWatchDelay; ; delay = min(2*delay, maxWatchDelay) {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return false
		}
		task, err := r.client.GetTask(ctx, &a2a.GetTaskRequest{Tenant: r.opts.Tenant, ID: r.id, HistoryLength: new(int)})
		if errors.Is(err, a2a.ErrTaskNotFound) || err == nil && task.Status.State.Terminal() {
			return true
		}
	}
}

// stream adds messages until the task waits or ends, or the stream is cut.
func (r *relay) stream(ctx context.Context) error {
	for e, err := range r.client.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{Tenant: r.opts.Tenant, ID: r.id}) {
		if err != nil {
			return context.Cause(ctx) // a cut, unless the task has ended here
		}
		var status *a2a.TaskStatus
		var messages []*a2a.Message
		switch e := e.(type) {
		case *a2a.Task:
			status, messages = &e.Status, messagesOf(e)
		case *a2a.TaskStatusUpdateEvent:
			if status = &e.Status; status.Message != nil {
				messages = append(messages, status.Message)
			}
		default:
			continue
		}
		if r.hasPaused(status) {
			return nil
		}
		if err := r.addMessages(ctx, messages...); err != nil {
			return err
		}
	}
	return nil
}

// addTask adds what is new of a task that waits or has ended.
func (r *relay) addTask(ctx context.Context, t *a2a.Task) error {
	if err := r.addMessages(ctx, messagesOf(t)...); err != nil {
		return err
	}
	if err := r.readArtifacts(ctx); err != nil {
		return err
	}
	for _, a := range t.Artifacts {
		parts, err := toParts(a.Parts)
		if err != nil {
			return err
		}
		extra, err := extras{Extensions: a.Extensions, Metadata: a.Metadata}.encode()
		if err != nil {
			return err
		}
		out := &arc.Artifact{ID: string(a.ID), Name: a.Name, Description: a.Description, Parts: parts, Extra: extra}
		if err := r.addArtifact(ctx, out); err != nil {
			return err
		}
	}
	return nil
}

// addArtifact adds an artifact unless the task has it. One that has changed since gets another id.
func (r *relay) addArtifact(ctx context.Context, a *arc.Artifact) error {
	sum, err := contentOf(a)
	if err != nil {
		return err
	}
	id := a.ID
	for n := 2; ; n++ {
		earlier, isTaken := r.artifacts[a.ID]
		if isTaken && earlier == sum {
			return nil
		}
		if !isTaken {
			break
		}
		a.ID = fmt.Sprintf("%s-%d", id, n)
	}
	if err := r.run.AddArtifact(ctx, a); err != nil {
		return err
	}
	r.artifacts[a.ID] = sum
	return nil
}

// readArtifacts reads the artifacts that an earlier run has added.
func (r *relay) readArtifacts(ctx context.Context) error {
	if r.artifacts != nil {
		return nil
	}
	r.artifacts = map[string][sha256.Size]byte{}
	if !r.run.Redelivered() {
		return nil
	}
	task, err := r.run.Task(ctx)
	if err != nil {
		return err
	}
	for i := range task.Artifacts {
		a := &task.Artifacts[i]
		if r.artifacts[a.ID], err = contentOf(a); err != nil {
			return err
		}
	}
	return nil
}

// contentOf identifies the content of an artifact.
func contentOf(a *arc.Artifact) (sum [sha256.Size]byte, err error) {
	text, err := json.Marshal(a.Parts)
	return sha256.Sum256(text), err
}

// messagesOf returns the messages of a task. That of its status may not be in the history yet; that of a failure is its
// reason.
func messagesOf(t *a2a.Task) []*a2a.Message {
	switch t.Status.State {
	case a2a.TaskStateFailed, a2a.TaskStateRejected, a2a.TaskStateCanceled:
		return t.History
	}
	if t.Status.Message == nil {
		return t.History
	}
	return append(slices.Clip(t.History), t.Status.Message)
}

// addMessages adds the new messages of the agent.
func (r *relay) addMessages(ctx context.Context, list ...*a2a.Message) error {
	for _, m := range list {
		if m.Role != a2a.MessageRoleAgent || r.messages[m.ID] {
			continue
		}
		out, err := toMessage(m)
		if err != nil {
			return err
		}
		out.Role = arc.RoleAgent
		if err := r.run.AddMessage(ctx, out); err != nil {
			return err
		}
		r.messages[m.ID] = true
	}
	return nil
}

// isCanceled reports whether the ARC task of ctx was canceled or has failed. In a shutdown it continues.
func isCanceled(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, arc.ErrTaskAlreadyCanceled) || errors.Is(cause, arc.ErrTaskTimeout)
}

// untilCanceled returns a context that ends with ctx, or cancelTimeout later if the task was canceled.
func untilCanceled(ctx context.Context) (context.Context, func()) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		delay := time.Duration(0)
		if isCanceled(ctx) {
			delay = cancelTimeout
		}
		time.AfterFunc(delay, func() { cancel(context.Cause(ctx)) })
	})
	return later, func() {
		stop()
		cancel(nil)
	}
}

// cancel cancels the remote task, if there is one, unless it has ended or the ARC task continues in another process.
func (r *relay) cancel(ctx context.Context, err error) {
	isCut := ctx.Err() != nil && !isCanceled(ctx) || errors.Is(err, lease.ErrLost)
	if r.id == "" || r.hasEnded || isCut {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	_, _ = r.client.CancelTask(ctx, &a2a.CancelTaskRequest{Tenant: r.opts.Tenant, ID: r.id}) // best effort
}

func textOf(m *a2a.Message) (text string) {
	if m != nil {
		for _, p := range m.Parts {
			text += p.Text()
		}
	}
	return text
}
