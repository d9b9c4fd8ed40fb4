// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// probeMethod is a method that no agent has.
const probeMethod = "doctor.probe"

// Advice for findings of several probes.
const (
	adviceStatus = "Client reads the error at every status; a client that reads only status 200 loses the code"
	adviceCodes  = "compare with errors.Is(err, arc.ErrInvalidRequest), which matches each of these codes"
	adviceStrict = "do not put a gateway with another JSON parser in front of it"
	adviceGuard  = "put a gateway in front of it that does this"
)

// probeHTTP probes the HTTP binding.
func (d *doctor) probeHTTP(ctx context.Context) error {
	body := d.request(probeMethod, "{}")
	a, err := d.send(ctx, http.MethodGet, "", nil)
	if err != nil {
		return err
	}
	if a.status != http.StatusMethodNotAllowed {
		d.deviate("ARC-D10", "", "GET has status %d instead of 405", a.status)
	}
	for _, p := range []struct {
		id, advice, what string
		status           int
		edit             func(*http.Request)
	}{
		{"ARC-D10", adviceGuard, "a request of the media type text/plain, which any web page can send,", http.StatusUnsupportedMediaType,
			func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }},
		{"ARC-D81", adviceGuard, "a request with two Content-Type fields", http.StatusBadRequest,
			func(r *http.Request) { r.Header.Add("Content-Type", "text/plain") }},
	} {
		a, err := d.send(ctx, http.MethodPost, body, p.edit)
		if err != nil {
			return err
		}
		if a.code() == arc.ErrMethodNotFound {
			d.deviate(p.id, p.advice, "%s is handled instead of status %d", p.what, p.status)
		}
	}
	a, err = d.send(ctx, http.MethodPost, body, func(r *http.Request) { r.Header.Set("Origin", "https://doctor.invalid") })
	if err != nil {
		return err
	}
	if allowed := a.header.Get("Access-Control-Allow-Origin"); allowed == "*" || allowed == "https://doctor.invalid" {
		d.deviate("ARC-D17", "", "web pages of every origin can read responses: Access-Control-Allow-Origin is %q", allowed)
	}
	if at, err := http.ParseTime(a.header.Get("Date")); err == nil && time.Since(at).Abs() > time.Minute {
		d.deviate("ARC-D43", "webhook.ReceiverOptions.MaxClockSkew", "the clocks differ by %s", time.Since(at).Round(time.Second))
	}
	if a.media != arc.MediaType {
		d.deviate("ARC-D11", "Client accepts both", "responses have the media type %q", a.media)
	}
	return nil
}

// probeTokens probes the authentication with a request that reaches no handler.
func (d *doctor) probeTokens(ctx context.Context) error {
	body := d.request(probeMethod, "{}")
	without, err := d.send(ctx, http.MethodPost, body, func(r *http.Request) { r.Header.Del("Authorization") })
	if err != nil {
		return err
	}
	invalid, err := d.send(ctx, http.MethodPost, body, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+badToken) })
	if err != nil {
		return err
	}
	isOpen := without.code() == arc.ErrMethodNotFound
	switch {
	case isOpen && invalid.code() != arc.ErrMethodNotFound:
		d.deviate("ARC-D54", adviceGuard, "invalid tokens are refused, but requests without a token are not")
	case isOpen && d.target.Scheme == "https":
		d.deviate("ARC-168", adviceGuard, "every caller is served without a token")
	case isOpen:
	case without.status != http.StatusUnauthorized:
		d.deviate("ARC-D54", adviceStatus, "a request without a token has status %d instead of 401", without.status)
	case without.header.Get("WWW-Authenticate") == "":
		d.deviate("ARC-D15", "", "a 401 response has no WWW-Authenticate header")
	}
	if !isOpen && d.token == "" {
		return errors.New("the endpoint requires a token: see -token-file")
	}
	return nil
}

// probeMessages sends messages that a server refuses before it calls a handler.
func (d *doctor) probeMessages(ctx context.Context) error {
	const bigID = "123456789012345678901234567890"
	for _, p := range []struct {
		id, advice, what, body string
		code                   arc.Code
		status                 int
	}{
		{"ARC-D01", "", "text that is not JSON", `{"arc"`, arc.ErrParse, 400},
		{"ARC-D01", adviceStrict, "a message with two members of one name", d.request(probeMethod, `{"a":1,"a":2}`), arc.ErrInvalidRequest, 400},
		{"ARC-D06", adviceCodes, "another version", d.request(probeMethod, `{}`, `"1.0"`, `"2.0"`), arc.ErrInvalidVersion, 400},
		{"ARC-D06", adviceCodes, "a message without a method", d.request(probeMethod, `{}`, `"method":"doctor.probe",`, ``), arc.ErrMissingField, 400},
		{"ARC-D06", "", "params that are no object", d.request(probeMethod, `[]`), arc.ErrInvalidParams, 400},
		{"ARC-D06", "", "an unknown method", d.request(probeMethod, `{}`), arc.ErrMethodNotFound, 404},
		{"ARC-D07", "", "an unknown agent", d.request(probeMethod, `{}`, `"targetAgent":`, `"targetAgent":"doctor-absent-00","x":`), arc.ErrAgentNotFound, 404},
		{"ARC-D02", "use ids of text, as Client does", "an id of 30 digits", d.request(probeMethod, `{}`, `"id":`, `"id":`+bigID+`,"x":`), arc.ErrMethodNotFound, 404},
		{"ARC-D09", "", "a request with a traceId", d.request(probeMethod, `{},"traceId":"doctor"`), arc.ErrMethodNotFound, 404},
	} {
		a, err := d.send(ctx, http.MethodPost, p.body, nil)
		if err != nil {
			return err
		}
		switch {
		case a.arc == nil:
			d.deviate("ARC-055", "the error of the client is an HTTPError with the text", "%s: the response with status %d is no ARC message", p.what, a.status)
		case a.code() != p.code:
			d.deviate(p.id, p.advice, "%s: code %d instead of %d", p.what, a.code(), p.code)
		case a.status != p.status:
			d.deviate("ARC-D12", adviceStatus, "%s: status %d instead of %d", p.what, a.status, p.status)
		}
		if a.arc == nil || a.arc.Error == nil {
			continue
		}
		switch details := parse(a.arc.Error.Details); {
		case p.code == arc.ErrAgentNotFound && bytes.Contains(a.arc.Error.Details, []byte(d.agent)):
			d.deviate("ARC-D55", "", "the error for an unknown agent lists the other agents")
		case p.code == arc.ErrAgentNotFound && !details.IsObject():
			d.deviate("ARC-D55", "", "the error for an unknown agent has no details")
		case p.id == "ARC-D02" && string(a.arc.ID) != bigID:
			d.deviate(p.id, p.advice, "%s comes back as %s", p.what, a.arc.ID)
		case p.id == "ARC-D09" && a.arc.TraceID != "doctor":
			d.deviate(p.id, "", "the traceId of a request is missing in the error")
		}
	}
	return nil
}

// probeTask reads a task that does not exist.
func (d *doctor) probeTask(ctx context.Context) error {
	if d.info.AgentID != "" && !slices.Contains(d.info.SupportedMethods, arc.MethodTaskInfo) {
		return nil
	}
	a, err := d.post(ctx, arc.MethodTaskInfo, `{"taskId":"task-doctor-absent"}`)
	if err != nil {
		return err
	}
	switch {
	case a.code() == arc.ErrMethodNotFound || a.code() == arc.ErrInsufficientScope:
	case a.code() != arc.ErrTaskNotFound:
		d.deviate("ARC-D55", "", "task.info of an absent task: code %d instead of %d", a.code(), arc.ErrTaskNotFound)
	case a.status != http.StatusOK:
		d.deviate("ARC-D12", adviceStatus, "errors of tasks and chats have status %d instead of 200", a.status)
	}
	return nil
}

const greeting = `{"role":"user","parts":[{"type":"TextPart","content":"hello"}]}`

// probeChat has a chat of two messages.
func (d *doctor) probeChat(ctx context.Context) error {
	a, err := d.post(ctx, arc.MethodChatStart, `{"initialMessage":`+greeting+`}`)
	if err != nil {
		return err
	}
	chat := a.result().Get("chat")
	id, _ := chat.Get("chatId").Text()
	if id == "" {
		if a.code() != arc.ErrMethodNotFound {
			d.deviate("ARC-D33", "", "chat.start: no chatId: %s", a.summary())
		}
		return nil
	}
	d.checkTime(chat, "createdAt")
	if status, _ := chat.Get("status").Text(); status == string(arc.ChatClosed) {
		return nil
	}
	if a, err = d.post(ctx, arc.MethodChatMessage, chatParams(id, `,"message":`+greeting)); err != nil {
		return err
	}
	if r := a.result(); r.Get("chat").Absent() && !r.Get("success").Absent() {
		d.deviate("ARC-D31", "SendChatMessage returns a Chat without a message", "chat.message only acknowledges")
	}
	return d.endChat(ctx, id)
}

// endChat ends a chat, if it has an id.
func (d *doctor) endChat(ctx context.Context, id string) (err error) {
	if id != "" {
		_, err = d.post(ctx, arc.MethodChatEnd, chatParams(id, ""))
	}
	return err
}

func chatParams(id, more string) string {
	return `{"chatId":` + string(strictjson.AppendString(nil, id)) + more + `}`
}

// summary describes an answer in a few words.
func (a *answer) summary() string {
	if a.arc != nil && a.arc.Error != nil {
		return fmt.Sprintf("%s (%d)", a.arc.Error.Message, a.arc.Error.Code)
	}
	return fmt.Sprintf("status %d", a.status)
}

// checkTime checks a time of an object.
func (d *doctor) checkTime(v strictjson.Value, name string) {
	text, _ := v.Get(name).Text()
	if _, err := time.Parse(time.RFC3339Nano, text); err == nil || text == "" {
		return
	}
	if _, err := arc.Timestamp(text).Time(); err == nil {
		d.deviate("ARC-D63", "Timestamp.Time reads such times as UTC", "times have no zone")
	} else {
		d.deviate("ARC-D63", "", "times are not RFC 3339")
	}
}

var shortID = regexp.MustCompile(`^task-[0-9a-f]{8}$`)

// probeStream streams the answer of a chat, and ends the chat.
func (d *doctor) probeStream(ctx context.Context) error {
	a, err := d.send(ctx, http.MethodPost, d.request(arc.MethodChatStart, `{"stream":true,"initialMessage":`+greeting+`}`),
		func(r *http.Request) { r.Header.Set("Accept", "text/event-stream, "+arc.MediaType) })
	switch {
	case err != nil:
		return err
	case a.code() != 0:
		return nil
	case a.media != "text/event-stream":
		d.deviate("ARC-D24", "StreamChat gives it as one event", "a streamed request has a response of the media type %q", a.media)
		id, _ := a.result().Get("chat").Get("chatId").Text()
		return d.endChat(ctx, id)
	}
	r := sse.NewReader(bytes.NewReader(a.body), nil)
	isDone, isFailed, hasIDs, id := false, false, false, ""
	for {
		e, err := r.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				d.deviate("ARC-D28", "", "the stream is malformed: %v", err)
			}
			break
		}
		_, _, isNumbered := wire.ParseEventID(r.LastEventID())
		hasIDs = hasIDs || isNumbered
		if isFailed {
			d.deviate("ARC-D22", "StreamChat ends with the error", "an event %q follows the error of a stream", e.Name)
		}
		isDone, isFailed = isDone || e.Name == "done", isFailed || e.Name == "error"
		data := parse(e.Data)
		if id == "" {
			id, _ = data.Get("chatId").Text()
		}
		d.checkEvent(e.Name, data)
	}
	if !isDone && !isFailed {
		d.deviate("ARC-D27", "StreamChat ends with ErrTruncated", "the stream ends without a done event")
	}
	if hasIDs {
		d.offer("ARC-D73", "ClientOptions.MaxResumes", "streams can be resumed")
	}
	return d.endChat(ctx, id)
}

// checkEvent checks an event of a stream.
func (d *doctor) checkEvent(name string, data strictjson.Value) {
	switch name {
	case "stream":
		if message := data.Get("message"); !message.IsObject() || !message.Get("parts").IsArray() {
			d.deviate("ARC-D28", "StreamChat makes messages of parts and texts", "a chunk has no message with parts: %.80q", data)
		}
	case "done":
		if status, _ := data.Get("status").Text(); !slices.Contains([]string{"ACTIVE", "PAUSED", "CLOSED"}, status) {
			d.deviate("ARC-D22", "StreamChat passes it on", "a done event has the status %q", status)
		}
	case "error":
		if data.Get("error").Get("code").Absent() {
			d.deviate("ARC-D22", "StreamChat reads this form, too", "an error event has its members bare")
		}
	default:
		d.deviate("ARC-D20", "StreamChat reads chat events as chunks, and OnUnknownEvent gets others", "an event has the name %q", name)
	}
}

// probeTasks creates a task twice with one request id, subscribes to it and cancels it.
func (d *doctor) probeTasks(ctx context.Context) error {
	body := d.request(arc.MethodTaskCreate, `{"initialMessage":`+greeting+`}`)
	var ids []string
	for range 2 {
		a, err := d.send(ctx, http.MethodPost, body, nil)
		if err != nil {
			return err
		}
		task := a.result().Get("task")
		id, _ := task.Get("taskId").Text()
		if id == "" {
			if a.code() != arc.ErrMethodNotFound {
				d.deviate("ARC-093", "", "task.create: no taskId: %s", a.summary())
			}
			break
		}
		d.checkTime(task, "createdAt")
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	if len(ids) == 2 && ids[0] == ids[1] {
		d.offer("ARC-D48", "ClientOptions.Idempotent", "a repeated request gets the first answer")
	}
	if shortID.MatchString(ids[0]) {
		d.deviate("ARC-D36", "do not use task ids as secrets", "task ids have 32 bits and can be guessed: %s", ids[0])
	}
	for _, probe := range []func(context.Context, string) error{d.probePages, d.probeSubscription} {
		if err := probe(ctx, ids[0]); err != nil {
			return err
		}
	}
	for _, id := range slices.Compact(ids) {
		if _, err := d.post(ctx, arc.MethodTaskCancel, taskParams(id, `,"reason":"doctor"`)); err != nil {
			return err
		}
	}
	return nil
}

func taskParams(id, more string) string {
	return `{"taskId":` + string(strictjson.AppendString(nil, id)) + more + `}`
}

// probePages reads a task in pages.
func (d *doctor) probePages(ctx context.Context, id string) error {
	a, err := d.post(ctx, arc.MethodTaskInfo, taskParams(id, `,"includeMessages":false,"messagesLimit":1`))
	if err != nil {
		return err
	}
	task := a.result().Get("task")
	if !task.Get("messages").Absent() && task.Get("messages").IsArray() {
		d.deviate("ARC-D37", "", "task.info without messages has the member messages")
	}
	if task.IsObject() && task.Get("messageCount").Absent() {
		d.deviate("ARC-D79", "ClientOptions.Limits.MaxMessage bounds a whole history", "task.info has no pages")
	}
	return nil
}

// probeSubscription subscribes with an address that no resolver knows.
func (d *doctor) probeSubscription(ctx context.Context, id string) error {
	a, err := d.post(ctx, arc.MethodTaskSubscribe, taskParams(id, `,"callbackUrl":"https://doctor.invalid/hook"`))
	if err != nil {
		return err
	}
	r := a.result()
	if r.Get("subscription").Absent() {
		return nil
	}
	d.deviate("ARC-D45", adviceGuard, "callback addresses are not checked: a caller can make the server send to its own network")
	if kind, _ := r.Get("type").Text(); kind != "task" {
		d.deviate("ARC-D32", "SubscribeTask reads both; serve its clients with ProfilePythonSDK", "the result of task.subscribe has the type %q", strings.ToValidUTF8(kind, "?"))
	}
	return nil
}
