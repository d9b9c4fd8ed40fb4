// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"strconv"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
)

func serveACCP(_ string, logger *slog.Logger) (*server, error) {
	srv, err := accp.NewServer("words", &accp.ServerOptions{
		Auth:   accp.Auth{AllowAnonymous: true},
		Logger: logger,
		Audit:  accp.AuditLog(logger),
	})
	if err != nil {
		return nil, err
	}
	srv.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"count_words": func(_ context.Context, args accp.Params) (accp.Value, error) {
			return accp.Int(int64(countWords(args.Text("text")))), nil
		},
	}))
	return &server{srv, srv.Ready, srv.Shutdown}, nil
}

func callACCP(ctx context.Context, url, text string) (string, error) {
	client, err := accp.NewClient(url+accp.FramesPath, "you", nil)
	if err != nil {
		return "", err
	}
	defer client.Close()
	call := profile.ToolCall{Name: "count_words", Arguments: accp.Map(accp.Param{Key: "text", Value: accp.String(text)})}
	message, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, call)
	if err != nil {
		return "", err
	}
	response, err := client.Call(ctx, message, nil)
	if err != nil {
		return "", err
	}
	result, _ := response.Params.Get("result")
	n, _ := result.Int()
	return strconv.FormatInt(n, 10) + " words", nil
}
