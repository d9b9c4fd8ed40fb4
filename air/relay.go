// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A Directory knows the agents that have a mailbox at a [Relay].
type Directory interface {
	// LookupDID returns the DID of the agent with that AIR ID, or [ErrNotFound]. Any
	// other error is answered as 502 (9.1). It may be called from several
	// goroutines.
	LookupDID(ctx context.Context, airID string) (string, error)
}

// DirectoryFunc makes a function a [Directory].
type DirectoryFunc func(ctx context.Context, airID string) (string, error)

// LookupDID calls f.
func (f DirectoryFunc) LookupDID(ctx context.Context, airID string) (string, error) {
	return f(ctx, airID)
}

// StaticDirectory returns a directory of the given DIDs.
func StaticDirectory(dids ...string) Directory {
	known := make(map[string]string, len(dids))
	for _, did := range dids {
		known[airIDOf(did)] = did
	}
	return DirectoryFunc(func(_ context.Context, airID string) (string, error) {
		if did, ok := known[airID]; ok {
			return did, nil
		}
		return "", ErrNotFound.err("no such agent here")
	})
}

// RegistryDirectory returns a directory that asks the registry.
func RegistryDirectory(r *Resolver) Directory {
	return DirectoryFunc(func(ctx context.Context, airID string) (string, error) {
		d, err := r.Resolve(ctx, airID)
		if err != nil {
			return "", err
		}
		if airIDOf(d.ID) != airID {
			return "", ErrNotFound.err("the document is that of another agent")
		}
		return d.ID, nil
	})
}

// RelayOptions adjusts a [Relay]. The zero value is right for production, but for
// Directory or InboxSecret.
type RelayOptions struct {
	// Store keeps the mail, and for TTL a hash of every envelope, acknowledged or
	// not, to know a second copy. Nil means the memory of this process, which a
	// restart loses.
	Store store.Store

	// Alone tells that no other relay uses the Store at the same time. What was
	// handed out is then not written down, which spares one of three writes for
	// each envelope; after a restart, an acknowledgement counts once the envelope
	// has been handed out again, and the cursor of a round that was under way is
	// refused, so that the round begins anew.
	Alone bool

	// Directory knows the recipients. Nil means that every AIR ID has a mailbox.
	Directory Directory

	// PushSecret, if set, must be shown by whoever pushes (AIR-091).
	PushSecret string

	// InboxSecret returns the secret that guards pull and ack of a mailbox, "" for
	// none. It is asked with the DID, or with the AIR ID if there is no Directory
	// and the request names the mailbox so. Nil means that no mailbox has one.
	InboxSecret func(recipient string) string

	// OpenInboxes serves pull and ack of mailboxes that have no secret to anybody.
	// Without it they are served to callers on a loopback address only: whoever
	// can pull and acknowledge can make mail disappear (AIR-D64).
	OpenInboxes bool

	// RateLimit bounds the pushes of one sender in a minute, as each relay counts
	// them. Zero means 100, less than zero no bound.
	RateLimit int

	// PageSize is how many envelopes a pull hands out that names no limit. Zero
	// means 50.
	PageSize int

	// MaxBytes bounds one envelope. Zero means [DefaultMaxBytes].
	MaxBytes int

	// MaxQueued bounds the envelopes in one mailbox; what comes beyond is refused
	// with 429. What is being pushed at the same moment does not count, and other
	// relays of the Store are heard of a little later, so there can be a few percent
	// more. Zero means 10,000.
	MaxQueued int

	// MaxStreams bounds the streams that are open at a time. Zero means 1,000.
	MaxStreams int

	// TTL is how long an envelope is kept that nobody acknowledges. Zero means 7
	// days.
	TTL time.Duration

	// BodyTimeout is how long the body of a request may take to arrive. Zero means
	// DefaultBodyTimeout. The ReadTimeout of the [http.Server] goes before it.
	BodyTimeout time.Duration

	// Logger receives what no answer reports, such as a store that fails. Nil is
	// silent.
	Logger *slog.Logger
}

// A Relay keeps envelopes for agents until they fetch and acknowledge them
// (section 7). It is an [http.Handler] with the paths of the specification and
// those of the deployed relay, which lead to the same mailboxes (AIR-D60):
//
//	POST /inbox/{r}        push
//	GET  /inbox/{r}/pull   pull      GET  /pull/{r}   (a stream with ?stream=1)
//	POST /inbox/{r}/ack    ack       POST /ack/{r}
//	GET  /health
//
// where r is an AIR ID or a DID. It hands out envelopes byte for byte as they
// came and looks at no signature (10.1). All its methods may be called from
// several goroutines.
type Relay struct {
	opts  RelayOptions
	log   *slog.Logger
	boxes boxes
	rate  rateLimiter

	mu      sync.Mutex
	closed  bool
	done    chan struct{} // closed by Close
	streams sync.WaitGroup
	open    int // streams; guarded by mu
}

// NewRelay returns a relay. It starts nothing, but Close must end its streams.
func NewRelay(opts *RelayOptions) *Relay {
	r := &Relay{done: make(chan struct{})}
	if opts != nil {
		r.opts = *opts
	}
	o := &r.opts
	private := o.Store == nil
	if private {
		o.Store = store.NewMemory()
	}
	if o.RateLimit == 0 {
		o.RateLimit = 100
	}
	if o.PageSize <= 0 {
		o.PageSize = 50
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxQueued <= 0 {
		o.MaxQueued = 10000
	}
	if o.MaxStreams <= 0 {
		o.MaxStreams = 1000
	}
	if o.BodyTimeout <= 0 {
		o.BodyTimeout = defaultBodyTimeout
	}
	if o.TTL <= 0 {
		o.TTL = 7 * 24 * time.Hour
	}
	r.log = logger(o.Logger)
	r.boxes = boxes{store: o.Store, private: private, alone: private || o.Alone, ttl: o.TTL, max: o.MaxQueued, open: make(map[string]*mailbox)}
	r.rate = rateLimiter{limit: o.RateLimit, start: time.Now()}
	return r
}

// Close ends the streams and waits for them. Other requests are still answered:
// those are for the HTTP server to end.
func (r *Relay) Close() error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.done)
	}
	r.mu.Unlock()
	r.streams.Wait()
	return nil
}

// A route is a request taken apart.
type route struct {
	op        func(*Relay, http.ResponseWriter, *http.Request, *recipient) error
	method    string
	recipient string
	pulls     bool // needs the secret of the inbox, not that of senders
}

// ServeHTTP answers one request. The checks come in this order: path, method,
// secret, recipient, and then what the operation looks at.
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	boundBody(w, req, r.opts.BodyTimeout)
	rt, ok := parseRoute(req.URL.EscapedPath())
	if !ok {
		writeError(w, ErrNotFound.err("no such path"))
		return
	}
	if req.Method != rt.method {
		w.Header().Set("Allow", rt.method)
		writeError(w, errMethod)
		return
	}
	if rt.op == nil {
		writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
		return
	}
	to, err := r.recipient(req.Context(), rt.recipient)
	if denied := r.authorize(req, rt, to); denied != nil {
		err = denied
	}
	if err == nil {
		err = rt.op(r, w, req, to)
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || e.HTTPStatus() >= http.StatusInternalServerError {
			r.log.ErrorContext(req.Context(), "air: relay failed", "path", req.URL.Path, "err", err)
		}
		writeError(w, err)
	}
}

func parseRoute(path string) (route, bool) {
	parts := strings.Split(path, "/")
	if len(parts) < 2 || parts[0] != "" {
		return route{}, false
	}
	parts = parts[1:]
	var rt route
	switch {
	case len(parts) == 1 && parts[0] == "health":
		return route{method: http.MethodGet}, true
	case len(parts) == 2 && parts[0] == "inbox":
		rt = route{op: (*Relay).servePush, method: http.MethodPost}
	case len(parts) == 3 && parts[0] == "inbox" && parts[2] == "pull":
		rt = route{op: (*Relay).servePull, method: http.MethodGet, pulls: true}
	case len(parts) == 3 && parts[0] == "inbox" && parts[2] == "ack", len(parts) == 2 && parts[0] == "ack":
		rt = route{op: (*Relay).serveAck, method: http.MethodPost, pulls: true}
	case len(parts) == 2 && parts[0] == "pull":
		rt = route{op: (*Relay).serveDeployedPull, method: http.MethodGet, pulls: true}
	default:
		return rt, false
	}
	var err error
	rt.recipient, err = url.PathUnescape(parts[1])
	return rt, err == nil && rt.recipient != ""
}

// A recipient is a mailbox as a request named it.
type recipient struct {
	airID string
	did   string // "" if only the AIR ID is known
	name  string // as the request had it
}

// recipient finds the mailbox. AIR ID and DID lead to the same one.
func (r *Relay) recipient(ctx context.Context, name string) (*recipient, error) {
	to := &recipient{name: name}
	if isAIRID(name) {
		to.airID = name
	} else if d, err := ParseDID(name, ProfileInterop); err == nil {
		to.airID, to.did = d.AIRID, name
	} else {
		return to, ErrNotFound.err("no such mailbox")
	}
	if r.opts.Directory == nil {
		return to, nil
	}
	did, err := r.opts.Directory.LookupDID(ctx, to.airID)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && to.did != "" && to.did != did:
		return to, ErrNotFound.err("no such mailbox")
	case err != nil:
		return to, ErrBadGateway.because("the directory is out of reach", err)
	}
	to.did = did
	return to, nil
}

// authorize checks the secret in constant time (AIR-091, AIR-D64).
func (r *Relay) authorize(req *http.Request, rt route, to *recipient) error {
	want := r.opts.PushSecret
	if rt.pulls {
		want = ""
		if r.opts.InboxSecret != nil {
			if want = r.opts.InboxSecret(to.did); want == "" || to.did == "" {
				want = r.opts.InboxSecret(to.airID)
			}
		}
		if want == "" && !r.opts.OpenInboxes && !fromLoopback(req) {
			return ErrUnauthorized.err("this mailbox has no secret and is not open")
		}
	}
	if want != "" && !secretMatches(req.Header.Get(secretHeader), want) {
		return ErrUnauthorized.err("the secret is missing or wrong")
	}
	return nil
}

// fromLoopback reports whether a request came over a loopback address. One that
// came over no network at all, in a test, did too.
func fromLoopback(req *http.Request) bool {
	a, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return !ok || isLoopbackAddr(a)
}

func (r *Relay) servePush(w http.ResponseWriter, req *http.Request, to *recipient) error {
	data, err := readBody(req, r.opts.MaxBytes)
	if err != nil {
		return err
	}
	if !jsonContent(req.Header.Get("Content-Type")) {
		return ErrInvalidEnvelope.err("not a content type for envelopes")
	}
	m, err := parseMail(data)
	if err != nil {
		return err
	}
	if to.did != "" && m.to != to.did || airIDOf(m.to) != to.airID {
		return ErrWrongRecipient.err("to is not the agent of this mailbox")
	}
	if err := r.rate.allow(r.sender(req, m.from)); err != nil {
		return err
	}
	seq, err := r.boxes.push(req.Context(), to.airID, m)
	if err != nil {
		return err
	}
	body := appendQuoted([]byte(`{"status":"queued","envelope_id":`), m.id)
	body = strconv.AppendUint(append(body, `,"seq":`...), seq, 10)
	writeJSON(w, http.StatusAccepted, append(body, '}'))
	return nil
}

// sender is whom a push counts against. The member from is nobody's proof, so the
// address counts with it; a secret that was checked is better than both (AIR-D71).
func (r *Relay) sender(req *http.Request, from string) string {
	if r.opts.PushSecret != "" {
		return "secret"
	}
	host, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		host = req.RemoteAddr
	}
	return host + "\x00" + from
}

// limit reads the page size of a request.
func (r *Relay) limit(q url.Values, strict bool) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return r.opts.PageSize, nil
	}
	n, err := strconv.Atoi(text)
	switch {
	case err == nil && n >= 1:
		return min(n, 200), nil
	case strict:
		return 0, ErrBadRequest.err("limit is not a number from 1 to 200")
	}
	return r.opts.PageSize, nil
}

// Cursors only page (AIR-D62). One that ends a round stands for the beginning, so
// that the next round starts with whatever is not acknowledged.
const endCursor = "end"

func parseCursor(text string) (after uint64, ok bool) {
	if text == endCursor {
		return 0, true
	}
	digits, ok := strings.CutPrefix(text, "c")
	after, err := strconv.ParseUint(digits, 10, 64)
	return after, ok && err == nil && "c"+strconv.FormatUint(after, 10) == text
}

func (r *Relay) servePull(w http.ResponseWriter, req *http.Request, to *recipient) error {
	q := req.URL.Query()
	limit, err := r.limit(q, true)
	if err != nil {
		return err
	}
	var after uint64
	if q.Has("since") {
		var ok bool
		if after, ok = parseCursor(q.Get("since")); ok && after > 0 {
			ok, err = r.boxes.issued(req.Context(), to.airID, after, false)
		}
		if err != nil {
			return err
		}
		if !ok {
			return ErrBadRequest.err("since is no cursor of this mailbox")
		}
	}
	mail, more, err := r.boxes.pull(req.Context(), to.airID, after, limit)
	if err != nil {
		return err
	}
	size := 64
	for _, rec := range mail {
		size += len(rec.Value)
	}
	body := append(make([]byte, 0, size), `{"envelopes":[`...)
	for i, rec := range mail {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, mailOf(rec).data...)
	}
	cursor := endCursor
	if more {
		cursor = "c" + strconv.FormatUint(mail[len(mail)-1].Seq, 10)
	}
	body = append(append(append(body, `],"cursor":"`...), cursor...), `","has_more":`...)
	writeJSON(w, http.StatusOK, append(strconv.AppendBool(body, more), '}'))
	return nil
}

func (r *Relay) serveDeployedPull(w http.ResponseWriter, req *http.Request, to *recipient) error {
	q := req.URL.Query()
	after, err := strconv.ParseUint(q.Get("since"), 10, 63)
	if err != nil {
		after = 0
	}
	if after > 0 {
		// One that this relay cannot have issued, such as that of a relay which lost
		// its mail, is read as 0: nothing must be passed over (AIR-D62).
		ok, err := r.boxes.issued(req.Context(), to.airID, after, true)
		if err != nil {
			return err
		}
		if !ok {
			after = 0
		}
	}
	if q.Get("stream") == "1" || strings.Contains(req.Header.Get("Accept"), "text/event-stream") {
		return r.serveStream(w, req, to, after)
	}
	limit, err := r.limit(q, false)
	if err != nil {
		return err
	}
	mail, more, err := r.boxes.pull(req.Context(), to.airID, after, limit)
	if err != nil {
		return err
	}
	did := to.did
	if did == "" {
		did = to.name
	}
	body := strictjson.AppendString([]byte(`{"recipient_did":`), did)
	body = append(body, `,"messages":[`...)
	for i, rec := range mail {
		if i > 0 {
			body = append(body, ',')
		}
		body = mailOf(rec).appendMessage(body)
		after = rec.Seq
	}
	body = strconv.AppendUint(append(body, `],"cursor":`...), after, 10)
	body = strconv.AppendBool(append(body, `,"has_more":`...), more)
	writeJSON(w, http.StatusOK, append(body, '}'))
	return nil
}

func (r *Relay) serveAck(w http.ResponseWriter, req *http.Request, to *recipient) error {
	data, err := readBody(req, maxAnswer)
	if err != nil {
		return err
	}
	v, err := strictjson.Check(data, strictjson.Options{MaxDepth: maxDepth})
	if err != nil || !v.IsObject() || !v.Get("envelope_ids").IsArray() || !jsonContent(req.Header.Get("Content-Type")) {
		return ErrBadRequest.err("want an object with a list envelope_ids")
	}
	var ids []string
	for e := v.Get("envelope_ids").Elements(); e.Next(); {
		id, ok := e.Value.Text()
		if !ok {
			return ErrBadRequest.err("envelope_ids holds something else than strings")
		}
		ids = append(ids, id)
	}
	if len(ids) < 1 || len(ids) > maxAck {
		return ErrBadRequest.err("want 1 to 500 envelope_ids")
	}
	n, err := r.boxes.ack(req.Context(), to.airID, ids)
	if err != nil {
		return err
	}
	body := strconv.AppendInt([]byte(`{"status":"acked","acked_count":`), int64(n), 10)
	body = strconv.AppendInt(append(body, `,"requested":`...), int64(len(ids)), 10)
	writeJSON(w, http.StatusOK, append(body, '}'))
	return nil
}
