// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package profile has the names of the draft: its operations, the codes of its schemas, and the messages of its
// profiles as structs.
package profile

import (
	"context"
	"errors"
	"slices"

	"github.com/fivewire/fivewire/accp"
)

// Operations of the core list of the draft, and those of its examples and fixed frames (ACCP-D51).
// Custom names are valid as well.
const (
	OpAnalyze   = "analyze"
	OpPlan      = "plan"
	OpExecute   = "execute"
	OpReview    = "review"
	OpApprove   = "approve"
	OpReject    = "reject"
	OpFetch     = "fetch"
	OpTransform = "transform"
	OpSummarize = "summarize"
	OpClassify  = "classify"
	OpGenerate  = "generate"
	OpValidate  = "validate"
	OpSchedule  = "schedule"
	OpNotify    = "notify"
	OpMerge     = "merge"
	OpSplit     = "split"
	OpRoute     = "route"
	OpCache     = "cache"
	OpPurge     = "purge"

	OpLookup      = "lookup"
	OpState       = "state"
	OpRegistry    = "registry"
	OpError       = "error"
	OpChat        = "chat"
	OpTool        = "tool"
	OpTransaction = "transaction"
	OpInfer       = "infer"
	OpHeartbeat   = "heartbeat"
)

// Codes of the built-in schemas, and of [TableSchema].
const (
	SchemaChat        = "CH"
	SchemaTool        = "TC"
	SchemaTransaction = "TX"
	SchemaStream      = "ST"
	SchemaTask        = "TA"
	SchemaError       = "ER"
	SchemaTable       = "TB"
)

// Builtin returns the profiles of the draft: chat (CH), tool (TC), transaction (TX),
// streaming (ST) and workflow (TA). A session enforces their rules without [accp.Session.AddProfile].
func Builtin() []accp.Profile {
	return []accp.Profile{
		{Name: SchemaChat, Sequences: [][]string{{"req:chat", "done:chat"}}},
		{Name: SchemaTool, Sequences: [][]string{{"req:tool", "done:tool"}, {"req:tool", "fail:error"}}},
		{Name: SchemaTransaction, Sequences: [][]string{{"req:transaction", "done:transaction"}}},
		{Name: SchemaStream, Sequences: [][]string{{"stream", "end"}}},
		{Name: SchemaTask, Sequences: [][]string{{"req:schedule", "done:schedule"}}},
	}
}

// A Chat is a message of the chat profile.
type Chat struct {
	Role    string `json:"role,omitempty"` // empty: assistant
	Content string `json:"content"`
	Turn    int64  `json:"turn,omitempty"`
	Lang    string `json:"lang,omitempty"` // empty: en
	ReplyTo string `json:"reply_to,omitempty"`
}

// A Transaction is a message of the transaction profile. The id must stay the same over retries.
type Transaction struct {
	ID        string `json:"transaction_id"`    // must not be empty
	Amount    string `json:"amount" accp:"dec"` // exact decimal of at most six places; empty: absent
	Currency  string `json:"currency,omitempty"`
	Account   string `json:"account,omitempty"`
	Reference string `json:"reference,omitempty"`
	Status    string `json:"status,omitempty"`
	Retryable bool   `json:"retryable,omitempty"`
}

// A ToolCall is a request of the tool profile.
type ToolCall struct {
	Name      string     `json:"tool_name"`
	Arguments accp.Value `json:"arguments"` // a map
}

// A Chunk is one piece of a stream.
type Chunk struct {
	Index int64      `json:"chunk_index"`
	Total *int64     `json:"total_chunks"` // nil if unknown
	Data  accp.Value `json:"data"`
	Final bool       `json:"is_final"`
}

// A Task is a message of the workflow profile.
type Task struct {
	Assignee string   `json:"assignee,omitempty"`
	Task     string   `json:"task,omitempty"`
	Priority string   `json:"priority,omitempty"` // empty: medium
	Deadline string   `json:"deadline,omitempty"`
	Deps     []string `json:"deps,omitempty"`
	Status   string   `json:"status,omitempty"`
	Progress *int64   `json:"progress"`
}

// A ToolFunc performs a tool call. The arguments have full keys. The code of an [*accp.Error] or a
// [accp.Code] is sent; any other error is [accp.ErrToolExecFailed], which the server logs.
type ToolFunc func(ctx context.Context, arguments accp.Params) (accp.Value, error)

// NewToolHandler returns a handler of req:tool frames, which answers with done:tool. A name that is
// not in tools is [accp.ErrToolNotFound]. Arguments that are not a map, or a name that is not a string,
// are [accp.ErrToolSchema].
func NewToolHandler(tools map[string]ToolFunc) accp.Handler {
	return accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		name, _ := m.Params.Get("tool_name")
		arguments, hasArguments := m.Params.Get("arguments")
		text, isText := name.Text()
		if !isText || hasArguments && arguments.Kind() != accp.KindMap {
			return accp.Errorf(accp.ErrToolSchema, "tool_name must be a string and arguments a map")
		}
		tool := tools[text]
		if tool == nil {
			return accp.Errorf(accp.ErrToolNotFound, "tool %.80q", text)
		}
		result, err := tool(ctx, slices.Clone(arguments.Entries()))
		if err != nil {
			var e *accp.Error
			var c accp.Code
			if errors.As(err, &e) || errors.As(err, &c) {
				return err
			}
			return &accp.Error{Code: accp.ErrToolExecFailed, Message: "tool " + text, Cause: err}
		}
		return w.SendResult(accp.Params{{Key: "tool_name", Value: name}, {Key: "result", Value: result}, {Key: "schema", Value: accp.String(SchemaTool)}})
	})
}
