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
	"sync"
	"time"

	"github.com/fivewire/fivewire/air"
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
	s, err := natsstore.Open(ctx, url, &natsstore.Options{Logger: logger})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()

	agents := arc.NewServer(&arc.ServerOptions{
		Persistence: arc.Persistence{Store: store.Sub(s, "arc/"), InstanceID: name, LeaseTTL: 3 * time.Second, ResultTTL: time.Minute}, // shared with the other instances
		// what a dead instance was doing is taken over after that
		RerunTasks: true, // by running it again, since it does no harm twice
		// a request that is repeated gets the first answer
		Logger: logger,
	})
	agents.HandleTasks("shout-01", arc.TaskHandlerFunc(shout))
	relay := air.NewRelay(&air.RelayOptions{Store: store.Sub(s, "air/"), RateLimit: -1, Logger: logger})

	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { // look after the work of instances that died
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if _, err := agents.WaitRecovered(ctx); err != nil && ctx.Err() == nil {
				logger.Warn("recover", "err", err)
			}
		}
	})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()

	mux := http.NewServeMux()
	mux.Handle("/arc", agents)
	mux.Handle("/", relay)
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
	err = errors.Join(agents.Shutdown(end), relay.Close(), srv.Shutdown(end))
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
