// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// altarStart is where the clock of the altar scripts begins.
var altarStart = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// altarManifest is the manifest of the fixture.
const altarManifest = `{"contracts":[
 {"name":"math/add","description":"Sum of two integers","parameters":[
  {"name":"a","type":"integer","required":true,"description":"first"},{"name":"b","type":"integer","required":true,"description":"second"}]},
 {"name":"text/echo","description":"Returns the text","parameters":[
  {"name":"text","type":"string","required":true,"description":"the text"},{"name":"upper","type":"boolean","description":"upper case"}]},
 {"name":"data/mix","description":"Every type","parameters":[
  {"name":"s","type":"string"},{"name":"i","type":"integer"},{"name":"f","type":"float"},{"name":"b","type":"boolean"},{"name":"bin","type":"binary"},
  {"name":"tags","type":"array[string]"},{"name":"grid","type":"array[array[integer]]"},
  {"name":"who","type":"object","properties":[{"name":"name","type":"string","required":true},{"name":"age","type":"integer"}]},
  {"name":"items","type":"array[object]","properties":[{"name":"sku","type":"string","required":true},{"name":"qty","type":"integer","required":true}]},
  {"name":"free","type":"object"}]},
 {"name":"stream/count","description":"Counts","streaming":true,"timeout_ms":5000,"parameters":[{"name":"n","type":"integer","required":true,"description":"how many"}]},
 {"name":"admin/secret","description":"Reads a secret","parameters":[{"name":"key","type":"string","required":true,"description":"name"}]},
 {"name":"slow/job","description":"Takes time","timeout_ms":2000,"parameters":[{"name":"ms","type":"integer","required":true,"description":"duration"}]},
 {"name":"kv/get","description":"Reads a value","idempotent":true,"parameters":[{"name":"key","type":"string","required":true,"description":"key"}]},
 {"name":"add"}]}`

var altarIdentities = map[string]*altar.Principal{
	"user-1":  {ID: "user-1", Tenant: "acme", Roles: []string{"user", "admin"}},
	"user-2":  {ID: "user-2", Tenant: "acme", Roles: []string{"user"}},
	"guest-1": {ID: "guest-1", Tenant: "globex", Roles: []string{"guest"}},
	"svc-a":   {ID: "svc-a", Tenant: "acme", Roles: []string{"runtime"}},
	"svc-b":   {ID: "svc-b", Tenant: "acme", Roles: []string{"runtime"}},
}

func altarIdentity(name string) *altar.Principal {
	shared := altarIdentities[name]
	if shared == nil {
		return nil
	}
	id := *shared
	id.Claims = map[string][]string{"role": {"guest"}}
	return &id
}

// altarHost is the fixture of host_script: a Host, which may be killed and
// started again on its store.
type altarHost struct {
	opts       altar.HostOptions
	manifest   *altar.Manifest
	state      store.Store // nil: the Host keeps its state in the process
	maxMessage int
	wantAudit  bool
	host       *altar.Host
	gate       *gate
	conns      map[string]*altarConn
	wg         sync.WaitGroup

	altarEvents
}

// altarEvents are what the steps of a host_script see.
type altarEvents struct{ tape[altarEvent] }

// An altarEvent is something that a Host did.
type altarEvent struct {
	name    string // of the connection or the exchange
	message any    // on a connection
	end     Answer // of an exchange
	closed  bool   // the connection
	audit   Answer
}

type altarConn struct {
	out    *io.PipeWriter // to the Host
	in     *io.PipeReader // from the Host
	closed atomic.Bool    // by a step
}

func altarHostScript(t T, in *Input) (Answer, error) {
	return Script{Start: altarStart, Open: func(t *testing.T, in *Input) (Step, error) {
		return openAltarHost(t, in, nil)
	}}.Run(t, in)
}

// openAltarHost starts the fixture. A nil store keeps its state in the process,
// unless the script has one.
func openAltarHost(t *testing.T, in *Input, state store.Store) (Step, error) {
	f := &altarHost{state: state, conns: map[string]*altarConn{}}
	if err := f.configure(in.ObjectOr("options")); err != nil {
		return nil, err
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		for _, c := range f.conns {
			c.closed.Store(true)
			_ = c.out.Close()
			_ = c.in.Close()
		}
		_ = f.host.Close()
		f.wg.Wait()
	})
	return f.step, f.start()
}

// configure reads the options of a script.
func (f *altarHost) configure(o *Input) error {
	m, err := altar.DecodeManifest([]byte(altarManifest))
	if err != nil {
		return err
	}
	level := o.IntOr("level", 2)
	if level == 1 {
		m.Contracts = slices.DeleteFunc(m.Contracts, func(c *altar.Contract) bool { return c.Streaming })
	}
	f.manifest, f.maxMessage, f.wantAudit = m, o.IntOr("max_message", 65536), o.Bool("audit")
	if o.Bool("store") && f.state == nil {
		f.state = store.NewMemory()
	}
	sessions := 0
	f.opts = altar.HostOptions{
		ID: "host-1", ProtocolVersion: o.StringOr("version", ""), Level: level,
		Limits: altar.Limits{
			MaxMessage: f.maxMessage, MaxItemsPerPrincipal: 8,
			BreakerThreshold:        o.IntOr("trip_after", -1),
			MaxConcurrentPerSession: o.Int64Or("max_calls_per_session", 0), MaxConcurrentPerPrincipal: o.Int64Or("max_calls_per_principal", 0),
			MaxStoredResults: o.Int64Or("record_bytes", 0), MaxStreamBuffer: o.IntOr("stream_buffer", 0),
		},
		Timing: altar.Timing{
			MaxSessionTTL:      2 * time.Hour,
			Heartbeat:          time.Duration(o.Int64Or("heartbeat_ms", -1)) * time.Millisecond,
			RuntimeGracePeriod: time.Duration(o.Int64Or("hold_down_ms", -1)) * time.Millisecond,
			SlowReaderTimeout:  time.Duration(o.Int64Or("reader_stall_ms", 0)) * time.Millisecond,
		},
		Audit: f.record,
		Auth: altar.Auth{Authenticator: altarBearer(time.Now()), Authorizer: altar.AuthorizerFunc(altarAuthorize), RuntimeAuthorizer: func(_ context.Context, id *altar.Principal, _ *altar.AnnounceRuntime) error {
			if !strings.HasPrefix(id.ID, "svc-") {
				return errors.New("not a service")
			}
			return nil
		}, FulfillmentAuthorizer: func(_ context.Context, r *altar.FulfillmentRequest) error {
			if r.Contract.Name == "admin/secret" && r.Principal.ID != "svc-a" {
				return errors.New("not its tool")
			}
			return nil
		}},
	}
	altartest.SessionIDs(&f.opts, func() string {
		sessions++
		return fmt.Sprintf("sess-%d", sessions)
	})
	return nil
}

// start starts a Host on the state of the fixture.
func (f *altarHost) start() error {
	f.gate = newGate()
	opts := f.opts
	if f.state != nil {
		opts.Persistence.Store = &gatedStore{Store: f.state, gate: f.gate}
	}
	host, err := altar.NewHost(f.manifest, &opts)
	f.host = host
	return err
}

// restart kills the Host and starts another one on the same store.
func (f *altarHost) restart() error {
	f.gate.kill()
	for _, c := range f.conns {
		_ = c.in.Close() // before out: the peers receive nothing more
	}
	for _, c := range f.conns {
		_ = c.out.Close()
	}
	clear(f.conns)
	old := f.host
	f.wg.Go(func() { _ = old.Close() })
	return f.start()
}

// record keeps an audit event as the scripts compare it.
func (f *altarHost) record(_ context.Context, e *altar.AuditRecord) {
	a := Answer{"kind": e.Operation}
	for name, text := range map[string]string{"who": e.Principal, "runtime_id": e.RuntimeID, "session_id": e.SessionID,
		"invocation_id": e.InvocationID, "contract": e.Contract} {
		if text != "" {
			a[name] = text
		}
	}
	if e.Error != nil {
		a["code"] = string(e.Error.Code)
		if r := e.Error.Reason(); r != "" {
			a["reason"] = string(r)
		}
	}
	if f.wantAudit {
		f.add(altarEvent{audit: a})
	}
}

// altarBearer accepts tokens tok-NAME and tok-NAME@MS, which expire after milliseconds
// since the start.
func altarBearer(start time.Time) altar.AuthenticatorFunc {
	return func(r *http.Request) (*altar.Principal, error) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer tok-")
		if !ok {
			return nil, nil
		}
		name, ms, ok := strings.Cut(token, "@")
		id := altarIdentity(name)
		if id != nil && ok {
			n, err := strconv.ParseInt(ms, 10, 64)
			if err != nil {
				return nil, err
			}
			id.Expires = start.Add(time.Duration(n) * time.Millisecond)
		}
		return id, nil
	}
}

// altarAuthorize lets only the effective role admin read secrets.
func altarAuthorize(_ context.Context, r *altar.AuthorizeRequest) error {
	role := ""
	if len(r.Principal.Roles) > 0 {
		role = r.Principal.Roles[0]
	}
	if claim, ok := r.Session.SecurityContext.Claims["role"]; ok {
		role = claim
	}
	if r.Contract.Name == "admin/secret" && role != "admin" {
		return altar.ReasonDenied
	}
	return nil
}

func (f *altarHost) step(in *Input) (Answer, error) {
	if err := f.act(in); err != nil {
		return nil, err
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	synctest.Wait()
	return f.answer(in), nil
}

// act carries out the action of a step.
func (f *altarHost) act(in *Input) error {
	switch {
	case in.Has("open"):
		id := altarIdentity(in.StringOr("identity", ""))
		if in.Has("expires") {
			id.Expires = altarStart.Add(time.Duration(in.Int64("expires")) * time.Millisecond)
		}
		f.open(in.String("open"), id)
	case in.Has("send"):
		c := f.conns[in.String("send")]
		wire := in.Wire("wire")
		if c == nil {
			in.Fail("send", "no such connection")
			break
		}
		// The Host reads until it closes the connection.
		_, _ = c.out.Write(append(bytes.Clone(wire), '\n'))
	case in.Has("close"):
		c := f.conns[in.String("close")]
		if c == nil {
			in.Fail("close", "no such connection")
			break
		}
		c.closed.Store(true)
		_ = c.out.Close()
		_ = c.in.Close()
	case in.Has("http"):
		f.http(in)
	case in.Bool("restart"):
		return f.restart()
	case in.Bool("drain"):
		host := f.host
		f.wg.Go(func() { _ = host.Shutdown(context.Background()) })
	case in.Bool("reload"):
		m, err := altar.DecodeManifest(in.Wire("manifest"))
		if err != nil {
			return err
		}
		f.manifest = m
		return f.host.ReplaceManifest(m)
	default:
		if !in.Bool("tick") {
			in.Fail("tick", "a step without an action")
		}
	}
	return nil
}

// answer returns the output since the step before.
func (f *altarEvents) answer(step *Input) Answer {
	out, closed, audit := Answer{}, []string{}, []Answer{}
	for _, e := range f.since(step) {
		switch {
		case e.audit != nil:
			audit = append(audit, e.audit)
		case e.closed:
			closed = append(closed, e.name)
		case e.end != nil:
			out[e.name] = e.end
		default:
			list, _ := out[e.name].([]any)
			out[e.name] = append(list, e.message)
		}
	}
	answer := Answer{"json": Default(out, Answer{})}
	if len(closed) > 0 {
		slices.Sort(closed)
		answer["closed"] = closed
	}
	if len(audit) > 0 {
		answer["audit"] = audit
	}
	return answer
}

// altarStream is what a connection is for the Host.
type altarStream struct {
	*io.PipeReader
	out *io.PipeWriter
}

func (s altarStream) Write(p []byte) (int, error) { return s.out.Write(p) }

func (s altarStream) Close() error { return errors.Join(s.PipeReader.Close(), s.out.Close()) }

func (f *altarHost) open(name string, id *altar.Principal) {
	fromPeer, toHost := io.Pipe()
	fromHost, toPeer := io.Pipe()
	c := &altarConn{out: toHost, in: fromHost}
	f.conns[name] = c
	host := f.host
	f.wg.Go(func() {
		conn := altar.NewStreamConn(altarStream{fromPeer, toPeer}, &altar.StreamConnOptions{MaxMessage: f.maxMessage})
		_ = host.Serve(context.Background(), conn, id)
	})
	f.wg.Go(func() {
		frames := lines.NewReader(fromHost, 1<<24)
		for {
			frame, err := frames.Next()
			if err != nil {
				if !c.closed.Load() {
					f.add(altarEvent{name: name, closed: true})
				}
				return
			}
			f.add(altarEvent{name: name, message: altarProjected(frame)})
		}
	})
}

// altarProjected drops the details of errors that implementations may choose.
func altarProjected(frame []byte) any {
	v, err := strictjson.Check(frame, strictjson.Options{})
	if err != nil {
		return "not a message: " + string(frame)
	}
	return altarProject(v.Any(), false)
}

func altarProject(v any, inError bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, m := range v {
			if details, ok := m.(map[string]any); ok && inError && name == "details" {
				kept := map[string]any{}
				for _, k := range []string{"reason", "path", "original_code", "supported"} {
					if d, ok := details[k]; ok {
						kept[k] = d
					}
				}
				if len(kept) > 0 {
					out[name] = kept
				}
				continue
			}
			out[name] = altarProject(m, name == "error")
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, altarProject(e, false))
		}
		return out
	}
	return v
}

func (f *altarHost) http(in *Input) {
	f.wg.Go(f.exchange(in, f.host))
}

// exchange returns the function that does the HTTP exchange of a step.
func (f *altarEvents) exchange(in *Input, host http.Handler) func() {
	name := in.String("http")
	body, _ := in.WireOr("body")
	r := httptest.NewRequest(in.StringOr("method", "POST"), in.StringOr("path", "/altar/v1/messages"), bytes.NewReader(body))
	in.SetHeaders("headers", r.Header)
	return func() {
		w := httptest.NewRecorder()
		host.ServeHTTP(w, r)
		f.add(altarEvent{name: name, end: altarExchange(w)})
	}
}

func altarExchange(w *httptest.ResponseRecorder) Answer {
	a := Answer{"status": w.Code}
	if w.Code == http.StatusAccepted || w.Code == http.StatusNotFound && !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		return a
	}
	kind, _, _ := mime.ParseMediaType(w.Header().Get("Content-Type"))
	a["content_type"] = kind
	messages := []any{}
	switch kind {
	case "text/event-stream":
		for r := sse.NewReader(w.Body, nil); ; {
			e, err := r.Next()
			if err != nil {
				break
			}
			messages = append(messages, altarProjected([]byte(e.Data)))
		}
	default:
		for line := range bytes.Lines(w.Body.Bytes()) {
			messages = append(messages, altarProjected(bytes.TrimSpace(line)))
		}
	}
	a["messages"] = messages
	return a
}

// altarRuntime is the fixture of runtime_script.
type altarRuntime struct {
	rt  *altar.Runtime
	out *io.PipeWriter // to the Runtime
	in  *io.PipeReader
	wg  sync.WaitGroup

	mu     sync.Mutex
	output []any
	closed bool // by the Runtime, since the last step
	ending bool
}

func altarRuntimeScript(t T, in *Input) (Answer, error) {
	return Script{Start: altarStart, Open: openAltarRuntime}.Run(t, in)
}

func openAltarRuntime(t *testing.T, in *Input) (Step, error) {
	rt, err := newAltarRuntime(in.ObjectOr("options"))
	if err != nil {
		return nil, err
	}
	f := &altarRuntime{rt: rt}
	t.Cleanup(func() {
		f.mu.Lock()
		f.ending = true
		f.mu.Unlock()
		if f.out != nil {
			_ = f.out.Close()
			_ = f.in.Close()
		}
		f.wg.Wait()
	})
	return f.step, nil
}

// newAltarRuntime returns a Runtime with the options and tools of the scripts.
func newAltarRuntime(o *Input) (*altar.Runtime, error) {
	m, err := altar.DecodeManifest([]byte(altarRuntimeManifest))
	if err != nil {
		return nil, err
	}
	rt, err := altar.NewRuntime("rt-go", &altar.RuntimeOptions{
		Manifest: m,
		Timing:   altar.RuntimeTiming{Heartbeat: time.Duration(o.Int64Or("heartbeat_ms", -1)) * time.Millisecond},
	})
	if err != nil {
		return nil, err
	}
	altarTools(rt)
	return rt, o.Err()
}

func (f *altarRuntime) step(in *Input) (Answer, error) {
	switch {
	case in.Has("start"):
		if !in.Bool("start") || f.out != nil {
			in.Fail("start", "can only be true, and once")
			return nil, in.Err()
		}
		f.start()
	case in.Has("send"):
		wire := in.Wire("send")
		if f.out == nil {
			in.Fail("send", "before start")
			return nil, in.Err()
		}
		_, _ = f.out.Write(append(bytes.Clone(wire), '\n'))
	case in.Bool("eof"):
		_ = f.out.Close()
	default:
		if !in.Bool("tick") {
			in.Fail("tick", "a step without an action")
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	a := Answer{"json": Default(f.output, []any{})}
	if f.closed {
		a["closed"] = true
	}
	f.output, f.closed = nil, false
	return a, nil
}

func (f *altarRuntime) start() {
	fromHost, toRuntime := io.Pipe()
	fromRuntime, toHost := io.Pipe()
	f.out, f.in = toRuntime, fromRuntime
	f.wg.Go(func() {
		_ = f.rt.Run(context.Background(), altar.NewStreamConn(altarStream{fromHost, toHost}, nil))
	})
	f.wg.Go(func() {
		frames := lines.NewReader(fromRuntime, 1<<24)
		for {
			frame, err := frames.Next()
			f.mu.Lock()
			if err != nil {
				f.closed = !f.ending
				f.mu.Unlock()
				return
			}
			f.output = append(f.output, altarProjected(frame))
			f.mu.Unlock()
		}
	})
}

// altarRuntimeManifest has the contracts of the tools of scripted Runtimes.
const altarRuntimeManifest = `{"contracts":[
 {"name":"math/add","parameters":[{"name":"a","type":"integer","required":true},{"name":"b","type":"integer","required":true}]},
 {"name":"text/echo","parameters":[{"name":"text","type":"string","required":true}]},
 {"name":"stream/count","streaming":true,"parameters":[{"name":"n","type":"integer","required":true}]},
 {"name":"stream/last","streaming":true,"parameters":[{"name":"n","type":"integer","required":true}]},
 {"name":"stream/fail","streaming":true,"parameters":[{"name":"n","type":"integer","required":true}]},
 {"name":"fault/panic"},{"name":"fault/error"},{"name":"fault/altar"},
 {"name":"slow/wait","parameters":[{"name":"ms","type":"integer","required":true}]},
 {"name":"bin/len","parameters":[{"name":"data","type":"binary","required":true}]}]}`

// altarTools adds the tools of the fixture, in their order.
func altarTools(rt *altar.Runtime) {
	one := func(name string, f altar.HandlerFunc) { rt.Handle(name, f) }
	stream := func(name string, f func(n int64, out *altar.ChunkWriter) error) {
		rt.HandleStream(name, altarStreamFunc(f))
	}
	one("math/add", altarAdd)
	one("text/echo", func(_ context.Context, call *altar.ToolCall) (any, error) {
		var in struct {
			Text string `json:"text"`
		}
		err := call.Decode(&in)
		return in.Text, err
	})
	stream("stream/count", altarCount)
	stream("stream/last", func(n int64, out *altar.ChunkWriter) error {
		if err := altarCount(n-1, out); err != nil {
			return err
		}
		return out.SendLast(n - 1)
	})
	stream("stream/fail", func(n int64, out *altar.ChunkWriter) error {
		if err := altarCount(n, out); err != nil {
			return err
		}
		return errors.New("stream broke")
	})
	fault := func(name string, f func() error) {
		one(name, func(context.Context, *altar.ToolCall) (any, error) { return nil, f() })
	}
	fault("fault/panic", func() error { panic("a secret") })
	fault("fault/error", func() error { return errors.New("disk full") })
	fault("fault/altar", func() error { return altar.Errorf(altar.ErrRuntimeUnavailable, "", "backend down") })
	one("slow/wait", altarWait)
	one("bin/len", func(_ context.Context, call *altar.ToolCall) (any, error) {
		var in struct {
			Data []byte `json:"data"`
		}
		err := call.Decode(&in)
		return len(in.Data), err
	})
}

func altarStreamFunc(f func(n int64, out *altar.ChunkWriter) error) altar.StreamHandlerFunc {
	return func(_ context.Context, call *altar.ToolCall, out *altar.ChunkWriter) error {
		var in struct {
			N int64 `json:"n"`
		}
		if err := call.Decode(&in); err != nil {
			return err
		}
		return f(in.N, out)
	}
}

// altarCount sends the chunks 0 to n-1.
func altarCount(n int64, out *altar.ChunkWriter) error {
	for i := range n {
		if err := out.Send(i); err != nil {
			return err
		}
	}
	return nil
}

func altarAdd(_ context.Context, call *altar.ToolCall) (any, error) {
	var in struct {
		A int64 `json:"a"`
		B int64 `json:"b"`
	}
	if err := call.Decode(&in); err != nil {
		return nil, err
	}
	sum := in.A + in.B
	if (sum > in.A) != (in.B > 0) && in.B != 0 {
		return nil, errors.New("integer overflow")
	}
	return sum, nil
}

func altarWait(ctx context.Context, call *altar.ToolCall) (any, error) {
	var in struct {
		MS int64 `json:"ms"`
	}
	if err := call.Decode(&in); err != nil {
		return nil, err
	}
	t := time.NewTimer(time.Duration(in.MS) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return "waited", nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
