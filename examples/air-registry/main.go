// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Air-registry registers two agents, looks them up, records an attestation, and rotates the key of
// one of them while mail is waiting.
//
// The registry is a test double on loopback that permits key rotation; the published one does not.
// To register with the published one, use its address.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/registry"
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "maximum `duration` of the run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "air-registry:", err)
		os.Exit(1)
	}
}

// enroll makes a key, registers an agent with it and saves the identity. The secret
// that comes back is shown once: keep it like the key.
func enroll(ctx context.Context, reg *registry.Client, net *airtest.Network, name, file string) (*air.Identity, string, error) {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails
	key, err := air.NewPublicKey(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
	if err != nil {
		return nil, "", err
	}
	r, err := reg.Register(ctx, &registry.RegisterParams{Name: name, PublicKey: key})
	if err != nil {
		return nil, "", err
	}
	id, err := air.NewIdentity(r.DID, seed)
	if err != nil {
		return nil, "", err
	}
	if err := air.SaveIdentity(file, id); err != nil {
		return nil, "", err
	}
	// The AIR ID is known only now, so the address of the mailbox comes second.
	_, err = reg.Update(ctx, r.AIRID, r.Secret, &registry.UpdateParams{Services: []registry.Service{registry.InboxService(net.Endpoint(id))}})
	return id, r.Secret, err
}

// receive fetches what is waiting for an agent.
func receive(ctx context.Context, id *air.Identity, net *airtest.Network, out io.Writer) error {
	resolver, err := net.Resolver()
	if err != nil {
		return err
	}
	inbox, err := air.NewInbox(id, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		fmt.Fprintf(out, "weather got %s\n", d.BodyJSON)
		return nil
	}), &air.InboxOptions{Resolver: resolver, BodyTypes: []string{"question"}})
	if err != nil {
		return err
	}
	poller, err := air.NewPoller(inbox, net.Endpoint(id), &air.PollerOptions{AllowLoopback: true})
	if err != nil {
		return err
	}
	_, err = poller.Drain(ctx)
	return err
}

func run(ctx context.Context, out io.Writer) error {
	net, err := airtest.NewNetwork(nil)
	if err != nil {
		return err
	}
	defer net.Close()
	net.Registry.KeyUpdates = true
	dir, err := os.MkdirTemp("", "air-registry")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "weather.json")

	reg, err := registry.NewClient(&registry.Options{RegistryURL: net.RegistryURL, AllowLoopback: true})
	if err != nil {
		return err
	}
	weather, secret, err := enroll(ctx, reg, net, "weather", file)
	if err != nil {
		return err
	}
	courier, courierSecret, err := enroll(ctx, reg, net, "courier", filepath.Join(dir, "courier.json"))
	if err != nil {
		return err
	}
	names, err := reg.LookupName(ctx, "weather")
	if err != nil {
		return err
	}
	score, err := reg.GetTrustScore(ctx, names.Agents[0].AIRID)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d agent is called weather, trusted with %d\n", names.Count, score.Total)

	// The courier attests the operator of weather, and every agent can verify the attestation.
	if _, err := reg.Attest(ctx, courier, courierSecret, &registry.AttestParams{
		Subject: weather.AIRID(), Type: registry.OperatorConfirmation, Statement: "I know who runs it.",
	}); err != nil {
		return err
	}
	attestations, err := reg.ListAttestations(ctx, weather.AIRID())
	if err != nil {
		return err
	}
	for _, a := range attestations.List {
		if err := a.Verify(weather.AIRID(), courier.PublicKey()); err != nil {
			return err
		}
		fmt.Fprintf(out, "the courier says: %s\n", a.Statement)
	}

	// A question is sealed to the key that weather has today.
	resolver, err := net.Resolver()
	if err != nil {
		return err
	}
	client, err := air.NewClient(courier, &air.ClientOptions{Resolver: resolver, BodyTypes: []string{"question"}})
	if err != nil {
		return err
	}
	if _, err := client.Send(ctx, &air.Draft{To: weather.DID(), Body: &air.Raw{Type: "question", JSON: []byte(`{"type":"question","text":"Rain?"}`)}},
		&air.SendOptions{Seal: true}); err != nil {
		return err
	}

	// Before it is read, the key changes. The file holds the new key only once the
	// registry has it, and the old one besides, so nothing that waits is lost.
	switch _, err := reg.RotateKey(ctx, file, secret); {
	case errors.Is(err, registry.ErrKeyImmutable):
		return fmt.Errorf("this registry wants a new registration instead: %w", err)
	case err != nil:
		return err
	}
	fmt.Fprintln(out, "weather has a new key")
	rotated, err := air.LoadIdentity(file) // as the next process does
	if err != nil {
		return err
	}
	return receive(ctx, rotated, net, out)
}
