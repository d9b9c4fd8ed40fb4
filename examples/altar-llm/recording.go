// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/altar/llm"
)

// A recorded call has the name of a tool and its arguments.
type recorded struct{ tool, arguments string }

// script is a recorded conversation, by turns: two calls at the same time, the first of which is refused, and its repair.
var script = [][]recorded{
	{{"bank__transfer", `{"account":"9007199254740993","cents":"12.50","memo":"rent"}`}, {"count_words", `{"text":"one small step"}`}},
	{{"bank__transfer", `{"account":"9007199254740993","cents":"1250"}`}},
}

// A recording is the server of a vendor on loopback, whose model plays a script and then ends with a text.
type recording struct {
	*httptest.Server
	vendor llm.Vendor
	script [][]recorded

	mu       sync.Mutex
	requests []string // bodies; guarded by mu
}

func newRecording(vendor llm.Vendor, script [][]recorded) *recording {
	r := &recording{vendor: vendor, script: script}
	r.Server = httptest.NewServer(r)
	return r
}

// ServeHTTP answers each request with the next turn.
func (r *recording) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	r.mu.Lock()
	turn := len(r.requests)
	r.requests = append(r.requests, string(body))
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, r.turn(turn)) // the reader reports a failure
}

// turn returns a turn in the form of the vendor.
func (r *recording) turn(n int) string {
	var items []string
	text := "Done."
	if n < len(r.script) {
		text = ""
		for i, c := range r.script[n] {
			items = append(items, r.call(fmt.Sprintf("call-%d-%d", n, i), c))
		}
	}
	switch r.vendor {
	case llm.OpenAIResponses:
		if text != "" {
			items = append(items, `{"type":"message","id":"msg-1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"`+text+`","annotations":[]}]}`)
		}
		return `{"id":"resp-1","object":"response","status":"completed","model":"m","output":[` + strings.Join(items, ",") + `]}`
	case llm.Anthropic:
		if text != "" {
			items = append(items, `{"type":"text","text":"`+text+`"}`)
		}
		return `{"id":"msg-1","type":"message","role":"assistant","model":"m","stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1},"content":[` +
			strings.Join(items, ",") + `]}`
	}
	if text != "" {
		items = append(items, `{"text":"`+text+`"}`)
	}
	return `{"candidates":[{"content":{"role":"model","parts":[` + strings.Join(items, ",") + `]},"finishReason":"STOP"}]}`
}

// call returns a call in the form of the vendor.
func (r *recording) call(id string, c recorded) string {
	switch r.vendor {
	case llm.OpenAIResponses:
		return `{"type":"function_call","id":"fc-` + id + `","call_id":"` + id + `","name":"` + c.tool + `","arguments":` + strconv.Quote(c.arguments) + `,"status":"completed"}`
	case llm.Anthropic:
		return `{"type":"tool_use","id":"` + id + `","name":"` + c.tool + `","input":` + c.arguments + `}`
	}
	return `{"functionCall":{"id":"` + id + `","name":"` + c.tool + `","args":` + c.arguments + `}}`
}
