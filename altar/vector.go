// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/altar/internal/hook"
	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/vector"
)

func init() {
	hook.Vector = vectors.Run
	hook.SessionIDs = func(opts any, next func() string) {
		if o, ok := opts.(*HostOptions); ok {
			o.newSessionID = next
		}
	}
}

// vectors are the operations of the test vectors on parts that are not exported.
var vectors = vector.Ops{
	"negotiate": vector.New(func(in struct{ Host, Runtime string }) (any, error) {
		return negotiate(in.Host, in.Runtime)
	}),
	"contract_digest": vector.New(vectorDigest),
	"validate_params": vector.New(vectorParams),
	"parse_type":      vector.New(vectorType),
	"encode":          vector.New(vectorEncode),
	"resolve_tool":    vector.New(vectorResolveTool),
	"frame":           vector.New(vectorFrame),
	"stream_assemble": vector.New(vectorStream),
}

func vectorDigest(in struct{ Contract []byte }) (any, error) {
	c, err := DecodeContract(in.Contract)
	if err != nil {
		return nil, err
	}
	return c.digest(), nil
}

func vectorParams(in struct {
	Contract, Params            []byte
	DropUnknown, AllowNonFinite bool
}) (any, error) {
	c, err := DecodeContract(in.Contract)
	if err != nil {
		return nil, err
	}
	v, err := newValidator(c, validation{in.DropUnknown, in.AllowNonFinite})
	if err != nil {
		return nil, err
	}
	return v.Append(nil, in.Params)
}

func vectorType(in struct{ Type string }) (any, error) {
	t, reason := form.ParseType(in.Type)
	if reason != "" {
		return nil, &ContractError{Reason: Reason(reason)}
	}
	return map[string]any{"base": t.Base, "dims": t.Dims}, nil
}

func vectorEncode(in struct{ Message []byte }) (any, error) {
	m, err := decodeMessage(in.Message, decodeOptions{isStrict: true})
	if err != nil {
		return nil, err
	}
	return AppendMessage(nil, m)
}

func vectorResolveTool(in struct {
	Contracts []string
	ToolName  string
}) (any, error) {
	has := func(name string) bool { return slices.Contains(in.Contracts, name) }
	contract, id, err := resolveTool(has, in.ToolName)
	return map[string]string{"contract": contract, "runtime_id": id}, err
}

func vectorFrame(in struct {
	Wire []byte
	Max  int
}) (any, error) {
	r := transport.NewReader(bytes.NewReader(in.Wire), in.Max)
	list := []map[string]string{}
	for {
		frame, err := r.Read()
		err = notRead(err)
		var bad *badFrame
		switch {
		case err == nil:
			list = append(list, map[string]string{"frame": string(frame)})
		case errors.As(err, &bad):
			list = append(list, map[string]string{"reason": string(bad.Err.Reason())})
		case errors.Is(err, ErrTruncated):
			list = append(list, map[string]string{"reason": "truncated"})
		case errors.Is(err, io.EOF):
			return list, nil
		default:
			return nil, err
		}
	}
}

func vectorStream(in struct {
	InvocationID string
	Chunks       []string
}) (any, error) {
	s := newCallStream(in.InvocationID)
	payloads := []json.RawMessage{}
	for _, text := range in.Chunks {
		if m, err := DecodeMessage([]byte(text), 0); err != nil {
			s.Broken(err)
		} else {
			s.Add(m, time.Now)
		}
		for p, ok := s.Next(); ok; p, ok = s.Next() {
			payloads = append(payloads, p)
		}
	}
	out := map[string]any{"payloads": payloads, "state": "open"}
	done, err := s.End()
	var e *Error
	switch {
	case errors.As(err, &e):
		out["state"], out["code"] = "failed", e.Code
		if r := e.Reason(); r != "" {
			out["reason"] = r
		}
	case err != nil:
		return nil, err
	case done:
		out["state"] = "done"
	}
	return out, nil
}
