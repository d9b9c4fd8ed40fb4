// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command arc-server runs two ARC agents behind one endpoint: report-01 works on tasks and requests
// missing input, tutor-01 chats and streams its answers. It is a template to copy; arc-client calls
// it.
//
//	go run ./examples/arc-server -addr localhost:8080
//
// It ends on Ctrl-C or SIGTERM: new work is rejected, running work may finish.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/arc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "arc-server:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("arc-server", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "localhost:8080", "`address` to listen on")
	tokenFile := flags.String("token-file", "", "`file` with the access token that callers must send; without it every caller is served")
	grace := flags.Duration("grace", 20*time.Second, "how long running work may go on after a signal")
	if err := flags.Parse(args); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))

	opts := &arc.ServerOptions{
		Logger:       logger,
		Audit:        arc.AuditLog(logger),
		EnableHealth: true,
	}
	opts.Auth.AllowAnonymous = *tokenFile == ""
	if *tokenFile != "" { // for JWTs: arc.BearerAuthenticator and package arc/oauth
		token, err := os.ReadFile(*tokenFile)
		if err != nil {
			return err
		}
		keys := map[string]*arc.Principal{strings.TrimSpace(string(token)): {ID: "operator",
			Scopes: []string{arc.ScopeTaskController, arc.ScopeChatController, arc.ScopeAgentCaller}}}
		authenticator, err := arc.APIKeyAuthenticator(keys)
		if err != nil {
			return err
		}
		opts.Auth.Authenticator = authenticator
	}
	srv, err := arc.NewServer(opts)
	if err != nil {
		return err
	}
	srv.Register(arc.Agent{
		AgentInfo: arc.AgentInfo{
			AgentID:      "report-01",
			Description:  "Writes a report about the text of a task.",
			Capabilities: []string{"reports"},
			Version:      "1.0.0",
		},
		TaskHandler: arc.TaskHandlerFunc(report),
	})
	srv.Register(arc.Agent{
		AgentInfo: arc.AgentInfo{
			AgentID:      "tutor-01",
			Description:  "Repeats what you say, word by word.",
			Capabilities: []string{"chat"},
			Version:      "1.0.0",
		},
		ChatHandler: arc.ChatHandlerFunc(tutor),
	})

	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	logger.InfoContext(ctx, "serving ARC", "url", "http://"+l.Addr().String()+"/arc")

	// In production this server uses TLS: ServeTLS, or a proxy.
	httpServer := srv.HTTPServer(*addr)
	served := make(chan error, 1)
	go func() { served <- httpServer.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	logger.InfoContext(ctx, "shutting down")
	end, cancel := context.WithTimeout(context.Background(), *grace)
	defer cancel()
	err = srv.Shutdown(end) // the agents' work first, while callers can still fetch the results
	if e := httpServer.Shutdown(end); e != nil && !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// report is a task: it runs in a separate goroutine without a time limit. Returning nil completes
// the task, an error fails it.
func report(ctx context.Context, run *arc.TaskRun) error {
	text := run.Message().Text()
	if err := run.AddProgress(ctx, "Read %d words.", len(strings.Fields(text))); err != nil {
		return err
	}

	// Ask, and wait for the caller's task.send.
	if err := run.AddMessage(ctx, arc.AgentText("Which title shall the report have?")); err != nil {
		return err
	}
	title, err := run.WaitInput(ctx, "title")
	if err != nil {
		return err // canceled, for instance
	}

	data, err := arc.DataPart(map[string]int{"words": len(strings.Fields(text)), "bytes": len(text)})
	if err != nil {
		return err
	}
	return run.AddArtifact(ctx, &arc.Artifact{
		Name: "report",
		Parts: []arc.Part{
			arc.TextPart("# " + title.Text() + "\n\n" + text + "\n"),
			data,
		},
	})
}

// tutor answers one message of a chat. Its output reaches a streaming caller at once, and any other
// caller as one message.
func tutor(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	words := strings.Fields(turn.Message.Text())
	if len(words) == 0 {
		return arc.Errorf(arc.ErrInvalidChatMessage, "message without words")
	}
	history, err := turn.History(ctx)
	if err != nil {
		return err
	}
	if err := out.Send(fmt.Sprintf("(%d messages so far) You said:", len(history))); err != nil {
		return err
	}
	for _, word := range words {
		if err := out.Send(" " + word); err != nil {
			return err // the reader has disconnected
		}
	}
	return nil
}
