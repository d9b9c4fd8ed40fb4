// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// airHandlerPath is where the handler of an inbox under test reports a delivery.
const airHandlerPath = "/handler"

func airLiveProtocol() liveProtocol {
	return liveProtocol{
		open: map[string]func(T, *Input, *liveServer) (Step, error){"inbox_script": airOpenLiveInbox, "relay_script": airOpenLiveRelay},
		fixture: func(op string, in strictjson.Value) string {
			return string(airFixtureText("server", strings.TrimSuffix(op, "_script"), in.Get("fixture")))
		},
		notLive: airNotLive, shared: airSharedRelay, sharedAs: airSharedAs,
		needsOwn: func(step strictjson.Value) bool { return bytes.Contains(step, []byte("x25519")) }, // sealed for an AIR ID
	}
}

// airSharedRelay is the usual fixture of a server of air: a relay with a mailbox for every AIR ID.
const airSharedRelay = `{"server":"relay","agents":[],"directory":"none"}`

// airSharedAs gives a relay with mailboxes and an inbox without bounds other cases, too.
func airSharedAs(op string, in strictjson.Value) string {
	members, shared := []string{"agents", "documents", "now"}, airSharedRelay
	if op == "inbox_script" {
		members, shared = []string{"self", "profile", "bodies", "documents", "now"}, string(airFixtureText("server", "inbox", in.Get("fixture")))
	}
	for m := in.Get("fixture").Members(); m.Next(); {
		if !slices.Contains(members, string(m.Name)) {
			return ""
		}
	}
	return shared
}

// airFixtureText returns a fixture for a process without the registry and the clock.
func airFixtureText(member, word string, fixture strictjson.Value) []byte {
	text := append(strictjson.AppendString([]byte("{"), member), ':')
	text = strictjson.AppendString(text, word)
	for m := fixture.Members(); m.Next(); {
		if name := string(m.Name); name != "documents" && name != "now" {
			text = append(append(append(append(text, ','), m.Key...), ':'), m.Value...)
		}
	}
	return append(text, '}')
}

func airNotLive(in, step strictjson.Value) string {
	via, _ := step.Get("via").Text()
	request := step.Get("request")
	switch {
	case step.Get("crash") != nil:
		return "several processes"
	case via == "pull", step.Get("redeliver") != nil, step.Get("discard") != nil, step.Get("pins") != nil:
		return "private state"
	case request.Get("remote") != nil:
		return "own option" // an address of the caller
	case in.Get("fixture").Get("handlerMs") != nil:
		return "clock" // a handler that takes longer than a push
	case request.Get("headers").Get("signature") != nil:
		return "clock" // a signed time
	}
	if isAIRLimit(in, step) {
		return "clock"
	}
	return ""
}

// isAIRLimit reports whether an envelope arrives at the very moment when it becomes too old, or
// is no longer from the future.
func isAIRLimit(in, step strictjson.Value) bool {
	at, _ := step.Get("at").Int()
	start, _ := in.Get("fixture").Get("now").Text()
	now, err := time.Parse(time.RFC3339, start)
	wire, _ := step.Get("deliver").Text()
	envelope, err2 := strictjson.Check([]byte(wire), strictjson.Options{MaxDepth: maxDepth})
	if err != nil || err2 != nil {
		return false
	}
	text, _ := envelope.Get("timestamp").Text()
	t, err := time.Parse(time.RFC3339, text)
	age := now.Add(time.Duration(at) * time.Millisecond).Sub(t)
	return err == nil && (near(age, 5*time.Minute) || near(age, -30*time.Second))
}

func near(a, b time.Duration) bool { return (a - b).Abs() < 10*time.Second }

// airAfresh gives the envelopes of a script the real time and keys that can sign them.
type airAfresh struct {
	ahead time.Duration // of the real clock, whole seconds
	keys  []airFreshKey
	ids   []string // pairs of an AIR ID of the script and its replacement

	mu   sync.Mutex
	back []string // signatures, and envelopes in base64: the new text, and the old text; guarded by mu
}

type airFreshKey struct {
	old      *air.PublicKey
	new      ed25519.PrivateKey
	from, to string // the texts of the public keys; empty if the key stays
}

var (
	airKeyText  = regexp.MustCompile(`z6Mk[1-9A-HJ-NP-Za-km-z]{44}`)
	airIDText   = regexp.MustCompile(`\bAIR-[0-9A-Z]{4}-[0-9A-Z]{4}-[0-9A-Z]{4}\b`)
	airTimeText = regexp.MustCompile(`\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d`)
)

// newAIRAfresh replaces all keys in the case but those of its fixture, whose seeds are known.
func newAIRAfresh(in, fixture *Input) (*airAfresh, error) {
	a := &airAfresh{ahead: time.Unix(time.Now().Unix(), 0).Sub(fixture.Time("now").Truncate(time.Second))}
	own := map[string]bool{}
	if fixture.Has("self") {
		self := fixture.Object("self")
		self.String("did")
		seeds := append(self.StringsOr("retiredSeedsHex"), self.String("seedHex"))
		for _, text := range seeds {
			seed, err := hex.DecodeString(text)
			if err != nil || len(seed) != ed25519.SeedSize {
				return nil, errors.New("a seed has 32 bytes")
			}
			key := ed25519.NewKeyFromSeed(seed)
			public, err := air.NewPublicKey(key.Public().(ed25519.PublicKey))
			if err != nil {
				return nil, err
			}
			own[public.String()] = true
			a.keys = append(a.keys, airFreshKey{old: public, new: key})
		}
	}
	for _, text := range airKeyText.FindAllString(string(in.value), -1) {
		old, err := air.ParsePublicKey(text)
		if err != nil || own[text] {
			continue
		}
		own[text] = true
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, err
		}
		public, err := air.NewPublicKey(key.Public().(ed25519.PublicKey))
		if err != nil {
			return nil, err
		}
		a.keys = append(a.keys, airFreshKey{old: old, new: key, from: text, to: public.String()})
	}
	return a, in.Err()
}

// renameAgents gives the run separate AIR IDs, but for those that the server knows.
func (a *airAfresh) renameAgents(in strictjson.Value, fixture string) {
	for _, id := range airIDText.FindAllString(string(in), -1) {
		if slices.Contains(a.ids, id) || strings.Contains(fixture, id) {
			continue
		}
		random := rand.Text()
		a.ids = append(a.ids, id, "AIR-"+random[:4]+"-"+random[4:8]+"-"+random[8:12])
	}
}

// scriptID returns the AIR ID of the script that an AIR ID stands for.
func (a *airAfresh) scriptID(id string) string {
	if i := slices.Index(a.ids, id); i > 0 {
		return a.ids[i-1]
	}
	return id
}

// text moves the times of a text and replaces the keys and AIR IDs.
func (a *airAfresh) text(b []byte) []byte {
	if len(a.ids) > 0 {
		b = []byte(strings.NewReplacer(a.ids...).Replace(string(b)))
	}
	for _, k := range a.keys {
		if k.from != "" {
			b = bytes.ReplaceAll(b, []byte(k.from), []byte(k.to))
		}
	}
	return airTimeText.ReplaceAllFunc(b, func(b []byte) []byte {
		layout := "2006-01-02" + string(b[10]) + "15:04:05"
		t, err := time.Parse(layout, string(b))
		if err != nil {
			return b
		}
		return t.Add(a.ahead).AppendFormat(nil, layout)
	})
}

// envelope is text for an envelope. It signs the envelope if the old signature was valid.
func (a *airAfresh) envelope(old []byte) []byte {
	b := a.text(old)
	sign := func(public *air.PublicKey, key ed25519.PrivateKey) bool {
		form, err := air.Verify(old, public, "")
		if err != nil {
			return false
		}
		v, err := strictjson.Check(b, strictjson.Options{MaxDepth: maxDepth})
		if err != nil {
			return false
		}
		before := v.Get("signature")
		signed, err := air.Sign(bytes.Replace(b, before, []byte("null"), 1), key, form)
		if err != nil {
			return false
		}
		after := strictjson.Value(signed).Get("signature")
		b = bytes.Replace(b, before, after, 1)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.back = append(a.back, string(after), string(before))
		return true
	}
	for _, k := range a.keys {
		if sign(k.old, k.new) {
			break
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.back = append(a.back, base64.StdEncoding.EncodeToString(b), base64.StdEncoding.EncodeToString(old))
	return b
}

// restore undoes the replacement of signatures and AIR IDs.
func (a *airAfresh) restore(b []byte) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	b = []byte(strings.NewReplacer(a.back...).Replace(string(b)))
	return airIDText.ReplaceAllFunc(b, func(id []byte) []byte { return []byte(a.scriptID(string(id))) })
}

// reply is text for a reply with envelopes.
func (a *airAfresh) reply(b []byte) []byte {
	v, err := strictjson.Check(b, strictjson.Options{MaxDepth: maxDepth})
	if err == nil {
		return a.appendReply(nil, v)
	}
	var page struct{ Envelopes []json.RawMessage }
	_ = json.Unmarshal(b, &page) // without envelopes, the rest is text
	var out []byte
	for _, e := range page.Envelopes {
		if v, err := strictjson.Check(e, strictjson.Options{MaxDepth: maxDepth}); err == nil {
			before, after, _ := bytes.Cut(b, e)
			out = a.appendReply(append(out, a.text(before)...), v)
			b = after
		}
	}
	return append(out, a.text(b)...)
}

func (a *airAfresh) appendReply(dst []byte, v strictjson.Value) []byte {
	sep := byte('{')
	switch {
	case v.Get("signature") != nil && v.Get("from") != nil:
		return append(dst, a.envelope(v)...)
	case v.IsObject():
		for m := v.Members(); m.Next(); sep = ',' {
			dst = append(append(append(dst, sep), m.Key...), ':')
			dst = a.appendReply(dst, m.Value)
		}
		if sep == '{' {
			dst = append(dst, sep)
		}
		return append(dst, '}')
	case v.IsArray():
		sep = '['
		for e := v.Elements(); e.Next(); sep = ',' {
			dst = a.appendReply(append(dst, sep), e.Value)
		}
		if sep == '[' {
			dst = append(dst, sep)
		}
		return append(dst, ']')
	}
	text, _ := v.Text()
	inner, err := base64.StdEncoding.DecodeString(text)
	if err == nil && bytes.HasPrefix(inner, []byte("{")) {
		return strictjson.AppendString(dst, base64.StdEncoding.EncodeToString(a.reply(inner)))
	}
	return append(dst, a.text(v)...)
}

// past undoes envelope and text for the request of a client.
func (a *airAfresh) past(b []byte) []byte {
	b = a.restore(b)
	undo := airAfresh{ahead: -a.ahead}
	for _, k := range a.keys {
		undo.keys = append(undo.keys, airFreshKey{from: k.to, to: k.from})
	}
	return undo.text(b)
}

// airLive is the fixture of a script whose inbox or relay is in another process. It serves the
// registry, and decides what the handler of the inbox does.
type airLive struct {
	*liveServer
	*airDocuments
	delivered tape[airDelivered]
	calls     int

	mu      sync.Mutex
	outcome string // of the handler; guarded by mu
}

// airDocuments is the registry of a script in real time.
type airDocuments struct {
	*airAfresh
	t        T
	registry *airRegistry
	lookups  atomic.Int64
}

// An airDelivered is the report of a handler.
type airDelivered struct {
	Body   json.RawMessage
	Sealed bool
	Form   string
}

func airOpenLive(in *Input, s *liveServer) (*airLive, error) {
	fixture := in.Object("fixture")
	afresh, err := newAIRAfresh(in, fixture)
	if err != nil {
		return nil, err
	}
	f := &airLive{liveServer: s, airDocuments: &airDocuments{airAfresh: afresh, t: s.t, registry: airReadRegistry(fixture)}}
	for _, name := range fixture.Names() {
		fixture.read[name] = true // by the server
	}
	if s.isShared {
		afresh.renameAgents(in.value, s.fixture)
	}
	s.fixture = string(afresh.text([]byte(s.fixture)))
	s.rewrite = afresh.envelope
	return f, s.start(http.HandlerFunc(f.serve))
}

// serve answers the server under test.
func (f *airLive) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == airHandlerPath {
		var d airDelivered
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil || json.Unmarshal(body, &d) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		f.liveServer.t.Logf("handler  %s", body)
		f.delivered.add(d)
		f.mu.Lock()
		defer f.mu.Unlock()
		_, _ = io.WriteString(w, f.outcome)
		return
	}
	if !f.document(w, r) {
		f.liveServer.t.Logf("not a request for a document: %s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusBadRequest)
	}
}

// document answers a request for a document, and reports whether it is one.
func (f *airDocuments) document(w http.ResponseWriter, r *http.Request) bool {
	id, ok := strings.CutPrefix(r.URL.Path, strings.TrimPrefix(air.DefaultRegistryURL, "https:/")+"/api/v1/agents/")
	id, ok2 := strings.CutSuffix(id, "/did-document")
	if !ok || !ok2 || r.Method != http.MethodGet || r.Header.Get("X-A2A-Version") != "v1" {
		return false
	}
	f.lookups.Add(1)
	f.registry.mu.Lock()
	d := f.registry.document(f.scriptID(id))
	f.registry.mu.Unlock()
	d.body = f.text(d.body)
	d.serve(w, r)
	return true
}

// serve sends a reply. Without one, the connection ends.
func (r airReply) serve(w http.ResponseWriter, req *http.Request) {
	if r.timeout {
		panic(http.ErrAbortHandler)
	}
	for name, values := range r.header {
		w.Header()[name] = values
	}
	w.WriteHeader(r.status)
	writeSlowly(w, r.body)
	if r.cut {
		leaveHalfClosed(w, req)
	}
}

func (f *airDocuments) lookupCount() int { return int(f.lookups.Load()) }

func airOpenLiveRelay(_ T, in *Input, s *liveServer) (Step, error) {
	f, err := airOpenLive(in, s)
	return func(step *Input) (Answer, error) {
		if step.Has("document") {
			return f.registry.step(step), nil
		}
		a, err := airRelayRequest(step, rewriteAnswers(f, f.restore), f.lookupCount)
		return a, err
	}, err
}

func airOpenLiveInbox(_ T, in *Input, s *liveServer) (Step, error) {
	f, err := airOpenLive(in, s)
	return f.deliver, err
}

// deliver pushes an envelope to the inbox.
func (f *airLive) deliver(in *Input) (Answer, error) {
	if in.Has("document") {
		return f.registry.step(in), nil
	}
	data := in.Wire("deliver")
	airWord(in, "via", "push", "pull")
	f.mu.Lock()
	f.outcome = airOutcome(in, "handler")
	f.mu.Unlock()
	if err := in.Err(); err != nil {
		return nil, err
	}
	req := httptest.NewRequest(http.MethodPost, "/inbox", bytes.NewReader(data))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	rewriteAnswers(f, f.restore).ServeHTTP(w, req)
	reports := f.delivered.since(in)
	f.calls += len(reports)
	a := Answer{"status": w.Code, "lookups": f.lookupCount(), "delivered": len(reports) > 0, "calls": f.calls,
		"class": unseen{}, "code": unseen{}, "deadLetters": unseen{}, "redelivered": unseen{}}
	if w.Body.Len() > 0 {
		a["json"] = json.RawMessage(w.Body.Bytes())
	}
	for _, d := range reports {
		a["deliveredBody"], a["encrypted"], a["form"] = string(d.Body), d.Sealed, d.Form
	}
	return a.Optional(), nil
}
