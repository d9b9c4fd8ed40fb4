// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/arc"
)

// Server-sent events: our writers are read by the npm package eventsource and by Chromium, and our reader is compared with
// theirs.

type sseEvent struct {
	Name string `json:"name"`
	Data string `json:"data"`
	ID   string `json:"id"`
}

type sseAnswer struct {
	Events   []sseEvent `json:"events"`
	Requests []*string  `json:"requests"`
}

func (a *sseAnswer) String() string {
	var b strings.Builder
	for _, e := range a.Events {
		fmt.Fprintf(&b, "%s %s\n", e.Name, e.Data)
	}
	return b.String()
}

// A chat of ours, read by eventsource.
func TestSSEOfARC(t *testing.T) {
	t.Parallel()
	endpoint, _ := arcServer(t, nil, nil)
	p := node(t, "sse.mjs")
	chat := func(text string) *sseAnswer {
		body := fmt.Sprintf(`{"arc":"1.0","id":1,"method":"chat.start","requestAgent":"js","targetAgent":"echo-01","params":{"chatId":"c-%d","initialMessage":{"role":"user","parts":[{"type":"TextPart","content":%q}]},"stream":true}}`, len(text), text)
		var a sseAnswer
		p.into(&a, request{"op": "read", "url": endpoint, "names": []string{"message", "stream", "done", "error"}, "body": body,
			"headers": map[string]string{"Content-Type": arc.MediaType, "Accept": "text/event-stream"}})
		return &a
	}
	require.Equal(t, "stream {\"chatId\":\"c-16\",\"message\":{\"role\":\"agent\",\"parts\":[{\"type\":\"TextPart\",\"content\":\"echo: \"}]}}\n"+
		"stream {\"chatId\":\"c-16\",\"message\":{\"role\":\"agent\",\"parts\":[{\"type\":\"TextPart\",\"content\":\"Grüße \"}]}}\n"+
		"stream {\"chatId\":\"c-16\",\"message\":{\"role\":\"agent\",\"parts\":[{\"type\":\"TextPart\",\"content\":\"😀\u2028\\n\"}]}}\n"+
		"done {\"chatId\":\"c-16\",\"status\":\"ACTIVE\",\"done\":true}\n", strings.ReplaceAll(chat("Grüße 😀\u2028\n").String(), `\u2028`, "\u2028"))
	require.True(t, strings.HasSuffix(chat("break").String(), "error {\"chatId\":\"c-5\",\"error\":{\"code\":-43003,\"message\":\"too slow\"}}\n"))
}

// An A2E session of our host. Its stream breaks, and eventsource resumes it after the last received event.
func TestSSEOfA2E(t *testing.T) {
	t.Parallel()
	host := a2eHost()
	web := a2etest.Must(a2e.NewHTTPHandler(host, nil))
	cuts := 0
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" && cuts == 0 {
			cuts++
			web.ServeHTTP(&cutting{ResponseWriter: w, after: 2}, r)
			panic(http.ErrAbortHandler)
		}
		web.ServeHTTP(w, r)
	}))
	defer ts.Close()
	defer host.Close()
	res, err := http.Post(ts.URL+"/session", "", nil)
	require.NoError(t, err)
	id := strings.Trim(member(t, []byte(readAll(t, res.Body)), "session_id"), `"`)
	require.NoError(t, res.Body.Close())
	for i := range 5 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+"/send", strings.NewReader(fmt.Sprintf(`{"a2e":"1.0","type":"ping","id":"p%d","ts":1}`, i)))
		require.NoError(t, err)
		req.Header.Set("X-Session-Id", id)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	}
	p := node(t, "sse.mjs")
	var a sseAnswer
	p.into(&a, request{"op": "read", "url": ts.URL + "/stream", "names": []string{"message"}, "headers": map[string]string{"X-Session-Id": id}, "enough": 5})
	for i, e := range a.Events {
		require.Equal(t, strconv.Itoa(i+1), e.ID)
		require.Contains(t, e.Data, fmt.Sprintf(`"req_id":"p%d"`, i))
	}
	require.Len(t, a.Requests, 2)
	require.Nil(t, a.Requests[0])
	require.Equal(t, "2", *a.Requests[1])
}

// cutting lets some messages of a stream through and breaks the connection before the next.
type cutting struct {
	http.ResponseWriter
	after int
}

func (c *cutting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *cutting) Write(b []byte) (int, error) {
	out := b
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte("\n\n"))
		if i < 0 {
			break
		}
		at += i + 2
		if c.after--; c.after == 0 {
			out = b[:at]
			break
		}
	}
	if c.after < 0 {
		return 0, errors.New("cut")
	}
	if _, err := c.ResponseWriter.Write(out); err != nil {
		return 0, err
	}
	if c.after == 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		c.after--
		panic(http.ErrAbortHandler)
	}
	return len(b), nil
}

const sseStreams = 400

// sseBytes makes a stream in one of the ways that the standard allows, and in some that it has to put up with.
func sseBytes(i int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(i)))
	var b bytes.Buffer
	if r.IntN(5) == 0 {
		b.WriteString("\ufeff")
	}
	ends := []string{"\n", "\r", "\r\n"}
	only := r.IntN(4)
	end := func() {
		if only < 3 {
			b.WriteString(ends[only])
		} else if e := ends[r.IntN(3)]; e != "\n" || !bytes.HasSuffix(b.Bytes(), []byte("\r")) {
			b.WriteString(e)
		} else {
			b.WriteString("\r") // a CR and an LF would be one end
		}
	}
	field := func(name, value string) {
		b.WriteString(name)
		b.WriteString([]string{":", ": "}[r.IntN(2)])
		b.WriteString(value)
		end()
	}
	for n := range 1 + r.IntN(8) {
		for range r.IntN(3) {
			switch r.IntN(7) {
			case 0:
				b.WriteString(":" + []string{"", " keep-alive", "x: data: y"}[r.IntN(3)])
				end()
			case 1:
				field("retry", []string{"1", "x"}[r.IntN(2)])
			case 2:
				field("id", []string{strconv.Itoa(n), ""}[r.IntN(2)])
			case 3:
				if b.Len() == 0 {
					break
				}
				b.WriteString([]string{"dat", " data:{}", "Data: {}", "data2: {}", "event2:x", "\ufeffdata: {}"}[r.IntN(6)])
				end()
			}
		}
		text := fmt.Sprintf(`"t%d ü😀\u2028%c"`, n, []rune{0x2028, 0x85, 'x'}[r.IntN(3)])
		chunk := `{"chatId":"c","message":{"role":"agent","parts":[{"type":"TextPart","content":` + text + `}]}}`
		other := fmt.Sprintf(`{"n":%d}`, n)
		name, data := "", chunk
		switch r.IntN(5) {
		case 0:
			name = "stream"
		case 1:
			name = "chat"
		case 2:
			name, data = "x", other
		case 3:
			data = other
		}
		lines := []string{data}
		if r.IntN(3) == 0 {
			at := strings.Index(data, ",")
			if at > 0 {
				lines = []string{data[:at+1], "", " " + data[at+1:]}
			}
		}
		late := r.IntN(2) == 0
		if name != "" && !late {
			field("event", name)
		}
		for _, l := range lines {
			if l == "" {
				b.WriteString("data")
				end()
				continue
			}
			field("data", l)
		}
		if name != "" && late {
			if r.IntN(4) == 0 {
				field("event", "overwritten")
			}
			field("event", name)
		}
		end()
		if r.IntN(4) == 0 {
			end() // an event without data is not dispatched
			field("event", "nothing")
			end()
		}
	}
	b.WriteString(": the end\n")
	return b.Bytes()
}

// sseLastCR ends with a line end that eventsource waits to see the rest of.
const sseLastCR = "data: {\"n\":1}\r\r"

// sseOurs reads a stream with our reader. It returns the pieces of the response and the events of unknown types.
func sseOurs(t *testing.T, stream []byte, cut bool) []string {
	t.Helper()
	var out []string
	var body io.Reader = bytes.NewReader(stream)
	if cut {
		body = iotest.OneByteReader(body)
	}
	peer := roundTripFunc(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
			ContentLength: -1, Body: io.NopCloser(body), Request: req}, nil
	})
	c, err := arc.NewClient("https://arc.test/arc", "reader-01", &arc.ClientOptions{HTTPClient: &http.Client{Transport: peer},
		OnUnknownEvent: func(name string, data []byte) { out = append(out, name+" "+shape(t, data)) }})
	require.NoError(t, err)
	for ev, err := range c.StreamChat(t.Context(), "b", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
		if err != nil {
			require.ErrorIs(t, err, arc.ErrTruncated, "%q", stream)
			break
		}
		out = append(out, "chunk "+ev.Text)
	}
	return out
}

// A roundTripFunc is a function that serves as an [http.RoundTripper].
type roundTripFunc func(*http.Request) (*http.Response, error)

// RoundTrip calls f.
func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// sseTheirs converts the events of another reader to the form of sseOurs.
func sseTheirs(t *testing.T, events []sseEvent) []string {
	t.Helper()
	var out []string
	for _, e := range events {
		var d struct {
			Message *arc.Message `json:"message"`
		}
		require.NoError(t, json.Unmarshal([]byte(e.Data), &d), "%s", e.Data)
		switch {
		case d.Message != nil:
			out = append(out, "chunk "+d.Message.Text())
		case e.Name == "message":
			out = append(out, " "+shape(t, []byte(e.Data)))
		default:
			out = append(out, e.Name+" "+shape(t, []byte(e.Data)))
		}
	}
	return out
}

// sseServer serves the generated streams.
func sseServer() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("n") == "cr" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, sseLastCR)
			return
		}
		i, err := strconv.Atoi(r.PathValue("n"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		if r.Header.Get("Last-Event-ID") != "" {
			w.WriteHeader(http.StatusNoContent) // ends reconnection
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		stream := sseBytes(i)
		for len(stream) > 0 {
			n := min(len(stream), 1+i%37)
			_, _ = w.Write(stream[:n])
			if i%5 == 0 {
				_ = http.NewResponseController(w).Flush()
			}
			stream = stream[n:]
		}
	}
}

var sseNames = []string{"message", "stream", "chat", "x", "nothing", "overwritten"}

func sseCompare(t *testing.T, peerEvents [][]sseEvent) {
	t.Helper()
	require.Len(t, peerEvents, sseStreams)
	events := 0
	for i, list := range peerEvents {
		stream := sseBytes(i)
		ours := sseOurs(t, stream, false)
		events += len(ours)
		require.Equal(t, ours, sseOurs(t, stream, true), "%d: however it is cut: %q", i, stream)
		require.Equal(t, sseTheirs(t, list), ours, "%d: %q", i, stream)
	}
	require.Greater(t, events, sseStreams*3)
}

// Streams in every form, read by eventsource and by us.
func TestSSEReaderMatchesEventsource(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /s/{n}", sseServer())
	ts := httptest.NewServer(mux)
	defer ts.Close()
	p := node(t, "sse.mjs")
	var streams []request
	for i := range sseStreams {
		streams = append(streams, request{"url": ts.URL + "/s/" + strconv.Itoa(i), "names": sseNames})
	}
	var got []sseAnswer
	p.into(&got, request{"op": "readAll", "streams": streams})
	peerEvents := make([][]sseEvent, len(got))
	for i := range got {
		peerEvents[i] = got[i].Events
	}
	sseCompare(t, peerEvents)

	var last sseAnswer
	p.into(&last, request{"op": "read", "url": ts.URL + "/s/cr", "names": sseNames})
	require.Empty(t, last.Events, "it loses the last event of a stream whose last byte is a CR")
	require.Equal(t, []string{` {"n":1}`}, sseOurs(t, []byte(sseLastCR), false))
}

// ssePage shows a chat as it is streamed, and reports the events that EventSource of the browser reads from the generated
// streams.
const ssePage = `<!doctype html><meta charset="utf-8"><p id="answer"></p><script>
const report = (path, value) => fetch('/report/' + path, {method: 'POST', body: JSON.stringify(value)});
const params = new URLSearchParams(location.search);
async function chat() {
  const answer = document.getElementById('answer');
  const res = await fetch(params.get('arc'), {method: 'POST', headers: {'Content-Type': 'application/arc+json', 'Accept': 'text/event-stream'}, body: JSON.stringify({
    arc: '1.0', id: crypto.randomUUID(), method: 'chat.start', requestAgent: 'browser', targetAgent: 'echo-01',
    params: {initialMessage: {role: 'user', parts: [{type: 'TextPart', content: 'Grüße aus <Chromium> 😀'}]}, stream: true}})});
  const type = res.headers.get('Content-Type');
  const reader = res.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new Error('no end');
    rest += value;
    for (let at; (at = rest.indexOf('\n\n')) >= 0; rest = rest.slice(at + 2)) {
      const fields = Object.fromEntries(rest.slice(0, at).split('\n').filter(l => l && !l.startsWith(':')).map(l => [l.slice(0, l.indexOf(':')), l.slice(l.indexOf(':') + 2)]));
      if (!fields.data) continue;
      const data = JSON.parse(fields.data);
      if (fields.event === 'stream') {
        answer.textContent += data.message.parts.map(p => p.content).join('');
        await report('shown', {text: answer.innerText, type});
      }
      if (fields.event === 'done') return report('end', {text: answer.innerText, status: data.status});
    }
  }
}
function read(i) {
  return new Promise(resolve => {
    const out = [], source = new EventSource('/s/' + i);
    for (const name of params.get('names').split(',')) source.addEventListener(name, e => out.push({name, data: e.data, id: e.lastEventId}));
    source.onerror = () => { source.close(); resolve(out); };
  });
}
(async () => {
  try { await chat(); } catch (e) { await report('failed', String(e)); }
  const all = [];
  for (let i = 0; i < Number(params.get('n')); i += 5) all.push(...await Promise.all([0, 1, 2, 3, 4].map(j => read(i + j))));
  await report('streams', all);
})();
</script>`

// A page in a real browser, from another origin than the server's.
func TestSSEInChromium(t *testing.T) {
	t.Parallel()
	dir := peers(t, "chromium")
	stamp, err := os.ReadFile(dir + "/chromium.stamp")
	require.NoError(t, err)

	pace := make(chan struct{})
	type word struct{ path, body string }
	reports := make(chan word, 64)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, ssePage)
	})
	mux.HandleFunc("GET /s/{n}", sseServer())
	mux.HandleFunc("POST /report/{what}", func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		reports <- word{r.PathValue("what"), string(b)}
	})
	page := httptest.NewServer(mux)
	defer page.Close()
	endpoint, _ := arcServer(t, &arc.ServerOptions{AllowedOrigins: []string{page.URL}}, pace)
	refusing, _ := arcServer(t, &arc.ServerOptions{AllowedOrigins: []string{"https://elsewhere.example"}}, nil)

	open := func(arcURL string, streams int) {
		profile, err := os.MkdirTemp("", "fivewire-chromium-")
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(stamp)), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir="+profile,
			fmt.Sprintf("%s/page?n=%d&names=%s&arc=%s", page.URL, streams, strings.Join(sseNames, ","), arcURL))
		var output bytes.Buffer
		cmd.Stderr = &output
		cmd.WaitDelay = 5 * time.Second
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Signal(os.Interrupt)
			stop := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait()
			stop.Stop()
			_ = os.RemoveAll(profile)
			if t.Failed() {
				t.Logf("Chromium said: %s", tail(output.String(), 1500))
			}
		})
	}
	next := func() word {
		t.Helper()
		select {
		case w := <-reports:
			return w
		case <-time.After(2 * time.Minute):
			require.FailNow(t, "the browser is silent")
			panic("unreachable")
		}
	}

	open(endpoint, sseStreams)
	// The page shows each piece before the next piece is written.
	shown := ""
	for i, piece := range []string{"echo: ", "Grüße ", "aus ", "<Chromium> ", "😀"} {
		if i > 0 {
			pace <- struct{}{}
		}
		shown += piece
		w := next()
		require.Equal(t, "shown", w.path, w.body)
		require.Equal(t, strings.TrimSpace(shown), strings.Trim(member(t, []byte(w.body), "text"), `"`))
		require.Equal(t, `"text/event-stream"`, member(t, []byte(w.body), "type"))
	}
	w := next()
	require.Equal(t, "end", w.path, w.body)
	require.Equal(t, `{"status":"ACTIVE","text":"echo: Grüße aus <Chromium> 😀"}`, shape(t, []byte(w.body)))
	w = next()
	require.Equal(t, "streams", w.path)
	var peerEvents [][]sseEvent
	require.NoError(t, json.Unmarshal([]byte(w.body), &peerEvents))
	sseCompare(t, peerEvents)

	// Pages of origins that are not listed see nothing.
	open(refusing, 0)
	w = next()
	require.Equal(t, "failed", w.path)
	require.Contains(t, w.body, "Failed to fetch")
}
