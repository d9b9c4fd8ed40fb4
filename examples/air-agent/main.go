// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Air-agent sells translations and keeps its mail in a file. The registry must name a relay as its mailbox.
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
	"syscall"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/store/sqlstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("air-agent", flag.ContinueOnError)
	identity := flags.String("identity", "agent.json", "`file` of the identity, as air.SaveIdentity writes it")
	mail := flags.String("store", "agent.db", "SQLite `file` of threads, outgoing mail and dead letters")
	registry := flags.String("registry", air.DefaultRegistryURL, "`URL` of the registry")
	loopback := flags.Bool("loopback", false, "permit a registry and relays on this machine")
	price := flags.Uint64("price", 500, "lowest accepted price in `cents`")
	err := flags.Parse(args)
	id, loadErr := air.LoadIdentity(*identity)
	resolver, resolverErr := air.NewResolver(&air.ResolverOptions{RegistryURL: *registry, AllowLoopback: *loopback})
	if err := errors.Join(err, loadErr, resolverErr); err != nil {
		return err
	}
	db, err := sqlstore.Open(ctx, *mail, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	var agent *air.Agent
	agent, err = air.NewAgent(id, air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
		fmt.Fprintf(out, "%s sent %s\n", d.Envelope.From, air.BodyType(d.Body))
		offer, ok := d.Body.(*air.Offer) // every agent may send every type
		if !ok {
			return nil
		}
		deal := agent.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, d.Sealed)
		if cents, ok := offer.Price.Amount.Uint64(); ok && offer.Price.Currency == "USD" && cents >= *price {
			_, err := deal.Accept(ctx)
			return err
		}
		_, err := deal.Counter(ctx, offer.Description, air.MinorUnits(*price, "USD"), time.Now().Add(time.Hour))
		return err
	}), &air.AgentOptions{Resolver: resolver, Persistence: air.Persistence{Store: db, SingleInstance: true},
		// A relay keeps mail for seven days. By default, mail that is older than five minutes when it is
		// fetched becomes a dead letter, so an agent that was offline for longer would not answer.
		Timing: air.Timing{MaxPullAge: 7 * 24 * time.Hour, ResendEvery: time.Minute}})
	if err != nil {
		return err
	}
	for letter, err := range agent.Inbox.DeadLetters(ctx) {
		fmt.Fprintln(out, "dead letter", letter.ID, letter.From, letter.Code, err)
	}
	if err = agent.Run(ctx); ctx.Err() != nil {
		err = nil
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, agent.Shutdown(end), resolver.Close())
}
