// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command one-shape serves the same function over all five protocols, on one address, and calls it over
// each of them. It shows what the packages have in common: options with the groups Auth, Limits, Timing and
// Persistence, a logger, an audit log, a handler, a shutdown. It is a template to copy.
//
//	go run ./examples/one-shape -try
//	go run ./examples/one-shape -addr localhost:8100
//
// It ends on Ctrl-C or SIGTERM: new work is refused, running work may finish. With -try it calls each server
// once, prints the answers and ends.
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "one-shape:", err)
		os.Exit(1)
	}
}

// countWords is what the five servers do.
func countWords(text string) int { return len(strings.Fields(text)) }

// A server is what this program needs of a server of any protocol.
type server struct {
	handler  http.Handler
	ready    func() error
	shutdown func(context.Context) error
}

// A protocol makes a server, and calls the one at a URL.
type protocol struct {
	name  string
	serve func(url string, logger *slog.Logger) (*server, error)
	call  func(ctx context.Context, url, text string) (string, error)
}

func protocols() []protocol {
	network := new(airNetwork)
	return []protocol{
		{"arc", serveARC, callARC},
		{"a2e", serveA2E, callA2E},
		{"altar", serveALTAR, callALTAR},
		{"accp", serveACCP, callACCP},
		{"air", network.serve, network.call},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("one-shape", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "localhost:8100", "`address` to listen on")
	grace := flags.Duration("grace", 20*time.Second, "maximum `duration` of running work after a signal")
	try := flags.Bool("try", false, "listen on any port, call each server once, and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *try {
		*addr = "localhost:0"
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	mux := http.NewServeMux()
	all := protocols()
	var servers []*server
	for _, p := range all {
		s, err := p.serve(url+"/"+p.name, logger)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", p.name, err), l.Close())
		}
		servers = append(servers, s)
		mux.Handle("/"+p.name+"/", http.StripPrefix("/"+p.name, s.handler))
	}
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		for _, s := range servers {
			if err := s.ready(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
	})
	logger.InfoContext(ctx, "serving", "url", url)

	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	defer func() {
		logger.InfoContext(ctx, "shutting down")
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), *grace)
		defer cancel()
		for _, s := range servers { // before the connections end
			err = errors.Join(err, s.shutdown(end))
		}
		err = errors.Join(err, web.Shutdown(end))
	}()
	if *try {
		return callAll(ctx, all, url, stdout)
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

// callAll calls each server once.
func callAll(ctx context.Context, all []protocol, url string, out io.Writer) error {
	for _, p := range all {
		answer, err := p.call(ctx, url+"/"+p.name, "one small step")
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(out, "%-5s %s\n", p.name, answer)
	}
	return nil
}
