// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
)

// A remote connection has the address of a network.
type remote struct {
	io.ReadWriteCloser
	addr net.IP
}

func (r *remote) RemoteAddr() net.Addr { return &net.TCPAddr{IP: r.addr, Port: 1234} }

// openFrom opens a session from an address.
func openFrom(t *testing.T, h *a2e.Host, addr net.IP) *raw {
	agent, host := a2e.Pipe()
	return serveRaw(t, h, agent, &remote{host, addr})
}

// Sessions without a handshake are bounded for each address and in all, and keep no other agent out
// (A2E-D61).
func TestStrangersLockOutNoAgent(t *testing.T) {
	for name, strangers := range map[string]struct {
		addr func(i int) net.IP
		want int
	}{
		"one address":    {func(int) net.IP { return net.IPv4(192, 0, 2, 1) }, 16},
		"many addresses": {func(i int) net.IP { return net.IPv4(198, 51, byte(i>>8), byte(i)) }, 256},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")},
					Timing: a2e.Timing{HandshakeTimeout: time.Hour}}, repeating())
				first := openFrom(t, h, strangers.addr(0))
				for i := range 1100 {
					openFrom(t, h, strangers.addr(i))
					synctest.Wait()
				}
				require.Len(t, h.Sessions(), strangers.want)
				_, err := first.in.ReadByte()
				require.ErrorIs(t, err, io.EOF, "the oldest session is closed")
				for i := range 20 {
					r := openFrom(t, h, net.IPv4(203, 0, 113, byte(i)))
					require.True(t, *r.shake(`"demo"`).Body.(*a2e.HandshakeResponse).OK)
					r.send(message("demo/ask/req", "1", ""))
					require.Equal(t, "demo/ask/resp", r.next().Type)
				}
				require.NoError(t, h.Close())
				for _, u := range h.Usage() {
					require.Zero(t, u.Used, "%+v", u)
				}
			})
		})
	}
}

// A host with MaxItems sessions refuses handshakes with server_error, and requests for a session with
// status 503. The end of a session frees its place.
func TestHostRefusesSessionsOverMaxItems(t *testing.T) {
	records := make(chan a2e.AuditRecord, 10) // a record may follow its answer
	h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxItems: 1}, Audit: func(_ context.Context, r *a2e.AuditRecord) {
		records <- *r
	}}, repeating())
	one, two := open(t, h), open(t, h)
	two.send(message("ping", "p", ""))
	require.Equal(t, "pong", two.next().Type, "the session has started")
	require.True(t, *one.shake(`"demo"`).Body.(*a2e.HandshakeResponse).OK)
	for _, agent := range []*raw{two, open(t, h)} { // connected before and after the host was full
		refused := agent.shake(`"demo"`).Body.(*a2e.HandshakeResponse)
		require.False(t, *refused.OK)
		require.Equal(t, a2e.RejectServerError, refused.Reason)
	}
	for path, x := range map[string]http.Handler{"/session": a2etest.Must(a2e.NewHTTPHandler(h, nil)), "/": a2etest.Must(a2e.NewWebSocketHandler(h, nil))} {
		w := httptest.NewRecorder()
		x.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		require.Equal(t, http.StatusServiceUnavailable, w.Code, path)
		require.Equal(t, "5", w.Header().Get("Retry-After"))
	}
	one.send(message("shutdown", "s", `,"timeout":0`))
	<-one.done
	one.done <- nil
	require.True(t, *two.shake(`"demo"`).Body.(*a2e.HandshakeResponse).OK)
	codes := make(map[string]int)
	for range 6 { // one for each handshake and each refused request
		codes[(<-records).Code]++
	}
	require.Equal(t, map[string]int{"": 2, string(a2e.RejectServerError): 2, "503": 2}, codes)
	require.Empty(t, records)
}

// A WebSocket that is refused before the upgrade has one record with its status.
func TestRefusedWebSocketHasRecord(t *testing.T) {
	var records []a2e.AuditRecord
	h := a2etest.NewHost(t, &a2e.HostOptions{Audit: func(_ context.Context, r *a2e.AuditRecord) { records = append(records, *r) }})
	x := a2etest.Must(a2e.NewWebSocketHandler(h, nil))
	for _, origin := range []string{"", "https://evil.example"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		x.ServeHTTP(w, r)
		require.Len(t, records, 1, origin)
		require.Equal(t, fmt.Sprint(w.Code), records[0].Code)
		require.Equal(t, a2e.OutcomeRefused, records[0].Outcome)
		require.Equal(t, "192.0.2.1:1234", records[0].Peer)
		records = nil
	}
}

// A session that ends without a handshake has one record.
func TestSessionWithoutHandshakeHasRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := make(chan a2e.AuditRecord, 2)
		h := a2etest.NewHost(t, &a2e.HostOptions{Audit: func(_ context.Context, r *a2e.AuditRecord) { records <- *r }})
		r := openFrom(t, h, net.IPv4(192, 0, 2, 1))
		_, err := r.in.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		got := <-records
		require.Equal(t, []string{"refused", "192.0.2.1:1234", "timeout"}, []string{got.Outcome, got.Peer, got.Code})
		require.Equal(t, 10*time.Second, got.Duration)
		require.Empty(t, records)
	})
}

// A request over a bound of its principal is refused with the time to retry after, and one of another
// principal is served.
func TestRequestOverBudgetIsOverloaded(t *testing.T) {
	auth := a2e.Auth{Authenticator: a2etest.Must(a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"s3cret": {ID: "one"}, "other": {ID: "other"}}))}
	for name, limits := range map[string]a2e.Limits{
		"memory":   {MaxMemoryPerPrincipal: 4000},
		"waiting":  {QueueLimitPerPrincipal: 2, MaxConcurrentPerPrincipal: 1},
		"requests": {RequestRate: 0.01, RequestBurst: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				h := a2etest.NewHost(t, &a2e.HostOptions{Auth: auth, Limits: limits},
					answering(func(_ context.Context, _ *a2e.Call, r *recorder) (*recorder, error) {
						if r.How == "hold" {
							<-release
						}
						return &recorder{}, nil
					}))
				one, two, other := open(t, h), open(t, h), open(t, h)
				one.shake(`"demo"`)
				two.shake(`"demo"`)
				other.send(message("handshake/req", "h", `,"agent_id":"t","agent_caps":["demo"],"auth_token":"other"`))
				other.next()
				pad := `,"pad":"` + strings.Repeat("x", 1500) + `"`
				for i := range 3 {
					one.send(message("demo/ask/req", fmt.Sprint(i), `,"how":"hold"`+pad))
					synctest.Wait()
				}
				two.send(message("demo/ask/req", "1", pad))
				e := wireError(t, two.next())
				require.ErrorIs(t, e, a2e.ErrRuntime)
				require.Equal(t, a2e.ReasonOverloaded, e.Reason)
				require.True(t, e.Retryable)
				require.Contains(t, string(e.Details), `"resource":"`+name+`"`)
				require.Contains(t, string(e.Details), `"retry_after":`)
				other.send(message("demo/ask/req", "1", pad))
				require.Equal(t, "demo/ask/resp", other.next().Type)
				close(release)
				synctest.Wait()
				for _, u := range h.Usage() {
					if u.Resource != "items" {
						require.Zero(t, u.Used, "%+v", u)
					}
				}
			})
		})
	}
}

// Requests of one principal in two sessions share its places.
func TestPrincipalSharesPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")}, Limits: a2e.Limits{MaxConcurrentPerPrincipal: 1}},
			answering(func(_ context.Context, _ *a2e.Call, r *recorder) (*recorder, error) { <-release; return r, nil }))
		one, two := open(t, h), open(t, h)
		one.shake(`"demo"`)
		two.shake(`"demo"`)
		one.send(message("demo/ask/req", "1", ""))
		two.send(message("demo/ask/req", "1", ""))
		synctest.Wait()
		require.Contains(t, h.Usage(), a2e.Usage{Resource: "work", Scope: "principal", Used: 1, Limit: 1})
		release <- struct{}{}
		one.next()
		release <- struct{}{}
		two.next()
	})
}

// Bodies of a principal that have not arrived are in its budget. Another one gets status 503, and 413 if it could not
// be held alone; the session continues, as do those of other principals.
func TestArrivingBodiesAreInBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := a2e.Auth{Authenticator: a2etest.Must(a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"one": {ID: "one"}, "other": {ID: "other"}}))}
		h := a2etest.NewHost(t, &a2e.HostOptions{Auth: auth, Limits: a2e.Limits{MaxMemoryPerPrincipal: 4 << 20, MaxMemoryPerSession: 3 << 20}})
		x := a2etest.Must(a2e.NewHTTPHandler(h, nil))
		post := func(path, secret string, length int64, body io.Reader) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, path, body)
			r.ContentLength = length
			if secret != "" {
				r.Header.Set("X-Session-Id", secret)
			}
			w := httptest.NewRecorder()
			x.ServeHTTP(w, r)
			return w
		}
		open := func(token string) string {
			hello := message("handshake/req", "h", `,"agent_id":"t","agent_caps":[],"auth_token":"`+token+`"`)
			w := post("/session", "", int64(len(hello)), strings.NewReader(hello))
			require.Equal(t, http.StatusOK, w.Code)
			_, secret, _ := strings.Cut(w.Body.String(), `:"`)
			secret, _, _ = strings.Cut(secret, `"`)
			return secret
		}
		memory := func(scope string) int64 {
			for _, u := range h.Usage() {
				if u.Resource == "memory" && u.Scope == scope {
					return u.Used
				}
			}
			return -1
		}
		one, two, other := open("one"), open("one"), open("other")
		require.Zero(t, memory("all"))
		codes := make(chan int)
		body, whole := io.Pipe()
		go func() { codes <- post("/send", one, 2<<20+1, body).Code }()
		_, err := whole.Write([]byte{' '})
		require.NoError(t, err)
		require.EqualValues(t, 2<<20+1, memory("session"), "before it arrives")
		body, chunked := io.Pipe()
		go func() { codes <- post("/send", two, -1, body).Code }()
		_, err = chunked.Write([]byte{' '})
		require.NoError(t, err)
		require.Less(t, memory("principal"), int64(3<<20))
		require.NoError(t, chunked.Close())
		require.Equal(t, http.StatusOK, <-codes)
		for length, want := range map[int64]int{2<<20 + 1: http.StatusServiceUnavailable, 3<<20 + 1: http.StatusRequestEntityTooLarge, 1000: http.StatusOK} {
			w := post("/send", two, length, strings.NewReader(strings.Repeat(" ", 1000)))
			require.Equal(t, want, w.Code, length)
			require.Equal(t, want == http.StatusServiceUnavailable, w.Header().Get("Retry-After") != "")
			require.Equal(t, want != http.StatusOK, w.Header().Get("Connection") == "close")
		}
		require.Equal(t, http.StatusServiceUnavailable, post("/send", two, -1, &io.LimitedReader{R: spaces{}, N: 2<<20 + 1}).Code)
		require.Equal(t, http.StatusOK, post("/send", other, 2<<20+1, &io.LimitedReader{R: spaces{}, N: 2<<20 + 1}).Code)
		_, err = io.CopyN(whole, spaces{}, 2<<20)
		require.NoError(t, err)
		require.NoError(t, whole.Close())
		require.Equal(t, http.StatusOK, <-codes)
		require.Zero(t, memory("all"))
		require.NoError(t, h.Close())
	})
}

// The long line of a stream is in the budget of its principal before it is complete. Without memory it is refused, and
// the session continues.
func TestArrivingLinesAreInBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxMemoryPerSession: 1 << 20, MaxMessage: 2 << 20}}, repeating())
		r := open(t, h)
		r.shake(`"demo"`)
		memory := func() (used int64) {
			synctest.Wait()
			for _, u := range h.Usage() {
				if u.Resource == "memory" && u.Scope == "session" {
					used = u.Used
				}
			}
			return used
		}
		write := func(text string) {
			_, err := io.WriteString(r.rw, text)
			require.NoError(t, err)
		}
		long := func(id string) string { return strings.TrimSuffix(message("demo/ask/req", id, `,"pad":"`), "}") }
		pad := strings.Repeat("x", 400<<10)
		write(long("1") + pad)
		require.GreaterOrEqual(t, memory(), int64(400<<10))
		write("\"}\n")
		require.Equal(t, "demo/ask/resp", r.next().Type)
		require.Zero(t, memory())
		write(long("2") + pad + pad + pad)
		e := wireError(t, r.next())
		require.Equal(t, a2e.ReasonOverloaded, e.Reason)
		require.True(t, e.Retryable)
		require.Equal(t, "2", e.ReqID)
		require.Zero(t, memory())
		write("\"}\n" + long("3") + pad[:100<<10] + "\"}\n")
		require.Equal(t, "demo/ask/resp", r.next().Type)
		write(strings.Repeat(" ", 3<<20))
		require.Equal(t, a2e.ReasonOverloaded, wireError(t, r.next()).Reason)
		write("\n" + strings.Repeat("x", 3<<20))
		require.Equal(t, a2e.ReasonOverloaded, wireError(t, r.next()).Reason)
		require.Zero(t, memory(), "it is skipped")
		write("\n" + long("4") + pad)
		require.NotZero(t, memory())
		require.NoError(t, r.rw.Close())
		require.Zero(t, memory())
	})
}

// The bytes that plugins reserve for a session are bounded, and the end of the session releases them.
func TestReserveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *a2e.Session
		keep := a2e.NewRoute("demo/ask/req", func(_ context.Context, call *a2e.Call, _ *struct{}) (*struct{}, error) {
			s = call.Session
			return nil, nil
		})
		h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxMemoryPerSession: 1000}},
			&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{keep}})
		c := a2etest.Connect(t, h, nil)
		_, err := c.Call(t.Context(), "demo/ask/req", nil, nil)
		require.NoError(t, err)
		used := func(scope string) (n int64) {
			for _, u := range h.Usage() {
				if u.Resource == "plugin_memory" && u.Scope == scope {
					n = u.Used
				}
			}
			return n
		}
		require.NoError(t, s.Reserve(600))
		require.NoError(t, s.Reserve(400))
		var e *a2e.Error
		require.ErrorAs(t, s.Reserve(1), &e)
		require.Equal(t, a2e.ReasonOverloaded, e.Reason)
		require.NoError(t, s.Reserve(-300))
		require.EqualValues(t, 700, used("session"))
		require.NoError(t, s.Reserve(-3000), "no less than nothing")
		require.Zero(t, used("session"))
		require.NoError(t, s.Reserve(800))
		require.EqualValues(t, 800, used("all"))
		require.NoError(t, c.Close())
		time.Sleep(time.Minute)
		require.Zero(t, used("all"))
		require.ErrorIs(t, s.Reserve(1), a2e.ErrClosed)
		require.NoError(t, s.Reserve(-1))
	})
}

// The memory of a request includes that of its decoded lists.
func TestDecodedListsAreInBudget(t *testing.T) {
	type many struct {
		List    []string `json:"list,omitzero"`
		Objects []struct {
			Name *string `json:"name,omitzero"`
		} `json:"objects,omitzero"`
	}
	var h *a2e.Host
	var memory chan int64
	demo := a2e.NewRoute("demo/ask/req", func(context.Context, *a2e.Call, *many) (*recorder, error) {
		synctest.Wait() // the reader releases the memory of the line
		for _, u := range h.Usage() {
			if u.Resource == "memory" && u.Scope == "session" {
				memory <- u.Used
			}
		}
		return nil, nil
	})
	synctest.Test(t, func(t *testing.T) {
		memory = make(chan int64, 1)
		h = a2etest.NewHost(t, nil, &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{demo}})
		r := open(t, h)
		r.shake(`"demo"`)
		const n, text, pointer = 10_000, int64(unsafe.Sizeof("")), int64(unsafe.Sizeof(uintptr(0)))
		for members, want := range map[string]int64{
			`,"list":["x"` + strings.Repeat(`,"x"`, n-1) + `]`:                      n * (4 + text),
			`,"objects":[{}` + strings.Repeat(`,{}`, n-1) + `]`:                     n * (3 + pointer),
			`,"objects":[{"name":"a"}` + strings.Repeat(`,{"name":"a"}`, n-1) + `]`: n * (13 + pointer + text),
			`,"other":["x"` + strings.Repeat(`,"x"`, n-1) + `]`:                     n * 4,
		} {
			r.send(message("demo/ask/req", fmt.Sprint(want), members))
			got := <-memory
			require.GreaterOrEqual(t, got, want)
			require.Less(t, got, want+want/4, members[:20])
			r.next()
		}
	})
}

type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// A stranger's message costs the host neither its memory nor its parsing: it is refused at 64 KiB.
func TestLongMessageOfStrangerIsNotRead(t *testing.T) {
	var names bytes.Buffer
	names.WriteString(`{"a2e":"1.0","type":"ping","id":"i","ts":1`)
	for i := 0; names.Len() < 16<<20; i++ {
		fmt.Fprintf(&names, `,"%x":1`, i)
	}
	names.WriteString("}\n")
	h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")}}, repeating())
	agent, host := net.Pipe() // without buffers
	r := serveRaw(t, h, agent, host)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = agent.Write(names.Bytes())
	}()
	e := wireError(t, r.next())
	<-written
	runtime.ReadMemStats(&after)
	require.Equal(t, a2e.ReasonTooLarge, e.Reason)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "bytes allocated")
	require.True(t, *r.shake(`"demo"`).Body.(*a2e.HandshakeResponse).OK)
	r.send(message("demo/ask/req", "1", `,"pad":"`+strings.Repeat("x", 1<<20)+`"`))
	require.Equal(t, "demo/ask/resp", r.next().Type, "an agent may send long messages")

	x := a2etest.Must(a2e.NewHTTPHandler(h, nil))
	w := httptest.NewRecorder()
	x.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/session", nil))
	post := httptest.NewRequest(http.MethodPost, "/send", &names)
	post.Header.Set("X-Session-Id", w.Body.String()[len(`{"session_id":"`):w.Body.Len()-2])
	w = httptest.NewRecorder()
	x.ServeHTTP(w, post)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
	require.NoError(t, h.Close())
}
