// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/command"
)

// A list is a flag that may be repeated.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func prepareServe(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	serve := command.NewServeFlags(fs)
	manifest := fs.String("manifest", "", "`file` with the contracts")
	var lines list
	fs.Var(&lines, "exec", "`TOOL=COMMAND`: the command line reads the parameters and writes the result, JSON or text; may be repeated")
	timeout := fs.Duration("timeout", time.Minute, "longest time of a command")
	clientFile := fs.String("key-file", "", "`file` with the API key of clients; without it, the variable "+clientVariable)
	runtimeFile := fs.String("runtime-key-file", "", "`file` with the API key of Runtimes; without it, the variable "+runtimeVariable+", or no Runtime may connect")
	anonymous := fs.Bool("allow-anonymous", false, "serve every client, without a key")
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) > 0 {
			return command.Usage("%q: one argument too many", args[0])
		}
		if *manifest == "" {
			return command.Usage("-manifest is missing")
		}
		data, err := s.Read(ctx, *manifest)
		if err != nil {
			return err
		}
		contracts, err := altar.DecodeManifest(data)
		if err != nil {
			return command.CouldNot(fmt.Errorf("%s: %w", *manifest, err))
		}
		auth, err := authentication(*clientFile, *runtimeFile, *anonymous)
		if err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(s.Err, nil))
		decided := make(decisions, len(lines))
		host, err := altar.NewHost(contracts, &altar.HostOptions{Auth: *auth, Logger: log, Audit: decided.audit})
		if err != nil {
			return command.CouldNot(err)
		}
		defer host.Close()
		rt, err := runtimeOf(s, contracts, lines, *timeout, log)
		if err != nil {
			return err
		}
		if rt != nil {
			conn, err := host.Dial(&altar.Principal{ID: commandsID})
			if err != nil {
				return command.CouldNot(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				if err := rt.Run(ctx, conn); ctx.Err() == nil {
					log.ErrorContext(ctx, "the commands ended", "err", err)
				}
			}()
			decided.wait(done) // a client may call when the address is printed
		}
		srv := &http.Server{Handler: host, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
		return serve.Serve(ctx, s, srv, host.Shutdown)
	}
}

// decisions get a value for each tool of the commands that the Host has accepted or refused. Their capacity is the
// number of tools.
type decisions chan struct{}

func (d decisions) audit(_ context.Context, r *altar.AuditRecord) {
	if r.RuntimeID != commandsID || !strings.HasPrefix(r.Operation, "fulfillment.") {
		return
	}
	select {
	case d <- struct{}{}:
	default: // of a later announcement
	}
}

// wait returns after all decisions, or at the end of the Runtime.
func (d decisions) wait(done <-chan struct{}) {
	for range cap(d) {
		select {
		case <-d:
		case <-done:
		}
	}
}

// commandsID is the Runtime of this process, and its principal. No key has it.
const commandsID = "commands"

// authentication returns the rules of the Host: Runtimes need their own key.
func authentication(clientFile, runtimeFile string, anonymous bool) (*altar.Auth, error) {
	clientKey, err := command.Secret(clientFile, clientVariable)
	if err != nil {
		return nil, err
	}
	runtimeKey, err := command.Secret(runtimeFile, runtimeVariable)
	if err != nil {
		return nil, err
	}
	if clientKey == "" && !anonymous {
		return nil, command.Usage("a key is needed (-key-file, %s), or -allow-anonymous", clientVariable)
	}
	const runtimes = "runtimes"
	keys := make(map[string]*altar.Principal)
	if clientKey != "" {
		keys[clientKey] = &altar.Principal{ID: "client"}
	}
	if runtimeKey != "" {
		if runtimeKey == clientKey {
			return nil, command.Usage("clients and Runtimes have the same key")
		}
		keys[runtimeKey] = &altar.Principal{ID: runtimes}
	}
	auth := &altar.Auth{
		AllowAnonymous: anonymous, Authorizer: altar.AuthorizerFunc(altar.AllowAll),
		RuntimeAuthorizer: func(_ context.Context, id *altar.Principal, _ *altar.AnnounceRuntime) error {
			if id.ID != commandsID && id.ID != runtimes {
				return errors.New("a Runtime needs the key of Runtimes")
			}
			return nil
		},
	}
	if len(keys) > 0 {
		if auth.Authenticator, err = altar.APIKeyAuthenticator(keys); err != nil {
			return nil, command.CouldNot(err)
		}
	}
	return auth, nil
}

// runtimeOf returns the Runtime of the commands, nil without one.
func runtimeOf(s *command.IO, contracts *altar.Manifest, lines []string, timeout time.Duration, log *slog.Logger) (*altar.Runtime, error) {
	if len(lines) == 0 {
		return nil, nil
	}
	rt, err := altar.NewRuntime(commandsID, &altar.RuntimeOptions{Logger: log})
	if err != nil {
		return nil, command.CouldNot(err)
	}
	seen := make(map[string]bool)
	for _, l := range lines {
		name, line, ok := strings.Cut(l, "=")
		switch {
		case !ok || line == "":
			return nil, command.Usage("-exec %q: want TOOL=COMMAND", l)
		case !slices.ContainsFunc(contracts.Contracts, func(c *altar.Contract) bool { return c.Name == name }):
			return nil, command.Usage("-exec: the manifest has no contract %q", name)
		case seen[name]:
			return nil, command.Usage("-exec: two commands for %q", name)
		}
		seen[name] = true
		shell := command.NewShell(s, line, timeout)
		rt.Handle(name, altar.HandlerFunc(func(ctx context.Context, call *altar.ToolCall) (any, error) {
			parameters := call.Parameters
			if parameters == nil {
				parameters = []byte("{}")
			}
			return result(shell.Run(ctx, parameters))
		}))
	}
	return rt, nil
}

// result returns the output of a command as JSON, or else as a string.
func result(out []byte, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if out = bytes.TrimSpace(out); json.Valid(out) {
		return json.RawMessage(out), nil
	}
	return string(out), nil
}
