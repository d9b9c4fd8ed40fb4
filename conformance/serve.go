// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Testee is an implementation that answers the conform command as its child process.
type Testee struct {
	Name, Version string
	Protocols     []Protocol

	// Clients are the clients of protocols, by name. They answer the actions of client mode.
	Clients map[string]OpenClient
}

// maxLine bounds a line between the conform command and a testee.
const maxLine = 64 << 20

// Serve answers the lines of r on w until r ends. The protocol of the lines is that of
// the file OPERATIONS.md. State machines need virtual time, and so a [testing.T].
func (e *Testee) Serve(t T, r io.Reader, w io.Writer) error {
	s := &testeeServer{Testee: e, t: t, out: w, open: make(map[string]chan strictjson.Value), clients: make(map[string]Client)}
	defer s.finish()
	in := lines.NewReader(r, maxLine)
	for {
		line, err := in.Next()
		switch {
		case err == io.EOF:
			return s.err()
		case errors.Is(err, lines.ErrTooLong):
			return fmt.Errorf("a line is longer than %d bytes", maxLine)
		case err != nil && !errors.Is(err, lines.ErrUnterminated):
			return err
		}
		v, err := strictjson.Check(bytes.Clone(line), strictjson.Options{MaxDepth: maxDepth})
		if err != nil {
			return fmt.Errorf("conformance: testee: %w", err)
		}
		s.receive(v)
	}
}

// A testeeServer is one run of [Testee.Serve].
type testeeServer struct {
	*Testee
	t T

	bubbles sync.Mutex // one at a time
	scripts sync.WaitGroup
	open    map[string]chan strictjson.Value // the steps of scripts by id; of the reading goroutine
	clients map[string]Client                // by session; of the reading goroutine

	mu     sync.Mutex
	out    io.Writer
	failed error // of a write; guarded by mu
}

func (s *testeeServer) finish() {
	for _, steps := range s.open {
		close(steps)
	}
	for _, c := range s.clients {
		c.Close()
	}
	s.scripts.Wait()
}

func (s *testeeServer) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// send writes an object with one member besides the id.
func (s *testeeServer) send(id, name string, value []byte) {
	line := []byte("{")
	if id != "" {
		line = append(strictjson.AppendString(append(line, `"id":`...), id), ',')
	}
	line = append(strictjson.AppendString(line, name), ':')
	line = append(append(line, value...), "}\n"...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.out.Write(line); err != nil && s.failed == nil {
		s.failed = err
	}
}

func (s *testeeServer) receive(v strictjson.Value) {
	id, _ := v.Get("id").Text()
	steps := s.open[id]
	switch {
	case v.Get("hello") != nil:
		s.hello()
	case v.Get("do") != nil:
		s.act(id, v)
	case v.Get("step") != nil && steps == nil:
		s.result(id, nil, errors.New("a step without an open script"))
	case v.Get("step") != nil:
		steps <- v
	case v.Get("end") != nil:
		if steps != nil {
			close(steps)
			delete(s.open, id)
		}
		if c := s.clients[id]; c != nil {
			delete(s.clients, id)
			s.scripts.Go(c.Close)
		}
	case v.Get("open") != nil:
		steps := make(chan strictjson.Value, 1)
		s.open[id] = steps
		s.scripts.Go(func() { s.runScript(id, v, steps) })
	default:
		s.runCase(id, v)
	}
}

func (s *testeeServer) hello() {
	names, ops := []string{}, map[string][]string{}
	for _, p := range s.Protocols {
		names = append(names, p.Name)
		ops[p.Name] = []string{}
		operations, err := OperationsOf(p.Name)
		for name := range p.Ops {
			if err != nil || operations.Has(name) {
				ops[p.Name] = append(ops[p.Name], name)
			}
		}
		slices.Sort(ops[p.Name])
	}
	hello, _ := json.Marshal(map[string]any{ // cannot fail with these types
		"conform": 1, "hello": map[string]any{"name": s.Name, "version": s.Version, "protocols": names, "ops": ops}})
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.out.Write(append(hello, '\n')); err != nil && s.failed == nil {
		s.failed = err
	}
}

// op returns the operation that a message names.
func (s *testeeServer) op(v strictjson.Value) (Op, error) {
	protocol, _ := v.Get("protocol").Text()
	name, _ := v.Get("op").Text()
	for _, p := range s.Protocols {
		if op := p.Ops[name]; p.Name == protocol && op != nil {
			return op, nil
		}
	}
	return nil, fmt.Errorf("no operation %s of %s: %w", name, protocol, errors.ErrUnsupported)
}

func (s *testeeServer) runCase(id string, v strictjson.Value) {
	op, err := s.op(v)
	if err != nil {
		s.result(id, nil, err)
		return
	}
	in := newInput("in", v.Get("in"), &caseRun{memory: memory{}})
	answer, err := call(s.t, op, in)
	if in.Err() != nil {
		err = in.Err()
	}
	s.result(id, answer, err)
}

// act carries out actions with the client of a session, and sends their outcomes.
func (s *testeeServer) act(id string, v strictjson.Value) {
	protocol, _ := v.Get("protocol").Text()
	session, _ := v.Get("session").Text()
	c := s.clients[session]
	if c == nil {
		open := s.Clients[protocol]
		if open == nil {
			s.result(id, nil, fmt.Errorf("no client of %s: %w", protocol, errors.ErrUnsupported))
			return
		}
		url, _ := v.Get("url").Text()
		var err error
		c, err = open(s.t, url, json.RawMessage(v.Get("client")), func(event json.RawMessage) { s.send(session, "event", event) })
		if err != nil {
			s.result(id, nil, err)
			return
		}
		s.clients[session] = c
	}
	s.scripts.Go(func() {
		outcomes := []byte("[")
		for e := v.Get("do").Elements(); e.Next(); {
			outcome, err := c.Do(json.RawMessage(e.Value))
			if err != nil {
				s.result(id, nil, err)
				return
			}
			if len(outcomes) > 1 {
				outcomes = append(outcomes, ',')
			}
			outcomes = append(outcomes, outcome...)
		}
		s.send(id, "outcomes", append(outcomes, ']'))
	})
}

// result sends the answer, the refusal or the fault of an operation.
func (s *testeeServer) result(id string, answer Answer, err error) {
	name := "answer"
	var failure *Failure
	switch {
	case errors.As(err, &failure):
		name, answer, err = "refusal", failure.fields(), nil
	case errors.Is(err, errors.ErrUnsupported):
		s.send(id, "unsupported", strictjson.AppendString(nil, err.Error()))
		return
	case err == nil && answer == nil:
		answer = Answer{}
	}
	var g got
	if err == nil {
		g, err = normal(name, answer)
	}
	if err != nil {
		s.send(id, "broken", strictjson.AppendString(nil, strings.ToValidUTF8(err.Error(), "\uFFFD")))
		return
	}
	s.send(id, name, g.text())
}

// runScript runs a state machine, one step after the other.
func (s *testeeServer) runScript(id string, v strictjson.Value, steps <-chan strictjson.Value) {
	op, err := s.op(v)
	if err != nil {
		s.result(id, nil, err)
		return
	}
	s.bubbles.Lock()
	defer s.bubbles.Unlock()
	run := &caseRun{memory: memory{}}
	run.feed = func() (*Input, bool) {
		v, ok := <-steps
		if !ok {
			return nil, false
		}
		in := newInput("step", v.Get("step"), run)
		now, _ := v.Get("now").Int()
		in.now = time.UnixMilli(now)
		return in, true
	}
	run.reply = func(answer strictjson.Value, err error) {
		if err != nil {
			s.result(id, nil, err)
			return
		}
		s.send(id, "answer", answer)
	}
	in := newInput("in", v.Get("open"), run)
	if _, err := call(s.t, op, in); err != nil {
		s.result(id, nil, err)
	}
	for range steps { // of a script that has ended with an error
		s.result(id, nil, errors.New("the script has ended"))
	}
}

// serve runs the steps that another process sends. Each has the time of its clock.
func (s Script) serve(t T, in *Input) error {
	run := in.run
	return s.bubble(t, func(t *testing.T) error {
		step, err := s.Open(t, in)
		if err == nil {
			err = in.Err()
		}
		if err != nil {
			return fmt.Errorf("opening the fixture: %w", err)
		}
		synctest.Wait()
		run.reply(strictjson.Value("{}"), nil)
		for {
			sin, ok := run.feed()
			if !ok {
				return nil
			}
			time.Sleep(time.Until(sin.now))
			synctest.Wait()
			answer, err := step(sin)
			if err == nil {
				err = in.Err()
			}
			g, nerr := normal("answer", answer)
			if err == nil {
				err = nerr
			}
			if answer == nil {
				g.object = map[string]member{}
			}
			run.reply(g.text(), err)
		}
	})
}
