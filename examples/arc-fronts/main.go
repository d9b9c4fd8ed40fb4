// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command arc-fronts serves one Go function to three kinds of clients: as an agent of ARC, as an agent of A2A 1.0,
// and as a tool of MCP. All three fronts share one arc.Server with its tokens, limits, audit and tasks. It is a
// template to copy.
//
//	go run . -addr localhost:8080 -token-file token
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

	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/a2abridge"
	"github.com/fivewire/fivewire/arc/mcpserver"
)

const agentID = "summary-01"

// summarize is the function. It runs in a separate goroutine without a time limit. Returning nil completes the
// task, an error fails it.
func summarize(ctx context.Context, run *arc.TaskRun) error {
	text := strings.TrimSpace(run.Message().Text())
	if text == "" {
		return errors.New("the text is empty")
	}
	first, _, _ := strings.Cut(text, "\n")
	summary := fmt.Sprintf("%d words, %d lines: %s", len(strings.Fields(text)), strings.Count(text, "\n")+1, first)
	return run.AddArtifact(ctx, &arc.Artifact{Name: "summary", Parts: []arc.Part{arc.TextPart(summary)}})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stderr, nil); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "arc-fronts:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. It calls listening, if that is not nil, with the URL of the server.
func run(ctx context.Context, args []string, stderr io.Writer, listening func(url string)) error {
	flags := flag.NewFlagSet("arc-fronts", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "localhost:8080", "`address` to listen on")
	public := flags.String("url", "", "`URL` of this server for its callers; the default is the address")
	tokenFile := flags.String("token-file", "", "`file` with the access token that callers must send; without it every caller is served")
	grace := flags.Duration("grace", 20*time.Second, "how long running work may go on after a signal")
	if err := flags.Parse(args); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	token, err := readToken(*tokenFile)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	if *public == "" {
		*public = "http://" + l.Addr().String()
	}
	engine, handler, err := fronts(*public, token, logger)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	logger.InfoContext(ctx, "serving", "arc", *public+"/arc", "a2a", *public+"/a2a", "mcp", *public+"/mcp")
	if listening != nil {
		listening(*public)
	}

	// In production this server uses TLS: ServeTLS, or a proxy.
	server := engine.HTTPServer(*addr)
	server.Handler = handler
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return errors.Join(err, engine.Close())
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.Background(), *grace)
	defer cancel()
	err = engine.Shutdown(end) // the work first, while callers can still fetch its results
	return errors.Join(err, server.Shutdown(end))
}

// readToken returns the token in a file, and none without a file. Other users of the machine would see a token among the arguments.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	token := strings.TrimSpace(string(text))
	if err == nil && token == "" {
		err = fmt.Errorf("%s: want a token", file)
	}
	return token, err
}

// fronts returns the engine, and the handler of all three protocols.
func fronts(public, token string, logger *slog.Logger) (*arc.Server, http.Handler, error) {
	opts := &arc.ServerOptions{Logger: logger, Audit: arc.AuditLog(logger), Auth: arc.Auth{AllowAnonymous: token == ""}}
	if token != "" { // for JWTs: arc.BearerAuthenticator and package arc/oauth
		caller := &arc.Principal{ID: "operator", Scopes: []string{arc.ScopeTaskController, arc.ScopeAgentCaller}}
		authenticator, err := arc.APIKeyAuthenticator(map[string]*arc.Principal{token: caller})
		if err != nil {
			return nil, nil, err
		}
		opts.Auth.Authenticator = authenticator
	}
	engine, err := arc.NewServer(opts)
	if err != nil {
		return nil, nil, err
	}
	agent := arc.AgentInfo{AgentID: agentID, Name: "Summary", Version: "1.0.0",
		Description: "Counts the words and lines of a text, and repeats its first line."} // in all three protocols
	engine.Register(arc.Agent{AgentInfo: agent, TaskHandler: arc.TaskHandlerFunc(summarize)})

	bridge, err := a2abridge.NewServer(engine, agentID, nil)
	if err != nil {
		return nil, nil, errors.Join(err, engine.Close())
	}
	card, err := a2abridge.NewCard(agent, public+"/a2a", "")
	if err != nil {
		return nil, nil, errors.Join(err, engine.Close())
	}
	tools, err := mcpserver.NewHandler(engine, []arc.AgentInfo{agent}, nil)
	if err != nil {
		return nil, nil, errors.Join(err, engine.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("/arc", engine)
	mux.Handle("/a2a", bridge.JSONRPCHandler())
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card))
	mux.Handle("/mcp", tools)
	return engine, mux, nil
}
