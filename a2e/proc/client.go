// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/hook"
)

// A Client uses the processes of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct {
	client *a2e.Client

	mu        sync.Mutex // guards everything below
	processes map[string]*Process
	past      []*Process // ended, the oldest first
	kept      int        // bytes of output that is not read yet
	starting  int        // calls of Start
	early     map[string][]*ReadEvent
	earlySize int
}

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	own := &Client{client: c, processes: map[string]*Process{}, early: map[string][]*ReadEvent{}}
	c.OnPush("proc/read/event", own.take)
	return own, nil
}

// Spawn sends "proc/spawn/req" and returns the answer. If ctx or the time limit of the call ends first, Spawn waits for
// the answer, kills the process, and waits for its end: each at most 5 s.
func (c *Client) Spawn(ctx context.Context, r *SpawnRequest, opts *a2e.CallOptions) (*SpawnResponse, error) {
	var copied SpawnRequest
	if r != nil {
		copied = *r
	}
	if copied.SessionID == "" {
		copied.SessionID = c.client.SessionID()
	}
	var late any
	answer, err := a2e.CallAs[SpawnResponse](hook.WithLate(ctx, &late), c.client, "proc/spawn/req", &copied, opts)
	if started, ok := late.(*SpawnResponse); ok && started.OK {
		c.end(ctx, started.ProcID)
	}
	if err == nil && !answer.OK {
		err = fmt.Errorf("proc: spawn: %w", refused(cmp.Or(answer.Error, "the program was not started")))
	}
	return answer, err
}

// Write sends "proc/write/req" and returns the answer. A refused write is an error.
func (c *Client) Write(ctx context.Context, r *WriteRequest, opts *a2e.CallOptions) (*WriteResponse, error) {
	answer, err := a2e.CallAs[WriteResponse](ctx, c.client, "proc/write/req", r, opts)
	if err == nil && !answer.OK {
		err = fmt.Errorf("proc: write: %w", refused(cmp.Or(answer.Error, "the input was not written")))
	}
	return answer, err
}

// Kill sends "proc/kill/req" and returns the answer. A process that was not killed is an error.
func (c *Client) Kill(ctx context.Context, r *KillRequest, opts *a2e.CallOptions) (*KillResponse, error) {
	answer, err := a2e.CallAs[KillResponse](ctx, c.client, "proc/kill/req", r, opts)
	if err == nil && !answer.OK {
		err = refused("the process was not killed").With("state", answer.State)
	}
	return answer, err
}

// end kills a process whose caller has given up.
func (c *Client) end(ctx context.Context, id string) {
	_, _ = c.Kill(context.WithoutCancel(ctx), &KillRequest{ProcID: id, Signal: signalKill}, &a2e.CallOptions{Timeout: killTimeout})
}

// GetStatus sends "proc/status/req" and returns the answer. An answer with an error is one.
func (c *Client) GetStatus(ctx context.Context, r *StatusRequest, opts *a2e.CallOptions) (*StatusResponse, error) {
	answer, err := a2e.CallAs[StatusResponse](ctx, c.client, "proc/status/req", r, opts)
	if err == nil && answer.Error != "" {
		err = refused(answer.Error).With("status", answer.Status)
	}
	return answer, err
}

// refused returns the error of an answer that reports a failure.
func refused(text string) *a2e.Error {
	return &a2e.Error{Code: a2e.ErrRuntime, Message: text, Capability: Capability, Remote: true}
}
