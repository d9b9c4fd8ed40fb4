// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"strconv"

	"github.com/fivewire/fivewire/arc"
)

func serveARC(_ string, logger *slog.Logger) (*server, error) {
	srv, err := arc.NewServer(&arc.ServerOptions{
		Auth:   arc.Auth{AllowAnonymous: true},
		Logger: logger,
		Audit:  arc.AuditLog(logger),
	})
	if err != nil {
		return nil, err
	}
	srv.Handle("words-01", "words.count", arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
		var in struct {
			Text string `json:"text"`
		}
		if err := call.Decode(&in); err != nil {
			return nil, err
		}
		return map[string]int{"words": countWords(in.Text)}, nil // results are objects
	}))
	return &server{srv, srv.Ready, srv.Shutdown}, nil
}

func callARC(ctx context.Context, url, text string) (string, error) {
	client, err := arc.NewClient(url+"/arc", "you-01", nil)
	if err != nil {
		return "", err
	}
	defer client.Close()
	response, err := client.Call(ctx, "words-01", "words.count", map[string]string{"text": text}, nil)
	if err != nil {
		return "", err
	}
	var out struct {
		Words int `json:"words"`
	}
	if err := response.Decode(&out); err != nil {
		return "", err
	}
	return strconv.Itoa(out.Words) + " words", nil
}
