// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// a2eSocketPath is where a host under test has its WebSocket.
const a2eSocketPath = "/ws"

func a2eLiveProtocol() liveProtocol {
	return liveProtocol{
		open: map[string]func(T, *Input, *liveServer) (Step, error){"host_script": a2eOpenLiveHost, "http_script": a2eOpenLiveHTTP},
		fixture: func(_ string, in strictjson.Value) string {
			if host := in.Get("host"); host != nil {
				return string(host)
			}
			return "{}"
		},
		notLive: func(_, step strictjson.Value) string {
			switch {
			case step.Get("restart") != nil:
				return "several processes"
			case step.Get("audit") != nil:
				return "private state"
			}
			return ""
		},
		transports: []string{"stdio", "tcp"}, needsLines: func(step strictjson.Value) bool { return step.Get("eof") != nil },
		shared: "{}", needsOwn: func(step strictjson.Value) bool { return bytes.Contains(step, []byte("memory/")) },
	}
}

// fixtureInput returns an input with the text of a fixture as its only member.
func fixtureInput(name, fixture string) (*Input, error) {
	text := append(append(strictjson.AppendString([]byte("{"), name), ':'), fixture...)
	v, err := strictjson.Check(append(text, '}'), strictjson.Options{MaxDepth: maxDepth})
	if err != nil {
		return nil, err
	}
	return newInput("fixture", v, &caseRun{memory: memory{}}), nil
}

func a2eOpenLiveHost(_ T, in *Input, s *liveServer) (Step, error) {
	if in.Has("host") {
		in.Raw("host")
	}
	if err := s.start(nil); err != nil {
		return nil, err
	}
	out := &a2eLines{}
	c, err := s.connect(a2eSocketPath, a2e.Subprotocol, nil, func(data []byte, err error) {
		for line := range strings.Lines(string(data)) {
			out.lines.add(strings.TrimSuffix(line, "\n"))
		}
		out.isEnded.Store(err != nil)
	})
	return func(step *Input) (Answer, error) {
		if step.Repeatable() {
			for _, line := range step.StringsOr("lines") {
				s.t.Logf("sent     %s", line)
				_ = c.write([]byte(line)) // a closed session takes nothing
				time.Sleep(quiet)
			}
			if step.Bool("eof") {
				c.endWrite()
			}
		}
		time.Sleep(quiet)
		return out.answer(step), nil
	}, err
}

// a2eLiveHTTP is the fixture of an http_script in another process.
type a2eLiveHTTP struct {
	*liveServer
	answer Answer     // of an exchange
	stream *a2eReader // the open stream, or nil
}

func a2eOpenLiveHTTP(t T, in *Input, s *liveServer) (Step, error) {
	if in.Has("host") {
		in.Raw("host")
	}
	s.keepHost = true
	f := &a2eLiveHTTP{liveServer: s}
	t.Cleanup(f.end)
	return f.step, s.start(nil)
}

// end ends the stream of the step before.
func (f *a2eLiveHTTP) end() {
	if f.stream != nil {
		f.stream.end()
		f.stream = nil
		time.Sleep(quiet) // until the server has seen it
	}
}

func (f *a2eLiveHTTP) step(in *Input) (Answer, error) {
	if in.Repeatable() {
		f.end()
		f.answer = Answer{}
		var err error
		switch {
		case in.Has("http"):
			f.answer, err = a2eHTTP(f, in.Object("http"))
		case in.Has("stream"):
			f.stream, err = a2eOpenStream(f, in.Object("stream"))
		}
		if err != nil {
			return nil, err
		}
	}
	time.Sleep(quiet)
	if f.stream != nil {
		return f.stream.answer()
	}
	return f.answer, nil
}
