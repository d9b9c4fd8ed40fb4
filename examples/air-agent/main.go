// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Air-agent sells translations: it accepts offers at its price, counters lower ones, and keeps its mail in
// a file. The registry must name a relay as its mailbox.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/store/sqlstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "air-agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("air-agent", flag.ContinueOnError)
	flags.SetOutput(out)
	identity := flags.String("identity", "agent.json", "`file` of the identity, as air.SaveIdentity writes it")
	mail := flags.String("store", "agent.db", "SQLite `file` of threads, outgoing mail and dead letters")
	registry := flags.String("registry", air.DefaultRegistryURL, "`URL` of the registry")
	loopback := flags.Bool("loopback", false, "permit a registry and relays on this machine")
	price := flags.Uint64("price", 500, "lowest accepted price in `cents`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	id, err := air.LoadIdentity(*identity)
	if err != nil {
		return err
	}
	db, err := sqlstore.Open(ctx, *mail, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: *registry, AllowLoopback: *loopback})
	if err != nil {
		return err
	}
	defer resolver.Close()
	s := &seller{price: air.MinorUnits(*price, "USD"), cents: *price, out: out}
	s.agent, err = air.NewAgent(id, s, &air.AgentOptions{
		Resolver:    resolver,
		Persistence: air.Persistence{Store: db, SingleInstance: true},
		// A relay keeps mail for seven days. By default, mail that is older than five minutes when it is
		// fetched becomes a dead letter, so an agent that was offline for longer would not answer.
		Timing:      air.Timing{MaxPullAge: 7 * 24 * time.Hour},
		ResendEvery: time.Minute,
	})
	if err != nil {
		return err
	}
	for letter, err := range s.agent.Inbox.DeadLetters(ctx) {
		if err != nil {
			return errors.Join(err, s.agent.Close())
		}
		fmt.Fprintf(out, "dead letter %s of %s: %s\n", letter.ID, letter.From, letter.Code)
	}
	err = s.agent.Run(ctx)
	if ctx.Err() != nil {
		err = nil
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, s.agent.Shutdown(end))
}

// A seller is the handler of the agent.
type seller struct {
	agent *air.Agent
	price air.Money
	cents uint64
	out   io.Writer
}

// ServeAIR answers an offer. A body is never assumed to have a type: every agent may send every type.
func (s *seller) ServeAIR(ctx context.Context, d *air.Delivery) error {
	from := d.Envelope.From
	negotiation := s.agent.NewNegotiation(from, d.Envelope.ThreadID, d.Sealed)
	switch body := d.Body.(type) {
	case *air.Offer:
		cents, _ := body.Price.Amount.Uint64()
		if body.Price.Currency == "USD" && cents >= s.cents {
			fmt.Fprintf(s.out, "accepting %q of %s for %s\n", body.Description, from, body.Price)
			_, err := negotiation.Accept(ctx)
			return err
		}
		fmt.Fprintf(s.out, "asking %s of %s\n", s.price, from)
		_, err := negotiation.Counter(ctx, body.Description, s.price, time.Now().Add(time.Hour))
		return err
	default:
		fmt.Fprintf(s.out, "%s sent %s\n", from, body.BodyType())
		return nil
	}
}
