// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"context"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/fivewire/fivewire/a2e"
)

// resourceNotFound is the code of MCP servers for it; newer ones say that the
// parameters are invalid.
const resourceNotFound = -32002

// wireError turns what the SDK returned into what the agent reads. Missing is the
// code for a thing that the server does not know.
func wireError(ctx, limited context.Context, missing a2e.Code, err error) error {
	var own *a2e.Error
	var e *jsonrpc.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		own = a2e.NewError(a2e.ErrTimeout, "the MCP server did not answer in time")
	case errors.As(err, &own):
		return err
	case !errors.As(err, &e):
		own = a2e.NewError(a2e.ErrMCPTransport, "the connection to the MCP server failed")
	case e.Code == jsonrpc.CodeMethodNotFound:
		own = a2e.NewError(a2e.ErrMCPCapabilityMissing, clip(e.Message, 200))
	case e.Code == resourceNotFound, e.Code == jsonrpc.CodeInvalidParams:
		own = a2e.NewError(missing, clip(e.Message, 200))
	default:
		own = a2e.NewError(a2e.ErrMCPProtocol, clip(e.Message, 200))
	}
	own.Cause = err
	return own
}
