// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"context"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/fivewire/fivewire/a2e"
)

// resourceNotFound is the code of MCP servers for a missing resource; newer servers report invalid
// parameters.
const resourceNotFound = -32002

// wireError converts an error of the SDK into the error that the agent receives. Missing is the
// code for an object that the server does not know.
func wireError(ctx, limited context.Context, missing a2e.Code, err error) error {
	var own *a2e.Error
	var e *jsonrpc.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		own = a2e.Errorf(a2e.ErrTimeout, "the MCP server did not answer in time")
	case errors.As(err, &own):
		return err
	case !errors.As(err, &e):
		own = a2e.Errorf(a2e.ErrMCPTransport, "the connection to the MCP server failed")
	case e.Code == jsonrpc.CodeMethodNotFound:
		own = a2e.Errorf(a2e.ErrMCPCapabilityMissing, "%s", clip(e.Message, 200))
	case e.Code == resourceNotFound, e.Code == jsonrpc.CodeInvalidParams:
		own = a2e.Errorf(missing, "%s", clip(e.Message, 200))
	default:
		own = a2e.Errorf(a2e.ErrMCPProtocol, "%s", clip(e.Message, 200))
	}
	own.Cause = err
	return own
}
