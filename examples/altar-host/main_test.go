// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
)

// The Host serves callers with a key, refuses others, and ends with its context.
func TestRun(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"-addr", "127.0.0.1:0"}, w) }()
	lines := bufio.NewScanner(r)
	require.True(t, lines.Scan())
	url := "ws://" + strings.TrimPrefix(lines.Text(), "listening on http://")
	go func() { _, _ = io.Copy(io.Discard, r) }() // the log

	dial := func(key string) altar.Dialer {
		return func(ctx context.Context) (altar.Conn, error) {
			return altar.DialWebSocket(ctx, url, &altar.WebSocketDialOptions{Header: http.Header{altar.APIKeyHeader: {key}}})
		}
	}
	client, err := altar.NewClient(dial("example-client-key"), nil)
	require.NoError(t, err)
	defer client.Close()
	session, err := client.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	_, err = session.Call(t.Context(), "text/upper", map[string]string{"text": "hello"}, nil)
	require.ErrorIs(t, err, altar.ErrToolNotFound, "no Runtime has connected")
	stranger, err := altar.NewClient(dial("wrong"), nil)
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.CreateSession(t.Context(), nil)
	require.Error(t, err)
	require.NoError(t, session.Destroy(t.Context()))
	require.NoError(t, client.Close())
	stop()
	require.NoError(t, <-done)
	require.Error(t, run(t.Context(), []string{"-nonsense"}, io.Discard))
}

// Other machines are served with TLS only, and not with the keys of the examples.
func TestTLS(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	client, runtime := secretFile(t, "a client key"), secretFile(t, "a runtime key")
	for _, args := range [][]string{nil, {"-cert", none, "-key", none}, {"-client-key-file", client, "-runtime-key-file", runtime}} {
		require.ErrorContains(t, run(t.Context(), append(args, "-addr", ":0"), io.Discard), "it needs -cert, -key")
	}
	require.ErrorContains(t, run(t.Context(), []string{"-addr", ":0", "-cert", none, "-key", none, "-client-key-file", client,
		"-runtime-key-file", runtime}, io.Discard), "no such file")
	require.ErrorContains(t, run(t.Context(), []string{"-client-key-file", none}, io.Discard), "no such file")
	require.ErrorContains(t, run(t.Context(), []string{"-client-key-file", secretFile(t, "")}, io.Discard), "key")

	local := httptest.NewTLSServer(nil)
	defer local.Close()
	own := local.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	require.NoError(t, err)
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"-addr", "127.0.0.1:0", "-cert", cert, "-key", key}, w) }()
	lines := bufio.NewScanner(r)
	require.True(t, lines.Scan())
	address := strings.TrimPrefix(lines.Text(), "listening on ")
	require.True(t, strings.HasPrefix(address, "https://"), address)
	budgets := make(chan int, 1)
	go func() {
		n := 0
		for lines.Scan() {
			if strings.Contains(lines.Text(), "msg=budget") {
				n++
			}
		}
		budgets <- n
	}()
	res, err := local.Client().Post(address+altar.MessagesPath, "application/json", strings.NewReader(`{"type":"Ping"}`))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	local.Client().CloseIdleConnections()
	require.Equal(t, http.StatusUnauthorized, res.StatusCode, "no key")
	stop()
	require.NoError(t, <-done)
	require.NoError(t, w.Close())
	require.Positive(t, <-budgets)
}

// secretFile returns the name of a file with a secret.
func secretFile(t *testing.T, secret string) string {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	return file
}
