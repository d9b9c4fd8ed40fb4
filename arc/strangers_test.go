// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package arc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/race"
)

// cpuOf returns the CPU time of f, which runs alone in this process.
func cpuOf(t *testing.T, f func()) time.Duration {
	t.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC()
	start := used()
	f()
	cost := used() - start
	if race.Enabled {
		cost /= 20
	}
	return cost
}

// refuseAll accepts no token.
func refuseAll() arc.Auth {
	return arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(context.Context, string) (*arc.Principal, error) {
		return nil, arc.ErrTokenInvalid
	}))}
}

// manyNames returns members with different names, with a comma before each.
func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%x":0`, i)
	}
	return b.String()
}

type countingReader struct {
	io.Reader
	n int
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.n += n
	return n, err
}

// ARC-D03: a request without a valid token costs at most 64 KiB of reading and 1 ms of CPU.
func TestStrangerCostsLittle(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Auth: refuseAll()})
	names := manyNames(1_300_000)[1:] // 12 MiB
	long := `{"id":"r1",` + names + `}`
	require.Greater(t, len(long), 12<<20)
	short := `{` + manyNames(6000)[1:] + `,"id":"r1","requestAgent":"ui-01","traceId":"t"}`
	for _, tt := range []struct {
		name, body, id string
		announced      bool
		read           int
	}{
		{"chunked", long, `"error"`, false, 64<<10 + 1},
		{"announced", long, `"error"`, true, 64<<10 + 1},
		{"short", short, `"r1"`, true, len(short)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const n = 100
			read, rec := 0, (*httptest.ResponseRecorder)(nil)
			cost := cpuOf(t, func() {
				for range n {
					body := &countingReader{Reader: strings.NewReader(tt.body)}
					req := httptest.NewRequest(http.MethodPost, "/arc", body)
					req.ContentLength = -1
					if tt.announced {
						req.ContentLength = int64(len(tt.body))
					}
					req.Header.Set("Content-Type", arc.MediaType)
					req.Header.Set("Authorization", "Bearer nobody")
					rec = httptest.NewRecorder()
					s.ServeHTTP(rec, req)
					read = max(read, body.n)
				}
			})
			require.Equal(t, http.StatusUnauthorized, rec.Code)
			require.Equal(t, tt.id, string(answer(t, rec).ID))
			require.LessOrEqual(t, read, tt.read)
			require.Less(t, cost/n, time.Millisecond)
		})
	}
}

// ARC-D03: a stranger's body is searched and not checked.
func TestStrangersBodyIsSearched(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Auth: refuseAll()})
	pad := func(n int) string {
		return `{"id":"r1","x":"` + strings.Repeat("x", n-len(`{"id":"r1","x":""}`)) + `"}`
	}
	for _, tt := range []struct{ body, id, agent, trace string }{
		{`{"id":1.0,"requestAgent":"ui","traceId":"t","id":2}`, `1.0`, "ui", "t"},
		{`{"id":{},"id":"b","requestAgent":"ui"}`, `"error"`, "ui", ""},
		{`{"requestAgent":"` + strings.Repeat("x", 257) + `","id":"b","traceId":7}`, `"b"`, "unknown", ""},
		{`{"params":{"id":"inner","requestAgent":"no"},"\u0069d":"b"}`, `"b"`, "unknown", ""},
		{`{"id":"b","requestAgent":"ui`, `"b"`, "unknown", ""},
		{`{"id":"b" "requestAgent":"ui"}`, `"b"`, "ui", ""},
		{"{\"id\":\"b\xff\",\"requestAgent\":\"ui\"}", `"error"`, "ui", ""},
		{`["id","b"]`, `"error"`, "unknown", ""},
		{``, `"error"`, "unknown", ""},
		{pad(64 << 10), `"r1"`, "unknown", ""},
		{pad(64<<10 + 1), `"error"`, "unknown", ""},
	} {
		direct := s.ServeMessage(t.Context(), &arc.ServerRequest{Data: []byte(tt.body)}, nil)
		for _, data := range [][]byte{post(s, tt.body).Body.Bytes(), direct.Data} {
			res, err := arc.DecodeResponse(data, "")
			require.NoError(t, err)
			require.Equal(t, arc.ErrAuthenticationFailed, res.Error.Code)
			require.Equal(t, []string{tt.id, tt.agent, tt.trace}, []string{string(res.ID), res.TargetAgent, res.TraceID}, "%.100s", tt.body)
		}
	}
}

// ARC-D01: an object has at most 10,000 members, and a message 250,000 in all.
func TestRequestMembersAreBounded(t *testing.T) {
	s := newServer(t, nil)
	s.Handle("a", "debug.echo", arc.HandlerFunc(echo))
	status := func(params string) int { return post(s, call("debug.echo", "a", params)).Code }
	require.Equal(t, 200, status("{"+manyNames(10_000)[1:]+"}"))
	rec := post(s, call("debug.echo", "a", "{"+manyNames(10_001)[1:]+"}"))
	require.Equal(t, "too many or too long member names", strings.TrimPrefix(strings.Split(fault(t, rec, arc.ErrInvalidRequest).Message, " at ")[0], "Invalid request: "))
	require.Equal(t, `"error"`, string(answer(t, rec).ID), "nothing of it counts as readable")
	list := func(n int) string { return `{"list":[{}` + strings.Repeat(`,{"a":0}`, n-7) + `]}` } // 6 of the envelope and the list
	require.Equal(t, 200, status(list(250_000)))
	require.Equal(t, 400, status(list(250_001)))
}

// ARC-D01: no body costs more than 20 ms of CPU per MiB.
func TestBodyCostsLittle(t *testing.T) {
	s := newServer(t, nil)
	s.Handle("a", "debug.echo", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return nil, nil }))
	full := "{" + manyNames(10_000)[1:] + "}"
	for name, params := range map[string]string{
		"one object":     "{" + manyNames(1_500_000)[1:] + "}",
		"full objects":   `{"x":[` + full + strings.Repeat(","+full, 23) + `]}`,
		"small objects":  `{"x":[{}` + strings.Repeat(`,{"a":0}`, 249_000) + `]}`,
		"nested objects": `{"x":[{}` + strings.Repeat(`,`+strings.Repeat(`{"a":`, 120)+"0"+strings.Repeat("}", 120), 2000) + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			body := call("debug.echo", "a", params)
			const n = 3
			cost := cpuOf(t, func() {
				for range n {
					post(s, body)
				}
			})
			require.Less(t, cost/n, 20*time.Millisecond*time.Duration(len(body))/(1<<20))
		})
	}
}

// ARC-D83: a profile is for one caller, and for errors after its requestAgent was checked.
func TestProfileIsChosenPerCaller(t *testing.T) {
	var headers []string
	s := newServer(t, &arc.ServerOptions{ProfileFor: func(h http.Header, agent string) arc.Profile {
		headers = append(headers, agent+" "+h.Get("User-Agent"))
		if strings.HasPrefix(h.Get("User-Agent"), "python") {
			return arc.ProfilePythonSDK
		}
		return ""
	}})
	s.Handle("a-01", "debug.echo", arc.HandlerFunc(echo))
	envelope := func(arc, target, params string) string {
		return fmt.Sprintf(`{"arc":%q,"id":1,"method":"no.such","requestAgent":"ui","targetAgent":%s,"params":%s}`, arc, target, params)
	}
	for _, tt := range []struct {
		body          string
		plain, python int
	}{
		{envelope("1.0", `"a-01"`, `{}`), 404, 200},
		{envelope("1.0", `"a-01"`, `[]`), 400, 200},
		{envelope("1.0", `7`, `{}`), 400, 200},
		{envelope("2.0", `"a-01"`, `{}`), 400, 400},
		{`{}`, 400, 400},
	} {
		require.Equal(t, tt.plain, post(s, tt.body).Code, tt.body)
		require.Equal(t, tt.python, post(s, tt.body, "User-Agent", "python-httpx").Code, tt.body)
	}
	require.Equal(t, []string{"ui ", "ui python-httpx"}, headers[:2])
	require.Len(t, headers, 6)

	closed := newServer(t, &arc.ServerOptions{Auth: refuseAll(),
		ProfileFor: func(http.Header, string) arc.Profile { return arc.ProfilePythonSDK }})
	require.Equal(t, 401, post(closed, envelope("1.0", `"a-01"`, `{}`)).Code)
}

// ARC-D73: a forged position is refused at once. It holds no goroutine and no memory.
func TestForgedPositionsCostLittle(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{EnableResume: true}})
	s.HandleChats("a-01", arc.ChatReplyFunc(func(context.Context, *arc.ChatTurn) (*arc.Message, error) { return arc.AgentText("no"), nil }))
	body := call("chat.start", "a-01", `{"stream":true,"initialMessage":`+hello("x")+`}`)
	rec := post(s, body)
	id, _, _ := strings.Cut(strings.SplitAfter(rec.Body.String(), "id: ")[1], ".")
	positions := []string{id + ".999999999", id + ".18446744073709551615", id + ".01", id, "stream-0.1", strings.Repeat("9", 4000), "."}
	const n = 1000
	before := goroutinesAndHeap()
	cost := cpuOf(t, func() {
		for i := range n {
			rec = post(s, body, "Last-Event-ID", positions[i%len(positions)])
			require.Contains(t, []string{"ahead", "unknown"}, issueOf(t, rec))
		}
	})
	after := goroutinesAndHeap()
	require.Less(t, cost/n, time.Millisecond)
	require.LessOrEqual(t, after[0], before[0]+2, "goroutines")
	require.Less(t, after[1], before[1]+4<<20, "heap")
}

// issueOf returns the issue in the details of a refused resumption.
func issueOf(t *testing.T, rec *httptest.ResponseRecorder) string {
	t.Helper()
	var details struct{ Issue string }
	require.NoError(t, json.Unmarshal(fault(t, rec, arc.ErrChatTimeout).Details, &details))
	return details.Issue
}
