// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// A Step is one thing that a scripted peer does. A step that fails ends the script and fails the test.
type Step func(p *Peer) error

// A Peer is the state of a script: its connection, and the message that it has received last.
type Peer struct {
	transport
	received string
}

// A transport moves messages: lines, or the bodies of HTTP requests and responses.
type transport interface {
	receive() (string, error)
	send(status int, header http.Header, text string) error
	cut() error
}

// Receive waits for the next message, which must contain a text.
func Receive(want string) Step {
	return func(p *Peer) (err error) {
		if p.received, err = p.receive(); err == nil && !strings.Contains(p.received, want) {
			err = fmt.Errorf("received %q, want %q in it", p.received, want)
		}
		return err
	}
}

// Send sends a message: a line, or a response with status 200.
func Send(text string) Step { return SendStatus(http.StatusOK, nil, text) }

// SendStatus sends an HTTP response.
func SendStatus(status int, header http.Header, text string) Step {
	return func(p *Peer) error { return p.send(status, header, text) }
}

// Answer sends the result of f for the message received last.
func Answer(f func(received string) string) Step {
	return func(p *Peer) error { return p.send(http.StatusOK, nil, f(p.received)) }
}

// Cut cuts the connection: of HTTP that of a request without a response.
func Cut() Step { return func(p *Peer) error { return p.cut() } }

// errExit reports a step that has called runtime.Goexit, as t.FailNow does.
var errExit = errors.New("the step ended its goroutine")

// run takes the steps in order.
func (p *Peer) run(t testing.TB, name string, steps []Step) {
	n, err := 0, error(nil)
	defer func() {
		if err != nil {
			t.Errorf("%s: step %d of the script: %v", name, n, err)
			_ = p.cut() // the other end does not wait for the rest
		}
	}()
	for _, step := range steps {
		n++
		err = errExit
		if err = step(p); err != nil {
			return
		}
	}
}

// Lines returns a connection to a peer that takes the steps. Afterwards the peer only reads, until the end of the test.
func Lines(t testing.TB, name string, steps ...Step) io.ReadWriteCloser {
	t.Helper()
	here, there := net.Pipe()
	l := &lines{conn: there, in: bufio.NewReader(there)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&Peer{transport: l}).run(t, name, steps)
		_, _ = io.Copy(io.Discard, l.in) // until the end of the connection
	}()
	t.Cleanup(func() {
		_ = here.Close()
		<-done
	})
	return here
}

type lines struct {
	conn net.Conn
	in   *bufio.Reader
}

func (l *lines) receive() (string, error) {
	line, err := l.in.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

func (l *lines) send(_ int, _ http.Header, text string) error {
	_, err := io.WriteString(l.conn, text+"\n")
	return err
}

func (l *lines) cut() error { return l.conn.Close() }

// HTTP returns a handler that takes the steps: Receive gets the body of the next request, and Send answers it. A request
// after the last step fails the test.
func HTTP(t testing.TB, name string, steps ...Step) http.Handler {
	t.Helper()
	h := &exchanges{requests: make(chan *exchange), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		(&Peer{transport: h}).run(t, name, steps)
		_ = h.cut() // if the last request has no response
	}()
	h.fail = func(r *http.Request) { t.Errorf("%s: %s %s after the last step", name, r.Method, r.URL) }
	t.Cleanup(func() {
		h.once.Do(func() { close(h.requests) })
		<-h.done
	})
	return h
}

type exchange struct {
	body     string
	w        http.ResponseWriter
	isCut    bool
	answered chan struct{}
}

type exchanges struct {
	requests chan *exchange
	current  *exchange // of the script; nil between two requests
	done     chan struct{}
	once     sync.Once
	fail     func(*http.Request)
}

// ServeHTTP implements [http.Handler].
func (h *exchanges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e := &exchange{body: string(body), w: w, answered: make(chan struct{})}
	select {
	case h.requests <- e:
		<-e.answered
		if e.isCut {
			panic(http.ErrAbortHandler)
		}
	case <-h.done:
		h.fail(r)
		http.Error(w, "the script has ended", http.StatusInternalServerError)
	}
}

// errEnd reports the end of a test in the middle of a script.
var errEnd = errors.New("no further request")

// errNoRequest reports a response before any request.
var errNoRequest = errors.New("no request to answer")

func (h *exchanges) receive() (string, error) {
	if h.current != nil {
		return "", errors.New("the last request has no response")
	}
	e, ok := <-h.requests
	if !ok {
		return "", errEnd
	}
	h.current = e
	return e.body, nil
}

func (h *exchanges) send(status int, header http.Header, text string) error {
	if h.current == nil {
		return errNoRequest
	}
	for key, values := range header {
		h.current.w.Header()[key] = values
	}
	if h.current.w.Header().Get("Content-Type") == "" {
		h.current.w.Header().Set("Content-Type", "application/json")
	}
	h.current.w.WriteHeader(status)
	_, err := io.WriteString(h.current.w, text)
	h.end(false)
	return err
}

func (h *exchanges) cut() error {
	if h.current == nil {
		return errNoRequest
	}
	h.end(true)
	return nil
}

func (h *exchanges) end(isCut bool) {
	h.current.isCut = isCut
	close(h.current.answered)
	h.current = nil
}
