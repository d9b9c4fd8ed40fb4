// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// Any body gets one object with a result or an error, and with the id of a readable request, or a
// stream with one end.
func FuzzServer(f *testing.F) {
	for _, params := range []string{``, `null`, `{}`, `[]`, `{"initialMessage":` + hello("hi") + `}`, `{"chatId":"c","message":` + hello("hi") + `}`,
		`{"chatId":"c","initialMessage":` + hello("hi") + `,"stream":true}`, `{"taskId":"t","callbackUrl":"http://[::1]/","events":["x"]}`,
		`{"initialMessage":{"role":"user","parts":[{"type":"data","content":{"a":"\ud800"}}]}}`} {
		for _, method := range []string{"task.create", "task.send", "task.info", "task.subscribe", "chat.start", "chat.message", "chat.end", "echo.params", "x"} {
			f.Add([]byte(call(method, "a-01", params)))
		}
	}
	for _, text := range []string{"", "{", "{}", "[]", "null", "\x00", `{"arc":"1.0","id":1,"id":2}`, `{"arc":"2.0","id":"m","method":"echo.params"}`,
		strings.Repeat("[", 200), call("echo.params", "a-01", strings.Repeat("[", 200))} {
		f.Add([]byte(text))
	}
	s := newServer(f, nil)
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"},
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error { return run.AddMessage(ctx, run.Message()) }),
		ChatHandler: arc.ChatReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) { return turn.Message, nil }),
		Methods:     map[string]arc.Handler{"echo.params": arc.HandlerFunc(func(_ context.Context, c *arc.Call) (any, error) { return c.Params, nil })},
	})
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest("POST", "/arc", bytes.NewReader(body))
		r.Header.Set("Content-Type", arc.MediaType)
		r.Header.Set("Accept", arc.MediaType)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Header().Get("Content-Type") == "text/event-stream" {
			ends := strings.Count(w.Body.String(), "event: done\n") + strings.Count(w.Body.String(), "event: error\n")
			require.Equal(t, 1, ends, "%s", w.Body)
			return
		}
		var a map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a), "%d %q", w.Code, w.Body)
		require.Equal(t, `"1.0"`, string(a["arc"]))
		hasResult, hasError := string(a["result"]) != "null", string(a["error"]) != "null"
		require.True(t, a["result"] != nil && a["error"] != nil && hasResult != hasError, "%s", w.Body)
		if req, err := arc.DecodeRequest(body); err == nil {
			_, err = arc.DecodeResponse(w.Body.Bytes(), req.ID)
			require.NoError(t, err, "%s", w.Body)
		}
	})
}
