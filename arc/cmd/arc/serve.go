// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/command"
)

// maxAnswer bounds the output of a command, in bytes.
const maxAnswer = 1 << 20

func prepareServe(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	serve := command.NewServeFlags(fs)
	agent := fs.String("agent", "", "`id` of the agent")
	line := fs.String("exec", "", "`command` line for the shell; it never contains what a caller sends")
	timeout := fs.Duration("timeout", 10*time.Minute, "longest time of a command")
	tokenFile := fs.String("token-file", "", "`file` with the token of callers; without it, the variable "+tokenVariable)
	anonymous := fs.Bool("allow-anonymous", false, "serve every caller, without a token")
	return func(ctx context.Context, s *command.IO, args []string) error {
		switch {
		case len(args) > 0:
			return command.Usage("%q: one argument too many", args[0])
		case *agent == "" || *line == "":
			return command.Usage("-agent and -exec are needed")
		}
		opts := &arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: *anonymous}, Logger: slog.New(slog.NewTextHandler(s.Err, nil))}
		token, err := command.Secret(*tokenFile, tokenVariable)
		switch {
		case err != nil:
			return err
		case token == "" && !*anonymous:
			return command.Usage("a token is needed (-token-file, %s), or -allow-anonymous", tokenVariable)
		case token != "":
			if opts.Auth.Authenticator, err = arc.APIKeyAuthenticator(map[string]*arc.Principal{token: {
				ID: "caller", Scopes: []string{arc.ScopeTaskController, arc.ScopeChatController, arc.ScopeAgentCaller},
			}}); err != nil {
				return command.CouldNot(err)
			}
		}
		srv, err := arc.NewServer(opts)
		if err != nil {
			return command.CouldNot(err)
		}
		c := &child{line: *line, timeout: *timeout}
		err = guardID(func() {
			srv.Register(arc.Agent{
				AgentInfo:   arc.AgentInfo{AgentID: *agent, Description: *line},
				TaskHandler: arc.TaskHandlerFunc(c.task),
				ChatHandler: arc.ChatHandlerFunc(c.chat),
			})
		})
		if err != nil {
			return err
		}
		return serve.Serve(ctx, s, srv.HTTPServer(""), srv.Shutdown)
	}
}

// guardID makes an error of the panic with which a server refuses the id of an agent.
func guardID(register func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = command.Usage("-agent: %v", p)
		}
	}()
	register()
	return nil
}

// A child runs a command for each text.
type child struct {
	line    string
	timeout time.Duration
}

func (c *child) task(ctx context.Context, run *arc.TaskRun) error {
	answer, err := c.run(ctx, run.Message().Text())
	if err != nil {
		return err
	}
	return run.AddArtifact(ctx, &arc.Artifact{Name: "output", Parts: []arc.Part{arc.TextPart(answer)}})
}

func (c *child) chat(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	answer, err := c.run(ctx, turn.Message.Text())
	if err != nil {
		return err
	}
	return out.Send(answer)
}

// run returns the output of the command for an input. The error does not name the output, which
// may have secrets.
func (c *child) run(ctx context.Context, in string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	shell := []string{"sh", "-c", c.line}
	if runtime.GOOS == "windows" {
		shell = []string{"cmd", "/C", c.line}
	}
	out := &limited{stop: cancel}
	cmd := exec.CommandContext(ctx, shell[0], shell[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.WaitDelay = strings.NewReader(in), out, time.Second
	err := cmd.Run()
	switch {
	case out.isFull:
		return "", arc.Errorf(arc.ErrTaskExecutionFailed, "the command wrote more than %d bytes", maxAnswer)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", arc.Errorf(arc.ErrTaskExecutionFailed, "the command took longer than %v", c.timeout)
	case err != nil:
		return "", arc.Errorf(arc.ErrTaskExecutionFailed, "the command failed: %v", err)
	}
	return out.buf.String(), nil
}

// limited keeps up to maxAnswer bytes, and ends the command beyond.
type limited struct {
	buf    bytes.Buffer
	stop   func()
	isFull bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.buf.Len()+len(p) > maxAnswer {
		l.isFull = true
		l.stop()
		return 0, fmt.Errorf("more than %d bytes", maxAnswer)
	}
	return l.buf.Write(p)
}
