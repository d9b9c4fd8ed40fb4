// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abinding_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/a2abinding"
	"github.com/fivewire/fivewire/accp/profile"
)

// Any message is refused, or ends with one last event: a message, or a final status of a task that
// was submitted before. All content is frames.
func FuzzExecute(f *testing.F) {
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(f, err)
	agent.Handle(accp.IntentReq, profile.OpAnalyze, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return w.SendResult(m.Params)
	}))

	executor, err := a2abinding.NewExecutor(agent)
	require.NoError(f, err)
	f.Add([]byte(`[{"text":"@a>req:analyze{d:x}[mid:00000000000a,seq:1,ts:1714000000]","mediaType":"application/accp"}]`))
	f.Add([]byte(`[{"text":"@a>req:analyze{}[mid:00000000000a,seq:1,ts:1714000000,part:1/2]","metadata":{"contentType":"application/accp"}},{"text":"x"}]`))
	f.Add([]byte(`[{"text":"@a>ack:x{}[mid:00000000000a,seq:1,ts:1714000000]","metadata":{"mimeType":"application/accp"}}]`))
	f.Add([]byte(`[{"data":{"a":1}},{"text":"","metadata":{"mimeType":7,"contentType":"application/accp"}}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var parts a2a.ContentParts
		if json.Unmarshal(raw, &parts) != nil {
			return
		}
		var written []a2a.Event
		req := &a2asrv.ExecutorContext{Message: a2a.NewMessage(a2a.MessageRoleUser, parts...), TaskID: "t", ContextID: "c"}
		var err error
		for e, eerr := range executor.Execute(t.Context(), req) {
			if err = eerr; err == nil {
				written = append(written, e)
			}
		}
		if len(a2abinding.ExtractFrames(parts)) == 0 {
			require.ErrorIs(t, err, a2a.ErrUnsupportedContentType)
			return
		}
		if err != nil {
			require.ErrorIs(t, err, a2a.ErrInternalError)
			return
		}
		all := func(parts a2a.ContentParts) { require.Len(t, a2abinding.ExtractFrames(parts), len(parts)) }
		for i, event := range written {
			last := i == len(written)-1
			switch e := event.(type) {
			case *a2a.Message:
				require.Len(t, written, 1)
				all(e.Parts)
			case *a2a.TaskStatusUpdateEvent:
				require.Equal(t, last, e.Status.State.Terminal() || e.Status.State == a2a.TaskStateInputRequired)
				if e.Status.Message != nil {
					all(e.Status.Message.Parts)
				}
			case *a2a.Task:
				require.Zero(t, i)
				require.Equal(t, a2a.TaskStateSubmitted, e.Status.State)
			default:
				t.Fatalf("unexpected %T", event)
			}
		}
		require.NotEmpty(t, written)
	})
}
