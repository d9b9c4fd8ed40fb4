// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// The client gives a task its input, prints the artifact, and chats.
func TestRun(t *testing.T) {
	keys, err := arc.APIKeyAuthenticator(map[string]*arc.Principal{"open-sesame": {ID: "you",
		Scopes: []string{arc.ScopeTaskController, arc.ScopeChatController, arc.ScopeAgentCaller}}})
	require.NoError(t, err)
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: keys}})
	require.NoError(t, err)
	defer srv.Close()
	srv.HandleTasks("report-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		if err := run.AddMessage(ctx, arc.AgentText("Which title?")); err != nil {
			return err
		}
		title, err := run.WaitInput(ctx, "title")
		if err != nil {
			return err
		}
		return run.AddArtifact(ctx, &arc.Artifact{Name: "report", Parts: []arc.Part{arc.TextPart(title.Text() + ": " + run.Message().Text())}})
	}))
	srv.HandleChats("tutor-01", arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
		return out.Send("You said: " + turn.Message.Text())
	}))
	web := httptest.NewServer(srv)
	defer web.Close()

	var out bytes.Buffer
	args := []string{"-url", web.URL + "/arc", "-text", "one two", "-title", "Numbers", "-token-file"}
	require.NoError(t, run(t.Context(), append(args, secretFile(t, "open-sesame")), &out))
	require.Regexp(t, `(?s)SUBMITTED.*INPUT_REQUIRED.*Which title.*COMPLETED.*Numbers: one two`, out.String())
	require.Contains(t, out.String(), "You said: one two\nYou said: And once more.\n")
	require.ErrorIs(t, run(t.Context(), append(args, secretFile(t, "wrong")), &out), arc.ErrTokenInvalid)
}

// secretFile returns the name of a file with a secret.
func secretFile(t *testing.T, secret string) string {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	return file
}
