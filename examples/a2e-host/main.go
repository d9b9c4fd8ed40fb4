// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// A2e-host is an environment host: tools written as plain functions, memory and
// processes. Without arguments it serves its parent over standard input and
// output; with -http it serves agents over HTTP until it is interrupted.
//
//	go run ./examples/a2e-host -http 127.0.0.1:8765 -token-file token
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/tools"
)

func main() {
	address := flag.String("http", "", "serve HTTP at this address instead of standard input and output")
	sandbox := flag.String("sandbox", "", "run the programs of agents in this folder, in a sandbox of the program bwrap")
	tokenFile := flag.String("token-file", "", "`file` with the token of the agent, which only its owner may read")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	// Standard output belongs to the protocol; logs go to standard error.
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	token, err := readToken(*tokenFile)
	if err == nil {
		err = run(ctx, *address, *sandbox, token, logger)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		logger.ErrorContext(ctx, "host ended", "err", err)
		os.Exit(1)
	}
}

// readToken returns the token of a file, and none without a file. A token in an argument or a variable
// would be visible to other programs.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s: want a file that only its owner may read", file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("%s: want a token", file)
	}
	return token, nil
}

// A CountIn holds the arguments of the tool count_words. Its fields define the parameters that
// agents see.
type CountIn struct {
	Text  string `json:"text" jsonschema:"the text to look at"`
	Lower bool   `json:"lower,omitempty" jsonschema:"count words of any case as one"`
}

// A CountOut is its result.
type CountOut struct {
	Words   int `json:"words"`
	Letters int `json:"letters"`
}

// countWords is a tool: a plain function. Call.Emit sends progress to agents that request events,
// and does nothing for others.
func countWords(_ context.Context, call *a2e.Call, in CountIn) (CountOut, error) {
	if in.Text == "" {
		return CountOut{}, errors.New("there is no text") // the agent reads this
	}
	if err := call.Emit(a2e.EventProgress, map[string]any{"pct": 50, "message": "counting"}); err != nil {
		return CountOut{}, err
	}
	return CountOut{Words: len(strings.Fields(in.Text)), Letters: utf8.RuneCountInString(in.Text)}, nil
}

// newHost returns the host with its plugins. An empty sandbox means none.
func newHost(sandbox, token string, logger *slog.Logger) (*a2e.Host, error) {
	set, err := tools.NewSet(nil)
	if err != nil {
		return nil, err
	}
	tools.AddTool(set, "count_words", "Count the words and letters of a text", countWords,
		func(d *tools.Definition) { d.Tags, d.Idempotent = []string{"text"}, true })

	// Processes are denied by default: this host lets agents run "echo", in the
	// folder of the host, and nothing else. A shell or a compiler needs a sandbox.
	limits := &proc.Options{AllowedCommands: []string{"echo"}}
	if sandbox != "" {
		limits = &proc.Options{AllowedCommands: []string{"sh"}, AllowedDirs: []string{sandbox}, Launcher: proc.Bubblewrap(sandbox), InheritedEnv: []string{"PATH"}}
	}
	processes, err := proc.NewPlugin(limits)
	if err != nil {
		return nil, err
	}
	memories, err := memory.NewPlugin(nil)
	if err != nil {
		return nil, err
	}
	auth := a2e.Auth{AllowAnonymous: true} // on standard input, the parent process is the agent
	if token != "" {
		keys, err := a2e.APIKeyAuthenticator(map[string]*a2e.Principal{token: {ID: "agent"}})
		if err != nil {
			return nil, err
		}
		auth = a2e.Auth{Authenticator: keys}
	}
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: auth, Logger: logger})
	if err != nil {
		return nil, err
	}
	return host.AddPlugin(set.Plugin()).AddPlugin(memories).AddPlugin(processes), nil
}

func run(ctx context.Context, address, sandbox, token string, logger *slog.Logger) error {
	host, err := newHost(sandbox, token, logger)
	if err != nil {
		return err
	}
	if address == "" {
		return host.Serve(ctx, a2e.Stdio())
	}
	if token == "" {
		return errors.New("-token-file is required: other users of this machine can connect")
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return serveHTTP(ctx, l, host)
}

func serveHTTP(ctx context.Context, l net.Listener, host *a2e.Host) error {
	handler, err := a2e.NewHTTPHandler(host, nil)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		// Work in flight may end; streams end with their sessions.
		limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = host.Shutdown(limit)
		_ = server.Shutdown(limit)
	}()
	err = server.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return err
}
