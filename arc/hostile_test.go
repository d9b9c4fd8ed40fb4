// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/stretchr/testify/require"
)

// hostileServer serves agents that are easy to abuse, over real connections, with
// the limits of a production server.
func hostileServer(t *testing.T, opts *arc.ServerOptions) (*arc.Server, string) {
	t.Helper()
	s := newServer(t, opts)
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"},
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}),
		ChatHandler: arc.ChatReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			if strings.HasPrefix(turn.Message.Text(), "panic") {
				panic("secret " + turn.Message.Text())
			}
			return arc.AgentText(turn.Message.Text()), nil
		}),
		NotificationHandler: arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { return nil }),
		Methods: map[string]arc.Handler{
			"debug.echo": arc.HandlerFunc(echo),
			"debug.panic": arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
				panic("secret of the handler")
			}),
		}})
	hs := s.HTTPServer("")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- hs.Serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, hs.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return s, l.Addr().String()
}

// wire sends bytes as they are and returns the answers on the connection until
// the peer closes it, which the last request should ask for.
func wire(t *testing.T, addr, raw string) []*http.Response {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	go func() { _, _ = io.WriteString(c, raw) }() // the server may stop reading: that is its right
	var list []*http.Response
	r := bufio.NewReader(c)
	for {
		req := &http.Request{Method: http.MethodPost}
		res, err := http.ReadResponse(r, req)
		if err != nil {
			return list
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return list
		}
		require.NoError(t, res.Body.Close())
		res.Body = io.NopCloser(bytes.NewReader(body))
		list = append(list, res)
	}
}

func rawPost(body string, headers ...string) string {
	return "POST /arc HTTP/1.1\r\nHost: x\r\nContent-Type: application/arc+json\r\n" + strings.Join(append(headers, ""), "\r\n") +
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

// wireFault demands one ARC error.
func wireFault(t *testing.T, res *http.Response, status int, code arc.Code) {
	t.Helper()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, status, res.StatusCode, string(body))
	got, err := arc.DecodeResponse(body, "")
	require.NoError(t, err, string(body))
	require.NotNil(t, got.Error)
	require.Equal(t, code, got.Error.Code)
}

// A body without a declared length is cut off at the limit (ARC-D13), in any chunking. The bytes
// after it on the connection are never parsed as a request.
func TestHostileChunks(t *testing.T) {
	_, addr := hostileServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxMessage: 4096}})
	head := "POST /arc HTTP/1.1\r\nHost: x\r\nContent-Type: application/arc+json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
	body := call("debug.echo", "a-01", `{"s":"`+strings.Repeat("x", 5000)+`"}`)
	one := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	var many strings.Builder
	for _, b := range []byte(body) {
		fmt.Fprintf(&many, "1\r\n%c\r\n", b)
	}
	many.WriteString("0\r\n\r\n")
	for name, chunks := range map[string]string{"one": one, "many": many.String()} {
		t.Run(name, func(t *testing.T) {
			list := wire(t, addr, head+chunks)
			require.Len(t, list, 1)
			wireFault(t, list[0], http.StatusRequestEntityTooLarge, arc.ErrMessageTooLarge)
		})
	}
	t.Run("declared", func(t *testing.T) { // nothing of the body has to come
		list := wire(t, addr, "POST /arc HTTP/1.1\r\nHost: x\r\nContent-Type: application/arc+json\r\nConnection: close\r\nContent-Length: 1099511627776\r\n\r\n{")
		require.Len(t, list, 1)
		wireFault(t, list[0], http.StatusRequestEntityTooLarge, arc.ErrMessageTooLarge)
	})
	t.Run("broken", func(t *testing.T) {
		list := wire(t, addr, head+"5\r\n{\"a\r\nzz\r\n")
		for _, res := range list {
			require.GreaterOrEqual(t, res.StatusCode, 400)
		}
	})
	t.Run("smuggled", func(t *testing.T) { // a request inside the refused body
		inner := rawPost(call("debug.echo", "a-01", `{"evil":true}`), "Connection: close")
		list := wire(t, addr, rawPost(strings.Repeat(" ", 5000)+inner))
		for _, res := range list {
			require.NotEqual(t, http.StatusOK, res.StatusCode)
		}
	})
}

// Headers are bounded by net/http, and nothing of them comes back.
func TestHostileHeaders(t *testing.T) {
	_, addr := hostileServer(t, &arc.ServerOptions{Auth: arc.Auth{RejectCycles: true}})
	good := call("debug.echo", "a-01", `{}`)
	list := wire(t, addr, rawPost(good, "Connection: close", "X-Big: "+strings.Repeat("y", 2<<20)))
	require.Len(t, list, 1)
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, list[0].StatusCode)
	for _, h := range []string{
		"Traceparent: " + strings.Repeat("z", 4096), "Traceparent: 00-00000000000000000000000000000000-0-x",
		"Last-Event-ID: " + strings.Repeat("9", 4096), "X-ARC-Path: %zz,%00,%0d%0aSet-Cookie:%20x=1,," + strings.Repeat(",", 4096),
		"Accept: " + strings.Repeat("application/json,", 2000),
	} {
		list := wire(t, addr, rawPost(good, "Connection: close", h))
		require.Len(t, list, 1)
		require.Equal(t, http.StatusOK, list[0].StatusCode, h[:20])
		require.Empty(t, list[0].Header["Set-Cookie"])
		require.Empty(t, list[0].Header["Access-Control-Allow-Origin"], "ARC-D17: CORS is off")
	}
	list = wire(t, addr, rawPost(good, "Connection: close", "Origin: https://evil.example"))
	require.Len(t, list, 1)
	require.Equal(t, http.StatusForbidden, list[0].StatusCode)
	require.Empty(t, list[0].Header["Access-Control-Allow-Origin"], "ARC-D17: CORS is off")
	list = wire(t, addr, rawPost(good, "Connection: close", "X-ARC-Path: a%2D01"))
	require.Len(t, list, 1)
	wireFault(t, list[0], http.StatusBadRequest, arc.ErrCircularReference) // ARC-D65
}

// Foreign text stays inside its JSON string: it cannot reach a header, a line of a stream, or a
// line of a log (ARC-D70, ARC-D71).
func TestHostileTexts(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	lines := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), nil))
	_, addr := hostileServer(t, &arc.ServerOptions{Logger: lines, Audit: arc.AuditLog(lines)})
	for _, evil := range []string{"x\r\nSet-Cookie: a=b\r\n\r\n", "x\n\nevent: done\ndata: {}\n\n", "\u2028\u2029\u0085</script>", "\x00\x1b[31m", `"},"result":{},"x":{"`, "%s%n%d"} {
		q, err := json.Marshal(evil)
		require.NoError(t, err)
		for _, body := range []string{
			fmt.Sprintf(`{"arc":"1.0","id":%s,"method":"debug.panic","requestAgent":"ui","targetAgent":"a-01","params":{}}`, q),
			fmt.Sprintf(`{"arc":"1.0","id":1,"method":%s,"requestAgent":"ui","targetAgent":"a-01","params":{}}`, q),
			fmt.Sprintf(`{"arc":"1.0","id":1,"method":"debug.echo","requestAgent":%s,"targetAgent":"ghost","params":{}}`, q),
			fmt.Sprintf(`{"arc":"1.0","id":1,"method":"task.info","requestAgent":"ui","targetAgent":"a-01","params":{"taskId":%s}}`, q),
			fmt.Sprintf(`{"arc":"1.0","id":1,"method":"chat.start","requestAgent":"ui","targetAgent":"a-01","params":{"chatId":%s,"stream":true,"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"x"}]}}}`, q),
			fmt.Sprintf(`{"arc":"1.0","id":1,"method":"chat.start","requestAgent":"ui","targetAgent":"a-01","params":{"stream":true,"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":%s}]}}}`, q),
			fmt.Sprintf(`{"arc":"1.0","id":1,"method":"chat.start","requestAgent":"ui","targetAgent":"a-01","params":{"initialMessage":{"role":%s,"parts":[]}}}`, q),
		} {
			list := wire(t, addr, rawPost(body, "Connection: close"))
			require.Len(t, list, 1)
			require.Empty(t, list[0].Header["Set-Cookie"])
			got, err := io.ReadAll(list[0].Body)
			require.NoError(t, err)
			require.NotContains(t, string(got), "secret")
			if strings.HasPrefix(list[0].Header.Get("Content-Type"), arc.MediaTypeStream) {
				require.Equal(t, 2, bytes.Count(append([]byte("\n"), got...), []byte("\nevent: ")), "%q", got)
				require.Equal(t, 2, bytes.Count(got, []byte("\n\n")), "%q", got)
				require.NotContains(t, string(got), "\r")
				r := arc.NewStreamReader(bytes.NewReader(got), 0, nil)
				ev, err := r.Next()
				require.NoError(t, err)
				require.Contains(t, []string{evil, "x"}, ev.Text)
				continue
			}
			require.NotContains(t, string(got), "\n")
			_, err = arc.DecodeResponse(got, "")
			require.NoError(t, err, string(got))
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for line := range strings.SplitSeq(strings.TrimSuffix(log.String(), "\n"), "\n") {
		require.True(t, strings.HasPrefix(line, "time="), "%q", line)
		require.NotContains(t, line, "\x1b")
		require.NotContains(t, line, "\r")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A flood of the most expensive requests leaks neither memory nor goroutines. A failed request
// leaves no chat and no task.
func TestHostileFlood(t *testing.T) {
	s, addr := hostileServer(t, nil)
	tr := &http.Transport{MaxIdleConnsPerHost: 8}
	c := &http.Client{Transport: tr, Timeout: 30 * time.Second}
	send := func(body string) (int, error) {
		res, err := c.Post("http://"+addr+"/arc", arc.MediaType, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, err
	}
	deep := strings.Repeat("[", 1<<20)
	var dup strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&dup, `"m%d":1,`, i)
	}
	attacks := map[string]struct {
		times  int
		body   func(i int) string
		status int
	}{
		"deep": {10, func(int) string { return deep }, 400},
		"deeper": {10, func(int) string {
			return call("debug.echo", "a-01", strings.Repeat(`{"a":`, 200000)+"1"+strings.Repeat("}", 200000))
		}, 400},
		"members": {10, func(int) string { return call("debug.echo", "a-01", "{"+dup.String()+`"m7":2}`) }, 400},
		"panic":   {500, func(int) string { return call("debug.panic", "a-01", "{}") }, 500},
		"chat panic": {500, func(i int) string {
			return call("chat.start", "a-01", fmt.Sprintf(`{"chatId":"p%d","initialMessage":%s}`, i, hello("panic")))
		}, 500},
		"unknown chat": {2000, func(i int) string {
			return call("chat.message", "a-01", fmt.Sprintf(`{"chatId":"no%d","message":%s}`, i, hello("x")))
		}, 200},
		"unknown task":  {2000, func(i int) string { return call("task.cancel", "a-01", fmt.Sprintf(`{"taskId":"no%d"}`, i)) }, 200},
		"unknown agent": {2000, func(i int) string { return call("debug.echo", fmt.Sprintf("ghost-%d", i), `{}`) }, 404},
		"notifications": {2000, func(i int) string {
			return call("task.notification", "a-01", fmt.Sprintf(`{"taskId":"t%d","event":"TASK_STARTED","timestamp":"2024-01-15T10:30:00Z","data":{"status":"WORKING","message":"m"}}`, i))
		}, 200},
		"closed chats": {500, func(i int) string {
			return call("chat.start", "a-01", fmt.Sprintf(`{"chatId":%q,"initialMessage":%s}`, strings.Repeat("c", 200)+fmt.Sprint(i), hello("x")))
		}, 200},
	}
	before := goroutinesAndHeap()
	for name, a := range attacks {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			errs := make(chan error, 8)
			for w := range 8 {
				wg.Go(func() {
					for i := w; i < a.times; i += 8 {
						if status, err := send(a.body(i)); err != nil || status != a.status {
							errs <- fmt.Errorf("%d: status %d: %w", i, status, err)
							return
						}
					}
				})
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
		})
	}
	status, err := send(call("debug.echo", "a-01", `{}`))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "the server goes on")
	// The id of a chat whose start panicked is free again (ARC-D34).
	require.Equal(t, 200, post(s, call("chat.start", "a-01", `{"chatId":"p1","initialMessage":`+hello("x")+`}`)).Code)
	tr.CloseIdleConnections()
	var after [2]int64
	require.Eventually(t, func() bool {
		after = goroutinesAndHeap()
		return after[0] <= before[0]+4
	}, 10*time.Second, 20*time.Millisecond, "goroutines")
	require.Less(t, after[1], before[1]+32<<20, "heap")
}

func goroutinesAndHeap() [2]int64 {
	return [2]int64{int64(runtime.NumGoroutine()), kit.Heap()}
}

// A client that trickles a body is cut off in time and does not block others (ARC-D18).
func TestHostileTrickle(t *testing.T) {
	_, addr := hostileServer(t, &arc.ServerOptions{Timing: arc.Timing{ReadTimeout: 300 * time.Millisecond}, Limits: arc.Limits{MaxMessage: 4096}})
	var conns []net.Conn
	starts := []string{ // some of them for requests whose body is never read
		"POST /arc HTTP/1.1\r\nContent-Type: application/arc+json\r\nContent-Length: 1000",
		"POST /arc HTTP/1.1\r\nContent-Type: application/arc+json\r\nTransfer-Encoding: chunked",
		"POST /arc HTTP/1.1\r\nContent-Type: application/arc+json\r\nContent-Length: 100000",
		"POST /arc HTTP/1.1\r\nContent-Type: application/arc+json\r\nContent-Length: 5000",
		"POST /arc HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 1000",
		"PUT /arc HTTP/1.1\r\nContent-Length: 1000", "GET /agent-info HTTP/1.1\r\nContent-Length: 1000",
		"POST /nowhere HTTP/1.1\r\nTransfer-Encoding: chunked",
	}
	for i := range 10 * len(starts) {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, starts[i%len(starts)]+"\r\nHost: x\r\n\r\n{")
		require.NoError(t, err)
		conns = append(conns, c)
	}
	list := wire(t, addr, rawPost(call("debug.echo", "a-01", `{}`), "Connection: close"))
	require.Len(t, list, 1)
	require.Equal(t, http.StatusOK, list[0].StatusCode)
	for _, c := range conns {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err := io.Copy(io.Discard, c) // an answer perhaps, and the end of the connection
		if err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server keeps the connection")
		}
	}
}

// The deployed Python SDK: its media types, headers, ids, null members, aliases of part types, and
// webhook bodies without an envelope, which are not ARC requests.
func TestPythonPeer(t *testing.T) {
	s, addr := hostileServer(t, nil)
	send := func(contentType, accept, body string) (*http.Response, string) {
		req, err := http.NewRequest(http.MethodPost, "http://"+addr+"/arc/", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", contentType)
		req.Header.Set("Accept", accept)
		req.Header.Set("User-Agent", "python-httpx/0.28.1")
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res, string(got)
	}
	defer http.DefaultClient.CloseIdleConnections()
	env := `{"arc": "1.0", "id": "0b0c2f4e-7d0c-4b1e-9d7c-0e4f6f1f6a11", "method": %q, "requestAgent": "client-3f2a", "targetAgent": "a-01", "params": %s, "traceId": null}`
	res, got := send("application/arc+json", "application/arc+json, text/event-stream",
		fmt.Sprintf(env, "task.create", `{"initialMessage": {"role": "user", "parts": [{"type": "text", "content": "hi", "mimeType": null, "filename": null}], "timestamp": "2025-01-15T10:30:00.123456", "agentId": null}, "priority": "NORMAL", "metadata": null}`))
	require.Equal(t, 200, res.StatusCode, got)
	require.Equal(t, arc.MediaType, res.Header.Get("Content-Type"))
	require.NotContains(t, got, "traceId")
	require.Contains(t, got, `"SUBMITTED"`)
	res, got = send("text/event-stream", "text/event-stream",
		fmt.Sprintf(env, "chat.start", `{"initialMessage": {"role": "user", "parts": [{"type": "TextPart", "content": "h\u00e9 \ud83d\ude00"}]}, "stream": true, "chatId": null, "metadata": null}`))
	require.Equal(t, 200, res.StatusCode, got)
	require.Equal(t, arc.MediaTypeStream, res.Header.Get("Content-Type"))
	// Its reader splits at LF LF, needs both fields, and takes the last data line (ARC-D25).
	events := strings.Split(strings.TrimSuffix(got, "\n\n"), "\n\n")
	require.Len(t, events, 2)
	for i, name := range []string{"stream", "done"} {
		name = "event: " + name + "\ndata: {"
		require.True(t, strings.HasPrefix(events[i], name), events[i])
		require.Equal(t, 1, strings.Count(events[i], "\n"))
	}
	require.Contains(t, events[0], "hé 😀")
	// Errors it reads details of must have an object there (ARC-D55).
	for method, params := range map[string]string{"task.info": `{"taskId":"x"}`, "chat.end": `{"chatId":"x"}`, "no.such": `{}`} {
		_, got = send("application/json", "*/*", fmt.Sprintf(env, method, params))
		e, err := arc.DecodeResponse([]byte(got), "")
		require.NoError(t, err)
		require.Equal(t, byte('{'), e.Error.Details[0], got)
	}
	rec := post(s, `{"arc":"1.0","method":"task.notification","requestAgent":"p","taskId":"t","event":"TASK_COMPLETED","timestamp":"2025-01-15T10:30:00","data":{"status":"COMPLETED","message":"m"},"subscriptionId":"s"}`)
	require.Equal(t, "id", fault(t, rec, arc.ErrMissingField).Field())
	rec = httptest.NewRecorder()
	s.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/arc", strings.NewReader("{}")))
	require.Equal(t, http.StatusUnsupportedMediaType, rec.Code, "a missing media type is what a page can send across sites")
	require.Contains(t, rec.Body.String(), "Invalid request: body is not application/arc+json")
	zipped := httptest.NewRequest(http.MethodPost, "/arc", strings.NewReader("{}"))
	zipped.Header = http.Header{"Content-Type": {arc.MediaType}, "Content-Encoding": {"gzip"}}
	rec = httptest.NewRecorder()
	s.ServeHTTP(rec, zipped)
	require.Equal(t, http.StatusUnsupportedMediaType, rec.Code)
	require.Contains(t, rec.Body.String(), "Invalid request: body has a content coding")
}
