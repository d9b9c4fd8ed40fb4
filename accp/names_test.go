// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
)

// An error has the name that is wrong, at most 80 bytes of it (ACCP-D78).
func TestErrorsHaveTheNameThatIsWrong(t *testing.T) {
	long := strings.Repeat("n", 100)
	var c accp.Codec
	for name, m := range map[string]*accp.Message{
		`invalid key "a-b"`:                     {From: "a", Intent: "req", Op: "x", Params: accp.Params{text("a-b", "v")}},
		`invalid agent-id "a b"`:                {From: "a b", Intent: "req", Op: "x"},
		`invalid operation "` + long[:80] + `"`: {From: "a", Intent: "req", Op: long},
		`unknown intent "ask"`:                  {From: "a", Intent: "ask", Op: "x"},
		`malformed intent "a1"`:                 {From: "a", Intent: "a1", Op: "x"},
		`key "k" given twice`:                   {From: "a", Intent: "req", Op: "x", Params: accp.Params{text("k", "1"), text("k", "2")}},
		`malformed reference "$a..b"`:           {From: "a", Intent: "req", Op: "x", Params: accp.Params{{Key: "k", Value: accp.Ref("a..b")}}},
		`metadata field "msg_id" given twice`:   {From: "a", Intent: "req", Op: "x", Meta: &accp.Meta{MID: "1", Ext: accp.Params{text("msg_id", "1")}}},
		`metadata field "mid" given twice`:      {From: "a", Intent: "req", Op: "x", Meta: &accp.Meta{Ext: accp.Params{text("mid", "1")}}},
	} {
		_, err := c.AppendRaw(nil, m)
		require.ErrorContains(t, err, name)
	}
	for frame, name := range map[string]string{
		`@a>ask:x{}`:              `unknown intent "ask"`,
		`@a>req:x{b:1|a:2|b:3}`:   `key "b" given twice`,
		`@a>req:x{}[mid:a,mid:b]`: `metadata field "mid" given twice`,
		`@a>req:x{}[seq:1,seq:2]`: `metadata field "seq" given twice`,

		`@a>req:x{}[mid:a,msg_id:b]`:   `metadata field "msg_id" given twice`,
		`@a>req:x{}[timestamp:a,ts:1]`: `metadata field "ts" given twice`,
		`@a>req:x{}[mid:[1]]`:          `metadata field "mid" must be a string`,
		`@a>req:x{}[ttl:x]`:            `metadata field "ttl" must be an integer`,
		`@a>req:x{}[ts:-1]`:            `metadata field "ts" must be an integer from 0`,
	} {
		_, err := c.DecodeRaw([]byte(frame))
		require.ErrorContains(t, err, name)
	}
}

func TestEnumerationsHaveNames(t *testing.T) {
	require.Equal(t, "req", accp.IntentReq.String())
	require.Equal(t, "decimal", accp.KindDecimal.String())
	require.Equal(t, "delivered cancelled dropped pending unknown", strings.Join([]string{accp.OutcomeDelivered.String(),
		accp.OutcomeCancelled.String(), accp.OutcomeDropped.String(), accp.OutcomePending.String(), accp.ReceiveOutcome(9).String()}, " "))
}

type requestKey struct{}

// A record of the log about a handler names the message, and comes with the context of the request.
func TestFailedHandlersAreLoggedWithTheirMessage(t *testing.T) {
	var log bytes.Buffer
	var trace any
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true},
		Logger: slog.New(contextLog{slog.NewTextHandler(&log, nil), func(ctx context.Context) { trace = ctx.Value(requestKey{}) }})})
	require.NoError(t, err)
	s.Handle(accp.IntentReq, "secret", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		return errors.New("open: denied")
	}))
	r := httptest.NewRequest(http.MethodPost, accp.FramesPath, bytes.NewReader(frame("req:secret{}", 1, "cid:chain7", "sid:s1")))
	r.Header.Set("Content-Type", accp.MediaType)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, "trace1")))
	require.Contains(t, w.Body.String(), "code:E9999")
	require.NotContains(t, w.Body.String(), "denied")
	require.Regexp(t, `level=ERROR msg="accp: handler failed" session=s1 operation=req:secret chain=chain7 sender=a err="open: denied"`, log.String())
	require.Equal(t, "trace1", trace)

	s.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"read": func(context.Context, accp.Params) (accp.Value, error) {
			return accp.Value{}, errors.New("disk: failed")
		},
	}))
	r = httptest.NewRequest(http.MethodPost, accp.FramesPath, bytes.NewReader(frame("req:tool{schema:TC|tool:read}", 3, "sid:s1")))
	r.Header.Set("Content-Type", accp.MediaType)
	w = httptest.NewRecorder()
	s.ServeHTTP(w, r)
	require.Contains(t, w.Body.String(), "code:E4002")
	require.NotContains(t, w.Body.String(), "disk")
	require.Contains(t, log.String(), "disk: failed")
	require.NoError(t, s.Close())
}

// A contextLog calls a function with the context of each record.
type contextLog struct {
	slog.Handler
	note func(context.Context)
}

func (l contextLog) Handle(ctx context.Context, r slog.Record) error {
	l.note(ctx)
	return l.Handler.Handle(ctx, r)
}
