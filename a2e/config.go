// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// A TransportConfig describes how to reach a host, as a value that can be read from a configuration
// with [DecodeModel] (A2E-141).
type TransportConfig struct {
	Type    string                `json:"type"`                              // http, direct, subprocess or its alias stdio
	URL     string                `json:"url,omitzero" jsonmap:"always"`     // of http
	Command []string              `json:"command,omitzero" jsonmap:"always"` // of subprocess: program and arguments
	Cwd     string                `json:"cwd,omitzero" jsonmap:"always"`
	Env     OrderedObject[string] `json:"env,omitzero" jsonmap:"always"` // in addition to that of this process

	// Host serves connections of type direct.
	Host *Host `json:"-"`

	// HTTP and Subprocess adjust connections of these types.
	HTTP       *HTTPDialOptions `json:"-"`
	Subprocess *CommandOptions  `json:"-"`
}

// Dial connects to the configured host, for [NewClient]. A direct connection is served until it is
// closed.
func (c *TransportConfig) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	switch c.Type {
	case "http":
		return DialHTTP(ctx, c.URL, c.HTTP)
	case "direct":
		if c.Host == nil {
			return nil, fmt.Errorf("a2e: a direct transport needs a host")
		}
		agent, host := Pipe()
		go func() { _ = c.Host.Serve(context.WithoutCancel(ctx), host) }() // ends with the connection
		return agent, nil
	case "subprocess", "stdio":
		if len(c.Command) == 0 {
			return nil, fmt.Errorf("a2e: a subprocess transport needs a command")
		}
		cmd := exec.Command(c.Command[0], c.Command[1:]...)
		cmd.Dir, cmd.Env = c.Cwd, os.Environ()
		for _, v := range c.Env {
			cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
		}
		return StartCommand(cmd, c.Subprocess)
	}
	return nil, fmt.Errorf("a2e: unknown transport %q", clip(c.Type, 40))
}
