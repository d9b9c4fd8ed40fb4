// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command altar-host is a Host of tools over WebSocket and HTTP, with API keys.
// It is a template to copy; altar-runtime brings the tools and altar-client
// calls them:
//
//	go run ./examples/altar-host &
//	go run ./examples/altar-runtime &
//	go run ./examples/altar-client
//
// It ends on Ctrl-C or SIGTERM, or after the time that -for says: calls in
// flight may finish.
package main

import (
	"context"
	_ "embed"
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

	"github.com/fivewire/fivewire/altar"
)

// The contracts are the Host's alone: a Runtime can fulfil them, not change them.
//
//go:embed manifest.json
var manifest []byte

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "altar-host:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("altar-host", flag.ContinueOnError)
	flags.SetOutput(out)
	addr := flags.String("addr", "localhost:8090", "`address` to listen on")
	clientFile := flags.String("client-key-file", "", "`file` with the API key of clients; without it the key is example-client-key")
	runtimeFile := flags.String("runtime-key-file", "", "`file` with the API key of Runtimes; without it the key is example-runtime-key")
	cert := flags.String("cert", "", "`file` with the TLS certificate; without it and the keys only addresses of this machine are served")
	key := flags.String("key", "", "`file` with the key of the certificate")
	span := flags.Duration("for", 0, "how long to run; 0 means until a signal")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *span > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *span)
		defer cancel()
	}

	contracts, err := altar.DecodeManifest(manifest)
	if err != nil {
		return err
	}
	// Every call is judged: users may use the text tools, operators everything.
	roles := altar.RoleAuthorizer(
		altar.RoleRule{Tools: "text/*", Roles: []string{"user", "operator"}},
		altar.RoleRule{Tools: "admin/*", Roles: []string{"operator"}},
	)
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	clientKey, err := readKey(*clientFile, "example-client-key")
	if err != nil {
		return err
	}
	runtimeKey, err := readKey(*runtimeFile, "example-runtime-key")
	if err != nil {
		return err
	}
	keys, err := altar.APIKeyAuthenticator(map[string]*altar.Principal{
		clientKey:  {ID: "alice", Tenant: "example", Roles: []string{"user"}},
		runtimeKey: {ID: "text-service", Tenant: "example", Roles: []string{"runtime"}},
	})
	if err != nil {
		return err
	}
	host, err := altar.NewHost(contracts, &altar.HostOptions{
		ID: "example-host",
		Auth: altar.Auth{Authorizer: roles, Authenticator: keys, RuntimeAuthorizer: func(_ context.Context, id *altar.Principal, a *altar.AnnounceRuntime) error {
			if id.ID != "text-service" {
				return errors.New("only the text service brings tools")
			}
			return nil
		}},
		Timing: altar.Timing{Heartbeat: 10 * time.Second},
		Audit: func(ctx context.Context, e *altar.AuditRecord) {
			log.InfoContext(ctx, e.Operation, "principal", e.Principal, "runtime", e.RuntimeID, "contract", e.Contract)
		},
	})
	if err != nil {
		return err
	}

	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	isSafe := *cert != "" && *clientFile != "" && *runtimeFile != ""
	if a, ok := l.Addr().(*net.TCPAddr); !isSafe && (!ok || !a.IP.IsLoopback()) {
		err := fmt.Errorf("%s can be reached from other machines: it needs -cert, -key, -client-key-file and -runtime-key-file", l.Addr())
		return errors.Join(err, l.Close(), host.Close())
	}
	srv := &http.Server{Handler: host, ReadHeaderTimeout: 10 * time.Second}
	serve, scheme := func() error { return srv.Serve(l) }, "http"
	if *cert != "" {
		serve, scheme = func() error { return srv.ServeTLS(l, *cert, *key) }, "https"
	}
	fmt.Fprintf(out, "listening on %s://%s\n", scheme, l.Addr())
	served := make(chan error, 1)
	go func() { served <- serve() }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	for _, u := range host.Usage() { // the budgets
		log.InfoContext(ctx, "budget", "resource", u.Resource, "scope", u.Scope, "used", u.Used, "limit", u.Limit)
	}
	// Calls in flight end first, for ten seconds at most.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, host.Shutdown(end), srv.Close())
}

// readKey returns the key in a file, and that of the examples without a file. Other users of the machine would see a key among the
// arguments.
func readKey(file, example string) (string, error) {
	if file == "" {
		return example, nil
	}
	text, err := os.ReadFile(file)
	return strings.TrimSpace(string(text)), err
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
