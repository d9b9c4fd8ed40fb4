// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/natsroute"
)

func TestMain(m *testing.M) {
	if child() || runServer() {
		return
	}
	goleak.VerifyTestMain(m)
}

const manifest = `{"contracts":[
	{"name":"math/add","parameters":[{"name":"a","type":"integer","required":true},{"name":"b","type":"integer","required":true}]},
	{"name":"once","parameters":[{"name":"key","type":"string","required":true}]},
	{"name":"size","parameters":[{"name":"text","type":"string","required":true}]},
	{"name":"echo","parameters":[{"name":"text","type":"string","required":true}]},
	{"name":"fail"},
	{"name":"hang","timeout_ms":60000},
	{"name":"count","streaming":true,"timeout_ms":60000,"parameters":[{"name":"n","type":"integer","required":true}]}]}`

type addIn struct {
	A int64 `json:"a"`
	B int64 `json:"b"`
}

type countIn struct {
	N int64 `json:"n"`
}

type echoIn struct {
	Text string `json:"text"`
}

// A testRuntime provides all tools and records their calls.
type testRuntime struct {
	*altar.Runtime
	hanging, cancelled, sent atomic.Int64
}

func newRuntime(id string) *testRuntime {
	rt := &testRuntime{Runtime: must(altar.NewRuntime(id, nil))}
	altar.AddTool(rt.Runtime, "math/add", func(_ context.Context, in addIn) (int64, error) { return in.A + in.B, nil })
	altar.AddTool(rt.Runtime, "echo", func(_ context.Context, in echoIn) (string, error) { return in.Text, nil })
	rt.Handle("fail", altar.HandlerFunc(func(context.Context, *altar.ToolCall) (any, error) { return nil, errors.New("disk full") }))
	rt.Handle("hang", altar.HandlerFunc(func(ctx context.Context, _ *altar.ToolCall) (any, error) {
		rt.hanging.Add(1)
		<-ctx.Done()
		rt.cancelled.Add(1)
		return nil, ctx.Err()
	}))
	altar.AddStreamTool(rt.Runtime, "count", func(_ context.Context, in countIn, out *altar.ChunkWriter) error {
		for i := range in.N {
			if err := out.Send(i); err != nil {
				return err
			}
			rt.sent.Add(1)
		}
		return nil
	})
	return rt
}

func startServer(t *testing.T) *server.Server {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	srv.Start()
	require.True(t, srv.ReadyForConnections(10*time.Second))
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	return srv
}

func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1), nats.IgnoreDiscoveredServers())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// beat is the heartbeat of tests with a silent peer.
const beat = 100 * time.Millisecond

// A host is a Host with its Cluster, as one process has them.
type host struct {
	*altar.Host
	stop func() // as the process would end
}

func startHost(t *testing.T, url, id string, opts *natsroute.Options) *host {
	t.Helper()
	nc := connect(t, url)
	r, err := natsroute.NewCluster(nc, opts)
	require.NoError(t, err)
	m, err := altar.DecodeManifest([]byte(manifest))
	require.NoError(t, err)
	h, err := altar.NewHost(m, &altar.HostOptions{ID: id, Cluster: r, Auth: altar.Auth{Authorizer: altar.AuthorizerFunc(altar.AllowAll), AllowAnonymous: true}})
	require.NoError(t, err)
	stop := sync.OnceFunc(func() {
		require.NoError(t, h.Close())
		require.NoError(t, r.Close())
	})
	t.Cleanup(stop)
	return &host{h, stop}
}

// attach connects a Runtime, and returns a function that disconnects it.
func (h *host) attach(t *testing.T, rt *altar.Runtime) (detach func()) {
	t.Helper()
	conn, err := h.Dial(&altar.Principal{ID: "service", Tenant: "acme"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = rt.Run(ctx, conn) }()
	detach = func() { cancel(); <-done }
	t.Cleanup(detach)
	return detach
}

// must returns a value that a constructor cannot refuse.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (h *host) session(t *testing.T) *altar.Session {
	t.Helper()
	c := must(altar.NewClient(func(context.Context) (altar.Conn, error) {
		return h.Dial(&altar.Principal{ID: "user", Tenant: "acme"})
	}, nil))
	t.Cleanup(func() { _ = c.Close() })
	s, err := c.CreateSession(context.Background(), nil)
	require.NoError(t, err)
	return s
}

// offered waits until the Host has n offers for a contract. It must not have Runtimes.
func (h *host) offered(t *testing.T, contract string, n int) {
	t.Helper()
	s := h.session(t)
	require.Eventually(t, func() bool {
		tools, err := s.ListTools(t.Context())
		require.NoError(t, err)
		i := slices.IndexFunc(tools, func(tool altar.ToolInfo) bool { return tool.Name == contract })
		if i < 0 {
			return n == 0
		}
		return len(tools[i].Runtimes) == n
	}, 20*time.Second, 5*time.Millisecond)
}

func TestCalls(t *testing.T) {
	srv := startServer(t)
	a, b := startHost(t, srv.ClientURL(), "host a", nil), startHost(t, srv.ClientURL(), "b.*>", nil)
	rt := newRuntime("calc")
	b.attach(t, rt.Runtime)
	a.offered(t, "math/add", 1)
	s := a.session(t)
	for i := range int64(50) {
		sum, err := altar.CallAs[int64](t.Context(), s, "math/add", addIn{i, 1}, nil)
		require.NoError(t, err)
		require.Equal(t, i+1, sum)
	}
	require.EqualValues(t, 50, b.Stats().Dispatched)

	// The error of a tool is the same as from a local Runtime.
	_, err := s.Call(t.Context(), "fail", nil, nil)
	require.ErrorIs(t, err, altar.ErrExecutionFailed)
	_, err = s.Call(t.Context(), "math/add", map[string]any{"a": "x"}, nil)
	require.ErrorIs(t, err, altar.ErrInvalidParameters)
	_, err = s.Call(t.Context(), "nothing", nil, nil)
	require.ErrorIs(t, err, altar.ErrToolNotFound)
	require.EqualValues(t, 51, b.Stats().Dispatched)
}

// Parameters and results may be longer than a message of NATS.
func TestLong(t *testing.T) {
	srv := startServer(t)
	a, b := startHost(t, srv.ClientURL(), "a", nil), startHost(t, srv.ClientURL(), "b", nil)
	rt := must(altar.NewRuntime("long", nil))
	altar.AddTool(rt, "echo", func(_ context.Context, in echoIn) (string, error) { return strings.Repeat(in.Text, 3<<20), nil })
	altar.AddTool(rt, "size", func(_ context.Context, in echoIn) (string, error) { return strconv.Itoa(len(in.Text)), nil })
	b.attach(t, rt)
	a.offered(t, "echo", 1)
	s := a.session(t)
	text, err := altar.CallAs[string](t.Context(), s, "echo", echoIn{"x"}, nil)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x", 3<<20), text)
	text, err = altar.CallAs[string](t.Context(), s, "size", echoIn{strings.Repeat("x", 3<<20)}, nil)
	require.NoError(t, err)
	require.Equal(t, "3145728", text)
}

func TestStreams(t *testing.T) {
	srv := startServer(t)
	a := startHost(t, srv.ClientURL(), "a", &natsroute.Options{MaxUnacked: 700})
	b := startHost(t, srv.ClientURL(), "b", nil)
	rt := newRuntime("counter")
	b.attach(t, rt.Runtime)
	a.offered(t, "count", 1)
	s := a.session(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			want := int64(0)
			for n, err := range altar.StreamAs[int64](t.Context(), s, "count", countIn{2000}, nil) {
				if err != nil || n != want {
					t.Errorf("got %d and error %v, want %d", n, err, want)
					return
				}
				want++
			}
			if want != 2000 {
				t.Errorf("%d chunks, want 2000", want)
			}
		})
	}
	wg.Wait()
}

// The frames in flight of a stream that is not read are bounded, and their bytes. Nothing is lost or doubled.
func TestMaxUnacked(t *testing.T) {
	for name, o := range map[string]natsroute.Options{"bytes": {MaxUnacked: 700}, "frames": {}} {
		t.Run(name, func(t *testing.T) { testMaxUnacked(t, o) })
	}
}

func testMaxUnacked(t *testing.T, o natsroute.Options) {
	srv := startServer(t)
	near, far := openStream(t, srv.ClientURL(), &o)
	var written atomic.Int64
	done := make(chan error, 1)
	go func() {
		for i := range 1000 {
			if _, err := fmt.Fprintf(near, "%08d", i); err != nil {
				done <- err
				return
			}
			written.Add(1)
		}
		done <- near.Close()
	}()
	limit := int64(64)
	if o.MaxUnacked > 0 {
		limit = int64(o.MaxUnacked+24) / 25
	}
	require.Eventually(t, func() bool { return written.Load() == limit }, time.Minute, time.Millisecond)
	time.Sleep(2 * beat)
	require.Equal(t, limit, written.Load(), "frames in flight")
	buf := make([]byte, 8)
	for i := range 1000 {
		_, err := io.ReadFull(far, buf)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%08d", i), string(buf))
	}
	_, err := far.Read(buf)
	require.Equal(t, io.EOF, err)
	require.NoError(t, <-done)
	require.NoError(t, far.Close())
}

// openStream returns both ends of a stream.
func openStream(t *testing.T, url string, o *natsroute.Options) (near, far io.ReadWriteCloser) {
	ctx, cancel := context.WithCancel(t.Context())
	a, b := must(natsroute.NewCluster(connect(t, url), o)), must(natsroute.NewCluster(connect(t, url), o))
	accepted := make(chan io.ReadWriteCloser, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = b.Join(ctx, "b", func([]string) {}, func(from string, s io.ReadWriteCloser) {
			if from == "a" {
				accepted <- s
			}
		})
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
	require.Eventually(t, func() bool {
		var err error
		near, err = a.Open(ctx, "a", "b")
		return err == nil
	}, time.Minute, time.Millisecond)
	return near, <-accepted
}

func TestCancel(t *testing.T) {
	srv := startServer(t)
	a, b := startHost(t, srv.ClientURL(), "a", nil), startHost(t, srv.ClientURL(), "b", nil)
	rt := newRuntime("hangs")
	b.attach(t, rt.Runtime)
	a.offered(t, "hang", 1)
	s := a.session(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := s.Call(ctx, "hang", nil, nil); done <- err }()
	require.Eventually(t, func() bool { return rt.hanging.Load() == 1 }, time.Minute, time.Millisecond)
	cancel()
	require.Error(t, <-done)
	require.Eventually(t, func() bool { return rt.cancelled.Load() == 1 }, time.Minute, time.Millisecond)

	// A session that ends takes its calls along.
	go func() { _, err := s.Call(t.Context(), "hang", nil, nil); done <- err }()
	require.Eventually(t, func() bool { return rt.hanging.Load() == 2 }, time.Minute, time.Millisecond)
	require.NoError(t, s.Destroy(t.Context()))
	require.Error(t, <-done)
	require.Eventually(t, func() bool { return rt.cancelled.Load() == 2 }, time.Minute, time.Millisecond)
}

// Offers come and go with Runtimes and Hosts, and a call goes where one is left.
func TestOffers(t *testing.T) {
	srv := startServer(t)
	a, b, c := startHost(t, srv.ClientURL(), "a", nil), startHost(t, srv.ClientURL(), "b", nil), startHost(t, srv.ClientURL(), "c", nil)
	detach := b.attach(t, newRuntime("rb").Runtime)
	c.attach(t, newRuntime("rc").Runtime)
	a.offered(t, "math/add", 2)
	s := a.session(t)
	add := func() {
		t.Helper()
		sum, err := altar.CallAs[int64](t.Context(), s, "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		require.EqualValues(t, 3, sum)
	}
	for range 10 {
		add()
	}
	require.EqualValues(t, 5, b.Stats().Dispatched)
	require.EqualValues(t, 5, c.Stats().Dispatched)
	detach()
	a.offered(t, "math/add", 1)
	add()
	c.stop()
	a.offered(t, "math/add", 0)
	_, err := s.Call(t.Context(), "math/add", addIn{1, 2}, nil)
	require.ErrorIs(t, err, altar.ReasonRuntimeDown)
	b.attach(t, newRuntime("rb").Runtime)
	a.offered(t, "math/add", 1)
	add()

	// A later Host receives the existing offers.
	d := startHost(t, srv.ClientURL(), "d", nil)
	d.offered(t, "math/add", 1)
}

// Two processes with the ID of one Host do not reach each other, and both log it.
func TestEqualIDsAreLogged(t *testing.T) {
	srv := startServer(t)
	var logged [2]duplicates
	for i := range logged {
		logged[i].Handler = slog.DiscardHandler
		startHost(t, srv.ClientURL(), "a", &natsroute.Options{Logger: slog.New(&logged[i]), Heartbeat: beat})
	}
	startHost(t, srv.ClientURL(), "b", nil)
	for i := range logged {
		require.Eventually(t, func() bool { return logged[i].n.Load() > 0 }, 20*time.Second, time.Millisecond)
	}
	require.EqualValues(t, 1, logged[0].n.Load())
}

// Duplicates counts the records of a log about another process with the ID of a Host.
type duplicates struct {
	slog.Handler
	n atomic.Int64
}

func (l *duplicates) Enabled(context.Context, slog.Level) bool { return true }

func (l *duplicates) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "id of this host in use by another process") {
		l.n.Add(1)
	}
	return nil
}

// A cutter is a proxy in front of the server that cuts connections.
type cutter struct {
	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{l: l}
	c.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, in, out)
			c.mu.Unlock()
			for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
				c.wg.Go(func() {
					buf := make([]byte, 4096)
					for {
						n, err := from.Read(buf)
						if _, wrong := to.Write(buf[:n]); wrong != nil || err != nil {
							break
						}
					}
					_, _ = to.Close(), from.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// After a lost connection on either side a stream continues at the next frame, and the tool has run
// once.
func TestCut(t *testing.T) {
	srv := startServer(t)
	for name, side := range map[string]int{"Caller": 0, "Runner": 1} {
		t.Run(name, func(t *testing.T) {
			cut := newCutter(t, srv.Addr().String())
			urls := []string{srv.ClientURL(), srv.ClientURL()}
			urls[side] = "nats://" + cut.l.Addr().String()
			o := &natsroute.Options{SubjectPrefix: name}
			a, b := startHost(t, urls[0], "a", o), startHost(t, urls[1], "b", o)
			var runs atomic.Int64
			rt := must(altar.NewRuntime("slow", nil))
			altar.AddStreamTool(rt, "count", func(ctx context.Context, in countIn, out *altar.ChunkWriter) error {
				runs.Add(1)
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for i := range in.N {
					select {
					case <-tick.C:
					case <-ctx.Done():
						return ctx.Err()
					}
					if err := out.Send(i); err != nil {
						return err
					}
				}
				return nil
			})
			b.attach(t, rt)
			a.offered(t, "count", 1)
			s := a.session(t)
			want, cuts := int64(0), 0
			for n, err := range altar.StreamAs[int64](t.Context(), s, "count", countIn{600}, nil) {
				require.NoError(t, err)
				require.Equal(t, want, n)
				if want++; want%150 == 0 && cuts < 3 {
					cuts++
					cut.cut()
				}
			}
			require.EqualValues(t, 600, want)
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

// A staller blocks at a warning, with all following log calls, until it is released.
type staller struct {
	slog.Handler
	stalled, goOn chan struct{}
	silent        atomic.Int64 // hosts that were given up
}

func (s *staller) Enabled(context.Context, slog.Level) bool { return true }

func (s *staller) Handle(_ context.Context, r slog.Record) error {
	switch {
	case r.Level == slog.LevelWarn:
		s.stalled <- struct{}{}
		<-s.goOn
	case strings.Contains(r.Message, "silent"):
		s.silent.Add(1)
	}
	return nil
}

// A process that was suspended does not treat its peers as failed before it has read their queued
// heartbeats.
func TestStalled(t *testing.T) {
	srv := startServer(t)
	st := &staller{stalled: make(chan struct{}), goOn: make(chan struct{})}
	a := startHost(t, srv.ClientURL(), "a", &natsroute.Options{Heartbeat: beat, Logger: slog.New(st)})
	b := startHost(t, srv.ClientURL(), "b", &natsroute.Options{Heartbeat: beat})
	b.attach(t, newRuntime("rb").Runtime)
	a.offered(t, "math/add", 1)
	nc := connect(t, srv.ClientURL())
	signs := make(chan *nats.Msg, 1024)
	sub, err := nc.ChanSubscribe("altar.hosts", signs)
	require.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	await := func(n int) {
		for n > 0 {
			if m := <-signs; strings.Contains(string(m.Data), `"host":"b"`) {
				n--
			}
		}
	}
	for range 5 {
		require.NoError(t, nc.Publish("altar.hosts", []byte("no announcement")))
		<-st.stalled
		await(6)
		st.goOn <- struct{}{}
		await(2)
		a.offered(t, "math/add", 1)
	}
	require.Zero(t, st.silent.Load())
}

func TestBadMessages(t *testing.T) {
	srv := startServer(t)
	a, b := startHost(t, srv.ClientURL(), "a", nil), startHost(t, srv.ClientURL(), "b", nil)
	b.attach(t, newRuntime("calc").Runtime)
	a.offered(t, "math/add", 1)
	nc := connect(t, srv.ClientURL())
	for _, subject := range []string{"altar.hosts", "altar.hello", "altar.open.Yg"} {
		for _, body := range []string{"", "{", "null", "[]", `{"host":5}`, `{"host":"a","host":"b"}`, `{"host":"x","subject":""}`, `{"host":"x","subject":"nowhere"}`, strings.Repeat("[", 1000)} {
			require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject, Reply: nc.NewInbox(), Data: []byte(body)}))
		}
	}
	require.NoError(t, nc.Flush())
	sum, err := altar.CallAs[int64](t.Context(), a.session(t), "math/add", addIn{1, 2}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 3, sum)
	_, err = natsroute.NewCluster(nil, nil)
	require.ErrorContains(t, err, "no connection")
	_, err = natsroute.NewCluster(nc, &natsroute.Options{SubjectPrefix: strings.Repeat("a", 65)})
	require.Error(t, err)
	_, err = natsroute.NewCluster(nc, &natsroute.Options{SubjectPrefix: "a.b"})
	require.Error(t, err)
}

// A stream whose other end has closed is closed at once, though frames of it were never read.
func TestCloseAfterClose(t *testing.T) {
	srv := startServer(t)
	near, far := openStream(t, srv.ClientURL(), &natsroute.Options{Heartbeat: time.Minute})
	_, err := near.Write([]byte("unread"))
	require.NoError(t, err)
	closed := make(chan error, 2)
	go func() { closed <- near.Close() }()
	require.NoError(t, far.Close())
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("Close waits for the end that has closed")
	}
}

// Each positive Heartbeat works.
func TestHeartbeatOfAnyLength(t *testing.T) {
	srv := startServer(t)
	for _, interval := range []time.Duration{1, 3, math.MaxInt64} {
		o := &natsroute.Options{Heartbeat: interval}
		a, b := must(natsroute.NewCluster(connect(t, srv.ClientURL()), o)), must(natsroute.NewCluster(connect(t, srv.ClientURL()), o))
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = b.Join(t.Context(), "b", func([]string) {}, func(_ string, s io.ReadWriteCloser) { _ = s.Close() })
		})
		require.Eventually(t, func() bool {
			near, err := a.Open(t.Context(), "a", "b")
			return err == nil && near.Close() == nil
		}, 30*time.Second, time.Millisecond, "%v", interval)
		require.NoError(t, b.Close())
		wg.Wait()
		require.NoError(t, a.Close())
	}
}

// Clusters with other prefixes do not meet.
func TestPrefixSeparatesClusters(t *testing.T) {
	srv := startServer(t)
	a := must(natsroute.NewCluster(connect(t, srv.ClientURL()), &natsroute.Options{SubjectPrefix: "one"}))
	b := must(natsroute.NewCluster(connect(t, srv.ClientURL()), &natsroute.Options{SubjectPrefix: "two"}))
	c := must(natsroute.NewCluster(connect(t, srv.ClientURL()), &natsroute.Options{SubjectPrefix: "one"}))
	var wg sync.WaitGroup
	for id, r := range map[string]*natsroute.Cluster{"a": a, "b": b} {
		wg.Go(func() {
			_ = r.Join(t.Context(), id, func(ids []string) { t.Errorf("%s knows %q", id, ids) }, func(_ string, s io.ReadWriteCloser) { _ = s.Close() })
		})
	}
	require.Eventually(t, func() bool {
		s, err := c.Open(t.Context(), "c", "a")
		return err == nil && s.Close() == nil
	}, 30*time.Second, time.Millisecond)
	_, err := b.Open(t.Context(), "b", "a")
	require.ErrorIs(t, err, nats.ErrNoResponders)
	for _, r := range []*natsroute.Cluster{a, b, c} {
		require.NoError(t, r.Close())
	}
	wg.Wait()
}

// Close ends a request to a Host that does not answer, and no call begins afterwards.
func TestCloseEndsOpen(t *testing.T) {
	srv := startServer(t)
	requests := make(chan *nats.Msg, 1)
	_, err := connect(t, srv.ClientURL()).ChanSubscribe("altar.open.*", requests)
	require.NoError(t, err)
	a := must(natsroute.NewCluster(connect(t, srv.ClientURL()), &natsroute.Options{Heartbeat: time.Hour}))
	opened := make(chan error, 1)
	require.Eventually(t, func() bool { // until the subscription is known
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.Open(ctx, "a", "silent")
		return errors.Is(err, context.DeadlineExceeded)
	}, 30*time.Second, time.Millisecond)
	<-requests
	go func() {
		_, err := a.Open(t.Context(), "a", "silent")
		opened <- err
	}()
	<-requests
	require.NoError(t, a.Close())
	require.Error(t, <-opened)
	_, err = a.Open(t.Context(), "a", "silent")
	require.ErrorContains(t, err, "closed")
	require.ErrorContains(t, a.Join(t.Context(), "a", nil, nil), "closed")
}
