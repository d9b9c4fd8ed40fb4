// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// DecodeResponse reads one response (section 3). If id is not empty, the response
// must carry it, or carry an error and the id "error" or null, with which peers
// answer what they could not read (ARC-D03). Result shares the memory of data.
//
// The errors are [ErrInvalidResponse], [ErrVersionMismatch] and
// [ErrIDMismatch], looked for in this order; each wraps its sentinel. The error
// that a response carries is not an error of this function.
func DecodeResponse(data []byte, id ID) (*Response, error) {
	res := &Response{}
	if err := res.decode(data, &Request{ID: id}); err != nil {
		return nil, err
	}
	return res, nil
}

// decode reads the response to req. It shares the texts of req.
func (res *Response) decode(data []byte, req *Request) error {
	id := req.ID
	var array [usualMembers]strictjson.Span
	v, spans, err := surveyJSON(data, 0, 0, array[:0])
	if err != nil {
		var e *strictjson.Error
		if errors.As(err, &e) && (e.Kind == strictjson.Duplicate || e.Kind == strictjson.Depth) {
			return fmt.Errorf("%w: %v", ErrInvalidResponse, err)
		}
		return fmt.Errorf("%w: %v", ErrInvalidResponse, err)
	}
	if !v.IsObject() {
		return fmt.Errorf("%w: not an object", ErrInvalidResponse)
	}
	var version, rawID, result, fault strictjson.Value
	var names [3]strictjson.Value
	for i := range spans {
		name, value := memberOf(v, &spans[i])
		switch string(name) {
		case "arc":
			version = value
		case "id":
			rawID = value
		case "responseAgent":
			names[0] = value
		case "targetAgent":
			names[1] = value
		case "traceId":
			names[2] = value
		case "result":
			result = value
		case "error":
			fault = value
		default:
			if res.Extra == nil {
				res.Extra = Extra{}
			}
			res.Extra[string(name)] = bytes.Clone(json.RawMessage(value))
		}
	}
	invalid := func(why string) error { return fmt.Errorf("%w: %s", ErrInvalidResponse, why) }
	if version == nil || !isVersion(version) {
		return ErrVersionMismatch
	}
	switch rawID.Kind() {
	case '"', '0', 'n':
		if res.ID = id; string(rawID) != string(id) {
			res.ID = ID(rawID)
		}
	default:
		return invalid("id must be a string or a number")
	}
	var ok1, ok2, ok3 bool
	all := texts{size: min(len(names[0])+len(names[1])+len(names[2]), maxBlock)}
	res.ResponseAgent, ok1 = all.shared(names[0], req.TargetAgent)
	res.TargetAgent, ok2 = all.shared(names[1], req.RequestAgent)
	if res.TraceID, ok3 = all.shared(names[2], req.TraceID); names[2].Absent() {
		ok3 = true
	}
	switch {
	case !ok1 || !ok2:
		return invalid("responseAgent and targetAgent must be strings")
	case !ok3:
		return invalid("traceId must be a string")
	case result.Absent() == fault.Absent():
		return invalid("needs exactly one of result and error")
	case !result.Absent() && !result.IsObject():
		return invalid("result must be an object")
	}
	if fault.Absent() {
		res.Result = json.RawMessage(result)
	} else {
		var ok bool
		if res.Error, ok = decodeError(fault); !ok {
			return invalid("error must be an object with an integral code")
		}
	}
	if id != "" && !res.ID.Equal(id) && !(res.Error != nil && (rawID.Kind() == 'n' || res.ID.Equal(`"error"`))) {
		return ErrIDMismatch
	}
	return nil
}

// decodeError reads the error object of a response or a stream (ARC-049, ARC-D68).
func decodeError(v strictjson.Value) (*Error, bool) {
	if !v.IsObject() {
		return nil, false
	}
	code, ok := v.Get("code").Int()
	if !ok {
		return nil, false
	}
	e := &Error{Code: Code(code), Details: raw(v.Get("details")), Remote: true}
	if m := v.Get("message"); !m.Absent() {
		if e.Message, ok = m.Text(); !ok {
			return nil, false
		}
	}
	return e, true
}

// AppendResponse appends the response as JSON, both members result and error
// included, the unused one null (ARC-D05). It fails with [ErrInvalidResponse] unless
// exactly one of them is set and the result is an object.
func AppendResponse(dst []byte, res *Response) ([]byte, error) {
	if (res.Result == nil) == (res.Error == nil) {
		return dst, fmt.Errorf("%w: needs exactly one of result and error", ErrInvalidResponse)
	}
	id, err := checkJSON([]byte(res.ID))
	if err != nil || id.Kind() != '"' && id.Kind() != '0' {
		return dst, fmt.Errorf("%w: id must be a string or a number", ErrInvalidResponse)
	}
	w := writer{b: dst}
	at := w.open()
	w.text("arc", ProtocolVersion)
	w.key("id")
	w.b = append(w.b, id...)
	w.text("responseAgent", res.ResponseAgent)
	w.text("targetAgent", res.TargetAgent)
	w.optText("traceId", res.TraceID)
	w.key("result")
	if res.Result != nil {
		v, err := checkJSON(res.Result)
		if err != nil || !v.IsObject() {
			return dst, fmt.Errorf("%w: result must be an object", ErrInvalidResponse)
		}
		w.b = strictjson.AppendCompact(w.b, v)
		w.key("error")
		w.b = append(w.b, "null"...)
	} else {
		w.b = append(w.b, "null"...)
		w.key("error")
		w.error(res.Error)
	}
	w.extra(at, res.Extra)
	w.close()
	if w.err != nil {
		return dst, fmt.Errorf("%w: %w", ErrInvalidResponse, w.err)
	}
	return w.b, nil
}
