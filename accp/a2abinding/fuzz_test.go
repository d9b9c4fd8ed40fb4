// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abinding_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2asrv"
	"github.com/a2aproject/a2a-go/a2asrv/eventqueue"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/a2abinding"
)

// An events is a queue that keeps what is written to it.
type events struct {
	eventqueue.Queue
	written []a2a.Event
}

func (q *events) Write(_ context.Context, e a2a.Event) error {
	q.written = append(q.written, e)
	return nil
}

// Whatever parts a message has, it is refused, or the last event says that it was the
// last: one message, or a final status of a task that was submitted first. All that
// is said is frames.
func FuzzExecute(f *testing.F) {
	agent, err := accp.NewServer("desk", nil)
	require.NoError(f, err)
	agent.HandleFunc(accp.IntentReq, accp.OpAnalyze, func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return w.SendResult(m.Params)
	})
	executor := a2abinding.NewExecutor(agent)
	f.Add([]byte(`[{"kind":"text","text":"@a>req:analyze{d:x}[mid:00000000000a,seq:1,ts:1714000000]","metadata":{"mimeType":"application/accp"}}]`))
	f.Add([]byte(`[{"kind":"text","text":"@a>req:analyze{}[mid:00000000000a,seq:1,ts:1714000000,part:1/2]","metadata":{"contentType":"application/accp"}},{"kind":"text","text":"x"}]`))
	f.Add([]byte(`[{"kind":"text","text":"@a>ack:x{}[mid:00000000000a,seq:1,ts:1714000000]","metadata":{"mimeType":"application/accp"}}]`))
	f.Add([]byte(`[{"kind":"data","data":{"a":1}},{"kind":"text","text":"","metadata":{"mimeType":7,"contentType":"application/accp"}}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var parts a2a.ContentParts
		if json.Unmarshal(raw, &parts) != nil {
			return
		}
		q := &events{}
		req := &a2asrv.RequestContext{Message: a2a.NewMessage(a2a.MessageRoleUser, parts...), TaskID: "t", ContextID: "c"}
		err := executor.Execute(t.Context(), req, q)
		if len(a2abinding.ExtractFrames(parts)) == 0 {
			require.ErrorIs(t, err, a2a.ErrUnsupportedContentType)
			return
		}
		if err != nil {
			require.ErrorIs(t, err, a2a.ErrInternalError)
			return
		}
		all := func(parts a2a.ContentParts) { require.Len(t, a2abinding.ExtractFrames(parts), len(parts)) }
		for i, event := range q.written {
			last := i == len(q.written)-1
			switch e := event.(type) {
			case *a2a.Message:
				require.Len(t, q.written, 1)
				all(e.Parts)
			case *a2a.TaskStatusUpdateEvent:
				require.Equal(t, last, e.Final)
				require.Equal(t, i == 0, e.Status.State == a2a.TaskStateSubmitted)
				if e.Status.Message != nil {
					all(e.Status.Message.Parts)
				}
			default:
				t.Fatalf("unexpected %T", event)
			}
		}
		require.NotEmpty(t, q.written)
	})
}
