// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/hook"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
)

// maxChainOutput bounds each output of a program of a chain.
const maxChainOutput = 1 << 20

// chainKey is the key of a *chainOutput in the context of a request.
type chainKey struct{}

// A chainOutput takes the output of the program of a node.
type chainOutput struct {
	process *process
	outputs [2]bytes.Buffer // each used by one goroutine until done is closed
	isCut   [2]bool
	done    chan struct{}
}

// add takes a piece of an output. Above maxChainOutput it ends the process.
func (o *chainOutput) add(p *process, i int, piece []byte) {
	if o.isCut[i] = o.isCut[i] || o.outputs[i].Len()+len(piece) > maxChainOutput; o.isCut[i] {
		p.exceed()
		return
	}
	o.outputs[i].Write(piece)
}

// Execute runs a program as the proc plugin of the host runs it for a request, for nodes of chains: it
// is an Executor of package chains. The agent needs the capability of the plugin. The input has the
// members of a [SpawnRequest], the output has the members code, stdout and stderr, of at most 1 MiB
// each. A program that ends with another status than 0 fails the node. The name has no effect.
func Execute(ctx context.Context, call *a2e.Call, _ string, input json.RawMessage) (json.RawMessage, error) {
	r, err := a2e.DecodeModel[SpawnRequest](input, "input")
	if err != nil {
		return nil, err
	}
	r.SessionID, r.StdinMode, r.Window = "", "null", nil
	o := &chainOutput{done: make(chan struct{})}
	body, err := hook.Serve(context.WithValue(ctx, chainKey{}, o), call, "proc/spawn/req", r)
	answer, ok := body.(*SpawnResponse)
	var refused *a2e.Error
	switch {
	case errors.As(err, &refused) && refused.Reason == a2e.ReasonUnsupported:
		return nil, failure(a2e.ErrChainNode, "nodes of kind proc cannot run here")
	case err != nil:
		return nil, err
	case !ok || !answer.OK || o.process == nil:
		return nil, failure(a2e.ErrChainNode, "the program could not be started")
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		o.process.stop(StateTimedOut, "SIGKILL")
		return nil, context.Cause(ctx)
	}
	if o.isCut[0] || o.isCut[1] {
		err := failure(a2e.ErrChainNode, fmt.Sprintf("the program wrote more than %d bytes", maxChainOutput))
		err.Reason = a2e.ReasonTooLarge
		return nil, err
	}
	_, code := o.process.now()
	stdout, stderr := bytes.ToValidUTF8(o.outputs[0].Bytes(), []byte("\uFFFD")), bytes.ToValidUTF8(o.outputs[1].Bytes(), []byte("\uFFFD"))
	if *code != 0 {
		return nil, failure(a2e.ErrChainNode, fmt.Sprintf("exit status %d: %s", *code, wire.Clip(string(stderr))))
	}
	return guard.Encode(struct {
		Code   int64  `json:"code"`
		Stdout string `json:"stdout"`
		Stderr string `json:"stderr"`
	}{*code, string(stdout), string(stderr)})
}
