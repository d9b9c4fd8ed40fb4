// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/race"
)

// A proof is a row of a table of DECISIONS.md: what it is about, the answer, and the vectors and tests that show it.
type proof struct {
	subject, answer string
	vectors, tests  []string
}

var (
	vectorForm = regexp.MustCompile(`accp-[a-z-]+-\d{3}`)
	testForm   = regexp.MustCompile(`\b(Test|Fuzz)\w+`)
	codeForm   = regexp.MustCompile(`\b(E\d{4}|\d{3,4})\b`)
)

// proofs returns the rows of the table of a section of DECISIONS.md.
func proofs(t *testing.T, section string) (list []proof) {
	text, err := os.ReadFile("DECISIONS.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## "+section+"\n")
	require.True(t, ok, section)
	rest, _, _ = strings.Cut(rest, "\n## ")
	for line := range strings.Lines(rest) {
		cells := strings.Split(strings.Trim(line, "|\n"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 || strings.TrimSpace(cells[1]) == "answer" {
			continue
		}
		list = append(list, proof{cells[0], cells[1], vectorForm.FindAllString(cells[2], -1), testForm.FindAllString(cells[2], -1)})
	}
	return list
}

// wantedByVectors returns the JSON text of the wanted result of each vector.
func wantedByVectors(t *testing.T) map[string]string {
	wants := map[string]string{}
	files, err := filepath.Glob("../conformance/testdata/accp/*.json")
	require.NoError(t, err)
	for _, file := range files {
		var suite struct {
			Cases []struct {
				ID      string
				Want    json.RawMessage
				WantErr string
			}
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &suite), file)
		for _, c := range suite.Cases {
			wants[c.ID] = string(c.Want) + c.WantErr
		}
	}
	return wants
}

// testSources returns the source text of each test of the folders.
func testSources(t *testing.T, folders ...string) map[string]string {
	sources := map[string]string{}
	for _, folder := range folders {
		files, err := filepath.Glob(folder + "/*_test.go")
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for part := range strings.SplitSeq(string(text), "\nfunc ") {
				if name := testForm.FindString(part); name != "" && strings.HasPrefix(part, name) {
					sources[name] = part
				}
			}
		}
	}
	return sources
}

// Each bad input has vectors that want the codes of its row, or tests. A row without a vector for a code has a test.
func TestBadInputHasVectors(t *testing.T) {
	wants, sources := wantedByVectors(t), testSources(t, ".", "internal/tier", "../internal/wsconn")
	rows := proofs(t, "Bad input")
	require.Len(t, rows, 31)
	for _, row := range rows {
		require.NotEmpty(t, append(row.vectors, row.tests...), row.subject)
		all := ""
		for _, id := range row.vectors {
			want, ok := wants[id]
			require.True(t, ok, "%s: %s", row.subject, id)
			all += want
		}
		for _, name := range row.tests {
			require.Contains(t, sources, name, row.subject)
		}
		codes := codeForm.FindAllString(row.answer, -1)
		require.NotEmpty(t, codes, row.subject)
		for _, code := range codes {
			require.True(t, strings.Contains(all, code) || len(row.tests) > 0, "%s: no vector wants %s", row.subject, code)
		}
	}
}

// Each bound of sessions has a test that reaches it.
func TestBoundsHaveTests(t *testing.T) {
	sources := testSources(t, ".", "internal/tier", "internal/record", "../internal/budget")
	rows := proofs(t, "Bounds")
	require.Len(t, rows, 14)
	for _, row := range rows {
		require.NotEmpty(t, row.tests, row.subject)
		for _, name := range row.tests {
			require.Contains(t, sources, name, row.subject)
		}
	}
}

// The defaults of the bounds of a server are those of ACCP-D55 and ACCP-D76.
func TestDefaultBounds(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	s := newUserServer(t, accp.ServerOptions{})
	require.Equal(t, http.StatusOK, s.post("a", "s", "req:echo{}").Code)
	got := map[string]int64{}
	for _, name := range []string{"items all", "items principal", "memory session", "memory principal", "memory all", "outcomes all"} {
		resource, scope, _ := strings.Cut(name, " ")
		_, got[name] = s.used(resource, scope)
	}
	require.Equal(t, map[string]int64{"items all": 10_000, "items principal": 1_000, "memory session": 16 << 20,
		"memory principal": 64 << 20, "memory all": 256 << 20, "outcomes all": 16 << 20}, got)

	debug.SetMemoryLimit(300 << 20)
	_, limit := newUserServer(t, accp.ServerOptions{}).used("memory", "all")
	require.EqualValues(t, 100<<20, limit)
}

// 10,000 requests with new session ids lock out no caller: the principal keeps the 1,000 sessions that it used last, and
// the session of an honest one stays (ACCP-D55).
func TestNewSessionsLockOutNoCaller(t *testing.T) {
	s := newUserServer(t, accp.ServerOptions{})
	const n = 10_000
	for i := range n {
		require.Equal(t, http.StatusNoContent, s.postFrame("hostile", frame("ack:x{}", 1, fmt.Sprint("sid:s", i))).Code, i)
		if i%100 == 0 {
			require.Equal(t, http.StatusOK, s.post("honest", "h", "req:echo{}").Code, "its numbers continue")
		}
	}
	used, _ := s.used("items", "all")
	require.EqualValues(t, 1_001, used)
	for i, want := range map[int]bool{0: false, n - 1_001: false, n - 1_000: true, n - 1: true} {
		_, ok := s.Session(fmt.Sprint("s", i))
		require.Equal(t, want, ok, i)
	}
}

// A server removes the longest idle session above 10,000 sessions in all. Callers without authentication, of all
// addresses together, have half of that.
func TestSessionsOfManyPrincipals(t *testing.T) {
	s := newUserServer(t, accp.ServerOptions{})
	for i := range 10_100 {
		require.Equal(t, http.StatusNoContent, s.postFrame(fmt.Sprint("user", i%100), frame("ack:x{}", 1, fmt.Sprint("sid:s", i))).Code, i)
	}
	used, limit := s.used("items", "all")
	require.EqualValues(t, 10_000, limit)
	require.InDelta(t, limit, used, 150)
	_, ok := s.Session("s0")
	require.False(t, ok)

	open, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	defer open.Close()
	for i := range 5_100 {
		r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(frame("ack:x{}", 1, fmt.Sprint("sid:s", i)))))
		r.Header.Set("Content-Type", accp.MediaType)
		r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", i%200)
		w := httptest.NewRecorder()
		open.ServeHTTP(w, r)
		require.Equal(t, http.StatusNoContent, w.Code, i)
	}
	used, _ = (&userServer{Server: open}).used("items", "all")
	require.InDelta(t, 5_000, used, 100)
}

// While frames of one principal reach a bound of its session, another principal is served (ACCP-D48, ACCP-D76).
func TestHonestCallerIsServedAtEachBound(t *testing.T) {
	list := "[" + strings.Repeat("1,", 3999) + "1]"
	long := strings.Repeat("x", 70_000)
	for name, attack := range map[string]struct {
		frames int
		body   func(i int) string
		more   func(i int) []string
		want   string // in an answer
	}{
		"state": {frames: 30, body: func(i int) string { return fmt.Sprintf("sync:state{delta:{k%d:%s}|v:%d}", i, list, i) }, want: "code:E2003"},
		"parts": {frames: 64, body: func(i int) string { return fmt.Sprintf("req:x{k%d:%s}", i, long) },
			more: func(i int) []string { return []string{"cid:c", fmt.Sprintf("part:%d/64", i)} }, want: "code:E2003"},
		"checkpoints": {frames: 600, body: func(i int) string { return fmt.Sprintf("done:x{k:%d}", i) }, want: "ack:x"},
		"memory":      {frames: 400, body: func(i int) string { return fmt.Sprintf("wait:x{k:%s}", long) }, want: "ack:x"},
		"chains": {frames: 2000, body: func(i int) string { return "cancel:x{}" },
			more: func(i int) []string { return []string{fmt.Sprint("cid:c", i)} }, want: "ack:x"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newUserServer(t, accp.ServerOptions{Session: accp.SessionOptions{FrameLimits: accp.FrameLimits{MaxFrame: 80_000}}})
			all := ""
			for i := 1; i <= attack.frames; i++ {
				more := []string{"sid:s"}
				if attack.more != nil {
					more = append(attack.more(i), more...)
				}
				number := int64(2*i - 1) // after the answer
				if name == "parts" {
					number = int64(i) // after the part before
				}
				w := s.postFrame("hostile", frame(attack.body(i), number, more...))
				all += w.Body.String()
				require.NotContains(t, w.Body.String(), "code:E9999")
				if i%10 == 0 {
					require.Equal(t, http.StatusOK, s.post("honest", "h", "req:echo{}").Code, i)
				}
			}
			require.Contains(t, all, attack.want)
			for _, scope := range []string{"session", "principal", "all"} {
				used, limit := s.used("memory", scope)
				require.LessOrEqual(t, used, limit, scope)
			}
			if session, _ := s.Session("s"); name == "checkpoints" {
				require.Len(t, session.Checkpoints(), 256)
			}
		})
	}
}

// The outcomes of one principal replace its own older ones only, and none refuses new work (ACCP-D76).
func TestOutcomesAreBounded(t *testing.T) {
	s := newUserServer(t, accp.ServerOptions{})
	answer := func(user, sid string, seq int64, more ...string) string {
		return s.postFrame(user, frame("req:echo{k:"+strings.Repeat("x", 50_000)+"}", seq, append(more, "sid:"+sid)...)).Body.String()
	}
	require.Contains(t, answer("honest", "h", 1, "cid:c"), "done:echo")
	for i := range 120 {
		require.Contains(t, answer("hostile", fmt.Sprint("s", i), 1, "cid:c"), "done:echo", i)
		used, limit := s.used("outcomes", "all")
		require.LessOrEqual(t, used, limit)
	}
	s.Handle(accp.IntentReq, "other", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { return nil }))
	require.Contains(t, answer("honest", "h", 3, "cid:c", "try:2"), "done:echo", "answered by its outcome")
	require.Contains(t, answer("hostile", "s0", 3, "cid:c", "try:2"), "code:E3002", "only the mark is left")
	require.Contains(t, answer("hostile", "s119", 3, "cid:c", "try:2"), "done:echo")
}

// The frame of a request that waits for a handler, and the answer of a running one, are within the memory of their
// caller.
func TestRequestsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxConcurrent: 1}, Session: accp.SessionOptions{Budget: accp.BudgetOff}})
		proceed := make(chan struct{})
		s.Handle(accp.IntentReq, "list", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
			for i := range int64(10) {
				if err := w.Send(chunk(m.Op, i, 10, accp.String(strings.Repeat("x", 50_000)))); err != nil {
					return err
				}
			}
			<-proceed
			return nil
		}))
		used := func() int64 {
			n, _ := s.used("memory", "all")
			return n
		}
		var requests sync.WaitGroup
		post := func(sid, body string) {
			requests.Go(func() { s.postFrame("payer", frame(body, 1, "sid:"+sid, "cid:c")) })
			synctest.Wait()
		}
		post("a", "req:list{}")
		running := used()
		post("b", "req:echo{k:["+strings.Repeat("1,", 4000)+"1]}")
		assert.Greater(t, used()-running, int64(4000*64), "the frame")
		close(proceed)
		requests.Wait()
		assert.Greater(t, running-used(), int64(500_000), "the answer")
	})
}

// An answer for which its caller has no memory is sent. Only the mark is kept, and a client that follows it is refused.
func TestAnswersWithoutMemoryAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxMemoryPerPrincipal: 1 << 20}, Session: accp.SessionOptions{Budget: accp.BudgetOff}})
		proceed := make(chan struct{})
		s.Handle(accp.IntentReq, "list", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
			for i := range int64(18) {
				if err := w.Send(chunk(m.Op, i, 18, accp.String(strings.Repeat("x", 50_000)))); err != nil {
					return err
				}
				if i == 0 {
					<-proceed
				}
			}
			return nil
		}))
		answers := make(chan string, 2)
		post := func(seq int64, more ...string) {
			answers <- s.postFrame("payer", frame("req:list{}", seq, append(more, "sid:s", "cid:c")...)).Body.String()
		}
		go post(1)
		synctest.Wait()
		go post(3, "try:2")
		synctest.Wait()
		close(proceed)
		all := []string{<-answers, <-answers}
		slices.SortFunc(all, func(a, b string) int { return strings.Count(b, "stream:list") - strings.Count(a, "stream:list") })
		require.Equal(t, 18, strings.Count(all[0], "stream:list"))
		require.Contains(t, all[1], "code:E3002")
		post(3+int64(strings.Count(all[0]+all[1], "\n")), "try:2")
		require.Contains(t, <-answers, "code:E3002")
	})
}

// A peer with other content under the version of a schema is refused at once, with the name of the schema.
func TestSchemasThatDifferEndGreetings(t *testing.T) {
	registry := func(field string) *accp.Registry {
		r := accp.NewRegistry()
		require.NoError(t, r.Register(accp.Schema{Name: "order", Code: "OR", Version: 1, Fields: []string{field}}))
		return r
	}
	for scheme, path := range map[string]string{"http": accp.FramesPath, "ws": accp.WebSocketPath} {
		synctest.Test(t, func(t *testing.T) {
			s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Session: accp.SessionOptions{Registry: registry("item")}})
			require.NoError(t, err)
			p := newPipe()
			stop := p.serve(s)
			c, err := accp.NewClient(scheme+"://localhost"+path, "client", &accp.ClientOptions{HTTPClient: p.client(), Session: accp.SessionOptions{Registry: registry("thing")}})
			require.NoError(t, err)
			start := time.Now()
			_, err = c.Call(t.Context(), msg("qry", "x"), nil)
			require.ErrorIs(t, err, accp.ErrPolicyDenied)
			require.ErrorContains(t, err, "schema OR: other content under version 1")
			require.Less(t, time.Since(start), time.Second)
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
			stop()
		})
	}
}

// A client that lacks the schema of an answer greets before its next call.
func TestClientLearnsSchemasOfAnswers(t *testing.T) {
	for scheme, path := range map[string]string{"http": accp.FramesPath, "ws": accp.WebSocketPath} {
		synctest.Test(t, func(t *testing.T) {
			s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
			require.NoError(t, err)
			s.Handle(accp.IntentReq, "order", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
				err := w.Session().Registry().Register(accp.Schema{Name: "order", Code: "OR", Version: 1, Fields: []string{"item"}})
				require.NoError(t, err)
				return w.SendResult(accp.Params{text("item", "pen"), text("schema", "OR")})
			}))
			p := newPipe()
			stop := p.serve(s)
			c, err := accp.NewClient(scheme+"://localhost"+path, "client", &accp.ClientOptions{HTTPClient: p.client()})
			require.NoError(t, err)
			_, err = c.Call(t.Context(), msg("req", "order"), nil)
			require.ErrorIs(t, err, accp.ErrUnknownSchema)
			for range 2 {
				answer, err := c.Call(t.Context(), msg("req", "order"), nil)
				require.NoError(t, err, scheme)
				require.Equal(t, "pen", answer.Params.Text("item"))
			}
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
			stop()
		})
	}
}

// A call whose context has ended is no failure of the peer.
func TestEndedContextIsNoFailureOfThePeer(t *testing.T) {
	d := newDesk(t, nil)
	for name, c := range map[string]caller{"http": d.http(t, nil), "websocket": d.dial(t, nil)} {
		_, err := c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			_, err = c.Call(ctx, msg("req", "echo"), nil)
			require.ErrorIs(t, err, context.Canceled, name)
			require.ErrorIs(t, err, accp.ErrTimeout, name)
			require.NotErrorIs(t, err, accp.ErrUnreachable, name)
			require.NotContains(t, err.Error(), "full", name)
			var failed *accp.CallError
			require.ErrorAs(t, err, &failed)
			require.False(t, failed.MayHaveRun, "nothing is sent")
		}
		_, err = c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err, name)
	}
}

// A heldWriter is the response to a peer that reads nothing until the channel is closed.
type heldWriter struct {
	*httptest.ResponseRecorder
	isFree <-chan struct{}
}

func (w *heldWriter) Write(p []byte) (int, error) {
	<-w.isFree
	return w.ResponseRecorder.Write(p)
}

// newLongServer returns a server with a handler of list that answers by 14 chunks of 50,000 bytes. The handler waits for
// proceed after each one.
func newLongServer(t *testing.T, proceed <-chan struct{}) (s *userServer, repeat func(seq int64, isFree <-chan struct{}) *heldWriter) {
	s = newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxMemoryPerPrincipal: 3 << 20},
		Session: accp.SessionOptions{Budget: accp.BudgetOff, MaxCheckpoints: 1}})
	s.Handle(accp.IntentReq, "list", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		for i := range int64(14) {
			if err := w.Send(chunk(m.Op, i, 14, accp.String(strings.Repeat("x", 50_000)))); err != nil {
				return err
			}
			<-proceed
		}
		return nil
	}))
	repeat = func(seq int64, isFree <-chan struct{}) *heldWriter {
		text := string(frame("req:list{}", seq, "sid:s", "cid:c", "try:2"))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, accp.FramesPath, strings.NewReader(text))
		r.Header.Set("Content-Type", accp.MediaType)
		r.Header.Set("User", "reader")
		w := &heldWriter{httptest.NewRecorder(), isFree}
		s.ServeHTTP(w, r)
		return w
	}
	return s, repeat
}

// A recorded outcome counts for its caller while it is sent, so that slow readers of many outcomes hold no memory outside
// of the budget.
func TestReplaysAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed, isFree := make(chan struct{}), make(chan struct{})
		close(proceed)
		s, repeat := newLongServer(t, proceed)
		first := s.postFrame("reader", frame("req:list{}", 1, "sid:s", "cid:c")).Body.String()
		require.Equal(t, 14, strings.Count(first, "stream:list"))
		answers := make(chan string, 8)
		for i := range int64(8) {
			go func() { answers <- repeat(16+2*i, isFree).Body.String() }()
			synctest.Wait()
		}
		close(isFree)
		var whole, refused int
		for range 8 {
			switch answer := <-answers; {
			case strings.Count(answer, "stream:list") == 14:
				whole++
			case strings.Contains(answer, "code:E2003"):
				refused++
			}
		}
		require.Equal(t, []int{3, 5}, []int{whole, refused})
		require.Equal(t, 14, strings.Count(repeat(32+13*int64(whole), isFree).Body.String(), "stream:list"), "the outcome is kept")
	})
}

// A long answer counts for its caller while it is sent.
func TestLongAnswersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{})
		s.Handle(accp.IntentReq, "page", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			return w.SendResult(accp.Params{text("text", strings.Repeat("x", 500_000))})
		}))
		isFree, done := make(chan struct{}), make(chan struct{})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, accp.FramesPath, strings.NewReader(string(frame("req:page{}", 1))))
		r.Header.Set("Content-Type", accp.MediaType)
		r.Header.Set("User", "reader")
		w := &heldWriter{httptest.NewRecorder(), isFree}
		go func() {
			defer close(done)
			s.ServeHTTP(w, r)
		}()
		synctest.Wait()
		used, _ := s.used("memory", "principal")
		require.Greater(t, used, int64(500_000))
		close(isFree)
		<-done
		require.Greater(t, w.Body.Len(), 500_000)
		used, _ = s.used("memory", "principal")
		require.Less(t, used, int64(500_000))
	})
}

// The messages of a handler count for its caller as long as a repeat reads them, also after the end of the handler.
func TestFollowedMessagesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed, isFree, done := make(chan struct{}), make(chan struct{}), make(chan string, 2)
		s, repeat := newLongServer(t, proceed)
		go func() { done <- s.postFrame("reader", frame("req:list{}", 1, "sid:s", "cid:c")).Body.String() }()
		synctest.Wait()
		go func() { done <- repeat(3, isFree).Body.String() }()
		synctest.Wait()
		close(proceed)
		require.Equal(t, 14, strings.Count(<-done, "stream:list"))
		synctest.Wait()
		used, _ := s.used("memory", "principal")
		require.Greater(t, used, int64(14*50_000))
		close(isFree)
		require.Equal(t, 14, strings.Count(<-done, "stream:list"))
		used, _ = s.used("memory", "principal")
		require.Less(t, used, int64(14*50_000))
	})
}

// A connection has at most 1,024 open calls. One more is refused before it takes a number, and the others end with their
// answers (ACCP-D76).
func TestOpenCallsOfAConnectionAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe()
		release := make(chan struct{})
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true},
			Limits: accp.Limits{MaxConcurrentPerSession: -1, MaxConcurrentPerPrincipal: -1, MaxConcurrent: -1}})
		require.NoError(t, err)
		s.Handle(accp.IntentReq, "wait", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			<-release
			return nil
		}))
		stop := p.serve(s)
		c, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client()})
		require.NoError(t, err)
		var work sync.WaitGroup
		errs := make(chan error, 1024)
		for range 1024 {
			work.Go(func() {
				_, err := c.Call(t.Context(), msg("req", "wait"), nil)
				errs <- err
			})
		}
		synctest.Wait()
		require.Empty(t, errs)
		sent := c.Session().Stats().Sent
		_, err = c.Call(t.Context(), msg("req", "wait"), nil)
		require.ErrorIs(t, err, accp.ErrBudgetExceeded)
		require.Equal(t, sent, c.Session().Stats().Sent)
		close(release)
		work.Wait()
		for range 1024 {
			require.NoError(t, <-errs)
		}
		_, err = c.Call(t.Context(), msg("req", "wait"), nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		stop()
	})
}

// A frame above the limit closes the connection by 1009, and the server serves the next one (ACCP-D56).
func TestServerClosesConnectionOfLargeFrame(t *testing.T) {
	d := newDesk(t, nil)
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(d.ts.URL, "http")+accp.WebSocketPath, &websocket.DialOptions{HTTPClient: d.client})
	require.NoError(t, err)
	defer func() { _ = ws.CloseNow() }()
	require.NoError(t, ws.Write(t.Context(), websocket.MessageText, frame("sync:registry{hash:"+accp.NewRegistry().Hash()[:12]+"|v:1}", 1)))
	_, _, err = ws.Read(t.Context())
	require.NoError(t, err)
	_ = ws.Write(t.Context(), websocket.MessageText, frame("req:echo{k:"+strings.Repeat("x", 70_000)+"}", 3))
	_, _, err = ws.Read(t.Context())
	require.Equal(t, websocket.StatusMessageTooBig, websocket.CloseStatus(err), "%v", err)
	_, err = d.dial(t, nil).Call(t.Context(), msg("req", "echo"), nil)
	require.NoError(t, err)
}

// fastest returns the shortest time of n runs of f.
func fastest(n int, f func()) (best time.Duration) {
	for i := range n {
		began := time.Now()
		f()
		if took := time.Since(began); i == 0 || took < best {
			best = took
		}
	}
	return best
}

// Four times the bytes of a frame take at most 6.25 times the time, 2.5 for each doubling, whatever they are. With the
// square of its length it would be 16.
func TestDecodingTakesLinearTime(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes time")
	}
	const n = 12 << 10
	short, long := hostile(n), hostile(4*n)
	for _, name := range slices.Sorted(maps.Keys(short)) {
		decode := func(text string) time.Duration {
			frame, c := []byte(text), accp.Codec{}
			return fastest(20, func() { _, _ = c.Decode(frame) })
		}
		var one, four time.Duration
		for range 10 { // other load may come during one of them
			one, four = decode(short[name]), decode(long[name])
			if four <= 25*one/4+20*time.Microsecond {
				break
			}
		}
		require.LessOrEqual(t, four, 25*one/4+20*time.Microsecond, name)
	}
}

// A large change of the state takes linear time: keys that are new, that change and that go away.
func TestLargeDeltasTakeLinearTime(t *testing.T) {
	keys := func(n int, v accp.Value) (p accp.Params) {
		for i := range n {
			p = append(p, accp.Param{Key: fmt.Sprint("k", i), Value: v})
		}
		return p
	}
	const n = 100_000
	start := time.Now()
	state := accp.ApplyDelta(nil, keys(n, accp.Int(1)))
	require.Len(t, state, n)
	state = accp.ApplyDelta(state, keys(n, accp.Int(2)))
	require.Equal(t, accp.Param{Key: fmt.Sprint("k", n-1), Value: accp.Int(2)}, state[n-1])
	state = accp.ApplyDelta(state, keys(n-1, accp.Value{}))
	require.Equal(t, accp.Params{{Key: fmt.Sprint("k", n-1), Value: accp.Int(2)}}, state)
	require.Less(t, time.Since(start), time.Minute, "with the square of its length it would be minutes")
}

// Taking over a delta costs linear time and one copy of the registry: twice the schemas allocate at most 2.5 times the bytes, and the
// next delta of one schema at most a fifth more than the first one of all. Schemas that are known already cost little
// (ACCP-D48).
func TestMergeCostsOneCopy(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	allocated := func(f func()) int64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return int64(after.TotalAlloc - before.TotalAlloc)
	}
	merge := func(r, peer *accp.Registry) func() {
		delta, hash := peer.Delta(), peer.Hash()
		return func() { require.NoError(t, r.Merge(delta, hash)) }
	}
	half, all, next := benchPeer(t, 0, 128), benchPeer(t, 0, 255), benchPeer(t, 255, 1)
	r := accp.NewRegistry()
	ofHalf, ofAll := allocated(merge(accp.NewRegistry(), half)), allocated(merge(r, all))
	require.LessOrEqual(t, ofAll, ofHalf*5/2)
	ofNext := allocated(merge(r, next))
	require.LessOrEqual(t, ofNext, ofAll*6/5)
	full := accp.NewRegistry()
	require.NoError(t, full.Merge(all.Delta(), all.Hash()))
	ofKnown := allocated(merge(full, benchPeer(t, 0, 256)))
	require.LessOrEqual(t, ofKnown, ofAll/3)
	t.Logf("%d bytes for 128 schemas, %d for 255, %d for the next one, %d with the known ones", ofHalf, ofAll, ofNext, ofKnown)
}
