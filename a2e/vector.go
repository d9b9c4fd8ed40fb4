// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"io"

	"github.com/fivewire/fivewire/a2e/internal/hook"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/vector"
)

func init() {
	hook.Vector = vectors.Run
	hook.Handshake = func(ctx context.Context, c, r any) (any, error) {
		return c.(*Client).handshake(ctx, r.(*HandshakeRequest))
	}
	hook.Serve = func(ctx context.Context, parent any, msgType string, body any) (any, error) {
		return parent.(*Call).serveOther(ctx, msgType, body)
	}
	hook.IsAnswered = func(call any) bool {
		c := call.(*Call)
		c.Session.mu.Lock()
		defer c.Session.mu.Unlock()
		return c.isReturned
	}
	hook.State = func(ctx context.Context, call any, capability string) (any, error) {
		s := call.(*Call).Session
		if p := s.host.plugin(capability); p != nil {
			return s.stateOf(ctx, p)
		}
		return nil, nil
	}
}

// vectors are the operations of the test vectors on parts that are not exported.
var vectors = vector.Ops{
	"frame_split": vector.New(vectorFrameSplit),
	"type_parse":  vector.New(vectorTypeParse),
	"event_order": vector.New(vectorEventOrder),
	"error_info":  vector.New(vectorErrorInfo),
	"sse_parse":   vector.New(vectorSSEParse),
	"sse_format":  vector.New(vectorSSEFormat),
}

// chunkReader hands out one chunk at each read.
type chunkReader struct{ chunks [][]byte }

func (r *chunkReader) Read(p []byte) (int, error) {
	if len(r.chunks) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.chunks[0])
	r.chunks[0] = r.chunks[0][n:]
	if len(r.chunks[0]) == 0 {
		r.chunks = r.chunks[1:]
	}
	return n, nil
}

type vectorChunks struct {
	Chunks     [][]byte
	Strict     bool
	MaxMessage int
}

func vectorFrameSplit(in vectorChunks) (any, error) {
	r := newLineReader(&chunkReader{in.Chunks}, &Codec{Dialect: Dialect{Strict: in.Strict}, MaxMessage: in.MaxMessage})
	items := []map[string]string{}
	for {
		line, err := r.next()
		var e *Error
		if err == nil {
			line, err = validText(line)
		}
		switch {
		case err == nil:
			items = append(items, map[string]string{"line": string(line)})
		case errors.Is(err, io.EOF):
			return items, nil
		case errors.As(err, &e):
			items = append(items, map[string]string{"code": string(e.Code), "reason": e.Reason})
		default:
			return nil, err
		}
	}
}

func vectorTypeParse(names []string) (any, error) {
	type parsed struct{ Namespace, Verb, Suffix, Kind, Response string }
	list := []parsed{}
	for _, name := range names {
		t := parseType(name)
		list = append(list, parsed{t.Namespace, t.Verb, t.Suffix, t.Kind.String(), t.Response})
	}
	return list, nil
}

func vectorEventOrder(numbers []int64) (any, error) {
	var s sequence
	list := []Order{}
	for _, n := range numbers {
		list = append(list, s.next(n))
	}
	return list, nil
}

func vectorSSEParse(in vectorChunks) (any, error) {
	r := newEventReader(&chunkReader{in.Chunks}, nil)
	out := struct {
		Messages []string
		LastID   string
	}{Messages: []string{}}
	for {
		data, err := r.next()
		if errors.Is(err, io.EOF) {
			out.LastID = r.lastID()
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out.Messages = append(out.Messages, string(data))
	}
}

func vectorSSEFormat(in struct {
	Line []byte
	ID   string
}) (any, error) {
	return sse.AppendEvent(nil, "", in.ID, in.Line)
}

func vectorErrorInfo(codes []Code) (any, error) {
	type info struct{ Known, Retryable bool }
	list := []info{}
	for _, c := range codes {
		list = append(list, info{c.isKnown(), c.isRetryable()})
	}
	return list, nil
}

// isKnown reports whether the specification lists c.
func (c Code) isKnown() bool {
	switch c {
	case ErrParse, ErrRuntime, ErrInvalidMessage, ErrVersionMismatch, ErrUnauthorized, ErrSchemaViolation,
		ErrTimeout, ErrOutOfMemory, ErrSandboxCrash, ErrCapabilityMissing, ErrUnknownTool, ErrToolDenied, ErrTool,
		ErrUnknownSkill, ErrSkill, ErrChainCycle, ErrChainNode, ErrMemoryFull, ErrMemoryNotFound,
		ErrUnknownProc, ErrProcDead, ErrProcLimit, ErrUnknownAction, ErrResetDenied,
		ErrMCPServerNotFound, ErrMCPServerUnavailable, ErrMCPToolNotFound, ErrMCPResourceNotFound,
		ErrMCPPromptNotFound, ErrMCPTransport, ErrMCPProtocol, ErrMCPSamplingRefused, ErrMCPCapabilityMissing,
		ErrUnknownType:
		return true
	}
	return false
}
