// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbinding

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/bridge"
	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/accp/profile"
)

// ResourceContents returns a frame as the contents of a resource. The frame must have an envelope.
func ResourceContents(frame []byte) (*mcp.ResourceContents, error) {
	r, err := bridge.ToResource(frame)
	if err != nil {
		return nil, err
	}
	return &mcp.ResourceContents{URI: r.URI, MIMEType: r.MIMEType, Text: r.Text}, nil
}

// ToolResult returns frames as the result of a tool call, each as one embedded
// resource. The result is an error if the last frame is a fail frame (ACCP-D57).
func ToolResult(frames ...[]byte) (*mcp.CallToolResult, error) {
	res := &mcp.CallToolResult{Content: []mcp.Content{}}
	for _, f := range frames {
		r, err := bridge.ToResult(f)
		if err != nil {
			return nil, err
		}
		c := r.Content[0].Resource
		res.Content = append(res.Content, &mcp.EmbeddedResource{
			Resource: &mcp.ResourceContents{URI: c.URI, MIMEType: c.MIMEType, Text: c.Text},
		})
		res.IsError = r.IsError
	}
	return res, nil
}

// ExtractFrames returns the frames in a tool result, unchanged, or none if the server does not
// support ACCP.
func ExtractFrames(res *mcp.CallToolResult) (frames [][]byte) {
	for _, c := range res.Content {
		if e, ok := c.(*mcp.EmbeddedResource); ok && e.Resource != nil && isFrame(e.Resource) {
			frames = append(frames, text(e.Resource))
		}
	}
	return frames
}

func isFrame(c *mcp.ResourceContents) bool {
	t, _, _ := strings.Cut(c.MIMEType, ";")
	return strings.EqualFold(strings.TrimSpace(t), accp.MediaType)
}

func text(c *mcp.ResourceContents) []byte {
	if c.Text == "" {
		return c.Blob
	}
	return []byte(c.Text)
}

// AddFrameResource adds a frame, which must have an envelope, to the resources of a server and
// returns its URI, accp://frames/ and the message id. To remove it, call
// [mcp.Server.RemoveResources].
func AddFrameResource(to *mcp.Server, frame []byte) (uri string, err error) {
	c, err := ResourceContents(frame)
	if err != nil {
		return "", err
	}
	m, err := new(accp.Codec).DecodeRaw(frame)
	if err != nil {
		return "", err
	}
	to.AddResource(&mcp.Resource{
		URI: c.URI, MIMEType: c.MIMEType, Size: int64(len(frame)),
		Name: string(m.Intent) + ":" + m.Op + " of " + m.From,
	}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
	})
	return c.URI, nil
}

// ReadFrame reads a frame from the resources of a server. A resource of another type is
// [accp.ErrInvalidType], a malformed frame the error of the grammar.
func ReadFrame(ctx context.Context, session *mcp.ClientSession, uri string) ([]byte, error) {
	res, err := session.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		return nil, fmt.Errorf("accp: reading %s: %w", uri, err)
	}
	for _, c := range res.Contents {
		if isFrame(c) {
			frame := text(c)
			if _, err := new(accp.Codec).DecodeRaw(frame); err != nil {
				return nil, err
			}
			return frame, nil
		}
	}
	return nil, &accp.Error{Code: accp.ErrInvalidType, Message: "the resource holds no frame"}
}

// Instructions returns a text for [mcp.ServerOptions] with the registry of agent self in a
// sync:registry frame. A nil registry has the built-in schemas only.
func Instructions(self string, registry *accp.Registry) (string, error) {
	if registry == nil {
		registry = accp.NewRegistry()
	}
	params := hook.Hello(registry, len(registry.Codes()) > 0).(accp.Params)
	m := &accp.Message{From: self, Intent: accp.IntentSync, Op: profile.OpRegistry, Meta: envelope(0), Params: params}
	frame, err := new(accp.Codec).Append(nil, m)
	if err != nil {
		return "", err
	}
	return "Schemas for agents that speak ACCP:\n" + string(frame), nil
}

// hello returns the sync:registry frame in instructions, or nil.
func hello(instructions string) []byte {
	for line := range strings.Lines(instructions) {
		line = strings.TrimSpace(line)
		m, err := new(accp.Codec).DecodeRaw([]byte(line))
		if err == nil && m.Intent == accp.IntentSync && m.Op == profile.OpRegistry {
			return []byte(line)
		}
	}
	return nil
}

// envelope returns the metadata of a frame without session id.
func envelope(seq int64) *accp.Meta {
	return &accp.Meta{MID: newID(), Seq: accp.NewOptionalInt(seq), TS: accp.NewOptionalInt(max(0, time.Now().Unix()))}
}

// codeOf returns the code of an error.
func codeOf(err error) accp.Code {
	var e *accp.Error
	var code accp.Code
	switch {
	case errors.As(err, &e):
		return e.Code
	case errors.As(err, &code):
		return code
	}
	return accp.ErrInternal
}

func newID() string {
	var b [6]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
