// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

const (
	text    = "one two\nthree"
	summary = "3 words, 2 lines: one two"
)

// serve starts the program and returns its URL. The program ends with the test.
func serve(t *testing.T) string {
	ctx, stop := context.WithCancel(context.Background())
	urls, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"-addr", "localhost:0", "-token-file", secretFile(t, "open-sesame")}, io.Discard, func(url string) { urls <- url })
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	select {
	case url := <-urls:
		return url
	case err := <-done:
		done <- nil
		require.NoError(t, err)
		return ""
	}
}

// A bearer is an HTTP transport with a token.
type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

func client(token string) *http.Client { return &http.Client{Transport: bearer{token}} }

func TestARC(t *testing.T) {
	url := serve(t)
	c, err := arc.NewClient(url+"/arc", "me-01", &arc.ClientOptions{HTTPClient: client("open-sesame")})
	require.NoError(t, err)
	defer c.Close()
	task, err := c.CreateTask(t.Context(), agentID, &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
	require.NoError(t, err)
	end, err := c.WaitTask(t.Context(), agentID, task.ID, nil)
	require.NoError(t, err)
	require.Equal(t, summary, end.Task.Artifacts[0].Parts[0].Content)

	stranger, err := arc.NewClient(url+"/arc", "me-01", &arc.ClientOptions{HTTPClient: client("guess")})
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.CreateTask(t.Context(), agentID, &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
	require.ErrorIs(t, err, arc.ErrTokenInvalid)
}

func TestA2A(t *testing.T) {
	url := serve(t)
	card, err := agentcard.DefaultResolver.Resolve(t.Context(), url)
	require.NoError(t, err)
	require.Equal(t, "Summary", card.Name)
	c, err := a2aclient.NewFromCard(t.Context(), card, a2aclient.WithJSONRPCTransport(client("open-sesame")))
	require.NoError(t, err)
	res, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))})
	require.NoError(t, err)
	task, ok := res.(*a2a.Task)
	require.True(t, ok, "%T", res)
	require.Equal(t, a2a.TaskStateCompleted, task.Status.State)
	require.Equal(t, summary, task.Artifacts[0].Parts[0].Text())

	stranger, err := a2aclient.NewFromCard(t.Context(), card, a2aclient.WithJSONRPCTransport(client("guess")))
	require.NoError(t, err)
	_, err = stranger.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))})
	require.Error(t, err)
}

func TestMCP(t *testing.T) {
	url := serve(t)
	connect := func(token string) (*mcp.ClientSession, error) {
		return mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
			&mcp.StreamableClientTransport{Endpoint: url + "/mcp", HTTPClient: client(token), MaxRetries: -1, DisableStandaloneSSE: true}, nil)
	}
	s, err := connect("open-sesame")
	require.NoError(t, err)
	defer s.Close()
	tools, err := s.ListTools(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, tools.Tools, 1)
	require.Equal(t, agentID, tools.Tools[0].Name)
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: agentID, Arguments: map[string]any{"message": text}})
	require.NoError(t, err)
	require.False(t, res.IsError)
	require.Contains(t, res.Content[0].(*mcp.TextContent).Text, summary)

	_, err = connect("guess")
	require.Error(t, err)
}

// secretFile returns the name of a file with a secret.
func secretFile(t *testing.T, secret string) string {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	return file
}
