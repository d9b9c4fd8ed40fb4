// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package toolkits_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/toolkits"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Configurations are held against the schema, and never logged (A2E-087,
// A2E-088, A2E-151).
func TestToolkits(t *testing.T) {
	p, err := toolkits.NewPlugin([]toolkits.Toolkit{{
		Definition: toolkits.Definition{Name: "mail", Category: "net", Tags: []string{"Mail"}, Tools: []string{"send"},
			Schema: json.RawMessage(`{"type":"object","properties":{"key":{"type":"string"},"n":{"type":"integer"}},"required":["key"]}`)},
		Configure: func(_ context.Context, _ *a2e.Session, config json.RawMessage) error {
			switch {
			case bytes.Contains(config, []byte("half")):
				return toolkits.ErrPartialConfig
			case bytes.Contains(config, []byte("refuse")):
				return a2e.Errorf(a2e.ErrUnauthorized, "key is not valid")
			case bytes.Contains(config, []byte("crash")):
				return errors.New("cannot reach server with key crash")
			}
			return nil
		}}, {Definition: toolkits.Definition{Name: "free"}}}, nil)
	require.NoError(t, err)
	var log bytes.Buffer
	h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}).AddPlugin(p)
	client := a2etest.Connect(t, h, nil)
	c, err := toolkits.NewClient(client)
	require.NoError(t, err)
	configure := func(name, config string) (string, string) {
		resp, err := c.Configure(t.Context(), &toolkits.ConfigureRequest{ToolkitName: name, Config: json.RawMessage(config)}, nil)
		switch resp.Status {
		case toolkits.StatusOK:
			require.NoError(t, err)
		case toolkits.StatusPartial:
			require.ErrorIs(t, err, toolkits.ErrPartialConfig)
		default:
			require.ErrorContains(t, err, *resp.Message)
		}
		if resp.Message == nil {
			return resp.Status, ""
		}
		return resp.Status, *resp.Message
	}
	for _, tt := range []struct{ name, config, status, message string }{
		{"", `{}`, "error", "missing toolkit_name"},
		{"nope", `{}`, "error", "unknown toolkit"},
		{"mail", `{}`, "error", "the configuration does not fit the schema"},
		{"mail", `{"key":"s3cret","n":1.5}`, "error", "the configuration does not fit the schema"},
		{"mail", `{"key":"refuse-s3cret"}`, "error", "key is not valid"},
		{"mail", `{"key":"crash-s3cret"}`, "error", "the configuration failed"},
		{"mail", `{"key":"half"}`, "partial", ""},
		{"mail", `{"key":"s3cret","n":1}`, "ok", ""},
		{"free", `{"x":[1,{"y":2.5}]}`, "ok", ""},
	} {
		status, message := configure(tt.name, tt.config)
		require.Equal(t, tt.status, status, tt.config)
		require.Equal(t, tt.message, message, tt.config)
	}
	list, err := c.List(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, list.Toolkits, 2)
	require.True(t, list.Toolkits[0].Configured)
	list, err = c.List(t.Context(), &toolkits.ListRequest{FilterTags: []string{"mail"}, FilterKind: "net"}, nil)
	require.NoError(t, err)
	require.Len(t, list.Toolkits, 1)
	list, err = c.List(t.Context(), &toolkits.ListRequest{FilterKind: "disk"}, nil)
	require.NoError(t, err)
	require.Len(t, list.Toolkits, 1, "one without category passes")
	require.NotContains(t, log.String(), "s3cret")
	other, err := toolkits.NewClient(a2etest.Connect(t, h, nil))
	require.NoError(t, err)
	list, err = other.List(t.Context(), nil, nil)
	require.NoError(t, err)
	require.False(t, list.Toolkits[0].Configured, "sessions share nothing (A2E-142)")
	_, err = toolkits.NewPlugin([]toolkits.Toolkit{{Definition: toolkits.Definition{Name: "x", Schema: json.RawMessage(`{"type":7}`)}}}, nil)
	require.Error(t, err)
}

func TestToolkitsNeedDifferentNames(t *testing.T) {
	for _, names := range [][]string{{""}, {"mail", "calendar", "mail"}} {
		var list []toolkits.Toolkit
		for _, name := range names {
			list = append(list, toolkits.Toolkit{Definition: toolkits.Definition{Name: name}})
		}
		_, err := toolkits.NewPlugin(list, nil)
		require.ErrorContains(t, err, "is empty or occurs twice", names)
	}
}

// A list of tools costs as many steps as there are tools, whatever the number of toolkits.
func TestListOfManyToolkits(t *testing.T) {
	testkit.RequireLess(t, 150, 1, 30, func(n int) time.Duration {
		set := a2etest.Must(tools.NewSet(nil))
		var list []toolkits.Toolkit
		for i := range n {
			kit := toolkits.Definition{Name: fmt.Sprint("kit ", i)}
			for j := range 1000 {
				tool := tools.Definition{Name: fmt.Sprintf("tool %9d", 1000*i+j)}
				kit.Tools = append(kit.Tools, tool.Name)
				set.Add(tools.Tool{Definition: tool, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return nil, nil }})
			}
			list = append(list, toolkits.Toolkit{Definition: kit})
		}
		c := a2etest.Must(tools.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil, set.Plugin(), a2etest.Must(toolkits.NewPlugin(list, nil))), nil)))
		start := time.Now()
		answer, err := c.List(t.Context(), nil, nil)
		took := time.Since(start)
		require.NoError(t, err)
		require.Empty(t, answer.Tools)
		return took
	})
}
