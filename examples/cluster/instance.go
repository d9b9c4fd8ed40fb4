// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
)

// These variables make the program an instance.
const (
	instanceName  = "CLUSTER_INSTANCE"
	instanceStore = "CLUSTER_STORE"
)

// instance serves an ARC agent and an AIR relay on state that it shares with
// others, until ctx ends or in is closed.
func instance(ctx context.Context, name, url string, in io.Reader, out io.Writer) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})).With("instance", name)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s, err := natsstore.Open(ctx, url, &natsstore.Options{
		Logger:      logger,
		CallTimeout: 30 * time.Second, // a new cluster elects its leaders first
	})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()

	agents, err := arc.NewServer(&arc.ServerOptions{
		Auth:        arc.Auth{AllowAnonymous: true},
		Persistence: arc.Persistence{Store: store.Sub(s, "arc/"), InstanceID: name, LeaseTTL: 3 * time.Second, ResultTTL: time.Minute}, // shared with the other instances
		// a request that is repeated gets the first answer
		Logger: logger,
	})
	if err != nil {
		return err
	}
	agents.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "shout-01"}, TaskHandler: arc.TaskHandlerFunc(shout),
		RerunInterrupted: true}) // it does no harm twice
	mailboxes, err := relay.NewServer(&relay.ServerOptions{
		Auth: relay.Auth{AllowAnonymous: true}, AnyRecipient: true,
		Logger: logger, Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1},
		Persistence: relay.Persistence{Store: store.Sub(s, "air/")},
	})
	if err != nil {
		return err
	}

	go func() {
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()

	mux := http.NewServeMux()
	mux.Handle("/arc", agents)
	mux.Handle("/", mailboxes)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	fmt.Fprintln(out, l.Addr())
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = errors.Join(agents.Shutdown(end), mailboxes.Close(), srv.Shutdown(end))
	<-served
	return err
}

// shout is the work of a task.
func shout(ctx context.Context, run *arc.TaskRun) error {
	if err := run.AddProgress(ctx, "taking a deep breath"); err != nil {
		return err
	}
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	return run.AddArtifact(ctx, &arc.Artifact{
		Name:  "answer",
		Parts: []arc.Part{arc.TextPart(strings.ToUpper(run.Message().Text()))},
	})
}
