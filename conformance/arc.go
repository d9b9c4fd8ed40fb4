// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"unicode/utf8"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/arc/webhook"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/internal/vector"
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

func arcDecodeRequest(_ T, in *Input) (Answer, error) {
	req, err := arc.DecodeRequest(in.Wire("wire"))
	if err != nil {
		return nil, arcRefused(err)
	}
	return Answer{"idRaw": string(req.ID), "method": req.Method, "requestAgent": req.RequestAgent,
		"targetAgent": req.TargetAgent, "traceId": req.TraceID, "json": req.Params}, nil
}

func arcEncodeRequest(_ T, in *Input) (Answer, error) {
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
		arc.ErrVersionMismatch: "version_mismatch",
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

// isARCJSON reports whether a body is JSON.
func isARCJSON(body []byte) bool {
	return json.Valid(body) && utf8.Valid(body)
}

func arcDecodeResponse(_ T, in *Input) (Answer, error) {
	wire := in.Wire("wire")
	res, err := arc.DecodeResponse(wire, arc.ID(in.StringOr("requestIdRaw", "")))
	if err != nil && !isARCJSON(wire) {
		return nil, NewFailure("parse_error", err)
	}
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

func arcEncodeResponse(_ T, in *Input) (Answer, error) {
	res := &arc.Response{ID: arc.ID(in.String("idRaw")), ResponseAgent: in.String("responseAgent"),
		TargetAgent: in.String("targetAgent"), TraceID: in.String("traceId")}
	if in.Has("result") {
		res.Result = json.RawMessage(in.String("result"))
	}
	if in.Has("error") {
		e := in.Object("error")
		res.Error = &arc.Error{Code: arc.Code(e.Int64("code")), Message: e.String("message")}
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

// passed returns a member as JSON text for [vector.Call].
func passed(in *Input, name string, required bool) json.RawMessage {
	if v := in.member(name, "JSON", required, nil); v != nil {
		return json.RawMessage(v)
	}
	return json.RawMessage("null")
}

func arcValidateParams(_ T, in *Input) (Answer, error) {
	params, err := vector.Call[json.RawMessage](arctest.Vector, "validate_params",
		Answer{"method": in.String("method"), "params": in.Wire("wire")})
	if err != nil {
		return nil, arcRefused(err)
	}
	return Answer{"json": params}, nil
}

func arcValidateResult(_ T, in *Input) (Answer, error) {
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

func arcErrorInfo(_ T, in *Input) (Answer, error) {
	c := arc.Code(in.Int64("code"))
	family, err := vector.Call[string](arctest.Vector, "error_family", Answer{"code": c})
	return Answer{"name": c.Name(), "family": family, "message": c.Message(), "httpStatus": c.HTTPStatus()}, err
}

func arcTimestamp(_ T, in *Input) (Answer, error) {
	t, err := arc.Timestamp(in.String("text")).Time()
	if err != nil {
		return nil, NewFailure("bad_timestamp", err)
	}
	return Answer{"utc": string(arc.NewTimestamp(t))}, nil
}

func arcPartBytes(_ T, in *Input) (Answer, error) {
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

func arcSSEDecode(_ T, in *Input) (Answer, error) {
	out, err := vector.Call[json.RawMessage](arctest.Vector, "sse_decode", Answer{"wire": in.Wire("wire"),
		"cuts": passed(in, "cuts", false), "maxEvent": in.IntOr("maxEventBytes", 0)})
	return Answer{"json": out}, err
}

func arcSSEEncode(_ T, in *Input) (Answer, error) {
	events := passed(in, "events", true)
	frames, err := vector.Call[[][]byte](arctest.Vector, "sse_encode", Answer{"events": events})
	if errors.Is(err, arc.ErrStreamClosed) {
		return nil, NewFailure("invalid_event", err)
	}
	var kinds []struct{ Kind string }
	if err := errors.Join(err, json.Unmarshal(events, &kinds)); err != nil {
		return nil, err
	}
	list := []Answer{}
	for i, frame := range frames {
		name := map[string]string{"chunk": "stream", "done": "done", "error": "error"}[kinds[i].Kind]
		got, err := sseFrame(frame, name)
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

func arcTaskMachine(_ T, in *Input) (Answer, error) {
	out, err := vector.Call[json.RawMessage](arctest.Vector, "task_machine", Answer{"events": passed(in, "events", true)})
	return Answer{"json": out}, err
}

func arcChatMachine(_ T, in *Input) (Answer, error) {
	out, err := vector.Call[json.RawMessage](arctest.Vector, "chat_machine",
		Answer{"events": passed(in, "events", true), "stateless": in.Bool("stateless")})
	return Answer{"json": out}, err
}

func arcScopeCheck(_ T, in *Input) (Answer, error) {
	method := in.String("method")
	provided := arc.ParseScopes(json.RawMessage(in.String("claims")))
	missing, err := vector.Call[[]string](arctest.Vector, "scope_check", Answer{"method": method, "provided": provided})
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, &Failure{Fields: Answer{"code": int64(arc.ErrInsufficientScope), "missing": missing}}
	}
	return Answer{"allowed": true, "required": arc.RequiredScopes(method)}, nil
}

func arcTraceContext(_ T, in *Input) (Answer, error) {
	id, err := vector.Call[string](arctest.Vector, "trace_context", Answer{"traceID": in.String("traceId")})
	return Answer{"w3c": id}, err
}

func arcCallbackURL(_ T, in *Input) (Answer, error) {
	reason, err := vector.Call[string](arctest.Vector, "callback_url", Answer{"url": in.String("url"),
		"allowInsecure": in.Bool("allowHTTP"), "allowPrivate": in.Bool("allowPrivate"), "resolved": passed(in, "resolved", false)})
	if reason != "" {
		return nil, &Failure{Fields: Answer{"code": int64(arc.ErrInvalidParams), "reason": reason}, Err: err}
	}
	return Answer{"ok": true}, err
}

func arcWebhookSign(_ T, in *Input) (Answer, error) {
	return Answer{"signature": webhook.Sign([]byte(in.String("secret")), in.Wire("body"))}, nil
}

func arcWebhookVerify(_ T, in *Input) (Answer, error) {
	verify := webhook.Verify
	if mode := in.String("mode"); mode == "python" {
		verify = webhook.VerifyPython
	} else if mode != "exact" {
		in.Fail("mode", "is unknown: %q", mode)
	}
	if !verify([]byte(in.String("secret")), in.Wire("body"), in.String("signature")) {
		return nil, NewFailure("bad_signature", nil)
	}
	return Answer{"ok": true}, nil
}

func arcAgentInfo(_ T, in *Input) (Answer, error) {
	infos, err := arc.DecodeAgentInfo(in.Wire("wire"))
	if errors.Is(err, arc.ErrInvalidResult) {
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
