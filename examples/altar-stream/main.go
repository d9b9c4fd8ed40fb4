// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command altar-stream reads a log of a million lines through two Hosts. The reader sleeps, so
// the tool waits: no line is lost, and only the few in transit are kept in memory.
//
//	go run . -lines 1000000 -every 100 -pause 2ms
//
// The Runtime with the log is at one Host, the reader at the other, and calls between the Hosts go
// over NATS. Here all of them are in one process, with a separate NATS server unless -nats names
// one; in production each is a process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/natsroute"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal("altar-stream: ", err)
	}
}

// readIn is the parameters of the tool.
type readIn struct {
	Lines int64 `json:"lines" description:"how many lines to read"`
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("altar-stream", flag.ContinueOnError)
	flags.SetOutput(out)
	lines := flags.Int64("lines", 1_000_000, "`number` of lines of the log")
	every := flags.Int64("every", 100, "`number` of lines after which the reader sleeps")
	pause := flags.Duration("pause", 2*time.Millisecond, "how long the reader sleeps")
	url := flags.String("nats", "", "`address` of a NATS server; empty means one in this process")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *lines < 1 || *every < 1 {
		return errors.New("-lines and -every must be positive")
	}
	if *url == "" {
		srv, err := startNATS()
		if err != nil {
			return err
		}
		defer srv.Shutdown()
		*url = srv.ClientURL()
	}

	contract, err := altar.ContractOf[readIn]("log/read")
	if err != nil {
		return err
	}
	contract.Streaming = true
	manifest := &altar.Manifest{Contracts: []*altar.Contract{contract}}
	near, err := startHost(manifest, *url, "near")
	if err != nil {
		return err
	}
	defer near.stop()
	far, err := startHost(manifest, *url, "far")
	if err != nil {
		return err
	}
	defer far.stop()

	var sent atomic.Int64
	stopRuntime, err := startRuntime(far, &sent)
	if err != nil {
		return err
	}
	defer stopRuntime()
	return read(ctx, out, near, &sent, *lines, *every, *pause)
}

// read reads the log at a Host, and checks the order and the number of its lines.
func read(ctx context.Context, out io.Writer, near *host, sent *atomic.Int64, lines, every int64, pause time.Duration) error {
	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) {
		return near.Dial(&altar.Principal{ID: "reader", Tenant: "example"})
	}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	session, err := client.CreateSession(ctx, nil)
	if err != nil {
		return err
	}
	if err := available(ctx, session); err != nil {
		return err
	}
	var n, ahead int64
	start, before, growth := time.Now(), liveHeap(), int64(0)
	for line, err := range altar.StreamAs[string](ctx, session, "log/read", readIn{lines}, nil) {
		if err != nil {
			return fmt.Errorf("after %d lines: %w", n, err)
		}
		if want := lineOf(n); line != want {
			return fmt.Errorf("line %d is %q", n, line)
		}
		n++
		ahead = max(ahead, sent.Load()-n)
		if n%every == 0 {
			time.Sleep(pause)
		}
		if n%max(1, lines/4) == 0 {
			growth = max(growth, liveHeap()-before)
			fmt.Fprintf(out, "%d lines in %v\n", n, time.Since(start).Round(time.Millisecond))
		}
	}
	if n != lines {
		return fmt.Errorf("%d of %d lines", n, lines)
	}
	fmt.Fprintf(out, "%d lines, each once and in order; tool ahead by at most %d lines; heap grew by at most %d KiB\n", n, ahead, growth>>10)
	return nil
}

// available waits for the tool of the other Host.
func available(ctx context.Context, s *altar.Session) error {
	for {
		tools, err := s.ListTools(ctx)
		if err != nil || len(tools) > 0 {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lineOf(n int64) string { return fmt.Sprintf("line %07d: request served", n) }

// startRuntime connects the Runtime with the log to a Host. It counts the sent lines.
func startRuntime(far *host, sent *atomic.Int64) (stop func(), err error) {
	rt, err := altar.NewRuntime("log-1", nil)
	if err != nil {
		return nil, err
	}
	altar.AddStreamTool(rt, "log/read", func(_ context.Context, in readIn, out *altar.ChunkWriter) error {
		for n := range in.Lines {
			if err := out.Send(lineOf(n)); err != nil { // waits while the reader sleeps
				return err
			}
			sent.Store(n + 1)
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = rt.RunWithReconnect(ctx, func(context.Context) (altar.Conn, error) {
			return far.Dial(&altar.Principal{ID: "log-service", Tenant: "example"})
		})
	}()
	return func() { cancel(); <-done }, nil
}

// A host is a Host with its part of the cluster.
type host struct {
	*altar.Host
	stop func()
}

func startHost(m *altar.Manifest, url, id string) (*host, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	cluster, err := natsroute.NewCluster(nc, nil)
	if err != nil {
		nc.Close()
		return nil, err
	}
	h, err := altar.NewHost(m, &altar.HostOptions{ID: id, Cluster: cluster,
		Auth: altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)}})
	if err != nil {
		_ = cluster.Close()
		nc.Close()
		return nil, err
	}
	return &host{h, func() {
		_ = h.Close()
		_ = cluster.Close()
		nc.Close()
	}}, nil
}

func startNATS() (*server.Server, error) {
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, err
	}
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		srv.Shutdown()
		return nil, errors.New("the NATS server does not start")
	}
	return srv, nil
}

// liveHeap returns the bytes that are in use after a garbage collection.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
