// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Starter starts a server under test with a fixture. Requests of the server to
// https://HOST/PATH have to go to sink/HOST/PATH.
type Starter func(fixture, sink string) (*Started, error)

// Started is a running server under test.
type Started struct {
	// URL is http://HOST:PORT, and with the transport "tcp" tcp://HOST:PORT.
	URL string

	// Conn is the only connection, with the transport "stdio". Its method CloseWrite ends one direction.
	Conn io.ReadWriteCloser

	// End ends the server.
	End func()
}

// LiveOptions describes how servers under test are started, and how long they may take.
type LiveOptions struct {
	Start Starter

	// Limit is the longest time for an answer. The effects of a step may take a fifth of it (see
	// [Script.Settle]).
	Limit time.Duration

	// Fresh starts a server for each case. Without it a server has one case after the other, if they
	// have the usual fixture and do not see each other.
	Fresh bool

	// SinkAddress is where the requests of the servers go, one server at a time. If it is empty, each
	// server has a separate address.
	SinkAddress string

	// Transport is "stdio" or "tcp" for connections whose messages are lines. If it is empty, the
	// connections are those of HTTP and WebSocket.
	Transport string

	// Fixture, if it is not empty, is that of the only server, whose requests cannot be seen.
	Fixture string
}

// A liveProtocol is how the servers of a protocol are tested in real time.
type liveProtocol struct {
	// open makes the fixtures of the scripts, by operation.
	open map[string]func(t T, in *Input, s *liveServer) (Step, error)

	// fixture returns the text that describes the fixture of a case to the server.
	fixture func(op string, in strictjson.Value) string

	// notLive returns why a step of a case cannot run, as in [Case.NotLive].
	notLive func(in, step strictjson.Value) string

	// shared is the usual fixture of one server that has several cases, one after the other.
	shared string

	// sharedAs returns the fixture of a server that can have this case among others; nil: that of the case.
	sharedAs func(op string, in strictjson.Value) string

	// needsOwn reports whether a step cannot run against such a server.
	needsOwn func(step strictjson.Value) bool

	// transports are those of [LiveOptions] that its servers may have.
	transports []string

	// needsLines reports whether a step needs one of these transports; nil: never.
	needsLines func(step strictjson.Value) bool

	// gap is the shortest time between two steps; zero: minGap.
	gap time.Duration
}

func liveProtocols() map[string]liveProtocol {
	return map[string]liveProtocol{"arc": arcLiveProtocol(), "a2e": a2eLiveProtocol(), "altar": altarLiveProtocol(), "accp": accpLiveProtocol(), "air": airLiveProtocol()}
}

// LiveServer returns the scripts of a protocol for a server that runs in real time, in
// another process, and the function that ends the servers.
func LiveServer(protocol string, o LiveOptions) (Protocol, func(), error) {
	p, ok := liveProtocols()[protocol]
	if !ok {
		return Protocol{}, nil, fmt.Errorf("conformance: the servers of %q cannot be tested", protocol)
	}
	if o.Transport != "" && !slices.Contains(p.transports, o.Transport) {
		return Protocol{}, nil, fmt.Errorf("conformance: the servers of %s are not tested by %s", protocol, o.Transport)
	}
	o.Fresh = o.Fresh || o.Transport == "stdio"
	pool := &livePool{LiveOptions: o}
	ops := make(map[string]Op)
	for op, open := range p.open {
		ops[op] = Script{Settle: o.Limit / 5, Live: func(t T, in *Input) (Step, error) {
			s := &liveServer{t: t, fixture: p.fixture(op, in.value), pool: pool, client: &http.Client{Transport: &http.Transport{},
				Timeout: o.Limit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
			if shared := p.sharedFixture(op, in.value); !o.Fresh && shared != "" && (shared == p.shared || p.sharedAs != nil || o.Fixture != "") {
				s.fixture, s.isShared = shared, true
			}
			t.Cleanup(s.client.CloseIdleConnections)
			return open(t, in, s)
		}}.Run
	}
	return Protocol{Name: protocol, Ops: ops}, pool.end, nil
}

// sharedFixture returns the fixture of a server that can have this case among others, or the
// empty string.
func (p liveProtocol) sharedFixture(op string, in strictjson.Value) string {
	for e := in.Get("steps").Elements(); e.Next(); {
		if p.needsOwn(e.Value) {
			return ""
		}
	}
	if p.sharedAs != nil {
		return p.sharedAs(op, in)
	}
	return p.fixture(op, in)
}

// SharedFixture returns the usual fixture of a server that is tested with several cases, one
// after the other.
func SharedFixture(protocol string) string { return liveProtocols()[protocol].shared }

// minGap is the shortest time between two moments of a script that a real clock can distinguish. A
// step that only looks just before a moment runs so much earlier.
const minGap = 250 * time.Millisecond

// NotLive returns why a case cannot run against a server in real time: "clock",
// "several processes", "private state", "own option" or "other side", or the empty string if
// it can. A case that waits longer than limit needs another clock, and so does one that has two
// moments close to each other.
func (c *Case) NotLive(limit time.Duration, o LiveOptions) string {
	p := liveProtocols()[c.Protocol]
	if p.open[c.Op] == nil {
		return "other side"
	}
	if o.Fixture != "" && p.sharedFixture(c.Op, c.in) != o.Fixture {
		return "own option"
	}
	return c.notLive(limit, cmp.Or(p.gap, minGap), func(in, step strictjson.Value) string {
		isWeb := step.Get("http") != nil || step.Get("stream") != nil
		if o.Transport != "" && isWeb || o.Transport == "" && p.needsLines != nil && p.needsLines(step) {
			return "own option"
		}
		return p.notLive(in, step)
	})
}

// notLive returns the first reason of the steps, or that they wait.
func (c *Case) notLive(limit, gap time.Duration, reason func(in, step strictjson.Value) string) string {
	reasons := make(map[string]bool)
	before, passed := time.Duration(0), time.Duration(0)
	isEarly := false // the step before
	wanted := c.want.Get("steps").Elements()
	for e := c.in.Get("steps").Elements(); e.Next(); {
		reasons[reason(c.in, e.Value)] = true
		at, ok := liveMoment(e.Value)
		isExact := at%(10*time.Millisecond) != 0 // 2999 is just before 3000
		if ok && (at > before && at < before+gap || at < before || isExact || isEarly && !isPassive(e.Value)) {
			reasons["clock"] = true
		}
		if ok {
			isEarly = isJustBefore(e.Value)
		}
		before = max(before, at)
		passed = max(passed, at)
		if wanted.Next() {
			passed += lastRequest(wanted.Value)
		}
	}
	reasons["clock"] = reasons["clock"] || passed > limit
	for _, why := range []string{"several processes", "own option", "private state", "clock"} {
		if reasons[why] {
			return why
		}
	}
	return ""
}

// liveMoment returns when a step of a script runs in real time.
func liveMoment(step strictjson.Value) (time.Duration, bool) {
	ms, ok := step.Get("at").Int()
	at := time.Duration(ms) * time.Millisecond
	if isJustBefore(step) {
		at += time.Millisecond - minGap
	}
	return at, ok
}

// isJustBefore reports whether a step reads a state a millisecond before a moment that changes it.
func isJustBefore(step strictjson.Value) bool {
	ms, _ := step.Get("at").Int()
	return ms%10 == 9 && ms >= minGap.Milliseconds() && isPassive(step)
}

// isPassive reports whether a step only reads.
func isPassive(step strictjson.Value) bool {
	for m := step.Members(); m.Next(); {
		isRead := string(m.Name) == "body" && strings.Contains(arcStepBody(step), `"method":"task.info"`)
		if !isRead && !slices.Contains([]string{"at", "tick", "deliveries"}, string(m.Name)) {
			return false
		}
	}
	return true
}

// lastRequest returns when a client makes the last request of a step.
func lastRequest(want strictjson.Value) time.Duration {
	last := time.Duration(0)
	for r := want.Get("requests").Elements(); r.Next(); {
		ms, _ := r.Value.Get("at").Int()
		last = max(last, time.Duration(ms)*time.Millisecond)
	}
	return last
}

// quiet is how long a script waits for the effects of a step, before it reads the answer.
const quiet = 20 * time.Millisecond

// A liveServer is a server under test in another process.
type liveServer struct {
	t       T
	fixture string
	pool    *livePool
	client  *http.Client
	base    string             // scheme and host of the server
	stdio   io.ReadWriteCloser // the only connection of the server, or nil

	isShared bool                // with other cases
	keepHost bool                // of requests, instead of that of the server
	rewrite  func([]byte) []byte // targets and bodies of requests; nil: unchanged
}

// start starts the server. Its requests to other servers go to sink, which may be nil.
func (s *liveServer) start(sink http.Handler) error {
	part, _ := s.t.(*partT)
	p, err := s.pool.take(s.fixture, s.isShared && (part == nil || !part.isRepeated))
	if err != nil {
		return err
	}
	p.sink.Store(&sink)
	s.t.Cleanup(func() {
		p.sink.Store(nil)
		if s.isShared && part != nil && part.isPassed {
			s.pool.put(p)
		} else {
			p.finish()
		}
	})
	u, err := url.Parse(p.URL)
	if err != nil {
		return err
	}
	s.base, s.stdio = u.Scheme+"://"+u.Host, p.Conn
	return nil
}

// A livePool are the servers without a case.
type livePool struct {
	LiveOptions

	mu   sync.Mutex
	idle []*liveProcess // guarded by mu
}

// A liveProcess is a server under test.
type liveProcess struct {
	partT
	*Started
	fixture string
	sink    atomic.Pointer[http.Handler] // of its case
}

// take returns a server that has had other cases, if it may, or a new one.
func (p *livePool) take(fixture string, mayBeUsed bool) (*liveProcess, error) {
	p.mu.Lock()
	i := slices.IndexFunc(p.idle, func(l *liveProcess) bool { return l.fixture == fixture })
	if mayBeUsed && i >= 0 {
		defer p.mu.Unlock()
		l := p.idle[i]
		p.idle = slices.Delete(p.idle, i, i+1)
		return l, nil
	}
	p.mu.Unlock()
	l := &liveProcess{fixture: fixture}
	sink, err := serveLoopback(l, cmp.Or(p.SinkAddress, "127.0.0.1:0"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := l.sink.Load(); h != nil && *h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		http.NotFound(w, r)
	}))
	if err != nil {
		return nil, err
	}
	if l.Started, err = p.Start(fixture, sink); err != nil {
		l.finish()
		return nil, err
	}
	l.Cleanup(l.End)
	return l, nil
}

func (p *livePool) put(l *liveProcess) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, l)
}

// end ends the servers.
func (p *livePool) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.idle {
		l.finish()
	}
	p.idle = nil
}

// connectionKey is the key of the connection in the context of a request.
type connectionKey struct{}

// halfClose ends the direction to the client of a request. The other direction stays open.
func halfClose(ctx context.Context) {
	if tcp, ok := ctx.Value(connectionKey{}).(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

// serveLoopback serves until the end of t, and returns the URL.
func serveLoopback(t interface{ Cleanup(func()) }, address string, h http.Handler) (string, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c)
	}}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return "http://" + l.Addr().String(), nil
}

// ServeHTTP forwards a request to the server, as if the script called it in the same process.
func (s *liveServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err) // a body in memory
	}
	target := r.URL.RequestURI()
	if s.rewrite != nil {
		target, body = string(s.rewrite([]byte(target))), s.rewrite(body)
	}
	s.t.Logf("sent     %s %s %s", r.Method, target, body)
	out, err := http.NewRequestWithContext(r.Context(), r.Method, s.base+target, bytes.NewReader(body))
	if err == nil {
		out.Header = r.Header.Clone()
		if s.keepHost {
			out.Host = r.Host
		}
		var res *http.Response
		if res, err = s.client.Do(out); err == nil {
			defer res.Body.Close()
			for name, values := range res.Header {
				w.Header()[name] = values
			}
			w.WriteHeader(res.StatusCode)
			_, err = io.Copy(w, res.Body)
			if rec, ok := w.(*httptest.ResponseRecorder); ok {
				s.t.Logf("received %d %s", res.StatusCode, rec.Body)
			}
		}
	}
	if err != nil && r.Context().Err() == nil {
		s.t.Logf("received no answer: %v", err)
		w.WriteHeader(599) // no server has it
	}
}

// A tape collects what a fixture sends, for the steps of its script.
type tape[E any] struct {
	mu     sync.Mutex
	all    []E
	first  int    // of the last step that has read
	next   int    // that no step has read
	reader *Input // the last step that has read
}

func (p *tape[E]) add(e E) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, e)
}

// since returns the elements since the step before. A repeated step gets the same elements,
// and those added since its last run.
func (p *tape[E]) since(step *Input) []E {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reader != step {
		p.reader, p.first = step, p.next
	}
	p.next = len(p.all)
	return slices.Clone(p.all[p.first:])
}

// rewriteAnswers returns a handler that changes the bodies of the answers of h.
func rewriteAnswers(h http.Handler, change func(body []byte) []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(change(rec.Body.Bytes()))
	})
}
