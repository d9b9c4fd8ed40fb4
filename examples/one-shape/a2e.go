// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/tools"
)

func serveA2E(_ string, logger *slog.Logger) (*server, error) {
	set, err := tools.NewSet(nil)
	if err != nil {
		return nil, err
	}
	tools.AddTool(set, "count_words", "Counts the words of a text", func(_ context.Context, _ *a2e.Call, in struct {
		Text string `json:"text"`
	}) (int, error) {
		return countWords(in.Text), nil
	}, nil)
	host, err := a2e.NewHost(&a2e.HostOptions{
		Auth:   a2e.Auth{AllowAnonymous: true},
		Logger: logger,
		Audit:  a2e.AuditLog(logger),
	})
	if err != nil {
		return nil, err
	}
	handler, err := a2e.NewHTTPHandler(host.AddPlugin(set.Plugin()), nil)
	if err != nil {
		return nil, err
	}
	return &server{handler, host.Ready, host.Shutdown}, nil
}

func callA2E(ctx context.Context, url, text string) (answer string, err error) {
	conn, err := a2e.DialHTTP(ctx, url, nil)
	if err != nil {
		return "", err
	}
	client, err := a2e.NewClient(conn, &a2e.ClientOptions{AgentID: "you", Capabilities: []string{"tools"}})
	if err != nil {
		return "", err
	}
	defer client.Close()
	if _, err := client.Connect(ctx); err != nil {
		return "", err
	}
	words, err := tools.CallAs[int](ctx, client, "count_words", map[string]string{"text": text}, nil)
	return fmt.Sprintf("%d words", words), err
}
