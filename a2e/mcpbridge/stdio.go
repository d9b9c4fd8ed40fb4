// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// environment returns the variables of a child: the listed variables of the host, then those of the
// configuration, which win.
func (c *Connector) environment(config *mcp.ServerConfig) []string {
	env := []string{} // not nil, which would inherit all
	for _, name := range c.opts.InheritedEnv {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	for _, m := range config.Env {
		env = append(env, m.Name+"="+m.Value)
	}
	return env
}

// A child is a server that runs as a separate process. The SDK writes to it and reads from out.
type child struct {
	cmd   *a2e.Command
	out   io.ReadCloser
	stall time.Duration
}

func startChild(cmd *exec.Cmd, c *Connector) (*child, error) {
	p, err := a2e.StartCommand(cmd, &a2e.CommandOptions{Logger: c.opts.Logger})
	if err != nil {
		return nil, err
	}
	return &child{cmd: p, stall: c.opts.WriteTimeout, out: &messages{
		in: lines.NewReader(p, c.opts.MaxMessage), close: p.Close, log: c.log}}, nil
}

// Write writes to the child, and ends a child that does not read within the time limit: the SDK has
// no deadline.
func (p *child) Write(b []byte) (int, error) {
	timer := time.AfterFunc(p.stall, func() { _ = p.cmd.Close() })
	defer timer.Stop()
	return p.cmd.Write(b)
}

// Close ends the child and waits for it.
func (p *child) Close() error { return p.cmd.Close() }

// messages reads lines and returns those that hold strict JSON; the reader of the SDK accepts equal
// names and invalid text.
type messages struct {
	in    *lines.Reader
	close func() error
	log   *slog.Logger
	rest  []byte
}

// Read reads the next message, which takes one line.
func (m *messages) Read(b []byte) (int, error) {
	for len(m.rest) == 0 {
		line, err := m.in.Next()
		switch {
		case errors.Is(err, lines.ErrUnterminated): // cut short
			return 0, io.EOF
		case err != nil: // also a line too long, whose call is unknown
			return 0, err
		}
		line = bytes.Trim(line, " \t")
		if len(line) == 0 || line[0] != '{' && line[0] != '[' {
			if len(line) > 0 {
				m.log.InfoContext(context.Background(), "mcpbridge: line skipped", "line", clip(string(line), 200))
			}
			continue
		}
		if _, err := strictjson.Check(line, strictjson.Options{MaxDepth: maxDepth}); err != nil {
			return 0, fmt.Errorf("mcpbridge: message of the server: %w", err)
		}
		m.rest = append(append(m.rest[:0:0], line...), '\n')
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// Close ends the child.
func (m *messages) Close() error { return m.close() }

const maxDepth = 256
