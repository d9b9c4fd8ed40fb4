// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"testing"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// ARC returns the operations of package arc.
func ARC() Protocol {
	p := Protocol{Name: "arc", Ops: map[string]Op{
		"decode_request":  arcDecodeRequest,
		"encode_request":  arcEncodeRequest,
		"decode_response": arcDecodeResponse,
		"encode_response": arcEncodeResponse,
		"validate_params": arcValidateParams,
		"validate_result": arcValidateResult,
		"error_info":      arcErrorInfo,
		"timestamp":       arcTimestamp,
		"part_bytes":      arcPartBytes,
		"sse_decode":      arcSSEDecode,
		"sse_encode":      arcSSEEncode,
		"task_machine":    arcTaskMachine,
		"chat_machine":    arcChatMachine,
		"scope_check":     arcScopeCheck,
		"trace_context":   arcTraceContext,
		"callback_url":    arcCallbackURL,
		"webhook_sign":    arcWebhookSign,
		"webhook_verify":  arcWebhookVerify,
		"agent_info":      arcAgentInfo,
	}}
	maps.Copy(p.Ops, arcServerOps())
	maps.Copy(p.Ops, arcClientOps())
	return p
}

// arcRefused turns an error of the package into the failure {code, field}.
func arcRefused(err error) error {
	var e *arc.Error
	if !errors.As(err, &e) {
		return err
	}
	f := &Failure{Fields: Answer{"code": int64(e.Code)}, Err: err}
	if field := e.Field(); field != "" {
		f.Fields["field"] = field
	}
	return f
}

func arcDecodeRequest(_ *testing.T, in *Input) (Answer, error) {
	req, err := arc.DecodeRequest(in.Wire("wire"))
	if err != nil {
		return nil, arcRefused(err)
	}
	return Answer{"idRaw": string(req.ID), "method": req.Method, "requestAgent": req.RequestAgent,
		"targetAgent": req.TargetAgent, "traceId": req.TraceID, "json": req.Params}, nil
}

func arcEncodeRequest(_ *testing.T, in *Input) (Answer, error) {
	text, err := arc.AppendRequest(nil, &arc.Request{ID: arc.ID(in.String("idRaw")), Method: in.String("method"),
		RequestAgent: in.String("requestAgent"), TargetAgent: in.String("targetAgent"), TraceID: in.String("traceId"),
		Params: json.RawMessage(in.String("params"))})
	if err != nil {
		return nil, arcRefused(err)
	}
	return Answer{"json": json.RawMessage(text), "idRaw": arcIDToken(text)}, nil
}

// arcIDToken finds the id in an envelope without the package's own reader.
func arcIDToken(envelope []byte) string {
	v, _ := strictjson.Check(envelope, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true})
	return string(v.Get("id"))
}

// arcClientFault names an error on the client's side.
func arcClientFault(err error) error {
	for target, code := range map[error]string{
		arc.ErrNotJSON: "parse_error", arc.ErrVersionMismatch: "version_mismatch",
		arc.ErrInvalidResponse: "invalid_response", arc.ErrIDMismatch: "id_mismatch",
	} {
		if errors.Is(err, target) {
			return NewFailure(code, err)
		}
	}
	if errors.Is(err, arc.ErrNotAcknowledged) {
		return NewFailure("not_successful", err)
	}
	if errors.Is(err, arc.ErrInvalidResult) {
		return NewFailure("invalid_result", err)
	}
	return err
}

func arcDecodeResponse(_ *testing.T, in *Input) (Answer, error) {
	res, err := arc.DecodeResponse(in.Wire("wire"), arc.ID(in.StringOr("requestIdRaw", "")))
	if err != nil {
		return nil, arcClientFault(err)
	}
	a := Answer{"idRaw": string(res.ID), "responseAgent": res.ResponseAgent, "targetAgent": res.TargetAgent, "traceId": res.TraceID}
	if res.Error != nil {
		a["kind"], a["json"] = "error", res.Error
	} else {
		a["kind"], a["json"] = "result", res.Result
	}
	return a, nil
}

func arcEncodeResponse(_ *testing.T, in *Input) (Answer, error) {
	res := &arc.Response{ID: arc.ID(in.String("idRaw")), ResponseAgent: in.String("responseAgent"),
		TargetAgent: in.String("targetAgent"), TraceID: in.String("traceId")}
	if in.Has("result") {
		res.Result = json.RawMessage(in.String("result"))
	}
	if in.Has("error") {
		e := in.Object("error")
		res.Error = &arc.Error{Code: arc.Code(e.Int("code")), Message: e.String("message")}
		if e.Has("details") {
			res.Error.Details = json.RawMessage(e.String("details"))
		}
	}
	text, err := arc.AppendResponse(nil, res)
	if err != nil {
		return nil, arcClientFault(err)
	}
	return Answer{"json": json.RawMessage(text), "idRaw": arcIDToken(text)}, nil
}

func arcValidateParams(_ *testing.T, in *Input) (Answer, error) {
	params, err := arc.NormalizeParams(in.String("method"), in.Wire("wire"))
	if err != nil {
		return nil, arcRefused(err)
	}
	return Answer{"json": params}, nil
}

func arcValidateResult(_ *testing.T, in *Input) (Answer, error) {
	res, err := arc.DecodeResult(in.String("method"), in.Wire("wire"))
	if err != nil {
		return nil, arcClientFault(err)
	}
	a := Answer{"kind": "ack", "id": "", "status": ""}
	switch {
	case res.Task != nil:
		a["kind"], a["id"], a["status"] = "task", res.Task.ID, string(res.Task.Status)
	case res.Subscription != nil:
		a["kind"], a["id"] = "subscription", res.Subscription.ID
	case res.Chat != nil:
		a["kind"], a["id"], a["status"] = "chat", res.Chat.ID, string(res.Chat.Status)
	case res.Object != nil:
		a["kind"] = "object"
	}
	return a, nil
}

func arcErrorInfo(_ *testing.T, in *Input) (Answer, error) {
	c := arc.Code(in.Int("code"))
	return Answer{"name": c.Name(), "family": c.Family(), "message": c.Message(), "httpStatus": c.HTTPStatus()}, nil
}

func arcTimestamp(_ *testing.T, in *Input) (Answer, error) {
	t, err := arc.Timestamp(in.String("text")).Time()
	if err != nil {
		return nil, NewFailure("bad_timestamp", err)
	}
	return Answer{"utc": string(arc.NewTimestamp(t))}, nil
}

func arcPartBytes(_ *testing.T, in *Input) (Answer, error) {
	var p arc.Part
	if err := p.UnmarshalJSON(in.Wire("wire")); err != nil {
		return nil, err
	}
	b, err := p.Bytes()
	if err != nil {
		return nil, NewFailure("bad_base64", err)
	}
	return Answer{"bytesB64": base64.StdEncoding.EncodeToString(b)}, nil
}

// cutReader delivers its bytes in the pieces that end at the given offsets.
type cutReader struct {
	data []byte
	cuts []int
	at   int
}

func (r *cutReader) Read(p []byte) (int, error) {
	if r.at >= len(r.data) {
		return 0, io.EOF
	}
	for len(r.cuts) > 0 && r.cuts[0] <= r.at {
		r.cuts = r.cuts[1:]
	}
	end := len(r.data)
	if len(r.cuts) > 0 && r.cuts[0] < end {
		end = r.cuts[0]
	}
	n := copy(p, r.data[r.at:end])
	r.at += n
	return n, nil
}

func arcSSEDecode(_ *testing.T, in *Input) (Answer, error) {
	body := &cutReader{data: in.Wire("wire")}
	if in.Has("cuts") {
		body.cuts = in.Ints("cuts")
	}
	r := arc.NewStreamReader(body, &arc.StreamReaderOptions{MaxEvent: in.IntOr("maxEventBytes", 0)})
	events := []Answer{}
	text, status, end := "", "", ""
	for end == "" || end == "error" {
		ev, err := r.Next()
		var fault *arc.Error
		switch {
		case errors.As(err, &fault):
			events = append(events, Answer{"kind": "error", "code": int64(fault.Code), "message": fault.Message})
			end = "error"
			continue
		case end == "error" && err != nil:
			return sseAnswer(events, text, r.ChatID(), status, end), nil
		case errors.Is(err, arc.ErrTruncated):
			end = "truncated"
		case errors.Is(err, arc.ErrMalformedEvent):
			end = "malformed"
		case errors.Is(err, arc.ErrTooLarge):
			end = "too_large"
		case err != nil:
			return nil, err
		case ev.Done:
			events = append(events, Answer{"kind": "done", "chatId": ev.ChatID, "status": string(ev.Status)})
			status = string(ev.Status)
			if end == "" {
				end = "done"
			}
		default:
			events = append(events, Answer{"kind": "chunk", "chatId": ev.ChatID, "message": ev.Message})
			text += ev.Text
		}
	}
	return sseAnswer(events, text, r.ChatID(), status, end), nil
}

func sseAnswer(events []Answer, text, chatID, status, end string) Answer {
	return Answer{"json": Answer{"events": events, "text": text, "chatId": chatID, "status": status, "end": end}}
}

func arcSSEEncode(_ *testing.T, in *Input) (Answer, error) {
	var e arc.StreamEncoder
	var out []byte
	list := []Answer{}
	for _, ev := range in.Objects("events") {
		start := len(out)
		var err error
		var name string
		switch kind := ev.String("kind"); kind {
		case "chunk":
			var m arc.Message
			if err := m.UnmarshalJSON([]byte(ev.String("message"))); err != nil {
				return nil, err
			}
			name = "stream"
			out, err = e.AppendChunk(out, ev.String("chatId"), "", &m)
		case "done":
			name = "done"
			out, err = e.AppendDone(out, ev.String("chatId"), "", arc.ChatStatus(ev.String("status")))
		case "error":
			fault := &arc.Error{Code: arc.Code(ev.Int("code")), Message: ev.String("message")}
			if ev.Has("details") {
				fault.Details = json.RawMessage(ev.String("details"))
			}
			name = "error"
			out, err = e.AppendError(out, ev.String("chatId"), fault)
		case "keepalive":
			out, err = e.AppendKeepAlive(out)
		default:
			ev.Fail("kind", "is unknown: %q", kind)
			return nil, ev.Err()
		}
		if errors.Is(err, arc.ErrStreamClosed) {
			return nil, NewFailure("invalid_event", err)
		}
		if err != nil {
			return nil, err
		}
		got, err := sseFrame(out[start:], name)
		if err != nil {
			return nil, err
		}
		list = append(list, got)
	}
	return Answer{"json": list}, nil
}

// sseFrame holds the bytes of one event to the exact form of ARC-D25 and ARC-D26.
func sseFrame(b []byte, name string) (Answer, error) {
	if name == "" {
		if string(b) != ": keep-alive\n\n" {
			return nil, fmt.Errorf("keep-alive is written as %q", b)
		}
		return Answer{"comment": true}, nil
	}
	rest, ok1 := bytes.CutPrefix(b, []byte("event: "+name+"\ndata: "))
	data, ok2 := bytes.CutSuffix(rest, []byte("\n\n"))
	if !ok1 || !ok2 || bytes.ContainsAny(data, "\r\n") {
		return nil, fmt.Errorf("event is written as %q", b)
	}
	return Answer{"event": name, "data": json.RawMessage(data)}, nil
}

func arcTaskMachine(_ *testing.T, in *Input) (Answer, error) {
	state, list := arc.TaskSubmitted, []Answer{}
	for _, action := range in.Strings("events") {
		next, emit, err := state.Next(arc.TaskAction(action))
		var code arc.Code
		switch {
		case err == nil:
			events := []string{}
			for _, e := range emit {
				events = append(events, string(e))
			}
			list = append(list, Answer{"status": string(next), "emit": events})
		case errors.As(err, &code):
			list = append(list, Answer{"error": int64(code), "status": string(next)})
		default:
			return nil, err
		}
		state = next
	}
	return Answer{"json": list}, nil
}

func arcChatMachine(_ *testing.T, in *Input) (Answer, error) {
	var state arc.ChatStatus
	stateless, list := in.Bool("stateless"), []Answer{}
	for _, action := range in.Strings("events") {
		next, err := state.Next(arc.ChatAction(action))
		var code arc.Code
		switch {
		case err == nil && stateless && state == "" && action == string(arc.ChatStart):
			list = append(list, Answer{"status": string(arc.ChatClosed)}) // answered, and nothing stays
			continue
		case err == nil:
			list = append(list, Answer{"status": string(next)})
		case errors.As(err, &code):
			list = append(list, Answer{"error": int64(code), "status": string(next)})
		default:
			return nil, err
		}
		state = next
	}
	return Answer{"json": list}, nil
}

func arcScopeCheck(_ *testing.T, in *Input) (Answer, error) {
	method := in.String("method")
	provided := arc.ParseScopes(json.RawMessage(in.String("claims")))
	if missing := arc.MissingScopes(method, provided); len(missing) > 0 {
		return nil, &Failure{Fields: Answer{"code": int64(arc.ErrInsufficientScope), "missing": missing}}
	}
	return Answer{"allowed": true, "required": arc.RequiredScopes(method)}, nil
}

func arcTraceContext(_ *testing.T, in *Input) (Answer, error) {
	return Answer{"w3c": arc.W3CTraceID(in.String("traceId"))}, nil
}

func arcCallbackURL(_ *testing.T, in *Input) (Answer, error) {
	policy := arc.CallbackPolicy{AllowInsecure: in.Bool("allowHTTP"), AllowPrivate: in.Bool("allowPrivate")}
	var addresses []netip.Addr
	for _, s := range in.StringsOr("resolved") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, a)
	}
	err := policy.Validate(in.String("url"), addresses...)
	var fault arc.CallbackFault
	if errors.As(err, &fault) {
		return nil, &Failure{Fields: Answer{"code": int64(arc.ErrInvalidParams), "reason": string(fault)}, Err: err}
	}
	return Answer{"ok": true}, err
}

func arcWebhookSign(_ *testing.T, in *Input) (Answer, error) {
	return Answer{"signature": arc.SignWebhook([]byte(in.String("secret")), in.Wire("body"))}, nil
}

func arcWebhookVerify(_ *testing.T, in *Input) (Answer, error) {
	verify := arc.VerifyWebhook
	if mode := in.String("mode"); mode == "python" {
		verify = arc.VerifyWebhookPython
	} else if mode != "exact" {
		in.Fail("mode", "is unknown: %q", mode)
	}
	if !verify([]byte(in.String("secret")), in.Wire("body"), in.String("signature")) {
		return nil, NewFailure("bad_signature", nil)
	}
	return Answer{"ok": true}, nil
}

func arcAgentInfo(_ *testing.T, in *Input) (Answer, error) {
	infos, err := arc.DecodeAgentInfo(in.Wire("wire"))
	if errors.Is(err, arc.ErrInvalidAgentInfo) {
		return nil, NewFailure("invalid_agent_info", err)
	}
	if err != nil {
		return nil, err
	}
	list := []Answer{}
	for _, a := range infos {
		list = append(list, Answer{"agentId": a.AgentID, "status": a.Status, "version": a.Version,
			"capabilities": a.Capabilities, "supportedMethods": a.SupportedMethods, "endpoint": a.Endpoint})
	}
	return Answer{"json": list}, nil
}
