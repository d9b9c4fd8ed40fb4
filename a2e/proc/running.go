// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/a2e"
)

const (
	clientWindow  = 256 << 10 // bytes that a host may send before they are read
	maxUnread     = 1 << 20   // bytes of a stream that are kept
	maxUnreadAll  = 16 << 20  // bytes of all streams of a client without windows
	maxRunOutput  = 64 << 20  // bytes of a stream in Run
	maxInput      = 32 << 10  // bytes of one write to the input
	killTimeout   = 5 * time.Second
	signalKill    = "SIGKILL"
	streamOutput  = 0
	streamFailure = 1
)

// A Process is a process at the host, started by [Client.Start].
type Process struct {
	ID     string
	PID    int64
	Stdin  io.WriteCloser // takes valid UTF-8 only
	Stdout io.Reader
	Stderr io.Reader

	client *Client
	window int64 // zero for a host without the extension

	// guarded by the mutex of the client
	streams [2]stream
	unread  int64 // read by the caller and not granted yet
	exit    *exitData
	change  chan struct{} // closed by the next event
}

// A stream is the output of a process that is not read yet.
type stream struct {
	kept   []byte
	isLost bool // output after it was dropped
}

// exitData is the data of an event: of output, or of the exit.
type exitData struct {
	Text   string `json:"text"`
	Base64 []byte `json:"base64"`
	Code   *int   `json:"code"`
	Reason string `json:"reason"`
}

// An ExitError is the end of a process with another status than 0.
type ExitError struct {
	Code   int    // negative for a signal
	Reason string // "limit" if the host ended it for a limit, else empty
}

// Error returns the status, and the reason if there is one.
func (e *ExitError) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("proc: exit status %d (%s)", e.Code, e.Reason)
	}
	return fmt.Sprintf("proc: exit status %d", e.Code)
}

// An Output is the outcome of [Client.Run].
type Output struct {
	Stdout, Stderr []byte
	Code           int
}

// Start starts a process. Its output has to be read to the end: with the extension window, a process
// whose output is not read waits, and the connection does not. Without it the client keeps 1 MiB of
// each output, and 16 MiB in all; a reader gets what is kept, and then [a2e.ErrSlowReader]. For the end
// of ctx see [Client.Spawn].
func (c *Client) Start(ctx context.Context, r *SpawnRequest, opts *a2e.CallOptions) (*Process, error) {
	var own SpawnRequest
	if r != nil {
		own = *r
	}
	window := int64(0)
	if slices.Contains(c.client.PeerInfo().Features, extension) {
		window = clientWindow
		own.Window = &window
	}
	c.begin()
	answer, err := c.Spawn(ctx, &own, opts)
	if err != nil {
		c.started("", nil)
		return nil, err
	}
	p := &Process{ID: answer.ProcID, PID: answer.PID, client: c, window: window, change: make(chan struct{})}
	p.Stdin = &input{process: p, ctx: context.WithoutCancel(ctx)}
	p.Stdout, p.Stderr = &outputReader{p, streamOutput}, &outputReader{p, streamFailure}
	c.started(p.ID, p)
	return p, nil
}

// Run starts a process, closes its input, and returns its output. It kills the process, in at most 5 s, if ctx ends
// first, or after 64 MiB of an output, with the error [a2e.ErrTooLarge]. An exit status other than 0 is an
// [*ExitError], which comes with the output.
func (c *Client) Run(ctx context.Context, r *SpawnRequest, opts *a2e.CallOptions) (*Output, error) {
	var own SpawnRequest
	if r != nil {
		own = *r
	}
	own.StdinMode = "null"
	p, err := c.Start(ctx, &own, opts)
	if err != nil {
		return nil, err
	}
	var out Output
	var reading sync.WaitGroup
	var errs [2]error
	for i, b := range []*[]byte{&out.Stdout, &out.Stderr} {
		reading.Go(func() {
			if *b, errs[i] = p.readAll(ctx, i); errs[i] != nil {
				c.end(ctx, p.ID)
			}
		})
	}
	reading.Wait()
	err = p.Wait(ctx)
	if exit, ok := errors.AsType[*ExitError](err); ok {
		out.Code = exit.Code
	}
	for _, readErr := range errs {
		if readErr != nil {
			err = readErr
		}
	}
	return &out, err
}

func (p *Process) readAll(ctx context.Context, i int) (all []byte, err error) {
	for buf := make([]byte, 32<<10); ; {
		n, err := p.read(ctx, i, buf)
		all = append(all, buf[:n]...)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case len(all) > maxRunOutput:
			return all, fmt.Errorf("proc: run: output above %d bytes: %w", maxRunOutput, a2e.ErrTooLarge)
		}
		if err != nil {
			return all, err
		}
	}
}

// Wait waits for the exit of the process, which follows its output. It returns nil for the status 0,
// and else an [*ExitError].
func (p *Process) Wait(ctx context.Context) error {
	for {
		p.client.mu.Lock()
		exit, change := p.exit, p.change
		p.client.mu.Unlock()
		if exit != nil {
			if *exit.Code == 0 && exit.Reason == "" {
				return nil
			}
			return &ExitError{*exit.Code, exit.Reason}
		}
		if err := p.wait(ctx, change); err != nil {
			return err
		}
	}
}

// wait waits for an event.
func (p *Process) wait(ctx context.Context, change <-chan struct{}) error {
	select {
	case <-change:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.client.client.Done():
		_, err := p.client.GetStatus(ctx, &StatusRequest{ProcID: p.ID}, nil) // the cause of the end
		if err == nil {
			err = a2e.ErrClosed
		}
		return err
	}
}

// Kill ends the process and all that it started.
func (p *Process) Kill(ctx context.Context) error { return p.Signal(ctx, signalKill) }

// Signal sends SIGTERM, SIGINT or SIGKILL to the process and its group.
func (p *Process) Signal(ctx context.Context, signal string) error {
	_, err := p.client.Kill(ctx, &KillRequest{ProcID: p.ID, Signal: signal}, nil)
	return err
}

type outputReader struct {
	process *Process
	stream  int
}

func (r *outputReader) Read(b []byte) (int, error) {
	return r.process.read(context.Background(), r.stream, b)
}

// read reads a stream, and grants the host as much again.
func (p *Process) read(ctx context.Context, i int, b []byte) (int, error) {
	for {
		p.client.mu.Lock()
		s := &p.streams[i]
		n := copy(b, s.kept)
		s.kept = s.kept[n:]
		p.client.kept -= n
		p.unread += int64(n)
		grant := int64(0)
		if p.unread >= p.window/2 && p.window > 0 && p.exit == nil {
			grant, p.unread = p.unread, 0
		}
		isLost, isEnd, change := s.isLost, p.exit != nil, p.change
		p.client.mu.Unlock()
		if grant > 0 {
			_ = p.client.client.Send(ctx, "proc/window/event", &WindowEvent{ProcID: p.ID, Bytes: grant}) // else the session has ended
		}
		switch {
		case n > 0 || len(b) == 0:
			return n, nil
		case isLost:
			return 0, a2e.ErrSlowReader
		case isEnd:
			return 0, io.EOF
		}
		if err := p.wait(ctx, change); err != nil {
			return 0, err
		}
	}
}

// begin keeps the events of unknown processes, because the first events of a process may be read before
// the caller of its request has the answer.
func (c *Client) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.starting++
}

// started ends begin. A nil process was not started.
func (c *Client) started(id string, p *Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p != nil {
		c.processes[id] = p
		for _, e := range c.early[id] {
			c.takeLocked(p, e)
			c.earlySize -= len(e.Data)
		}
		delete(c.early, id)
	}
	if c.starting--; c.starting == 0 {
		clear(c.early)
		c.earlySize = 0
	}
}

// take takes an event of a process.
func (c *Client) take(m *a2e.Message) {
	e, ok := m.Body.(*ReadEvent)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.processes[e.ProcID]; p != nil {
		c.takeLocked(p, e)
	} else if c.starting > 0 && c.earlySize < maxUnreadAll {
		c.earlySize += len(e.Data)
		c.early[e.ProcID] = append(c.early[e.ProcID], e)
	}
}

// takeLocked adds an event to its process. c.mu must be held.
func (c *Client) takeLocked(p *Process, e *ReadEvent) {
	var data exitData
	if json.Unmarshal(e.Data, &data) != nil {
		return
	}
	close(p.change)
	p.change = make(chan struct{})
	if data.Code != nil {
		p.exit = &data
		delete(c.processes, p.ID)
		if p.window == 0 { // else its output belongs to the caller, and one window bounds it
			c.past = append(slices.DeleteFunc(c.past, func(q *Process) bool { return q.size() == 0 }), p)
		}
		return
	}
	text := data.Base64
	if text == nil {
		text = []byte(data.Text)
	}
	s := &p.streams[streamOutput]
	if e.StreamType == "stderr" {
		s = &p.streams[streamFailure]
	}
	s.isLost = s.isLost || len(s.kept)+len(text) > maxUnread // more than any window
	if p.window == 0 {
		c.makeRoomLocked(len(text))
		s.isLost = s.isLost || c.kept+len(text) > maxUnreadAll
	}
	if !s.isLost {
		s.kept = append(s.kept, text...)
		c.kept += len(text)
	}
}

// makeRoomLocked drops the output of the oldest ended processes. c.mu must be held.
func (c *Client) makeRoomLocked(n int) {
	for len(c.past) > 0 && c.kept+n > maxUnreadAll {
		q := c.past[0]
		c.past = c.past[1:]
		c.kept -= q.size()
		for i := range q.streams {
			s := &q.streams[i]
			s.isLost = s.isLost || len(s.kept) > 0
			s.kept = nil
		}
	}
}

// size returns the bytes of output that are not read.
func (p *Process) size() int { return len(p.streams[0].kept) + len(p.streams[1].kept) }

// An input is the standard input of a process.
type input struct {
	process *Process
	ctx     context.Context
	rest    []byte // of a character
}

// Write sends text. The rest of an incomplete character waits for the next call.
func (w *input) Write(b []byte) (n int, err error) {
	text := append(w.rest, b...)
	for len(text) > 0 {
		piece := wholeCharacters(text[:min(len(text), maxInput)])
		if len(piece) == 0 {
			w.rest = bytes.Clone(text)
			return len(b), nil
		}
		if !utf8.Valid(piece) {
			err = errors.New("proc: input is not valid UTF-8")
		} else {
			err = w.send(string(piece), false)
		}
		if err != nil {
			return max(len(b)-len(text), 0), err
		}
		text, w.rest = text[len(piece):], nil
	}
	return len(b), nil
}

func (w *input) Close() error {
	if len(w.rest) > 0 {
		return errors.New("proc: input ends inside a character")
	}
	return w.send("", true)
}

func (w *input) send(text string, isEnd bool) error {
	_, err := w.process.client.Write(w.ctx, &WriteRequest{ProcID: w.process.ID, Data: text, EOF: isEnd}, nil)
	return err
}
