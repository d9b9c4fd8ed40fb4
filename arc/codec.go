// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// DecodeRequest reads one request (section 3). Params shares the memory of data;
// nothing else does.
//
// Every error is an [*Error] that can be sent. The request is returned with it and
// contains the members for the response: its ID if valid, its RequestAgent and its
// TraceID (ARC-D03). With code [ErrParse] or [ErrInvalidRequest] it is empty.
func DecodeRequest(data []byte) (*Request, error) {
	req := &Request{}
	if fault, _ := req.decode(data); fault != nil {
		return req, fault
	}
	return req, nil
}

const (
	inARC = iota
	inID
	inMethod
	inRequestAgent
	inTargetAgent
	inParams
	inTraceID
	inRequest // how many there are
)

// maxNames and maxTotal bound the members of an object and of all objects of a request
// (ARC-D01).
const (
	maxNames = 10_000
	maxTotal = 250_000
)

// usualMembers is how many members of an envelope are found without an allocation.
const usualMembers = 12

// survey checks a message and returns the positions of its members. It refuses more members of an object and of all
// objects than the bounds, if they are not zero.
func survey(text []byte, maxNames, maxTotal int, spans []strictjson.Span) (strictjson.Value, []strictjson.Span, error) {
	o := strictjson.Options{MaxDepth: wire.MaxDepth, LoneSurrogates: true, MaxNames: maxNames, MaxTotal: maxTotal}
	v, _, spans, err := strictjson.Survey(text, o, spans)
	return v, spans, err
}

// memberOf returns the name and the value of a member.
func memberOf(v strictjson.Value, s *strictjson.Span) (name []byte, value strictjson.Value) {
	name, value = v[s.Name+1:s.NameEnd-1], v[s.Value:s.ValueEnd:s.ValueEnd]
	if s.Escaped {
		name, _ = v[s.Name:s.NameEnd].TextBytes()
	}
	return name, value
}

func (e *Extra) keep(name []byte, value strictjson.Value) {
	if *e == nil {
		*e = Extra{}
	}
	(*e)[string(name)] = bytes.Clone(json.RawMessage(value))
}

// search reads the id, the requestAgent and the traceId of a refused request, of each the
// first member of this name if it is valid. Nothing else is checked (ARC-D03).
func (req *Request) search(data []byte) {
	c := strictjson.NewCursor(data, strictjson.Options{})
	find := func(name string) (strictjson.Value, string) {
		v, _ := c.Find(name)
		v, err := wire.Check(v)
		if err != nil || len(v) > maxIDToken {
			return nil, ""
		}
		text, _ := v.Text()
		return v, text
	}
	id, text := find("id")
	if id != nil && checkIDToken(id, text) == nil {
		req.ID = ID(id)
	}
	if agent, text := find("requestAgent"); checkAgent("requestAgent", agent, text) == nil {
		req.RequestAgent = text
	}
	if trace, text := find("traceId"); checkTrace(trace, text) == nil {
		req.TraceID = text
	}
}

// decode reads a request. With an error it reports whether the requestAgent is valid and
// was checked before the error was found.
func (req *Request) decode(data []byte) (fault *Error, isCallerKnown bool) {
	var array [usualMembers]strictjson.Span
	v, spans, err := survey(data, maxNames, maxTotal, array[:0])
	if err != nil {
		return jsonFault(err), false
	}
	if !v.IsObject() {
		return &Error{Code: ErrInvalidRequest, Message: "Invalid request: not a JSON object"}, false
	}
	var in [inRequest]strictjson.Value
	for i := range spans {
		name, value := memberOf(v, &spans[i])
		switch string(name) {
		case "arc":
			in[inARC] = value
		case "id":
			in[inID] = value
		case "method":
			in[inMethod] = value
		case "requestAgent":
			in[inRequestAgent] = value
		case "targetAgent":
			in[inTargetAgent] = value
		case "params":
			in[inParams] = value
		case "traceId":
			in[inTraceID] = value
		default:
			req.Extra.keep(name, value)
		}
	}
	// All texts of the envelope share one string, which is one allocation and
	// does not keep the body alive.
	texts := req.texts(&in)
	idFault, requestAgentFault := texts.id(), checkAgent("requestAgent", in[inRequestAgent], texts.requestAgent)
	traceFault := checkTrace(in[inTraceID], texts.traceID)
	if idFault == nil {
		req.ID = ID(texts.idRaw)
	}
	if requestAgentFault == nil {
		req.RequestAgent = texts.requestAgent
	}
	if traceFault == nil {
		req.TraceID = texts.traceID
	}
	req.Method, req.TargetAgent = texts.method, texts.targetAgent
	req.Params = json.RawMessage(in[inParams])

	// The order of ARC-D07.
	switch {
	case in[inARC] == nil:
		return fieldError(ErrMissingField, "arc", "is required"), false
	case !isVersion(in[inARC]):
		return versionFault(), false
	case idFault != nil:
		return idFault, false
	}
	if fault := cmp.Or(checkMethod(in[inMethod], texts.method), requestAgentFault); fault != nil {
		return fault, false
	}
	if fault := checkAgent("targetAgent", in[inTargetAgent], texts.targetAgent); fault != nil {
		return fault, true
	}
	switch {
	case in[inParams] == nil:
		return fieldError(ErrMissingField, "params", "is required"), true
	case !in[inParams].IsObject():
		return fieldError(ErrInvalidParams, "params", "must be an object"), true
	}
	return traceFault, true
}

func isVersion(v strictjson.Value) bool {
	if string(v) == `"`+ProtocolVersion+`"` {
		return true
	}
	s, _ := v.Text()
	return s == ProtocolVersion
}

func versionFault() *Error {
	return &Error{Code: ErrInvalidVersion, Message: ErrInvalidVersion.Message(),
		Details: json.RawMessage(`{"field":"arc","issue":"is not supported","supported":["` + ProtocolVersion + `"]}`)}
}

// jsonFault sorts the faults of the text by ARC-D01 and ARC-D06.
func jsonFault(err error) *Error {
	var e *strictjson.Error
	if !errors.As(err, &e) {
		return &Error{Code: ErrParse, Message: ErrParse.Message(), Cause: err}
	}
	switch e.Kind {
	case strictjson.Duplicate, strictjson.Depth, strictjson.Count:
		return &Error{Code: ErrInvalidRequest, Message: fmt.Sprintf("Invalid request: %v", e)}
	}
	return &Error{Code: ErrParse, Message: fmt.Sprintf("Parse error: %v", e)}
}

// envelopeTexts are the decoded texts of an envelope.
type envelopeTexts struct {
	idRaw, idText                              string
	idValue                                    strictjson.Value
	method, requestAgent, targetAgent, traceID string
}

func (req *Request) texts(in *[inRequest]strictjson.Value) (t envelopeTexts) {
	var array [256]byte
	buf := array[:0]
	var ends [6]int
	if len(in[inID]) <= maxIDToken {
		buf = append(buf, in[inID]...)
	}
	ends[0] = len(buf)
	for i, m := range [...]int{inID, inMethod, inRequestAgent, inTargetAgent, inTraceID} {
		if v := in[m]; len(v) <= maxIDToken {
			buf = v.AppendText(buf)
		} else if s, _ := v.Text(); len(s) <= 2*wire.MaxID {
			buf = append(buf, s...) // only its escapes are long
		} else {
			buf = append(buf, s[:2*wire.MaxID]...) // enough to be refused
		}
		ends[i+1] = len(buf)
	}
	all := string(buf)
	t.idValue = in[inID]
	t.idRaw, t.idText = all[:ends[0]], all[ends[0]:ends[1]]
	t.method, t.requestAgent = all[ends[1]:ends[2]], all[ends[2]:ends[3]]
	t.targetAgent, t.traceID = all[ends[3]:ends[4]], all[ends[4]:ends[5]]
	if t.idRaw == "" {
		t.idRaw = string(in[inID])
	}
	return t
}

// maxIDToken is the longest token that an id of 256 bytes can have: each byte as
// an escape of six, and the quotes.
const maxIDToken = 6*wire.MaxID + 2

func (t *envelopeTexts) id() *Error { return checkIDToken(t.idValue, t.idText) }

func checkIDToken(v strictjson.Value, text string) *Error {
	issue := ""
	switch v.Kind() {
	case 0:
		return fieldError(ErrMissingField, "id", "is required")
	case '"':
		if text == "" || len(text) > wire.MaxID {
			issue = "must have 1 to 256 bytes"
		}
	case '0':
		if len(v) > wire.MaxID {
			issue = "must have at most 256 bytes"
		}
	default:
		issue = "must be a string or a number"
	}
	if issue != "" {
		return fieldError(ErrInvalidFieldFormat, "id", issue)
	}
	return nil
}

const maxMethodLen = 128

// checkMember refuses a member that is absent or no string.
func checkMember(field string, v strictjson.Value) *Error {
	switch v.Kind() {
	case 0:
		return fieldError(ErrMissingField, field, "is required")
	case '"':
		return nil
	}
	return fieldError(ErrInvalidFieldFormat, field, "must be a string")
}

func checkMethod(v strictjson.Value, text string) *Error {
	if f := checkMember("method", v); f != nil {
		return f
	}
	return checkMethodName(text)
}

func checkMethodName(text string) *Error {
	if text == "" || len(text) > maxMethodLen {
		return fieldError(ErrInvalidFieldFormat, "method", "must have 1 to 128 bytes")
	}
	return nil
}

func checkAgent(field string, v strictjson.Value, text string) *Error {
	if f := checkMember(field, v); f != nil {
		return f
	}
	return checkAgentID(field, text)
}

func checkAgentID(field, text string) *Error { return checkName(ErrInvalidAgentID, field, text) }

func checkTrace(v strictjson.Value, text string) *Error {
	if v.Absent() {
		return nil
	}
	if f := checkMember("traceId", v); f != nil {
		return f
	}
	return checkName(ErrInvalidTrace, "traceId", text)
}

func checkName(code Code, field, text string) *Error {
	switch {
	case text == "" || len(text) > wire.MaxID:
		return fieldError(code, field, "must have 1 to 256 bytes")
	case wire.HasControl(text):
		return fieldError(code, field, "must not hold control characters")
	case !utf8.ValidString(text):
		return fieldError(code, field, "must be UTF-8")
	}
	return nil
}

// check holds a request that is about to be sent to the rules for requests.
// The scratch is memory to use.
func (req *Request) check(scratch []byte) *Error {
	id, err := wire.Check(append(scratch, req.ID...)[len(scratch):])
	if req.ID == "" || err != nil {
		return fieldError(ErrInvalidFieldFormat, "id", "must be a JSON string or number")
	}
	var buf [wire.MaxID + 1]byte
	idText := ""
	if id.Kind() == '"' {
		idText = "ok"
		if n := len(id.AppendText(buf[:0])); n == 0 || n > wire.MaxID {
			idText = ""
		}
	}
	if f := checkIDToken(id, idText); f != nil {
		return f
	}
	if f := checkMethodName(req.Method); f != nil {
		return f
	}
	if f := checkAgentID("requestAgent", req.RequestAgent); f != nil {
		return f
	}
	if f := checkAgentID("targetAgent", req.TargetAgent); f != nil {
		return f
	}
	if req.TraceID != "" {
		return checkName(ErrInvalidTrace, "traceId", req.TraceID)
	}
	return nil
}

// AppendRequest appends the request as JSON. It refuses an invalid request with
// the [*Error] that a server returns.
func AppendRequest(dst []byte, req *Request) ([]byte, error) {
	req = orZero(req)
	if f := req.check(dst); f != nil {
		return dst, f
	}
	params, err := wire.Check(req.Params)
	if err != nil || !params.IsObject() {
		return dst, fieldError(ErrInvalidParams, "params", "must be an object")
	}
	o := wire.Open(dst)
	o.Text("arc", ProtocolVersion)
	o.Raw("id", []byte(req.ID))
	o.Text("method", req.Method)
	o.Text("requestAgent", req.RequestAgent)
	o.Text("targetAgent", req.TargetAgent)
	o.OptText("traceId", req.TraceID)
	o.Key("params")
	o.B = strictjson.AppendCompact(o.B, params)
	return closeEnvelope(o, dst, req.Extra)
}

// closeEnvelope appends the extra members and ends an envelope behind dst.
func closeEnvelope(o wire.Object, dst []byte, extra Extra) ([]byte, error) {
	if len(extra) == 0 {
		return o.Close(), nil
	}
	written := strictjson.Value(append(bytes.Clone(o.B[len(dst):]), '}'))
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		if written.Get(name) != nil {
			continue
		}
		v, err := wire.Check(extra[name])
		if err != nil {
			return dst, fmt.Errorf("arc: %s: %w", name, err)
		}
		o.B = strictjson.AppendCompact(append(strictjson.AppendString(append(o.B, ','), name), ':'), v)
	}
	return o.Close(), nil
}
