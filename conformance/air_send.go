// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/store"
)

// airSender is a client of send_script.
type airSender struct {
	resolver func() (*air.Resolver, error)
	id       *air.Identity
	opts     air.ClientOptions
	outbox   store.Store // survives a crash; nil: none
	client   *air.Client
	gate     *gate              // of the process
	cancel   context.CancelFunc // of the calls of the process
	ctx      context.Context
}

// airSenderFixture is the fixture of send_script: a client and its relay.
type airSenderFixture struct {
	*airSender
	registry *airRegistry
	peer     *airPeer
}

func airSendScript(_ *testing.T, _, fixture *Input) (Step, error) {
	f := &airSenderFixture{registry: airReadRegistry(fixture), peer: &airPeer{}}
	loopback := fixture.Bool("allowLoopback")
	var err error
	f.airSender, err = newAIRSender(fixture, f.peer, func() (*air.Resolver, error) { return f.registry.resolver(loopback) })
	if err != nil {
		return nil, err
	}
	f.peer.kill = func() {
		f.gate.kill()
		f.cancel()
	}
	return f.step, nil
}

// newAIRSender returns a client with a fixture.
func newAIRSender(fixture *Input, transport http.RoundTripper, resolver func() (*air.Resolver, error)) (*airSender, error) {
	s := &airSender{resolver: resolver}
	did, seed := "did:wba:agentidentityregistry.org:agents:AIR-S1EN-D3RA-GNT0", make([]byte, 32)
	if fixture.Has("self") {
		self := fixture.Object("self")
		did, seed = self.String("did"), airSeed(self, "seedHex").Seed()
	}
	if fixture.BoolOr("outbox", true) {
		s.outbox = store.NewMemory()
	}
	s.opts = air.ClientOptions{
		HTTPClient: &http.Client{Transport: transport}, DisableSelfCheck: true,
		Secrets: airSecrets(fixture), Profile: airProfile(fixture, ""), BodyTypes: fixture.StringsOr("bodies"),
	}
	if err := fixture.Err(); err != nil {
		return nil, err
	}
	var err error
	if s.id, err = air.NewIdentity(did, seed); err != nil {
		return nil, err
	}
	return s, s.start()
}

// airSecrets returns the secrets of a fixture by origin.
func airSecrets(fixture *Input) func(string) string {
	secrets := map[string]string{}
	list := fixture.ObjectOr("secrets")
	for _, origin := range list.Names() {
		secrets[origin] = list.String(origin)
	}
	return func(origin string) string { return secrets[origin] }
}

// start starts the client's process.
func (s *airSender) start() error {
	resolver, err := s.resolver()
	if err != nil {
		return err
	}
	s.gate = newGate()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.opts.Resolver = resolver
	if s.outbox != nil {
		s.opts.Outbox = &gatedStore{Store: s.outbox, gate: s.gate}
	}
	s.client, err = air.NewClient(s.id, &s.opts)
	return err
}

func (f *airSenderFixture) step(in *Input) (Answer, error) {
	if in.Has("document") {
		return f.registry.step(in), nil
	}
	f.peer.begin(in)
	a, err := f.act(in)
	if err != nil && f.peer.crashed {
		a, err = Answer{}, nil
	}
	if err == nil {
		err = in.Err()
	}
	if err != nil {
		return nil, err
	}
	if f.peer.crashed {
		a["result"] = "crashed"
		if err := f.start(); err != nil {
			return nil, err
		}
	}
	a["lookups"], a["requests"] = f.registry.lookups, f.peer.requests
	if err := f.addOutbox(a); err != nil {
		return nil, err
	}
	return a.Optional(), f.peer.finish()
}

// act carries out the action of a step.
func (s *airSender) act(in *Input) (Answer, error) {
	var r *air.Receipt
	var err error
	switch {
	case in.Has("send"):
		r, err = s.client.SendSigned(s.ctx, in.Wire("send"))
	case in.Has("draft"):
		d := in.Object("draft")
		draft := &air.Draft{To: d.String("to"), ID: d.String("id"), ThreadID: d.String("threadId"),
			InReplyTo: airOptional(d, "inReplyTo"), Body: &air.Raw{JSON: d.Wire("body")}}
		seal := d.Bool("seal")
		if err := in.Err(); err != nil {
			return nil, err
		}
		r, err = s.client.Send(s.ctx, draft, &air.SendOptions{Seal: seal})
	case in.Bool("resend"):
		n, err := s.client.Resend(s.ctx)
		var e *air.Error
		if err != nil && !errors.As(err, &e) {
			return nil, err
		}
		return Answer{"delivered": n}, nil
	case in.Has("retry"):
		return Answer{}, ifInOutbox(s.client.Retry(s.ctx, in.String("retry")))
	default:
		return Answer{}, ifInOutbox(s.client.Discard(s.ctx, in.String("discard")))
	}
	var e *air.Error
	switch {
	case err == nil:
		return Answer{"result": "delivered", "status": r.Status}, nil
	case errors.As(err, &e):
		return Answer{"result": string(e.Code), "status": e.RemoteStatus}, nil
	}
	return nil, err
}

// ifInOutbox returns err, or nil if it says that the outbox does not have the message: then the step changes nothing.
func ifInOutbox(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// addOutbox adds the messages of the outbox.
func (s *airSender) addOutbox(a Answer) error {
	if s.outbox == nil {
		return nil
	}
	messages, err := s.client.Outbox(context.Background())
	if err != nil {
		return err
	}
	list := []Answer{}
	for _, m := range messages {
		entry := Answer{"id": m.ID, "state": "queued"}
		if !m.Failed.IsZero() {
			entry["state"] = "failed"
		}
		if m.Code != "" {
			entry["code"] = string(m.Code)
		}
		list = append(list, entry)
	}
	a["outbox"] = list
	return nil
}
