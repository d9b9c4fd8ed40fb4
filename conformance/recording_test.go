// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/record"
	"github.com/fivewire/fivewire/a2e/tools"
)

// recordSession records a session with the tools of the fixture at both ends.
func recordSession(t *testing.T) (list []*record.Recording) {
	t.Helper()
	var atHost, atAgent bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("correct-horse")},
			Limits: a2e.Limits{MaxConcurrentPerSession: 4}, Record: func(string) io.Writer { return &atHost }},
			append(a2ePlugins("tools"), a2ePlugins("env")...)...)
		agent, host := a2e.Pipe()
		served := make(chan error, 1)
		go func() { served <- h.Serve(t.Context(), host) }()
		c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{AgentID: "ann", Token: "correct-horse", Capabilities: []string{"tools", "env"},
			Types: catalogue.Types(), Record: &atAgent}))
		_, err := c.Connect(t.Context())
		require.NoError(t, err)
		call := func(tool, arguments string, isStreaming bool) error {
			_, err := a2e.CallAs[tools.CallResponse](t.Context(), c, "tool/call/req", &tools.CallRequest{ToolName: tool,
				Arguments: json.RawMessage(arguments), Streaming: isStreaming}, nil)
			return err
		}
		require.NoError(t, call("echo", `{"n":9007199254740993,"id":"$any"}`, false))
		require.NoError(t, call("slow", `{"ms":1500}`, false))
		require.NoError(t, call("stream3", `{}`, true))
		require.Error(t, call("fail", `{}`, false))
		require.NoError(t, c.Close())
		require.NoError(t, errors.Join(<-served, h.Shutdown(t.Context())))
		synctest.Wait()
		for _, file := range []*bytes.Buffer{&atHost, &atAgent} {
			list = append(list, a2etest.Must(record.Read(file)))
		}
	})
	return list
}

// A recording of a session is a vector, which the recorded implementation passes and another one fails.
func TestRecordingIsVector(t *testing.T) {
	for _, r := range recordSession(t) {
		t.Run(r.Role, func(t *testing.T) {
			text, err := r.Vector()
			require.NoError(t, err)
			require.NotContains(t, string(text), "correct-horse")
			status := func(text string, failures ...KnownFailure) (Status, string) {
				set := Load(fstest.MapFS{"a2e/recorded.json": {Data: []byte(text)}}, "recorded")
				require.Empty(t, set.Errors())
				report := Run(t, set, Builtin(), &Options{KnownFailures: failures})
				require.Len(t, report.Results, 1)
				return report.Results[0].Status, report.Results[0].Message
			}
			verdict, message := status(string(text))
			require.Equal(t, StatusPassed, verdict, message)
			require.Contains(t, string(text), `"at": 1500`)
			for _, change := range [][2]string{{`"slept": 1500`, `"slept": 1501`}, {`"seq": 2`, `"seq": 3`}, {`"code": "tool_error"`, `"code": "timeout"`}} {
				require.Contains(t, string(text), change[0])
				verdict, _ = status(strings.ReplaceAll(string(text), change[0], change[1]), KnownFailure{ID: "a2e-recorded-001", Reason: "changed"})
				require.Equal(t, StatusKnownFailure, verdict, change[1])
			}
		})
	}
}
