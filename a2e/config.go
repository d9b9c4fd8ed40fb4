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

// A TransportConfig says how to reach a host, as a value that can be read from a
// configuration with [DecodeModel] (A2E-141).
type TransportConfig struct {
	Type    string                `a2e:"type,required"` // http, direct, subprocess or its alias stdio
	URL     string                `a2e:"url"`           // of http
	Command []string              `a2e:"command"`       // of subprocess: program and arguments
	Cwd     string                `a2e:"cwd"`
	Env     OrderedObject[string] `a2e:"env"` // beside that of this process

	// Host serves connections of type direct.
	Host *Host

	// HTTP and Subprocess adjust connections of these types.
	HTTP       *HTTPDialOptions
	Subprocess *CommandOptions
}

// Dial connects as the configuration says, for [NewClient]. A direct connection
// is served until it is closed.
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
