// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command production is a template for an ARC service that several processes run behind one name:
// digest-01 sends the text of a task to a slow backend, once for each task, whatever happens to the
// processes; in a chat it streams a digest of each word. State is in SQLite (processes on one machine) or PostgreSQL (many machines), callers
// have tokens, and each caller has its bounds.
//
//	go run ./examples/production -addr localhost:8080 -tokens tokens.txt -store state.db
//
// Each line of the file of tokens has the name of a caller and its token, which is random. The
// password of PostgreSQL comes from the environment (PGPASSWORD), not from a flag.
//
// # Deployment
//
// /healthz is the liveness probe: the process answers. /readyz is the readiness probe: the process
// has its lease in the store, and no shutdown has begun. On SIGTERM, readiness ends first. For the
// time of -drain all requests are still served, while the orchestrator takes the process out of
// its rotation; set it to more than the period of the probe times its failure threshold. Then new
// work is refused, running tasks may end within -grace, and the store is closed. The termination
// grace of the orchestrator must exceed the sum of -drain and -grace by five seconds for the
// telemetry. Tasks that are cut off continue in another process: at once after a shutdown, and
// after -lease if the process was killed. The reader of a stream whose connection is lost continues
// in any process, without a gap; the stream of a killed process ends there with an error, after
// -lease. A second signal ends the process immediately.
//
// Nothing here has TLS: a proxy in front ends it, on the same machine or in a private network.
package main

import (
	"bufio"
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
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/otelarc"
	"github.com/fivewire/fivewire/store/sqlstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	c, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = run(ctx, c, os.Stdout, os.Stderr)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "production:", err)
		os.Exit(1)
	}
}

type config struct {
	addr, debug, store, instance, tokens, backend string
	telemetry                                     bool
	lease, drain, grace                           time.Duration
}

func parse(args []string, stderr io.Writer) (*config, error) {
	c := new(config)
	flags := flag.NewFlagSet("production", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.addr, "addr", "localhost:8080", "`address` to listen on")
	flags.StringVar(&c.debug, "debug", "", "loopback `address` of the debug page; empty means none")
	flags.StringVar(&c.store, "store", "production.db", "SQLite `file`, or a URL that starts with postgres://, without the password, which is in PGPASSWORD or a file of PGPASSFILE")
	flags.StringVar(&c.instance, "instance", "", "`id` of the process; it replaces an earlier one with the same id (empty means a random id)")
	flags.StringVar(&c.tokens, "tokens", "tokens.txt", "`file` with the name and the token of a caller in each line")
	flags.StringVar(&c.backend, "backend", "", "`URL` that the texts are sent to; empty means a function in the process")
	flags.BoolVar(&c.telemetry, "telemetry", false, "print spans and metrics to standard output")
	flags.DurationVar(&c.lease, "lease", 15*time.Second, "after which the tasks of a killed process continue elsewhere")
	flags.DurationVar(&c.drain, "drain", 5*time.Second, "how long an unready process serves all requests after a signal")
	flags.DurationVar(&c.grace, "grace", 20*time.Second, "how long running tasks may go on after that")
	return c, flags.Parse(args)
}

func run(ctx context.Context, c *config, stdout, stderr io.Writer) (err error) {
	logger := slog.New(slog.NewJSONHandler(stderr, nil))
	authenticator, err := readTokens(c.tokens)
	if err != nil {
		return err
	}
	tel, flush, err := newTelemetry(c.telemetry, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flush()) }()
	l, err := net.Listen("tcp", c.addr) // first, so that a second start does not take the tasks of a running process
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	db, err := sqlstore.Open(ctx, c.store, &sqlstore.Options{Logger: logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }() // after all work has ended
	srv, err := arc.NewServer(&arc.ServerOptions{
		Auth:   arc.Auth{Authenticator: authenticator, RequireForDiscovery: true},
		Limits: limits(),
		Persistence: arc.Persistence{Store: db, InstanceID: c.instance, LeaseTTL: c.lease,
			ResultTTL:    10 * time.Minute, // a request that is repeated creates no second task
			EnableResume: true},            // streams
		Timing:     arc.Timing{TaskTimeout: time.Hour},
		Middleware: []arc.Middleware{tel.Middleware()},
		Audit:      arc.AuditLog(logger), // with the names of callers, without their tokens
		Logger:     logger,
	})
	if err != nil {
		return err
	}
	defer func() { _ = srv.Close() }() // after an error below
	registration, err := tel.Observe(srv)
	if err != nil {
		return err
	}
	defer func() { _ = registration.Unregister() }()
	d := &digests{url: c.backend, client: &http.Client{Timeout: 5 * time.Minute}}
	srv.Register(arc.Agent{
		AgentInfo:   arc.AgentInfo{AgentID: "digest-01", Description: "Makes a digest of a text.", Version: "1.0.0"},
		TaskHandler: tel.TaskHandler(arc.TaskHandlerFunc(d.task)),
		ChatHandler: arc.ChatHandlerFunc(d.chat),
		// A task that was cut off before its step began does no harm either when it runs again.
		RerunInterrupted: true,
	})
	if c.debug != "" {
		stop, err := serveDebug(c.debug, srv)
		if err != nil {
			return err
		}
		defer stop()
	}
	return serve(ctx, c, l, srv, logger)
}

// serve serves until ctx ends, and then shuts down in the order of the package comment.
func serve(ctx context.Context, c *config, l net.Listener, srv *arc.Server, logger *slog.Logger) error {
	var draining atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if draining.Load() || srv.Ready() != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.Handle("/", srv)
	// It has time limits for headers and idle connections. The Server limits the reading of bodies and the writing of
	// responses, since a WriteTimeout would cut streams.
	httpServer := srv.HTTPServer(c.addr)
	httpServer.Handler = mux
	httpServer.MaxHeaderBytes = 64 << 10
	served := make(chan error, 1)
	go func() { served <- httpServer.Serve(l) }()
	logger.InfoContext(ctx, "serving ARC", "url", "http://"+l.Addr().String()+"/arc")
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}

	draining.Store(true)
	logger.InfoContext(ctx, "draining")
	select {
	case err := <-served:
		return err
	case <-time.After(c.drain):
	}
	end, cancel := context.WithTimeout(context.Background(), c.grace)
	defer cancel()
	err := srv.Shutdown(end) // the tasks first, while callers can still fetch the results
	if err != nil {
		logger.WarnContext(ctx, "tasks continue in another process", "err", err)
	}
	if e := httpServer.Shutdown(end); e != nil {
		err = errors.Join(err, e, httpServer.Close())
	}
	return err
}

// limits are for callers that are programs with some tens of users each. The totals, which protect the process, are
// the defaults of the package: they fit in 1 GiB of memory.
func limits() arc.Limits {
	return arc.Limits{
		MaxTasksPerPrincipal:       32,        // an eighth of the capacity of the backend
		TaskQueueLimitPerPrincipal: 256,       // a few minutes of work; later tasks would time out anyway
		MaxItemsPerPrincipal:       1_000,     // running, queued and waiting tasks, with their subscriptions
		MaxMemoryPerPrincipal:      32 << 20,  // 32 tasks with the largest message
		MaxStoragePerPrincipal:     256 << 20, // the results of a day; the oldest are deleted first
		RequestRate:                100,       // a second: a poll every 10 s from each of 1,000 tasks
		RequestBurst:               200,
		MaxMessage:                 1 << 20, // texts are short; the default is 16 MiB
	}
}

// readTokens reads the file of tokens. Its errors have line numbers and no content. The authenticator looks
// tokens up by SHA-256, so that the time of a comparison does not depend on a token.
func readTokens(file string) (arc.Authenticator, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	keys := make(map[string]*arc.Principal)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 || len(fields[1]) < 32 || keys[fields[1]] != nil {
			return nil, fmt.Errorf("tokens: %s:%d: want a name and an unused token of 32 characters or more", file, n)
		}
		keys[fields[1]] = &arc.Principal{ID: fields[0], Scopes: []string{arc.ScopeTaskController, arc.ScopeChatController, arc.ScopeAgentCaller}}
	}
	if lines.Err() != nil || len(keys) == 0 {
		return nil, fmt.Errorf("tokens: %s: no tokens, or a line that is too long", file)
	}
	return arc.APIKeyAuthenticator(keys)
}

// newTelemetry returns telemetry that prints to out, or that is discarded. To send it to a collector, replace the two
// exporters. The returned function writes the remaining spans and metrics.
func newTelemetry(enabled bool, out io.Writer) (*otelarc.Telemetry, func() error, error) {
	if !enabled {
		tel, err := otelarc.New(nil)
		return tel, func() error { return nil }, err
	}
	spans, err := stdouttrace.New(stdouttrace.WithWriter(out))
	if err != nil {
		return nil, nil, err
	}
	values, err := stdoutmetric.New(stdoutmetric.WithWriter(out))
	if err != nil {
		return nil, nil, err
	}
	traces := trace.NewTracerProvider(trace.WithBatcher(spans))
	meters := metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(values)))
	tel, err := otelarc.New(&otelarc.Options{TracerProvider: traces, MeterProvider: meters})
	return tel, func() error {
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return errors.Join(traces.Shutdown(end), meters.Shutdown(end))
	}, err
}

// serveDebug serves the debug page, which authenticates no caller.
func serveDebug(addr string, srv *arc.Server) (stop func(), err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return nil, errors.Join(fmt.Errorf("debug: %s is not a loopback address", addr), l.Close())
	}
	s := &http.Server{Handler: srv.DebugHandler(), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close() }, nil
}

// digests makes digests.
type digests struct {
	url    string
	client *http.Client
}

// task runs again from its beginning if its process ended. A step whose result was stored does not run again, and
// neither is an artifact added twice.
func (d *digests) task(ctx context.Context, run *arc.TaskRun) error {
	text := run.Message().Text()
	if strings.TrimSpace(text) == "" {
		return arc.Errorf(arc.ErrTaskExecutionFailed, "text is empty")
	}
	digest, err := arc.Step(ctx, run, "digest", func(ctx context.Context, stepID string) (string, error) {
		return d.digest(ctx, stepID, text)
	})
	if err != nil {
		return err
	}
	return run.AddArtifact(ctx, &arc.Artifact{Name: "digest", Parts: []arc.Part{arc.TextPart(digest)}})
}

// chat streams the digests of words.
func (d *digests) chat(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	for word := range strings.FieldsSeq(turn.Message.Text()) {
		digest, err := d.digest(ctx, "", word)
		if err == nil {
			err = out.Send(digest + "\n")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// digest is slow. A process that ends between the effect of a request and the storing of its result leads to a second
// request with the same key, by which the backend finds its earlier response.
func (d *digests) digest(ctx context.Context, stepID, text string) (string, error) {
	if d.url == "" {
		return strings.ToUpper(text), nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, strings.NewReader(text))
	if err != nil {
		return "", err
	}
	if stepID != "" {
		req.Header.Set("Idempotency-Key", stepID)
	}
	res, err := d.client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("backend: status %d", res.StatusCode)
	}
	const maxDigest = 1 << 20
	body, err := io.ReadAll(io.LimitReader(res.Body, maxDigest+1))
	if err == nil && len(body) > maxDigest {
		err = errors.New("backend: response too large")
	}
	return string(body), err
}
