// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command arc-durable runs an ARC agent whose tasks survive the program: travel-01 books a trip in
// four steps and asks a human before it pays. Kill it at any time and start it again with the same
// file: each task continues, and no step whose result was stored runs again.
//
//	go run ./examples/arc-durable -addr localhost:8080 -store trips.db
//
// It ends on Ctrl-C or SIGTERM; tasks that wait for a human do not delay that.
package main

import (
	"bytes"
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
	"syscall"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/store/sqlstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "arc-durable:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("arc-durable", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "localhost:8080", "`address` to listen on")
	file := flags.String("store", "trips.db", "`file` of the store")
	bookings := flags.String("bookings", "bookings.txt", "`file` that stands for the services which the steps use")
	pause := flags.Duration("pause", time.Second, "how long a step takes")
	grace := flags.Duration("grace", 20*time.Second, "how long running work may go on after a signal")
	if err := flags.Parse(args); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	l, err := net.Listen("tcp", *addr) // first, so that a second start does not take the tasks of a running process
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	db, err := sqlstore.Open(ctx, *file, nil)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	srv, err := arc.NewServer(&arc.ServerOptions{
		Auth: arc.Auth{AllowAnonymous: true}, // see arc-server for tokens
		// The same InstanceID: this process replaces the killed one, and takes its tasks over at once.
		Persistence: arc.Persistence{Store: db, InstanceID: "travel", ResultTTL: 10 * time.Minute},
		Logger:      logger,
	})
	if err != nil {
		return err
	}
	t := &travel{bookings: *bookings, pause: *pause}
	srv.HandleTasks("travel-01", arc.TaskHandlerFunc(t.book))

	logger.InfoContext(ctx, "serving ARC", "url", "http://"+l.Addr().String()+"/arc")
	httpServer := srv.HTTPServer(*addr)
	served := make(chan error, 1)
	go func() { served <- httpServer.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.Background(), *grace)
	defer cancel()
	err = srv.Shutdown(end)
	if e := httpServer.Shutdown(end); e != nil && !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// travel books trips.
type travel struct {
	bookings string
	pause    time.Duration
}

// book is a plain function. After a crash it runs again from its beginning: each step with a stored result
// returns that, and WaitInput the stored answer.
func (t *travel) book(ctx context.Context, run *arc.TaskRun) error {
	city := run.Message().Text()
	flight, err := arc.Step(ctx, run, "flight", t.service("flight to "+city))
	if err != nil {
		return err
	}
	hotel, err := arc.Step(ctx, run, "hotel", t.service("hotel in "+city))
	if err != nil {
		return err
	}
	answer, err := run.WaitInput(ctx, "Pay for "+flight+" and "+hotel+"?")
	if err != nil {
		return err
	}
	if answer.Text() != "yes" {
		return arc.Errorf(arc.ErrTaskExecutionFailed, "not approved")
	}
	receipt, err := arc.Step(ctx, run, "payment", t.service("payment"))
	if err != nil {
		return err
	}
	ticket, err := arc.Step(ctx, run, "ticket", t.service("ticket"))
	if err != nil {
		return err
	}
	return run.AddArtifact(ctx, &arc.Artifact{Name: "trip", Parts: []arc.Part{arc.TextPart(receipt + ", " + ticket)}})
}

// service returns a step that uses a service. A crash between its effect and the storing of its result
// runs it again with the same id, by which the service finds its earlier effect.
func (t *travel) service(what string) func(context.Context, string) (string, error) {
	return func(ctx context.Context, stepID string) (string, error) {
		select {
		case <-time.After(t.pause):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		line := fmt.Appendf(nil, "%s %s\n", stepID, what)
		earlier, err := os.ReadFile(t.bookings)
		if err != nil && !errors.Is(err, os.ErrNotExist) || bytes.Contains(earlier, line) {
			return what, err
		}
		f, err := os.OpenFile(t.bookings, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return "", err
		}
		_, err = f.Write(line)
		return what, errors.Join(err, f.Close())
	}
}
