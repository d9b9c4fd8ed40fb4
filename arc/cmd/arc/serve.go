// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/command"
)

func prepareServe(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	serve := command.NewServeFlags(fs)
	agent := fs.String("agent", "", "`id` of the agent")
	line := fs.String("exec", "", "`command` line for the shell; it never contains what a caller sends")
	timeout := fs.Duration("timeout", 10*time.Minute, "longest time of a command")
	tokenFile := fs.String("token-file", "", "`file` with the token of callers; without it, the variable "+tokenVariable)
	anonymous := fs.Bool("allow-anonymous", false, "serve every caller if there is no token")
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
		c := &child{shell: command.NewShell(s, *line, *timeout)}
		err = guardID(func() {
			srv.Register(arc.Agent{
				AgentInfo:   arc.AgentInfo{AgentID: *agent},
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
type child struct{ shell *command.Shell }

func (c *child) task(ctx context.Context, run *arc.TaskRun) error {
	answer, err := c.run(ctx, run.Message())
	if err != nil {
		return err
	}
	return run.AddArtifact(ctx, &arc.Artifact{Name: "output", Parts: []arc.Part{arc.TextPart(answer)}})
}

func (c *child) chat(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	answer, err := c.run(ctx, turn.Message)
	if err != nil {
		return err
	}
	return out.Send(answer)
}

func (c *child) run(ctx context.Context, m *arc.Message) (string, error) {
	answer, err := c.shell.Run(ctx, []byte(m.Text()))
	if err != nil {
		return "", arc.Errorf(arc.ErrTaskExecutionFailed, "%v", err)
	}
	return string(answer), nil
}
