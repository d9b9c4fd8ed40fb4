// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/transport"
)

// A wire is one connection to a Host, in process.
type wire struct {
	t    testing.TB
	conn Conn
}

func connect(t testing.TB, h *Host, id *Principal) *wire {
	t.Helper()
	conn, err := h.Dial(id)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{t, conn}
}

func (w *wire) send(m Message) {
	w.t.Helper()
	require.NoError(w.t, w.conn.Send(m))
}

// next returns the next message, which must be of that type.
func next[M Message](w *wire) M {
	w.t.Helper()
	m, err := w.conn.Receive()
	require.NoError(w.t, err)
	got, ok := m.(M)
	require.True(w.t, ok, "%T %+v", m, m)
	return got
}

// attachRuntime makes a wire a Runtime that fulfils tools in all sessions.
func attachRuntime(t testing.TB, h *Host, id *Principal, runtimeID string, tools ...string) *wire {
	t.Helper()
	w := connect(t, h, id)
	w.send(&AnnounceRuntime{RuntimeID: runtimeID, ProtocolVersion: ProtocolVersion,
		Capabilities: []string{capStreaming, capCancellation, capSessionEvents}})
	next[*AcknowledgeRuntime](w)
	w.send(&FulfillTools{SessionID: allSessions, ToolNames: tools})
	m, err := w.conn.Receive()
	for err == nil && typeOf(m) == "RequestFulfillment" {
		m, err = w.conn.Receive()
	}
	require.NoError(t, err)
	require.Len(t, m.(*AcknowledgeFulfillment).Fulfilled, len(tools))
	return w
}

func (w *wire) session(id string) {
	w.t.Helper()
	w.send(&CreateSession{SessionID: id})
	next[*SessionCreated](w)
}

func add(id, session string) *ToolCall {
	return &ToolCall{InvocationID: id, SessionID: session, ToolName: "math/add", Parameters: json.RawMessage(`{"a":1,"b":2}`)}
}

// ALT-001: the version that is spoken.
func TestVersion(t *testing.T) {
	require.Equal(t, "1.0.0", ProtocolVersion)
	h := testHost(t, nil)
	w := connect(t, h, testService)
	w.send(&AnnounceRuntime{RuntimeID: "r", ProtocolVersion: ProtocolVersion})
	require.Equal(t, ProtocolVersion, next[*AcknowledgeRuntime](w).ProtocolVersion)
}

// ALT-115, ALT-133: only calls that match the Host's own contract are dispatched, and schemas from
// a Runtime are ignored.
func TestHostContractsRule(t *testing.T) {
	h := testHost(t, nil)
	near, far := net.Pipe()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = near.Close() }()
	wg.Go(func() { _ = h.Serve(t.Context(), NewStreamConn(far, nil), testService) })
	frames := transport.NewReader(near, 0)
	for _, line := range []string{
		`{"type":"AnnounceRuntime","runtime_id":"r","protocol_version":"1.0.0"}`,
		`{"type":"FulfillTools","session_id":"*","tool_names":["math/add"],"contracts":[{"name":"math/add","parameters":[]}],"parameters":[]}`,
	} {
		_, err := near.Write([]byte(line + "\n"))
		require.NoError(t, err)
		_, err = frames.Read()
		require.NoError(t, err)
	}
	c := connect(t, h, testUser)
	c.session("s")
	c.send(&ToolCall{InvocationID: "i", SessionID: "s", ToolName: "math/add"})
	require.ErrorIs(t, next[*ToolResult](c).Error, reasonMissingRequired)
	require.Zero(t, h.Stats().Dispatched)
}

// ALT-D34: a panic in a hook is an internal error, and the Host continues.
func TestHookPanics(t *testing.T) {
	var boom atomic.Bool // the audit log has a goroutine
	boom.Store(true)
	check := func() {
		if boom.Load() {
			panic("a secret")
		}
	}
	m, err := DecodeManifest([]byte(testManifest))
	require.NoError(t, err)
	h, err := newHost(m, AuthorizerFunc(func(context.Context, *AuthorizeRequest) error { check(); return nil }), &HostOptions{
		Auth: Auth{RuntimeAuthorizer: func(context.Context, *Principal, *AnnounceRuntime) error { check(); return nil }, FulfillmentAuthorizer: func(context.Context, *FulfillmentRequest) error { check(); return nil }, SecurityContextResolver: func(context.Context, *Principal, *SecurityContext) (*SecurityContext, error) {
			check()
			return nil, nil
		}},
		Audit:  func(context.Context, *AuditRecord) { check() },
		Router: Router(func(*RouteRequest, []Candidate) int { check(); return 7 }),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	r := connect(t, h, testService)
	require.Error(t, r.conn.Send(&AnnounceRuntime{RuntimeID: "r", ProtocolVersion: "1.0.0"}), "closed")
	require.ErrorIs(t, next[*ErrorMessage](r).Err, reasonHookPanic)
	boom.Store(false)
	r = connect(t, h, testService)
	r.send(&AnnounceRuntime{RuntimeID: "r", ProtocolVersion: "1.0.0"})
	next[*AcknowledgeRuntime](r)
	boom.Store(true)
	r.send(&FulfillTools{SessionID: allSessions, ToolNames: []string{"math/add"}})
	require.ErrorIs(t, next[*AcknowledgeFulfillment](r).Rejected[0].Error, reasonHookPanic)
	c := connect(t, h, testUser)
	c.send(&CreateSession{})
	e := next[*ErrorMessage](c)
	require.ErrorIs(t, e.Err, reasonHookPanic)
	require.NotContains(t, e.Err.Message, "secret")
	boom.Store(false)
	r.send(&FulfillTools{SessionID: allSessions, ToolNames: []string{"math/add"}})
	next[*AcknowledgeFulfillment](r)
	c.session("s")
	boom.Store(true)
	c.send(add("i", "s"))
	require.ErrorIs(t, next[*ToolResult](c).Error, reasonHookPanic)
	c.send(&ListTools{SessionID: "s"})
	require.ErrorIs(t, next[*ErrorMessage](c).Err, reasonHookPanic)
	boom.Store(false)
	c.send(add("i", "s"))
	next[*ToolCall](r)
	r.send(&ToolResult{InvocationID: "i", Payload: json.RawMessage("3")})
	require.Equal(t, "3", string(next[*ToolResult](c).Payload))
}

// A hook that ends its goroutine, as a failed assertion of a test does, ends its connection alone (ALT-D34).
func TestHookEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends atomic.Bool
		h := must(newHost(must(DecodeManifest([]byte(testManifest))), AuthorizerFunc(func(context.Context, *AuthorizeRequest) error {
			if ends.Load() {
				runtime.Goexit()
			}
			return nil
		}), nil))
		defer func() { require.NoError(t, h.Close()) }()
		attachRuntime(t, h, testService, "r1", "math/add")
		dial := pipeTransport(t, h)(testUser)
		open := func() Conn {
			c := must(dial(t.Context()))
			require.NoError(t, c.Send(&CreateSession{}))
			s := must(c.Receive()).(*SessionCreated)
			require.NoError(t, c.Send(&ToolCall{InvocationID: NewID(), SessionID: s.SessionID, ToolName: "math/add", Parameters: raw(addIn{1, 2})}))
			return c
		}
		first := open()
		synctest.Wait()
		require.Equal(t, 1, h.Stats().InFlight)
		ends.Store(true)
		_, err := open().Receive()
		require.Error(t, err)
		synctest.Wait()
		require.Equal(t, 2, h.Stats().Connections)
		require.Equal(t, 1, h.Stats().InFlight)
		require.NoError(t, first.Close())
	})
}

// The next record of an audit hook that has ended its goroutine follows.
func TestAuditEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records atomic.Int64
		h := testHost(t, &HostOptions{Audit: func(context.Context, *AuditRecord) {
			records.Add(1)
			runtime.Goexit()
		}})
		for _, id := range []string{"a", "b", "c"} {
			connect(t, h, testUser).session(id)
		}
		synctest.Wait()
		require.Equal(t, int64(3), records.Load())
	})
}

// The text of a hook error that is not an *Error is not sent.
func TestHookErrors(t *testing.T) {
	m, err := DecodeManifest([]byte(testManifest))
	require.NoError(t, err)
	var answer error
	h, err := newHost(m, AuthorizerFunc(func(context.Context, *AuthorizeRequest) error { return answer }), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	c := connect(t, h, testUser)
	c.session("s")
	answer = errors.New("the database at db.internal is down")
	c.send(add("i", "s"))
	got := next[*ToolResult](c).Error
	require.ErrorIs(t, got, ReasonDenied)
	require.NotContains(t, got.Message, "db.internal")
	answer = fmt.Errorf("wrapped: %w", &Error{Code: ErrExecutionFailed, Message: "try later"})
	c.send(add("i", "s"))
	require.ErrorIs(t, next[*ToolResult](c).Error, ErrExecutionFailed)
	answer = &Error{Code: "UNHEARD_OF", Message: "x"}
	c.send(add("i", "s"))
	require.ErrorIs(t, next[*ToolResult](c).Error, ReasonDenied)
}

// ALT-D12: a manifest is replaced as a whole or not at all.
func TestReload(t *testing.T) {
	h := testHost(t, nil)
	r := attachRuntime(t, h, testService, "r1", "math/add", "get")
	c := connect(t, h, testUser)
	c.session("s")
	c.send(add("i", "s"))
	next[*ToolCall](r)
	require.Error(t, h.ReplaceManifest(&Manifest{Contracts: []*Contract{{Name: "x"}, {Name: "x"}}}))
	require.NoError(t, h.ReplaceManifest(&Manifest{Contracts: []*Contract{{Name: "get"}, {Name: "new"}}}))
	require.Equal(t, "s", next[*RequestFulfillment](r).SessionID, "asked again, standing or not")
	r.send(&FulfillTools{SessionID: "s", ToolNames: []string{"new", "math/add"}})
	ack := next[*AcknowledgeFulfillment](r)
	require.Equal(t, []string{"r1/new"}, ack.Fulfilled)
	r.send(&ToolResult{InvocationID: "i", Payload: json.RawMessage("3")})
	require.Equal(t, "3", string(next[*ToolResult](c).Payload), "it ends under its old contract")
	c.send(add("j", "s"))
	require.ErrorIs(t, next[*ToolResult](c).Error, ReasonUnknownContract)
	c.send(&ToolCall{InvocationID: "k", SessionID: "s", ToolName: "get"})
	require.Equal(t, "r1/get", next[*ToolCall](r).ToolName)
}

// ALT-D35: quotas of calls.
func TestQuotas(t *testing.T) {
	h := testHost(t, &HostOptions{Limits: Limits{MaxConcurrentPerSession: 3, MaxConcurrentPerRuntime: 1}})
	r1 := attachRuntime(t, h, testService, "r1", "math/add")
	r2 := attachRuntime(t, h, testService, "r2", "math/add")
	c := connect(t, h, testUser)
	c.session("s")
	c.session("t")
	c.send(add("1", "s"))
	next[*ToolCall](r1)
	c.send(add("2", "s"))
	next[*ToolCall](r2)
	c.send(add("3", "s"))
	require.ErrorIs(t, next[*ToolResult](c).Error, ReasonOverloaded, "both are full")
	pinned := add("4", "s")
	pinned.ToolName = "r1/math/add"
	c.send(pinned)
	require.ErrorIs(t, next[*ToolResult](c).Error, ReasonOverloaded)
	r2.send(&ToolResult{InvocationID: "2", Payload: json.RawMessage("3")})
	next[*ToolResult](c)
	c.send(add("5", "t")) // r1's turn in this session, but only r2 has room
	require.Equal(t, "5", next[*ToolCall](r2).InvocationID)

	h = testHost(t, &HostOptions{Limits: Limits{MaxConcurrentPerSession: 1}})
	r := attachRuntime(t, h, testService, "r1", "math/add")
	c = connect(t, h, testUser)
	c.session("s")
	c.send(add("1", "s"))
	next[*ToolCall](r)
	c.send(add("2", "s"))
	require.ErrorIs(t, next[*ToolResult](c).Error, ReasonOverloaded)
}

func TestRouters(t *testing.T) {
	three := []Candidate{{"a", 2}, {"b", 1}, {"c", 1}}
	require.Equal(t, 1, LeastBusyRouter(&RouteRequest{DispatchCount: 0}, three))
	require.Equal(t, 2, LeastBusyRouter(&RouteRequest{DispatchCount: 2}, three))

	h := testHost(t, &HostOptions{Router: LeastBusyRouter})
	r1 := attachRuntime(t, h, testService, "r1", "math/add")
	r2 := attachRuntime(t, h, testService, "r2", "math/add")
	c := connect(t, h, testUser)
	c.session("s")
	c.send(add("1", "s"))
	next[*ToolCall](r1)
	c.send(add("2", "s"))
	next[*ToolCall](r2)
	r2.send(&ToolResult{InvocationID: "2", Payload: json.RawMessage("3")})
	next[*ToolResult](c)
	c.send(add("3", "s"))
	require.Equal(t, "3", next[*ToolCall](r2).InvocationID, "r1 is busy")
}

// ALT-137: roles, narrowed by the security context.
func TestAuthorizeRoles(t *testing.T) {
	a := RoleAuthorizer(RoleRule{Tools: "math/*", Roles: []string{"user"}}, RoleRule{Tools: "open"}, RoleRule{Tools: "[", Roles: []string{"user"}})
	ask := func(tool string, id *Principal, claims map[string]string) error {
		return a.Authorize(context.Background(), &AuthorizeRequest{Principal: id, Contract: &Contract{Name: tool}, Session: SessionInfo{SecurityContext: SecurityContext{Claims: claims}}})
	}
	require.NoError(t, ask("math/add", testUser, nil))
	require.NoError(t, ask("open", nil, nil))
	require.ErrorIs(t, ask("math/add", nil, nil), ReasonDenied)
	require.ErrorIs(t, ask("math/add/deep", testUser, nil), ReasonDenied)
	require.ErrorIs(t, ask("math/add", testUser, map[string]string{"role": "guest"}), ReasonDenied)
	require.ErrorIs(t, ask("other", testUser, nil), ReasonDenied)
}

// ALT-D20: anonymous clients are one principal, if they are let in at all.
func TestAnonymous(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{AllowAnonymous: true}})
	r := attachRuntime(t, h, testService, "r1", "math/add")
	c := connect(t, h, nil)
	c.session("s")
	c.send(add("1", "s"))
	next[*ToolCall](r)
	c.send(&CancelCall{InvocationID: "1", SessionID: "s"})
	require.ErrorIs(t, next[*ToolResult](c).Error, ReasonCancelled)
	c.send(&CreateSession{SecurityContext: &SecurityContext{Claims: map[string]string{"role": "x"}}})
	require.ErrorIs(t, next[*ErrorMessage](c).Err, reasonClaimNotGranted)
	other := connect(t, h, testUser)
	other.send(add("2", "s"))
	require.ErrorIs(t, next[*ToolResult](other).Error, ReasonUnknownSession)
	x := connect(t, h, nil)
	require.Error(t, x.conn.Send(&AnnounceRuntime{RuntimeID: "x", ProtocolVersion: "1.0.0"}))
	require.ErrorIs(t, next[*ErrorMessage](x).Err, ReasonUnauthenticated)
}

// ALT-D19: a sliding session lives as long as it is used.
func TestSlidingTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, &HostOptions{Timing: Timing{SlidingSessionTTL: true, SessionTTL: 10 * time.Second}})
		r := attachRuntime(t, h, testService, "r1", "math/add")
		c := connect(t, h, testUser)
		c.session("s")
		for i := range 5 {
			time.Sleep(9 * time.Second)
			id := fmt.Sprint(i)
			c.send(add(id, "s"))
			next[*ToolCall](r)
			r.send(&ToolResult{InvocationID: id, Payload: json.RawMessage("3")})
			next[*ToolResult](c)
		}
		require.Equal(t, []string{"s"}, h.sessionIDs())
		time.Sleep(10 * time.Second)
		require.Empty(t, h.sessionIDs())
		require.Equal(t, "expired", next[*SessionDestroyed](r).Reason)
	})
}

// Audit is called once for every decision, in order.
func TestAudit(t *testing.T) {
	var mu sync.Mutex
	var kinds []string
	h := testHost(t, &HostOptions{Limits: Limits{MaxItemsPerPrincipal: 1}, Audit: func(_ context.Context, e *AuditRecord) {
		mu.Lock()
		defer mu.Unlock()
		kinds = append(kinds, e.Operation)
		if e.Time.IsZero() {
			t.Error("no time")
		}
	}})
	r := attachRuntime(t, h, testService, "r1", "math/add")
	r.send(&FulfillTools{SessionID: allSessions, ToolNames: []string{"nope"}})
	c := connect(t, h, testUser)
	c.session("s")
	c.send(&CreateSession{})
	c.send(add("1", "s"))
	c.send(add("2", "gone"))
	r.send(&ToolResult{InvocationID: "1", Payload: json.RawMessage("3")})
	c.send(&DestroySession{SessionID: "s"})
	require.NoError(t, r.conn.Close())
	x := connect(t, h, nil)
	_ = x.conn.Send(&AnnounceRuntime{RuntimeID: "x", ProtocolVersion: "1.0.0"})
	require.NoError(t, h.Close())
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"runtime.accepted", "fulfillment.accepted", "fulfillment.refused", "session.created", "session.refused", "call.dispatched",
		"call.refused", "call.done", "session.over", "runtime.gone", "runtime.refused"}, kinds)
}

// Repeats, requests for sessions of others, replaced Runtimes, slow readers and a new manifest have records, too. A stream
// whose last reader is too slow is cancelled at its Runtime at once, and has failed (ALT-D37, ALT-D41).
func TestAuditOfRareDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records []string
		h := testHost(t, &HostOptions{Timing: Timing{SlowReaderTimeout: time.Minute, CallTimeout: time.Hour}, Audit: func(_ context.Context, e *AuditRecord) {
			records = append(records, strings.TrimSpace(e.Operation+" "+e.Outcome+" "+e.Code))
		}})
		require.NoError(t, h.ReplaceManifest(must(DecodeManifest([]byte(testManifest)))))
		attachRuntime(t, h, testService, "r1", "math/add", "count")
		r := attachRuntime(t, h, testService, "r1", "math/add", "count")
		c, other, stranger := connect(t, h, testUser), connect(t, h, testUser), connect(t, h, testOther)
		c.session("s")
		c.send(add("1", "s"))
		other.send(add("1", "s"))
		next[*ToolCall](r)
		r.send(&ToolResult{InvocationID: "1", Payload: json.RawMessage("3")})
		next[*ToolResult](other)
		other.send(add("1", "s"))
		next[*ToolResult](other)
		for _, m := range []Message{&DestroySession{SessionID: "s"}, &ListTools{SessionID: "s"}, &CancelCall{SessionID: "s", InvocationID: "1"}} {
			stranger.send(m)
		}
		credit := int64(1)
		c.send(&ToolCall{InvocationID: "2", SessionID: "s", ToolName: "count", Parameters: json.RawMessage(`{"n":9}`), Credit: &credit})
		next[*ToolCall](r)
		for i := range int64(3) {
			r.send(&StreamChunk{InvocationID: "2", ChunkID: i, Payload: json.RawMessage("1")})
		}
		begin := time.Now()
		require.Equal(t, "slow_consumer", next[*CancelCall](r).Reason)
		require.Equal(t, time.Minute, time.Since(begin))
		synctest.Wait()
		require.Equal(t, []string{"manifest.reloaded ok",
			"runtime.accepted ok", "fulfillment.accepted ok", "fulfillment.accepted ok", "runtime.replaced failed AUTHORIZATION_FAILED", "runtime.gone ok", "runtime.accepted ok",
			"fulfillment.accepted ok", "fulfillment.accepted ok", "session.created ok", "call.dispatched ok", "call.joined ok", "call.done ok",
			"call.replayed ok", "request.refused refused SESSION_INVALID", "request.refused refused SESSION_INVALID", "request.refused refused SESSION_INVALID",
			"call.dispatched ok", "stream.slow failed INTERNAL_ERROR", "call.done failed INTERNAL_ERROR"}, records)
	})
}

// A hook that blocks holds up requests once 4,096 records wait, and loses none (ALT-D41).
func TestBlockedAuditHoldsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, passed, handled := make(chan struct{}), 0, new(atomic.Int64)
		h := testHost(t, &HostOptions{Audit: func(_ context.Context, e *AuditRecord) {
			<-release
			if passed++; e.Seq != uint64(passed) {
				t.Errorf("got record %d, want %d", e.Seq, passed)
			}
		}})
		var wg sync.WaitGroup
		for range 2 {
			conn := must(h.Dial(testUser))
			go func() {
				for m, err := conn.Receive(); err == nil; m, err = conn.Receive() {
					_ = m
				}
			}()
			wg.Go(func() {
				for i := range 3000 {
					_ = conn.Send(add(fmt.Sprint(i), "none"))
					handled.Add(1)
				}
			})
		}
		synctest.Wait()
		require.LessOrEqual(t, handled.Load(), int64(maxAudit+3))
		require.Greater(t, handled.Load(), int64(maxAudit-3))
		close(release)
		wg.Wait()
		require.NoError(t, h.Close())
		require.Equal(t, 6000, passed)
	})
}

// An identity that expires ends its connection, unless it is renewed in place (ALT-D40).
func TestIdentityExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := *testUser
		id.Expires = time.Now().Add(time.Minute)
		renewed := id
		renewed.Expires = time.Now().Add(time.Hour)
		h := testHost(t, &HostOptions{Auth: Auth{Authenticator: BearerAuthenticator(TokenVerifierFunc(func(_ context.Context, token string) (*Principal, error) {
			if token != "good" {
				return nil, errBadCredentials
			}
			return &renewed, nil
		}))}})
		left, kept := connect(t, h, &id), connect(t, h, &id)
		kept.send(&Authenticate{Token: "bad"})
		require.ErrorIs(t, next[*ErrorMessage](kept).Err, ReasonUnauthenticated)
		kept.send(&Authenticate{Token: "good"})
		require.Equal(t, int64(3600), *next[*Authenticated](kept).ExpiresIn)
		begin := time.Now()
		require.ErrorIs(t, next[*ErrorMessage](left).Err, reasonExpired)
		require.Equal(t, time.Minute, time.Since(begin))
		kept.session("s")
		require.ErrorIs(t, next[*ErrorMessage](kept).Err, reasonExpired)
		require.Equal(t, time.Hour, time.Since(begin))
	})
}

// The reason why a Host ends a connection is its last message, whatever it answers at that moment: a peer that does not know
// the reason would take the close code for a permanent refusal.
func TestReasonOfEndIsLastMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		for range 50 {
			id := *testUser
			id.Expires = time.Now().Add(time.Minute)
			conn := must(pipeTransport(t, h)(&id)(t.Context()))
			go func() {
				time.Sleep(time.Minute)
				for range 20 {
					_ = conn.Send(&Ping{})
				}
			}()
			var last Message
			for m, err := conn.Receive(); err == nil; m, err = conn.Receive() {
				last = m
			}
			require.IsType(t, &ErrorMessage{}, last)
			require.ErrorIs(t, last.(*ErrorMessage).Err, reasonExpired)
			require.NoError(t, conn.Close())
		}
	})
	expired := &ErrorMessage{Err: Errorf(ErrAuthorizationFailed, reasonExpired, "")}
	require.ErrorIs(t, connectionError(connectionError(nil, expired), &Pong{}), reasonExpired)
	require.NoError(t, connectionError(connectionError(nil, expired), &Authenticated{}))
}

// A peer that does not read is disconnected after WriteTimeout, in either role.
func TestWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, &HostOptions{Timing: Timing{WriteTimeout: time.Second}})
		near, far := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- h.Serve(context.Background(), NewStreamConn(far, nil), testUser) }()
		_, err := near.Write([]byte(`{"type":"Ping"}` + "\n"))
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.Error(t, <-done)
		require.Zero(t, h.Stats().Connections)
		require.NoError(t, near.Close())
	})
}

// The Host stops reading from a client that sends requests and never reads.
func TestFloodIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, &HostOptions{Limits: Limits{ClientQueueLimit: 4}, Timing: Timing{WriteTimeout: time.Hour}})
		near, far := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- h.Serve(context.Background(), NewStreamConn(far, nil), testUser) }()
		sent := 0
		go func() {
			for {
				if _, err := near.Write([]byte(`{"type":"Ping"}` + "\n")); err != nil {
					return
				}
				sent++
			}
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Less(t, sent, 20)
		require.NoError(t, near.Close())
		<-done
	})
}

// FuzzHost: no bytes of a client or a Runtime make the Host fail, or drop a
// connection that the reference keeps; other clients notice nothing.
func FuzzHost(f *testing.F) {
	f.Add([]byte(`{"type":"CreateSession"}`), []byte(`{"type":"FulfillTools","session_id":"s","tool_names":["count"]}`))
	f.Add([]byte(`{"type":"ToolCall","invocation_id":"1","session_id":"s","tool_name":"count","parameters":{"n":1}}`),
		[]byte(`{"type":"StreamChunk","invocation_id":"1","chunk_id":1,"payload":5}`+"\n"+`{"type":"StreamChunk","invocation_id":"1","chunk_id":0,"error":5}`))
	f.Add([]byte("[]\n{\n\xff"), []byte(`{"type":"ToolResult","invocation_id":"1","status":"error"}`))
	f.Add([]byte(`{"type":"DestroySession","session_id":"s"}`), []byte(`{"type":"AnnounceRuntime","runtime_id":"r1","protocol_version":"1.0.0"}`))
	f.Fuzz(func(t *testing.T, fromClient, fromRuntime []byte) {
		if len(fromClient)+len(fromRuntime) > 1<<12 {
			return
		}
		h := testHost(t, &HostOptions{Limits: Limits{MaxInvalidFrames: 1 << 30}, newSessionID: func() string { return "other" }})
		r := attachRuntime(t, h, testService, "r1", "math/add", "count")
		c := connect(t, h, testUser)
		c.session("s")
		feed := func(w *wire, role string, data []byte) {
			hc := w.conn.(*direct).hc
			for line := range strings.SplitSeq(string(data), "\n") {
				m, err := DecodeMessage([]byte(line), 0)
				bad, ok := asBadFrame(err)
				require.True(t, ok)
				require.True(t, h.handle(hc, m, bad), "%s: %q closed the connection", role, line)
				if hc.out.len() > 200 {
					hc.out.list, hc.out.first = nil, 0
				}
			}
		}
		feed(c, "client", fromClient)
		feed(r, "Runtime", fromRuntime)
		feed(c, "client", fromClient)
		good := connect(t, h, &Principal{ID: "somebody else"})
		good.send(&Ping{})
		next[*Pong](good)
		st := h.Stats()
		require.GreaterOrEqual(t, st.InFlight, 0)
	})
}
