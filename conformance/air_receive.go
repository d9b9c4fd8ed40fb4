// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/store"
)

// airReceiver is an inbox with a record of its last envelope.
type airReceiver struct {
	registry *airRegistry
	state    store.Store // survives a crash
	gate     *gate       // of the process
	id       *air.Identity
	opts     air.InboxOptions
	inbox    *air.Inbox
	pins     map[string]string // the one trusted key of a DID
	takes    time.Duration     // by one call of the handler

	outcomes  map[string]string // of the handler in this step, by envelope id; "" for all others
	calls     int
	delivered []string
	last      *air.Delivery
	rejected  *air.Rejection
}

func airOpenReceiver(fixture *Input) (*airReceiver, error) {
	r := &airReceiver{registry: airReadRegistry(fixture), state: store.NewMemory(), gate: newGate(),
		pins: airPins(fixture), takes: time.Duration(fixture.IntOr("handlerMs", 0)) * time.Millisecond}
	self := fixture.Object("self")
	did, key := self.String("did"), airSeed(self, "seedHex")
	var retired [][]byte
	for _, s := range self.StringsOr("retiredSeedsHex") {
		seed, err := hex.DecodeString(s)
		if err != nil {
			return nil, err
		}
		retired = append(retired, seed)
	}
	r.opts = air.InboxOptions{
		Profile:    airProfile(fixture, air.ProfileInterop),
		BodyTypes:  fixture.StringsOr("bodies"),
		Limits:     air.Limits{MaxReplayEntries: fixture.IntOr("replayCapacity", 0)},
		Timing:     air.Timing{MaxPullAge: time.Duration(fixture.IntOr("pullMaxAgeMs", 0)) * time.Millisecond, HandlerTimeout: time.Duration(fixture.IntOr("handlerTimeoutMs", 0)) * time.Millisecond},
		Auth:       air.Auth{KeyPolicy: air.KeyPolicyFunc(r.checkKey)},
		OnRejected: func(_ context.Context, j *air.Rejection) { r.rejected = j },
	}
	fixture.noOption("air", "senderCapacity", "pushWaitMs", "maxAttempts")
	if err := fixture.Err(); err != nil {
		return nil, err
	}
	var err error
	if r.id, err = air.NewIdentity(did, key.Seed(), retired...); err != nil {
		return nil, err
	}
	return r, r.restart()
}

// airPins reads the member pins: keys by DID.
func airPins(in *Input) map[string]string {
	pins := map[string]string{}
	list := in.ObjectOr("pins")
	for _, did := range list.Names() {
		pins[did] = list.String(did)
	}
	return pins
}

func (r *airReceiver) checkKey(_ context.Context, did string, key *air.PublicKey) error {
	if pin, ok := r.pins[did]; ok && pin != air.EncodeKey(air.KeyEd25519, key.Bytes()) {
		return air.ErrKeyChanged
	}
	return nil
}

// restart kills the process and starts another one on the same store.
func (r *airReceiver) restart() error {
	r.gate.kill()
	r.gate = newGate()
	resolver, err := r.registry.resolver(false)
	if err != nil {
		return err
	}
	r.opts.Resolver = resolver
	r.opts.Persistence.Store = &gatedStore{Store: r.state, gate: r.gate}
	r.inbox, err = air.NewInbox(r.id, air.HandlerFunc(r.handle), &r.opts)
	return err
}

// handle is the handler of the fixture. Package air has no explicit rejection:
// its own errors are answers.
func (r *airReceiver) handle(ctx context.Context, d *air.Delivery) error {
	r.calls++
	r.last = d
	r.delivered = append(r.delivered, d.Envelope.ID)
	if r.takes > 0 {
		select {
		case <-time.After(r.takes):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	outcome, ok := r.outcomes[d.Envelope.ID]
	if !ok {
		outcome = r.outcomes[""]
	}
	word, code, _ := strings.Cut(outcome, ":")
	switch {
	case word == "fail" && code == "":
		return errors.New("the handler failed")
	case word == "fail", word == "reject":
		return &air.Error{Code: air.Code(code)}
	case word == "panic":
		panic("requested by the script")
	}
	return nil
}

// airOutcome reads an outcome of the handler.
func airOutcome(in *Input, name string) string {
	outcome := in.StringOr(name, "ok")
	word, code, hasCode := strings.Cut(outcome, ":")
	switch {
	case word == "fail", word == "reject" && hasCode, (word == "ok" || word == "panic") && !hasCode:
		if hasCode == (code != "") {
			return outcome
		}
	}
	in.Fail(name, "unknown: %s", outcome)
	return outcome
}

// step carries out the steps that inbox_script and poll_script share, and
// reports whether this was one.
func (r *airReceiver) step(in *Input) (a Answer, done bool, err error) {
	switch {
	case in.Has("document"):
		return r.registry.step(in), true, nil
	case in.Bool("crash"):
		return Answer{}, true, r.restart()
	case in.Has("pins"):
		r.pins = airPins(in)
		return Answer{}, true, nil
	case in.Has("redeliver"), in.Has("discard"):
		return nil, true, errors.New("package air has no dead letters")
	}
	return nil, false, nil
}

func airInboxScript(_ *testing.T, _, fixture *Input) (Step, error) {
	r, err := airOpenReceiver(fixture)
	if err != nil {
		return nil, err
	}
	return func(in *Input) (Answer, error) {
		if a, done, err := r.step(in); done || err != nil {
			return a, err
		}
		return r.deliver(in)
	}, nil
}

// deliver hands one envelope to the inbox.
func (r *airReceiver) deliver(in *Input) (Answer, error) {
	r.last, r.rejected = nil, nil
	data, via := in.Wire("deliver"), airWord(in, "via", "push", "pull")
	r.outcomes = map[string]string{"": airOutcome(in, "handler")}
	if err := in.Err(); err != nil {
		return nil, err
	}
	a := Answer{}
	if via == "pull" {
		a["acked"] = r.inbox.Receive(context.Background(), data, true).Final
	} else {
		req := httptest.NewRequest(http.MethodPost, "/inbox", bytes.NewReader(data))
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		r.inbox.ServeHTTP(w, req)
		a["status"], a["json"] = w.Code, json.RawMessage(w.Body.Bytes())
	}
	a["lookups"], a["delivered"], a["calls"] = r.registry.lookups, r.last != nil, r.calls
	if d := r.last; d != nil {
		a["deliveredBody"], a["encrypted"], a["form"] = string(d.BodyJSON), d.Sealed, string(d.Form)
		a["redelivered"] = d.Redelivered
	}
	if r.rejected != nil {
		a["code"] = string(r.rejected.Err.Code)
	}
	return a.Optional(), nil
}

func airPollScript(_ *testing.T, _, fixture *Input) (Step, error) {
	r, err := airOpenReceiver(fixture)
	if err != nil {
		return nil, err
	}
	fixture.noOption("air", "maxPages")
	endpoint, peer := fixture.String("endpoint"), &airPeer{}
	opts := &air.PollerOptions{
		Dialect:     airWord(fixture, "dialect", air.DialectSpec, air.DialectDeployed, air.DialectAuto),
		AgentSecret: fixture.StringOr("agentSecret", ""), HTTPClient: &http.Client{Transport: peer}, Random: middle,
	}
	if err := fixture.Err(); err != nil {
		return nil, err
	}
	poller, err := air.NewPoller(r.inbox, endpoint, opts)
	if err != nil {
		return nil, err
	}
	return func(in *Input) (Answer, error) {
		inbox := r.inbox
		if a, done, err := r.step(in); done || err != nil {
			if r.inbox != inbox && err == nil {
				poller, err = air.NewPoller(r.inbox, endpoint, opts)
			}
			return a, err
		}
		return r.poll(in, poller, peer)
	}, nil
}

// poll makes one drain.
func (r *airReceiver) poll(in *Input, poller *air.Poller, peer *airPeer) (Answer, error) {
	if !in.Bool("poll") {
		in.Fail("poll", "a step without an action")
	}
	peer.begin(in)
	r.outcomes = map[string]string{}
	handlers := in.ObjectOr("handlers")
	for _, id := range handlers.Names() {
		r.outcomes[id] = airOutcome(handlers, id)
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	r.delivered = []string{}
	next, err := poller.Drain(context.Background())
	a := Answer{"delivered": r.delivered, "requests": peer.requests, "nextInMs": next.Milliseconds(), "result": "ok"}
	var e *air.Error
	switch {
	case errors.As(err, &e):
		a["result"] = string(e.Code)
	case err != nil:
		a["result"] = fmt.Sprintf("an error without code: %v", err)
	}
	return a.Optional(), peer.finish()
}
