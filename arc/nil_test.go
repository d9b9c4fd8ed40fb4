// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
)

// An option that could never work is an error of the constructor, which names it.
func TestConstructorsRefuseUselessOptions(t *testing.T) {
	for text, o := range map[string]arc.ServerOptions{
		`"app.example"`:          {AllowedOrigins: []string{"https://ok.example:8443", "*", "null", "app://x", "app.example"}},
		`"https://app.example/"`: {AllowedOrigins: []string{"https://app.example/"}},
		`"https://App.example"`:  {AllowedOrigins: []string{"https://App.example"}},
		"nil Middleware":         {Middleware: []arc.Middleware{nil}},
	} {
		o.Auth.AllowAnonymous = true
		_, err := arc.NewServer(&o)
		require.ErrorContains(t, err, text)
	}
	for text, o := range map[string]arc.ClientOptions{
		"nil Interceptor":                {Interceptors: []arc.Interceptor{nil}},
		"interceptor returned":           {Interceptors: []arc.Interceptor{func(arc.CallFunc) arc.CallFunc { return nil }}},
		"nil StreamInterceptor":          {StreamInterceptors: []arc.StreamInterceptor{nil}},
		"stream interceptor returned no": {StreamInterceptors: []arc.StreamInterceptor{func(arc.StreamFunc) arc.StreamFunc { return nil }}},
	} {
		_, err := arc.NewClient("http://localhost/arc", "a", &o)
		require.ErrorContains(t, err, text)
	}
	_, err := arc.NewClient("http://localhost/arc", "a\xff", nil)
	require.ErrorIs(t, err, arc.ErrInvalidAgentID)
}

// Without a verifier a request fails with an internal error, whose log record has the cause.
func TestBearerAuthenticatorWithoutVerifier(t *testing.T) {
	var log bytes.Buffer
	s, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(nil)},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	defer s.Close()
	s.HandleTasks("a-01", arctest.ScriptedTask())
	res := s.ServeMessage(t.Context(), &arc.ServerRequest{Data: []byte("{}"), Authorization: "Bearer x"}, nil)
	require.ErrorIs(t, res.Error, arc.ErrInternal)
	require.Contains(t, log.String(), "no TokenVerifier")
}

// A request, a message or a sink that is nil is an error of the call.
func TestNilOfCallerIsError(t *testing.T) {
	s := newServer(t, nil)
	s.HandleChats("a-01", arctest.EchoChat())
	require.ErrorIs(t, s.ServeMessage(t.Context(), nil, nil).Error, arc.ErrParse)
	for _, err := range s.WatchTask(t.Context(), nil) {
		require.ErrorIs(t, err, arc.ErrParse)
	}
	chat := call("chat.start", "a-01", `{"stream":true,"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"x"}]}}`)
	res := s.ServeMessage(t.Context(), &arc.ServerRequest{Data: []byte(chat)}, func() arc.EventSink { return nil })
	require.ErrorIs(t, res.Error, arc.ErrInternal)
	_, err := arc.AppendRequest(nil, nil)
	require.ErrorIs(t, err, arc.ErrInvalidFieldFormat)
	_, err = arc.AppendResponse(nil, nil)
	require.ErrorIs(t, err, arc.ErrInvalidResponse)
	require.NoError(t, s.Shutdown(context.Background()))
}
