// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package httpx

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/budget"
)

const never = time.Hour

// slowBody sends the header of a request within delay and no body, and returns the response and
// the time from the first byte to the response.
func slowBody(t *testing.T, l *pipeListener, delay time.Duration) (*http.Response, time.Duration) {
	t.Helper()
	conn, err := l.dial(t.Context(), "", "")
	require.NoError(t, err)
	defer conn.Close()
	start := time.Now()
	_, err = io.WriteString(conn, "POST /p?q=secret HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n")
	require.NoError(t, err)
	time.Sleep(delay)
	_, err = io.WriteString(conn, "\r\n12345")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(never)))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, never
	}
	require.NoError(t, err)
	return res, time.Since(start)
}

func TestBodyNeverExtendsReadTimeoutOfServer(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		readTimeout, timeout, header, want time.Duration
	}{
		{300 * ms, time.Minute, 0, 300 * ms},
		{300 * ms, 300 * ms, 0, 300 * ms},
		{300 * ms, -1, 0, 300 * ms},
		{0, 200 * ms, 0, 200 * ms},
		{0, 200 * ms, 100 * ms, 300 * ms},
		{time.Minute, 200 * ms, 0, 200 * ms},
		{time.Second, 500 * ms, 900 * ms, time.Second}, // not 1.4 s: the header counts for the server
		{0, 0, 0, never},
		{0, -1, 0, never},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := &http.Server{ReadTimeout: tt.readTimeout}
				l, stop := newPipeServer(t, srv, func(w http.ResponseWriter, r *http.Request) {
					_, err := Body(w, r, 100, tt.timeout)
					var e *Error
					if errors.As(err, &e) && !errors.Is(err, io.ErrUnexpectedEOF) {
						require.Equal(t, "POST /p: request body: "+e.Cause.Error(), err.Error())
						w.WriteHeader(e.Status)
					}
				})
				defer stop()
				res, took := slowBody(t, l, tt.header)
				require.Equal(t, tt.want, took)
				if tt.want != never {
					require.Equal(t, http.StatusRequestTimeout, res.StatusCode)
					require.True(t, res.Close, "the connection stays open")
				}
			})
		})
	}
}

func TestBoundEndsRefusedBody(t *testing.T) {
	for _, tt := range []struct{ readTimeout, timeout, want time.Duration }{
		{0, time.Second, time.Second},
		{2 * time.Second, time.Second, 2 * time.Second},
		{time.Second, 2 * time.Second, time.Second},
		{0, -1, never},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := &http.Server{ReadTimeout: tt.readTimeout}
				l, stop := newPipeServer(t, srv, func(w http.ResponseWriter, r *http.Request) {
					Bound(w, r, tt.timeout)
					http.NotFound(w, r)
				})
				defer stop()
				res, took := slowBody(t, l, 0) // net/http discards the body before it responds
				require.Equal(t, tt.want, took)
				if tt.want != never {
					require.Equal(t, http.StatusNotFound, res.StatusCode)
				}
			})
		})
	}
}

func TestBodyDeadlineEndsWithBody(t *testing.T) {
	for _, readTimeout := range []time.Duration{0, time.Second, time.Minute} {
		t.Run(readTimeout.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := &http.Server{ReadTimeout: readTimeout}
				l, stop := newPipeServer(t, srv, func(w http.ResponseWriter, r *http.Request) {
					Bound(w, r, 10*time.Second)
					data, err := Body(w, r, 5, 10*time.Second)
					require.NoError(t, err)
					time.Sleep(never)
					require.NoError(t, r.Context().Err(), "a deadline ended the request")
					require.NoError(t, Respond(w, http.StatusOK, "text/plain", data, time.Second))
				})
				defer stop()
				tr := &http.Transport{DialContext: l.dial}
				defer tr.CloseIdleConnections()
				chunked := io.MultiReader(strings.NewReader("12345"))
				for _, body := range []io.Reader{strings.NewReader("12345"), chunked, http.NoBody} {
					res, err := (&http.Client{Transport: tr}).Post("http://a.example/", "text/plain", body)
					require.NoError(t, err)
					got, err := io.ReadAll(res.Body)
					require.NoError(t, err)
					if body != http.NoBody {
						require.Equal(t, "12345", string(got))
					}
					res.Body.Close()
				}
			})
		})
	}
}

func TestBodyRefusesOverLimit(t *testing.T) {
	calls := 0
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		_, err := Body(w, r, 1000, time.Minute)
		var e *Error
		if errors.As(err, &e) {
			require.ErrorIs(t, err, ErrTooLarge)
			_ = Respond(w, e.Status, "text/plain", []byte(e.Message), time.Minute)
		}
	}))
	defer ts.Close()
	for _, size := range []int{0, 1000, 1001, 300 << 10, 10 << 20} {
		for _, isChunked := range []bool{false, true} {
			var body io.Reader = bytes.NewReader(make([]byte, size))
			if isChunked {
				body = io.MultiReader(body)
			}
			res, err := http.Post(ts.URL, "text/plain", body)
			require.NoError(t, err, "%d bytes, chunked %v", size, isChunked)
			res.Body.Close()
			want := http.StatusOK
			if size > 1000 {
				want = http.StatusRequestEntityTooLarge
			}
			require.Equal(t, want, res.StatusCode, "%d bytes, chunked %v", size, isChunked)
			require.Equal(t, size > 1000, res.Close, "%d bytes, chunked %v", size, isChunked)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestBodyWithoutLimit(t *testing.T) {
	r := httptest.NewRequest("POST", "/", bytes.NewReader(make([]byte, 1<<20)))
	data, err := Body(httptest.NewRecorder(), r, -1, -1)
	require.NoError(t, err)
	require.Len(t, data, 1<<20)
}

func TestReserveBody(t *testing.T) {
	const whole = 1 << 20
	limits := budget.Limits{Memory: budget.Limit{Principal: whole}}
	for _, tt := range []struct {
		announced, size, limit int64
		isRefused              bool
	}{
		{whole, whole, -1, false},
		{whole + 1, whole + 1, -1, true},
		{-1, whole / 4, -1, false},
		{-1, whole + 1, -1, true},
		{-1, whole / 4, whole / 4, false}, // no more is reserved than the limit
		{-1, whole, whole, false},
	} {
		b := budget.New(limits, nil)
		scope := b.Scope("alice", "")
		r := httptest.NewRequest("POST", "/", io.LimitReader(zeros{}, tt.size))
		r.ContentLength = tt.announced
		hold, err := ReserveBody(r, scope, tt.limit)
		var data []byte
		if err == nil {
			data, err = Body(httptest.NewRecorder(), r, tt.limit, -1)
			if err == nil {
				_, full := scope.Reserve(budget.Memory, whole-tt.size+1)
				require.Error(t, full, "the memory of the body is free")
			}
			hold.Release()
		}
		if tt.isRefused {
			var full *budget.Error
			require.ErrorAs(t, err, &full)
		} else {
			require.NoError(t, err)
			require.Len(t, data, int(tt.size))
		}
		rest, err := scope.Reserve(budget.Memory, whole)
		require.NoError(t, err, "all memory is free again")
		rest.Release()
	}

	r := httptest.NewRequest("POST", "/", http.NoBody)
	r.ContentLength = 1 << 40
	hold, err := ReserveBody(r, budget.New(limits, nil).Scope("alice", ""), whole)
	require.NoError(t, err, "Body refuses it as too large, which another attempt does not change")
	hold.Release()
	_, err = Body(httptest.NewRecorder(), r, whole, -1)
	require.ErrorIs(t, err, ErrTooLarge)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestAdmits(t *testing.T) {
	o := &Origins{AllowedOrigins: []string{"https://app.example"}, Methods: "POST"}
	for _, tt := range []struct {
		method string
		header http.Header
		status int // 0: admitted
	}{
		{"POST", http.Header{}, 0},
		{"POST", http.Header{"Origin": {"https://app.example"}}, 0},
		{"POST", http.Header{"Origin": {"https://evil.example"}}, http.StatusForbidden},
		{"OPTIONS", http.Header{"Origin": {"https://app.example"}, "Access-Control-Request-Method": {"POST"}}, http.StatusNoContent},
		{"POST", http.Header{"Authorization": {"a", "b"}}, http.StatusBadRequest},
		{"POST", http.Header{"X-Api-Key": {"a", "b"}}, http.StatusBadRequest},
	} {
		r, w := httptest.NewRequest(tt.method, "/", strings.NewReader("{}")), httptest.NewRecorder()
		r.Header = tt.header
		require.Equal(t, tt.status == 0, o.Admits(w, r, time.Minute, "X-Api-Key"), "%v", tt)
		if tt.status != 0 {
			require.Equal(t, tt.status, w.Code, "%v", tt)
		}
	}
}

func TestForward(t *testing.T) {
	memory := budget.New(budget.Limits{}, nil).Scope("a", "")
	for _, tt := range []struct {
		body   string
		err    error
		status int
	}{
		{`{"a":[1]}`, nil, http.StatusOK},
		{"", nil, http.StatusOK},
		{`{"a":1,"a":1}`, nil, http.StatusBadRequest},
		{strings.Repeat("[", 65) + strings.Repeat("]", 65), nil, http.StatusBadRequest},
		{"", &Error{Status: http.StatusRequestTimeout}, http.StatusRequestTimeout},
	} {
		r, w := httptest.NewRequest("POST", "/", http.NoBody), httptest.NewRecorder()
		Forward(w, r, []byte(tt.body), tt.err, time.Minute, memory, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, tt.body, string(got))
		}))
		require.Equal(t, tt.status, w.Code, tt.body)
	}
}

func TestBodyRefusesIncomplete(t *testing.T) {
	r := httptest.NewRequest("POST", "/", iotest.ErrReader(io.ErrUnexpectedEOF))
	w := httptest.NewRecorder()
	_, err := Body(w, r, 10, time.Minute)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, http.StatusBadRequest, e.Status)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "close", w.Header().Get("Connection"))

	r.ProtoMajor, w = 2, httptest.NewRecorder()
	_, err = Body(w, r, 10, time.Minute)
	require.Error(t, err)
	require.Empty(t, w.Header(), "HTTP/2 would end all its streams")
}

func TestBodyRefusesAnnouncedLengthUnread(t *testing.T) {
	r := httptest.NewRequest("POST", "/", readerFunc(func([]byte) (int, error) {
		t.Error("the body was read")
		return 0, io.EOF
	}))
	r.ContentLength = 11
	_, err := Body(httptest.NewRecorder(), r, 10, time.Minute)
	require.ErrorIs(t, err, ErrTooLarge)
}

func TestBodyRefusesEndAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := httptest.NewRequest("POST", "/", readerFunc(func([]byte) (int, error) {
			time.Sleep(2 * time.Second)
			return 0, io.EOF
		}))
		r = r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, &http.Server{ReadTimeout: time.Hour}))
		_, err := Body(httptest.NewRecorder(), r, 10, time.Second)
		var e *Error
		require.ErrorAs(t, err, &e, "the deadline would end the request after the body")
		require.Equal(t, http.StatusRequestTimeout, e.Status)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestReadAllTakesMemoryForReceivedBytesOnly(t *testing.T) {
	_, err := readAll(readerFunc(func(p []byte) (int, error) {
		require.LessOrEqual(t, len(p), 64<<10+1, "memory for bytes that have not arrived")
		return 0, io.EOF
	}), 1<<40, -1)
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 300<<10).Draw(t, "size")
		announced := int64(size)
		if rapid.Bool().Draw(t, "chunked") {
			announced = -1
		}
		limit := int64(rapid.IntRange(-1, 300<<10).Draw(t, "limit"))
		want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		got, err := readAll(iotest.HalfReader(bytes.NewReader(want)), announced, limit)
		if limit >= 0 && int64(size) > limit {
			require.ErrorIs(t, err, ErrTooLarge)
			return
		}
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		require.LessOrEqual(t, cap(got), max(8, 2*len(got)), "of %d bytes", len(got))
	})
}

func TestCheckRequestRefusals(t *testing.T) {
	types := []string{"application/json", "text/event-stream"}
	for _, tt := range []struct {
		header http.Header
		status int
	}{
		{http.Header{"Content-Type": {"application/json"}}, 0},
		{http.Header{"Content-Type": {"Application/JSON; charset=\"UTF-8\"; x=y"}}, 0},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"Identity"}}, 0},
		{http.Header{"Content-Type": {"application/json"}, "Accept": {"a/b", "c/d"}}, 0},
		{http.Header{}, 415},
		{http.Header{"Content-Type": {""}}, 415},
		{http.Header{"Content-Type": {"text/event-streamx"}}, 415},
		{http.Header{"Content-Type": {"text/event-stream, application/json"}}, 415},
		{http.Header{"Content-Type": {"application/json; charset=latin1"}}, 0},
		{http.Header{"Content-Type": {"application/json; charset"}}, 0},
		{http.Header{"Content-Type": {"text/plain"}}, 415},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, 415},
		{http.Header{"Content-Type": {"application/json", "application/json"}}, 400},
		{http.Header{"Content-Type": {"application/json"}, "Authorization": {"a", "b"}}, 400},
		{http.Header{"Content-Type": {"application/json"}, "Authorization": {"a", "a"}}, 400},
		{http.Header{"Content-Type": {"application/json"}, "Content-Length": {"1", "2"}}, 400},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"identity", "gzip"}}, 400},
		{http.Header{"Content-Type": {"application/json"}, "Origin": {"https://a", "https://b"}}, 400},
		{http.Header{"Content-Type": {"application/json"}, "X-Path": {"a", "b"}}, 400},
		{http.Header{"Content-Type": {"application/json"}, "X-Other": {"a", "b"}}, 0},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header = tt.header
		kind, err := CheckRequest(r, types, "X-PATH")
		if tt.status == 0 {
			require.NoError(t, err, "%v", tt.header)
			require.Equal(t, "application/json", kind)
			continue
		}
		var e *Error
		require.ErrorAs(t, err, &e, "%v", tt.header)
		require.Equal(t, tt.status, e.Status, "%v: %v", tt.header, err)
		_, err = CheckRequest(r, nil, "X-Path")
		require.Equal(t, tt.status == 400, err != nil, "without types: %v: %v", tt.header, err)
	}
}

func TestCheckRequestChecksTheBodyFirst(t *testing.T) {
	r := httptest.NewRequest("POST", "/", nil)
	r.Header = http.Header{"Content-Type": {"text/plain"}, "Authorization": {"a", "b"}}
	_, err := CheckRequest(r, []string{"application/json"})
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, http.StatusUnsupportedMediaType, e.Status)
}

func FuzzMediaType(f *testing.F) {
	for _, s := range []string{"text/event-stream", "text/event-streamx", "TEXT/EVENT-STREAM ; a=\"b;\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		kind, ok := MediaType(value, "text/event-stream")
		if !ok {
			return
		}
		require.Equal(t, "text/event-stream", kind)
		head, _, _ := strings.Cut(value, ";")
		require.True(t, strings.EqualFold(strings.TrimSpace(head), kind), "%q", value)
	})
}

func TestOriginsCheck(t *testing.T) {
	loopback, public := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	o := Origins{AllowedOrigins: []string{"https://app.example"}, AllowedHosts: []string{"proxy.example"}}
	for _, tt := range []struct {
		local  net.Addr
		host   string
		origin []string
		want   bool
	}{
		{public, "api.example", nil, true},
		{public, "api.example", []string{"https://app.example"}, true},
		{public, "api.example", []string{"https://api.example"}, true},
		{public, "api.example:8080", []string{"http://API.example:8080"}, true},
		{public, "api.example", []string{"https://app.example.org"}, false},
		{public, "api.example", []string{"https://app.example:444"}, false},
		{public, "api.example", []string{"https://APP.example"}, false}, // browsers send lower case
		{public, "api.example", []string{"http://app.example"}, false},
		{public, "api.example", []string{"https://api.example:444"}, false},
		{public, "api.example", []string{"ftp://api.example"}, false},
		{public, "api.example", []string{"null"}, false},
		{public, "api.example", []string{""}, false},
		{loopback, "localhost:8080", []string{"http://localhost:8080"}, true},
		{loopback, "127.0.0.1:8080", []string{"http://127.0.0.1:8080"}, true},
		{loopback, "[::1]:8080", []string{"http://[::1]:8080"}, true},
		{loopback, "evil.example:8080", []string{"http://evil.example:8080"}, false}, // DNS rebinding
		{loopback, "evil.localhost:8080", []string{"http://evil.localhost:8080"}, false},
		{loopback, "proxy.example", []string{"https://proxy.example"}, true},
		{loopback, "evil.example", []string{"https://app.example"}, true},
		{loopback, "proxied.example", nil, true},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tt.local))
		r.Host = tt.host
		if tt.origin != nil {
			r.Header["Origin"] = tt.origin
		}
		err := o.Check(r)
		require.Equal(t, tt.want, err == nil, "%s %q: %v", tt.host, tt.origin, err)
		if err != nil {
			require.Equal(t, http.StatusForbidden, err.(*Error).Status)
		}
		require.NoError(t, (&Origins{AllowedOrigins: []string{"*"}}).Check(r))
	}
}

func TestOriginsCORS(t *testing.T) {
	listed := &Origins{Methods: "POST", Headers: "X-A", Expose: "Retry-After"}
	listed.AllowedOrigins = []string{"https://a.example", "https://b.example"}
	for _, tt := range []struct {
		o                      *Origins
		origin, allowed, vary  string
		isPreflight, responded bool
	}{
		{&Origins{}, "https://a.example", "", "", true, false},
		{listed, "", "", "Origin", false, false},
		{listed, "https://c.example", "", "Origin", true, false},
		{listed, "https://b.example", "https://b.example", "Origin", false, false},
		{listed, "https://b.example", "https://b.example", "Origin", true, true},
		{&Origins{AllowedOrigins: []string{"*"}, MaxAge: 24 * time.Hour}, "https://c.example", "*", "", true, true},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		if tt.isPreflight {
			r.Method = http.MethodOptions
			r.Header.Set("Access-Control-Request-Method", "POST")
		}
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		w := httptest.NewRecorder()
		require.Equal(t, tt.responded, tt.o.CORS(w, r), "%+v", tt)
		h := w.Header()
		require.Equal(t, tt.allowed, h.Get("Access-Control-Allow-Origin"), "%+v", tt)
		require.Equal(t, tt.vary, h.Get("Vary"), "%+v", tt)
		require.Empty(t, h.Get("Access-Control-Allow-Credentials"))
		if tt.responded {
			require.Equal(t, http.StatusNoContent, w.Code)
			require.Equal(t, tt.o.Methods, h.Get("Access-Control-Allow-Methods"))
			require.Equal(t, tt.o.Headers, h.Get("Access-Control-Allow-Headers"))
			require.Contains(t, []string{"600", "86400"}, h.Get("Access-Control-Max-Age"))
		}
	}
}

func TestRespondEndsAtSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan error, 1)
		srv := &http.Server{}
		l, stop := newPipeServer(t, srv, func(w http.ResponseWriter, r *http.Request) {
			failed <- Respond(w, http.StatusOK, "text/plain", make([]byte, 1<<20), 30*time.Second)
		})
		defer stop()
		conn, err := l.dial(t.Context(), "", "")
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		require.NoError(t, err)
		for range 4 { // progress, however slow, extends the time
			time.Sleep(29 * time.Second)
			_, err = io.ReadFull(conn, make([]byte, maxPart+512))
			require.NoError(t, err)
		}
		start := time.Now()
		require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
		require.LessOrEqual(t, time.Since(start), 30*time.Second)
	})
}

func TestRespondLastsLongerThanWriteTimeoutOfServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &http.Server{WriteTimeout: time.Second}
		l, stop := newPipeServer(t, srv, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Minute)
			require.NoError(t, Respond(w, http.StatusAccepted, "", nil, time.Second))
		})
		defer stop()
		req := &Request{Method: "GET", URL: parse(t, "http://a.example"), Accept: []string{"text/plain"}}
		data, res, err := l.client().Fetch(t.Context(), req)
		require.NoError(t, err)
		require.Empty(t, data)
		require.Equal(t, http.StatusAccepted, res.StatusCode)
		require.Equal(t, "0", res.Header.Get("Content-Length"))
	})
}

func TestRespondWithoutBody(t *testing.T) {
	w := httptest.NewRecorder()
	require.NoError(t, Respond(w, http.StatusNoContent, "", nil, -1))
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Empty(t, w.Header())
}

// A server that shuts down lets the next request of a client reach another one, over any version of HTTP.
func TestLeaveIf(t *testing.T) {
	for _, isHTTP2 := range []bool{false, true} {
		var closed atomic.Bool
		ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if closed.Load() {
				LeaveIf(io.EOF, w)
			} else {
				LeaveIf(nil, w)
			}
			_, _ = io.WriteString(w, r.Proto+" "+r.RemoteAddr)
		}))
		ts.EnableHTTP2 = isHTTP2
		ts.StartTLS()
		get := func() string {
			res, err := ts.Client().Get(ts.URL)
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, isHTTP2, strings.HasPrefix(string(body), "HTTP/2"))
			return string(body)
		}
		first := get()
		require.Equal(t, first, get())
		closed.Store(true)
		require.Equal(t, first, get())
		for get() == first { // HTTP/2 tells it after the response
		}
		ts.Close()
	}
}
