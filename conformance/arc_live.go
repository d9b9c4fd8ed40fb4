// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func arcLiveProtocol() liveProtocol {
	return liveProtocol{
		open: map[string]func(T, *Input, *liveServer) (Step, error){"serve_script": arcOpenLive},
		fixture: func(_ string, in strictjson.Value) string {
			word, _ := in.Get("fixture").Text()
			return word
		},
		notLive: func(_, step strictjson.Value) string {
			if n, _ := step.Get("server").Int(); n > 1 || step.Get("stop") != nil || step.Get("start") != nil {
				return "several processes"
			}
			return ""
		},
		shared: "open",
		needsOwn: func(step strictjson.Value) bool {
			body := arcStepBody(step)
			return step.Get("sink") != nil || step.Get("deliveries") != nil || arcOddChat.MatchString(body) ||
				strings.Contains(body, `"debug.flaky"`) || strings.Contains(body, `"steps-01"`) // they count their calls
		},
	}
}

// arcChosenChat is the start of a chat whose id the caller chooses, so that it can begin only once.
var arcChosenChat = regexp.MustCompile(`"chat\.start".*"chatId":"([^"\\]+)"`)

// arcOddChat is such a start with an id that is not renamed.
var arcOddChat = regexp.MustCompile(`"chat\.start".*"chatId":"[^"]*\\`)

// arcStepBody returns the text of the body of a step.
func arcStepBody(step strictjson.Value) string {
	if text, ok := step.Get("body").Text(); ok {
		return text
	}
	return string(step.Get("body"))
}

// An arcRename gives a run separate chats: ids that the caller chooses have a suffix.
type arcRename struct {
	http.RoundTripper
	toRun, toScript *strings.Replacer
}

// newARCRename reads the chosen ids of a script.
func newARCRename(steps strictjson.Value, next http.RoundTripper) *arcRename {
	suffix := "-u" + strconv.FormatInt(time.Now().UnixNano(), 36)
	var toRun, toScript []string
	var collect func(v strictjson.Value)
	collect = func(v strictjson.Value) {
		for e := v.Elements(); e.Next(); {
			collect(e.Value.Get("together"))
			if m := arcChosenChat.FindStringSubmatch(arcStepBody(e.Value)); m != nil {
				toRun = append(toRun, `"`+m[1]+`"`, `"`+m[1]+suffix+`"`)
				toScript = append(toScript, `"`+m[1]+suffix+`"`, `"`+m[1]+`"`)
			}
		}
	}
	collect(steps)
	return &arcRename{RoundTripper: next, toRun: strings.NewReplacer(toRun...), toScript: strings.NewReplacer(toScript...)}
}

// RoundTrip sends a request with the ids of the run.
func (r *arcRename) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	body = []byte(r.toRun.Replace(string(body)))
	out := req.Clone(req.Context())
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res, err := r.RoundTripper.RoundTrip(out)
	if err == nil {
		res.Body = &arcRenamed{Closer: res.Body, lines: bufio.NewReader(res.Body), toScript: r.toScript}
	}
	return res, err
}

// arcRenamed is the body of an answer with the ids of the script.
type arcRenamed struct {
	io.Closer
	lines    *bufio.Reader
	toScript *strings.Replacer
	rest     string
}

func (r *arcRenamed) Read(b []byte) (int, error) {
	var err error
	if r.rest == "" {
		r.rest, err = r.lines.ReadString('\n')
		r.rest = r.toScript.Replace(r.rest)
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	if r.rest != "" || n > 0 {
		err = nil // again with the next line
	}
	return n, err
}

// arcLive is the fixture of a serve_script in another process.
type arcLive struct {
	*liveServer
	sinks *arcSinks
}

func arcOpenLive(_ T, in *Input, s *liveServer) (Step, error) {
	in.String("fixture")
	if s.isShared {
		renamed := *s.client
		renamed.Transport = newARCRename(in.value.Get("steps"), s.client.Transport)
		s.client = &renamed
	}
	f := &arcLive{liveServer: s, sinks: &arcSinks{byURL: map[string]*arcSink{}}}
	return f.step, s.start(f.sinks)
}

// ServeHTTP is a delivery attempt from another process.
func (s *arcSinks) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	if err != nil {
		return
	}
	status, err := s.receive(req, "https:/"+req.URL.RequestURI(), body)
	if err != nil {
		panic(http.ErrAbortHandler) // the network fails
	}
	w.WriteHeader(status)
}

func (f *arcLive) step(in *Input) (Answer, error) {
	switch {
	case in.Has("sink"):
		f.sinks.respond(in.String("sink"), in.RawList("respond"))
		return Answer{}, nil
	case in.Has("deliveries"):
		in.Repeatable()
		return f.sinks.deliveries(in), nil
	case in.Has("together"):
		return arcTogether(in, f.request)
	}
	x, err := f.request(in)
	if err != nil {
		return nil, err
	}
	f.t.Logf("sent     %s %s %s", x.req.Method, x.req.URL, in.Raw("body"))
	a, err := x.send()
	// A refused request changed nothing. A server may need a moment for the step before.
	in.repeatable = x.isRefused || isARCRead(in)
	if g, nerr := normal("answer", a); err == nil && nerr == nil {
		f.t.Logf("received %s", g.text())
	}
	return a, err
}

func (f *arcLive) request(in *Input) (*arcExchange, error) {
	in.IntOr("server", 1)
	return arcRequest(in, f.client, f.base)
}

// isARCRead reports whether the request of a step changes nothing.
func isARCRead(in *Input) bool {
	var req struct{ Method string }
	body, _ := in.WireOr("body")
	return json.Unmarshal(body, &req) == nil && (req.Method == arc.MethodTaskInfo || strings.HasPrefix(req.Method, "debug.echo"))
}
