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
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// airReceiver is an inbox with a record of its last envelope.
type airReceiver struct {
	resolver func() (*air.Resolver, error)
	lookups  func() int  // of documents
	state    store.Store // survives a crash
	gate     *gate       // of the process
	id       *air.Identity
	opts     air.InboxOptions
	inbox    *air.Inbox
	pins     map[string]string // the one trusted key of a DID
	takes    time.Duration     // by one call of the handler

	mu       sync.Mutex        // guards the fields below: a queued push outlives its step
	outcomes map[string]string // of the handler in this step, by envelope id; "" for all others
	calls    int
	airStep
}

// An airStep is what the handler and the inbox reported in one step.
type airStep struct {
	delivered []string
	last      *air.Delivery
	outcome   *air.ReceiveResult
}

// begin begins a step.
func (r *airReceiver) begin(outcomes map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.airStep, r.outcomes = airStep{delivered: []string{}}, outcomes
}

// reported returns the reports of the step and the number of all calls.
func (r *airReceiver) reported() (airStep, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.airStep, r.calls
}

func airMilliseconds(in *Input, name string) time.Duration {
	return time.Duration(in.Int64Or(name, 0)) * time.Millisecond
}

func airOpenReceiver(t *testing.T, fixture *Input) (*airReceiver, *airRegistry, error) {
	registry := airReadRegistry(fixture)
	r, err := newAIRReceiver(fixture, func() (*air.Resolver, error) { return registry.resolver(false) })
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(r.close)
	r.lookups = func() int { return registry.lookups }
	return r, registry, nil
}

func newAIRReceiver(fixture *Input, resolver func() (*air.Resolver, error)) (*airReceiver, error) {
	r := &airReceiver{resolver: resolver, state: store.NewMemory(), gate: newGate(),
		pins: airPins(fixture), takes: airMilliseconds(fixture, "handlerMs")}
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
		Profile:   airProfile(fixture, air.ProfileInterop),
		BodyTypes: fixture.StringsOr("bodies"),
		Limits:    air.Limits{MaxReplayEntries: fixture.IntOr("replayCapacity", 0), MaxItemsPerPrincipal: fixture.Int64Or("senderCapacity", 0)},
		Timing: air.Timing{MaxPullAge: airMilliseconds(fixture, "pullMaxAgeMs"),
			HandlerTimeout: airMilliseconds(fixture, "handlerTimeoutMs"), PushWait: airMilliseconds(fixture, "pushWaitMs")},
		Auth:        air.Auth{KeyPolicy: air.KeyPolicyFunc(r.checkKey)},
		Persistence: air.Persistence{SingleInstance: true},
		OnOutcome:   func(_ context.Context, o *air.ReceiveResult) { r.report(o) },
	}
	r.opts.Limits.MaxAttempts = fixture.IntOr("maxAttempts", 0)
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
	if pin, ok := r.pins[did]; ok && pin != key.String() {
		return air.ErrKeyRefused
	}
	return nil
}

// close kills the process and ends its goroutines.
func (r *airReceiver) close() {
	r.gate.kill()
	if r.inbox != nil {
		_ = r.inbox.Close()
	}
}

// restart kills the process and starts another one on the same store.
func (r *airReceiver) restart() error {
	r.close()
	r.gate = newGate()
	resolver, err := r.resolver()
	if err != nil {
		return err
	}
	r.opts.Resolver = resolver
	r.opts.Persistence.Store = &gatedStore{Store: r.state, gate: r.gate}
	r.inbox, err = air.NewInbox(r.id, air.HandlerFunc(r.handle), &r.opts)
	return err
}

// report takes an outcome of the inbox.
func (r *airReceiver) report(o *air.ReceiveResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome = o
}

// received takes a delivery and returns the outcome that its handler has.
func (r *airReceiver) received(d *air.Delivery) (outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	r.last = d
	r.delivered = append(r.delivered, d.Envelope.ID)
	outcome, ok := r.outcomes[d.Envelope.ID]
	if !ok {
		outcome = r.outcomes[""]
	}
	return outcome
}

// handle is the handler of the fixture.
func (r *airReceiver) handle(ctx context.Context, d *air.Delivery) error {
	outcome := r.received(d)
	if r.takes > 0 {
		select {
		case <-time.After(r.takes):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	word, code, _ := strings.Cut(outcome, ":")
	switch {
	case word == "fail" && code == "":
		return errors.New("the handler failed")
	case word == "fail":
		return &air.Error{Code: air.Code(code), Remote: true}
	case word == "reject":
		return air.Reject(air.Code(code), "")
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
func (r *airReceiver) step(in *Input, registry *airRegistry) (a Answer, done bool, err error) {
	switch {
	case in.Has("document"):
		return registry.step(in), true, nil
	case in.Bool("crash"):
		return Answer{}, true, r.restart()
	case in.Has("pins"):
		r.pins = airPins(in)
		return Answer{}, true, nil
	case in.Has("redeliver"), in.Has("discard"):
		a, err = r.instruct(in)
		return a, true, err
	}
	return nil, false, nil
}

// instruct redelivers or discards the dead letters of an id.
func (r *airReceiver) instruct(in *Input) (Answer, error) {
	r.begin(map[string]string{})
	isRedelivery := in.Has("redeliver")
	id := in.StringOr("redeliver", "")
	if !isRedelivery {
		id = in.String("discard")
	}
	var o *air.ReceiveResult
	for d, err := range r.inbox.DeadLetters(context.Background()) {
		switch {
		case err != nil:
			return nil, err
		case d.EnvelopeID != id:
			continue
		case isRedelivery:
			o, err = r.inbox.Redeliver(context.Background(), d.ID)
		default:
			err = r.inbox.Discard(context.Background(), d.ID)
		}
		if err != nil {
			return nil, err
		}
	}
	return r.answer(o, Answer{})
}

// answer describes the outcome of a step.
func (r *airReceiver) answer(o *air.ReceiveResult, a Answer) (Answer, error) {
	step, calls := r.reported()
	a["lookups"], a["delivered"], a["calls"] = r.lookups(), step.last != nil, calls
	if d := step.last; d != nil {
		a["deliveredBody"], a["encrypted"], a["form"] = string(d.BodyJSON), d.Sealed, string(d.Form)
		a["redelivered"] = d.Redelivered
	}
	if o != nil {
		a["class"] = string(o.Class)
		if o.Err != nil {
			a["code"] = string(o.Err.Code)
		}
	}
	err := r.addLetters(a)
	return a.Optional(), err
}

// addLetters adds the ids of the dead letters.
func (r *airReceiver) addLetters(a Answer) error {
	letters := []string{}
	for d, err := range r.inbox.DeadLetters(context.Background()) {
		if err != nil {
			return err
		}
		letters = append(letters, d.EnvelopeID)
	}
	a["deadLetters"] = letters
	return nil
}

func airInboxScript(t *testing.T, _, fixture *Input) (Step, error) {
	r, registry, err := airOpenReceiver(t, fixture)
	if err != nil {
		return nil, err
	}
	return func(in *Input) (Answer, error) {
		if a, done, err := r.step(in, registry); done || err != nil {
			return a, err
		}
		return r.deliver(in)
	}, nil
}

// deliver hands one envelope to the inbox.
func (r *airReceiver) deliver(in *Input) (Answer, error) {
	data, via := in.Wire("deliver"), airWord(in, "via", "push", "pull")
	r.begin(map[string]string{"": airOutcome(in, "handler")})
	if err := in.Err(); err != nil {
		return nil, err
	}
	if via == "pull" {
		o := r.inbox.Receive(context.Background(), data, true)
		return r.answer(o, Answer{"acked": o.Final})
	}
	req := httptest.NewRequest(http.MethodPost, "/inbox", bytes.NewReader(data))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	r.inbox.ServeHTTP(w, req)
	step, _ := r.reported()
	o := step.outcome
	if o == nil && w.Code == http.StatusOK {
		o = &air.ReceiveResult{Class: air.ClassDone}
	}
	return r.answer(o, Answer{"status": w.Code, "json": json.RawMessage(w.Body.Bytes())})
}

func airPollScript(t *testing.T, _, fixture *Input) (Step, error) {
	r, registry, err := airOpenReceiver(t, fixture)
	if err != nil {
		return nil, err
	}
	peer := &airPeer{}
	newPoller, err := airPollers(fixture, peer)
	if err != nil {
		return nil, err
	}
	poller, err := newPoller(r.inbox)
	if err != nil {
		return nil, err
	}
	return func(in *Input) (Answer, error) {
		inbox := r.inbox
		if a, done, err := r.step(in, registry); done || err != nil {
			if in.Has("redeliver") || in.Has("discard") {
				step, _ := r.reported()
				a["delivered"] = step.delivered
			}
			if r.inbox != inbox && err == nil {
				poller, err = newPoller(r.inbox)
			}
			return a, err
		}
		return r.poll(in, poller, peer)
	}, nil
}

// airPollers returns the function that makes the pollers of a fixture.
func airPollers(fixture *Input, transport http.RoundTripper) (func(*air.Inbox) (*air.Poller, error), error) {
	endpoint := fixture.String("endpoint")
	opts := &air.PollerOptions{
		Dialect:     airWord(fixture, "dialect", air.DialectSpec, air.DialectDeployed, air.DialectAuto),
		AgentSecret: fixture.StringOr("agentSecret", ""), HTTPClient: &http.Client{Transport: transport},
		MaxConcurrent: 1, MaxPages: fixture.IntOr("maxPages", 0),
	}
	airtest.SetPollerJitter(opts, middle)
	return func(inbox *air.Inbox) (*air.Poller, error) { return air.NewPoller(inbox, endpoint, opts) }, fixture.Err()
}

// poll makes one drain.
func (r *airReceiver) poll(in *Input, poller *air.Poller, peer *airPeer) (Answer, error) {
	peer.begin(in)
	a, err := r.drain(in, poller)
	if err != nil {
		return nil, err
	}
	a["requests"] = peer.requests
	return a.Optional(), peer.finish()
}

// drain makes one drain and describes it.
func (r *airReceiver) drain(in *Input, poller *air.Poller) (Answer, error) {
	if !in.Bool("poll") {
		in.Fail("poll", "a step without an action")
	}
	outcomes := map[string]string{}
	handlers := in.ObjectOr("handlers")
	for _, id := range handlers.Names() {
		outcomes[id] = airOutcome(handlers, id)
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	r.begin(outcomes)
	next, err := poller.Drain(context.Background())
	step, _ := r.reported()
	a := Answer{"delivered": step.delivered, "nextInMs": next.Milliseconds(), "result": "ok",
		"permanent": err != nil && retry.ClassOf(err) == retry.Permanent}
	var e *air.Error
	switch {
	case errors.As(err, &e):
		a["result"] = string(e.Code)
	case err != nil:
		a["result"] = fmt.Sprintf("an error without code: %v", err)
	}
	return a, r.addLetters(a)
}
