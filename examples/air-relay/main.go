// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Air-relay is a relay for signed envelopes. With -addr it serves until it is interrupted:
//
//	air-relay -addr :8443 -cert cert.pem -key key.pem -store mail.db
//	air-relay -addr localhost:8080 -store mail.db -public-url https://relay.example/air -proxy-header X-Real-Ip
//
// Without -addr it is a demonstration: it serves on loopback, receives one envelope, returns it,
// and exits.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/store/sqlstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("air-relay", flag.ContinueOnError)
	flags.SetOutput(out)
	addr := flags.String("addr", "", "serve on this address until interrupted")
	cert := flags.String("cert", "", "file with the TLS certificate; without it, plain HTTP for a proxy in front")
	key := flags.String("key", "", "file with its key")
	pushFile := flags.String("push-secret-file", "", "file with the secret that senders must show")
	inboxFile := flags.String("inbox-secret-file", "", "file with the secret for pull and ack of all mailboxes; agents that sign their requests need none")
	publicURL := flags.String("public-url", "", "origin and path prefix for callers, behind a proxy that changes them")
	proxyHeader := flags.String("proxy-header", "", "header in which a trusted proxy names the address of the caller")
	anyRecipient := flags.Bool("any-recipient", false, "keep mail for agents that the registry does not know, too")
	file := flags.String("store", "", "SQLite file of the mail; without it, the mail is in memory")
	rate := flags.Int("rate", 100, "envelopes of one sender in a minute")
	ttl := flags.Duration("ttl", 7*24*time.Hour, "how long unacknowledged mail is kept")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	pushSecret, err := readSecret(*pushFile)
	if err != nil {
		return err
	}
	inboxSecret, err := readSecret(*inboxFile)
	if err != nil {
		return err
	}
	opts := &relay.ServerOptions{
		Auth: relay.Auth{
			PushSecret:         pushSecret,
			AllowAnonymousPush: pushSecret == "",
			InboxSecret:        func(string) string { return inboxSecret },
		},
		Limits:      relay.Limits{RateLimit: *rate},
		Persistence: relay.Persistence{Retention: *ttl},
		Logger:      slog.New(slog.NewTextHandler(out, nil)),
	}
	if *file != "" {
		db, err := sqlstore.Open(ctx, *file, nil)
		if err != nil {
			return err
		}
		defer db.Close()
		opts.Persistence.Store, opts.Persistence.SingleInstance = db, true
	}
	demo := *addr == ""
	if demo {
		*addr = "127.0.0.1:0"
		opts.Auth.AllowAnonymous, opts.AnyRecipient = true, true
	} else {
		resolver, err := air.NewResolver(nil)
		if err != nil {
			return err
		}
		defer resolver.Close()
		opts.Auth.Resolver, opts.Auth.PublicURL = resolver, *publicURL
		if opts.AnyRecipient = *anyRecipient; !opts.AnyRecipient {
			opts.Directory = relay.NewRegistryDirectory(resolver)
		}
	}
	if *proxyHeader != "" {
		opts.ClientAddr = func(r *http.Request) string { return r.Header.Get(*proxyHeader) }
	}
	mailboxes, err := relay.NewServer(opts)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: mailboxes, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	serveErrs := make(chan error, 1)
	go func() {
		if *cert != "" {
			serveErrs <- srv.ServeTLS(l, *cert, *key)
			return
		}
		serveErrs <- srv.Serve(l)
	}()
	if demo {
		err = show(ctx, "http://"+l.Addr().String(), pushSecret, inboxSecret, out)
	} else {
		fmt.Fprintln(out, "serving on", l.Addr())
		select {
		case <-ctx.Done():
		case err = <-serveErrs:
			serveErrs <- err
		}
	}
	// The streams first, since Shutdown waits for them.
	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = errors.Join(err, mailboxes.Close(), srv.Shutdown(closing))
	if served := <-serveErrs; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// readSecret returns the secret in a file, and none without a file. Other users of the machine would see a secret among the arguments.
func readSecret(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	secret := strings.TrimSpace(string(text))
	if err == nil && secret == "" {
		err = fmt.Errorf("%s: want a secret", file)
	}
	return secret, err
}

// show pushes an envelope, pulls it and acknowledges it, by the requests that any
// client sends.
func show(ctx context.Context, relay, pushSecret, inboxSecret string, out io.Writer) error {
	alice, err := air.GenerateIdentity("did:wba:agentidentityregistry.org:agents:AIR-A11C-E000-0001")
	if err != nil {
		return err
	}
	const bob = "AIR-B0B0-0000-0002"
	e, err := air.NewEnvelope(&air.Draft{
		ID: "8c5ddaf2-7d2e-4c0b-9d3c-6a1f0a3c7b11", From: alice.DID(), To: "did:wba:agentidentityregistry.org:agents:" + bob,
		Time: time.Now(), ThreadID: air.NewID(),
		Body: &air.Offer{Description: "hello", Price: air.MinorUnits(1, "USD"), Expires: time.Now().Add(time.Hour)},
	}, alice.Signer(), nil)
	if err != nil {
		return err
	}
	for _, r := range []struct{ method, path, body, secret string }{
		{http.MethodPost, "/inbox/" + bob, string(e.Bytes()), pushSecret},
		{http.MethodGet, "/inbox/" + bob + "/pull", "", inboxSecret},
		{http.MethodPost, "/inbox/" + bob + "/ack", `{"envelope_ids":["` + e.ID + `"]}`, inboxSecret},
		{http.MethodGet, "/inbox/" + bob + "/pull", "", inboxSecret},
	} {
		req, err := http.NewRequestWithContext(ctx, r.method, relay+r.path, bytes.NewReader([]byte(r.body)))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-A2A-Version", "v1")
		req.Header.Set("X-Agent-Secret", r.secret)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return err
		}
		answer = bytes.Replace(answer, e.Bytes(), []byte("(the envelope)"), 1)
		fmt.Fprintf(out, "%s %s: %d %s\n", r.method, r.path, res.StatusCode, answer)
	}
	http.DefaultClient.CloseIdleConnections()
	return nil
}
