// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
)

const manifest = `{"contracts": [
	{"name": "text/upper", "description": "in capitals", "parameters": [{"name": "text", "type": "string", "required": true}]},
	{"name": "text/words", "description": "word by word", "parameters": [{"name": "text", "type": "string", "required": true}], "streaming": true}]}`

type text struct {
	Text string `json:"text"`
}

// The client lists the tools of a Host, calls them, and reports refused parameters.
func TestRun(t *testing.T) {
	contracts, err := altar.DecodeManifest([]byte(manifest))
	require.NoError(t, err)
	host, err := altar.NewHost(contracts, &altar.HostOptions{Auth: altar.Auth{
		AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll),
	}})
	require.NoError(t, err)
	web := httptest.NewServer(host)
	defer web.Close()
	defer host.Close()

	rt, err := altar.NewRuntime("text-01", nil)
	require.NoError(t, err)
	altar.AddTool(rt, "text/upper", func(_ context.Context, in text) (string, error) {
		return strings.ToUpper(in.Text), nil
	})
	altar.AddStreamTool(rt, "text/words", func(_ context.Context, in text, out *altar.ChunkWriter) error {
		for word := range strings.FieldsSeq(in.Text) {
			if err := out.Send(word); err != nil {
				return err
			}
		}
		return nil
	})
	conn, err := host.Dial(&altar.Principal{ID: "text"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx, conn) }()
	altartest.WaitTools(t, host, 2)

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-url", "ws" + strings.TrimPrefix(web.URL, "http")}, &out))
	require.Equal(t, `tool text/upper: in capitals
tool text/words: word by word
upper: HELLO
word: one
word: two
word: three
refused: /text missing_required (expected string); /txet unknown_parameter
`, out.String())
	stop()
	<-done
}
