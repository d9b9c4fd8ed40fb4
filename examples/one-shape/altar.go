// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/altar"
)

const manifest = `{"version": "1.0.0", "contracts": [{"name": "words/count", "description": "Counts the words of a text",
	"parameters": [{"name": "text", "type": "string", "required": true}]}]}`

func serveALTAR(_ string, logger *slog.Logger) (*server, error) {
	contracts, err := altar.DecodeManifest([]byte(manifest))
	if err != nil {
		return nil, err
	}
	host, err := altar.NewHost(contracts, &altar.HostOptions{
		Auth:   altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)},
		Logger: logger,
		Audit:  altar.AuditLog(logger),
	})
	if err != nil {
		return nil, err
	}
	// The tool is in this process. A Runtime elsewhere dials the Host with altar.DialWebSocket.
	runtime, err := altar.NewRuntime("words", &altar.RuntimeOptions{Logger: logger})
	if err != nil {
		return nil, err
	}
	altar.AddTool(runtime, "words/count", func(_ context.Context, in struct {
		Text string `json:"text"`
	}) (int, error) {
		return countWords(in.Text), nil
	})
	conn, err := host.Dial(&altar.Principal{ID: "words"})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- runtime.Run(running, conn) }()
	shutdown := func(ctx context.Context) error {
		err := host.Shutdown(ctx)
		stop()
		<-ran
		return err
	}
	return &server{host, host.Ready, shutdown}, nil
}

func callALTAR(ctx context.Context, url, text string) (answer string, err error) {
	dial := func(ctx context.Context) (altar.Conn, error) {
		return altar.DialWebSocket(ctx, "ws"+strings.TrimPrefix(url, "http")+altar.WebSocketPath, nil)
	}
	client, err := altar.NewClient(dial, nil)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	session, err := client.CreateSession(ctx, nil)
	if err != nil {
		return "", err
	}
	n, err := altar.CallAs[int](ctx, session, "words/count", map[string]string{"text": text}, nil)
	if err != nil {
		return "", err
	}
	return strconv.Itoa(n) + " words", session.Destroy(ctx)
}
