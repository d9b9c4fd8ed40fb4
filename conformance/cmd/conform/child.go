// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lines"

	"github.com/fivewire/fivewire/internal/command"
)

const (
	maxLine     = 64 << 20        // bytes of a line
	maxRestarts = 3               // of a child that ends before its input
	maxStderr   = 4 << 10         // bytes of standard error that are kept
	exitTime    = 2 * time.Second // from the end of its input to the end of a child
)

// A child is a testee that runs as a child process. It is restarted when it ends too
// early. Its methods are safe for concurrent use.
type child struct {
	argv  []string
	env   []string      // besides that of this process
	limit time.Duration // without any answer
	hello []byte        // the first line; its answer is not a reply to a case

	groups *command.Groups

	events sync.Map // func(json.RawMessage) by the id of a client

	mu       sync.Mutex
	current  *process // guarded by mu
	restarts int      // guarded by mu
	closed   bool     // guarded by mu
}

// A process is one run of the command of a child.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr *tail
	events *sync.Map     // of the child
	done   chan struct{} // closed after err is set
	err    error         // why there are no more replies

	writing sync.Mutex

	mu       sync.Mutex
	open     map[string]chan reply // guarded by mu
	late     map[string]bool       // ids that nothing waits for; guarded by mu
	answered time.Time             // time of the last reply; guarded by mu
	reason   error                 // why it was killed; guarded by mu
	hello    reply
}

// A reply is one line of a child.
type reply map[string]json.RawMessage

// errHung is the error of the cases that a hanging child leaves open.
var errHung = errors.New("another case hangs")

// A tail keeps the last bytes that are written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if extra := len(t.text) - maxStderr; extra > 0 {
		t.text = append(t.text[:0], t.text[extra:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.text), "\uFFFD"))
}

// process returns the running process, and starts one if there is none.
func (c *child) process() (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.current; p != nil {
		select {
		case <-p.done:
		default:
			return p, nil
		}
		if c.closed {
			return nil, errors.New("the testee has been ended")
		}
		if c.restarts == maxRestarts {
			return nil, fmt.Errorf("the testee ended %d times, it is not started again: %w", maxRestarts+1, p.err)
		}
		c.restarts++
	}
	p, err := c.start()
	if err != nil {
		return nil, err
	}
	c.current = p
	return p, nil
}

// start starts the command and waits for its hello.
func (c *child) start() (*process, error) {
	p := &process{
		cmd: exec.Command(c.argv[0], c.argv[1:]...), stderr: &tail{}, events: &c.events, done: make(chan struct{}),
		open: make(map[string]chan reply), late: make(map[string]bool),
	}
	p.cmd.Env = append(p.cmd.Environ(), c.env...)
	p.cmd.Stderr = p.stderr
	p.cmd.WaitDelay = exitTime
	command.OwnGroup(p.cmd)
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	remove, err := c.groups.Start(p.cmd, p.cmd.Start)
	if err != nil {
		return nil, fmt.Errorf("the testee cannot be started: %w", err)
	}
	greeting := make(chan reply, 1)
	go func() {
		defer remove()
		p.read(out, greeting)
	}()
	go func() { _ = p.write(c.hello) }() // a process that does not read is killed below
	select {
	case p.hello = <-greeting:
		return p, nil
	case <-p.done:
		return nil, p.err
	case <-time.After(c.limit):
		p.kill(fmt.Errorf("the testee did not answer the hello within %v", c.limit))
		<-p.done
		return nil, p.err
	}
}

// read hands out the replies until the child ends its output or breaks the protocol.
func (p *process) read(out io.Reader, greeting chan<- reply) {
	in := lines.NewReader(out, maxLine)
	var err error
	for err == nil {
		var line []byte
		if line, err = nextLine(in); err == nil {
			err = p.receive(line, greeting)
		}
	}
	if err != io.EOF {
		p.kill(err)
	}
	_, _ = io.Copy(io.Discard, out)
	exit := p.cmd.Wait()
	command.KillGroup(p.cmd)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.reason != nil:
		p.err = p.reason
	case exit != nil:
		p.err = fmt.Errorf("the testee crashed: %w", exit)
	default:
		p.err = errors.New("the testee ended before its input did")
	}
	if text := p.stderr.String(); text != "" {
		p.err = fmt.Errorf("%w\nstandard error:\n%s", p.err, text)
	}
	close(p.done)
}

// nextLine returns the next line of the testee.
func nextLine(r *lines.Reader) ([]byte, error) {
	line, err := r.Next()
	switch {
	case errors.Is(err, lines.ErrTooLong):
		return nil, fmt.Errorf("the testee wrote a line longer than %d bytes", maxLine)
	case errors.Is(err, lines.ErrUnterminated):
		return nil, fmt.Errorf("the testee ended its output within a line: %s", clip(line))
	}
	return bytes.Clone(line), err
}

func clip(text []byte) string {
	const limit = 200
	if len(text) > limit {
		text = append(bytes.Clone(text[:limit]), "…"...)
	}
	return strings.ToValidUTF8(string(text), "\uFFFD")
}

func (p *process) receive(line []byte, greeting chan<- reply) error {
	var r reply
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("the testee wrote a line that is not a JSON object: %s", clip(line))
	}
	if r["hello"] != nil {
		select {
		case greeting <- r:
			return nil
		default:
			return errors.New("the testee wrote a second hello")
		}
	}
	var id string
	if err := json.Unmarshal(r["id"], &id); err != nil {
		return fmt.Errorf("the testee wrote a line without an id: %s", clip(line))
	}
	if r["event"] != nil {
		if event, ok := p.events.Load(id); ok {
			event.(func(json.RawMessage))(r["event"])
		}
		return nil // or the client has ended
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := p.open[id]
	if answer == nil {
		if p.late[id] {
			return nil
		}
		return fmt.Errorf("the testee answered %q, which is not open", id)
	}
	delete(p.open, id)
	p.answered = time.Now()
	answer <- r
	return nil
}

func (p *process) write(line []byte) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := p.stdin.Write(append(line, '\n'))
	return err
}

// kill ends the process group. The first reason counts.
func (p *process) kill(reason error) {
	p.mu.Lock()
	if p.reason == nil {
		p.reason = reason
	}
	p.mu.Unlock()
	command.KillGroup(p.cmd)
}

// call sends a line about a case and returns the reply.
func (p *process) call(id string, line []byte, limit time.Duration) (reply, error) {
	answer := make(chan reply, 1)
	sent := time.Now()
	p.mu.Lock()
	p.open[id] = answer
	p.mu.Unlock()
	go func() { _ = p.write(line) }() // a process that does not read is killed below
	for {
		p.mu.Lock()
		wait := limit - time.Since(sent)
		if p.answered.After(sent) {
			wait = limit - time.Since(p.answered)
		}
		p.mu.Unlock()
		select {
		case r := <-answer:
			return r, nil
		case <-p.done:
			select {
			case r := <-answer:
				return r, nil
			default:
			}
			return nil, p.err
		case <-time.After(max(wait, 0)):
		}
		if wait > 0 {
			continue
		}
		p.mu.Lock()
		delete(p.open, id)
		p.late[id] = true
		hangs := !p.answered.After(sent) // else it answered later cases
		first := p.reason == nil
		if first && hangs {
			p.reason = errHung
		}
		p.mu.Unlock()
		if hangs && !first {
			<-p.done
			return nil, p.err
		}
		err := fmt.Errorf("no answer within %v", limit)
		if hangs {
			if text := p.stderr.String(); text != "" {
				err = fmt.Errorf("%w\nstandard error:\n%s", err, text)
			}
			command.KillGroup(p.cmd)
		}
		return nil, err
	}
}

// call sends a line about a case. Where another case hangs, it is sent again to the next
// process.
func (c *child) call(id string, line []byte) (reply, error) {
	for {
		p, err := c.process()
		if err != nil {
			return nil, err
		}
		r, err := p.call(id, line, c.limit)
		if !errors.Is(err, errHung) {
			return r, err
		}
	}
}

// close ends the input of the child, waits for its end, and kills what is left of its
// process group.
func (c *child) close() {
	c.mu.Lock()
	c.closed = true
	p := c.current
	c.mu.Unlock()
	if p == nil {
		return
	}
	p.writing.Lock()
	_ = p.stdin.Close()
	p.writing.Unlock()
	select {
	case <-p.done:
	case <-time.After(exitTime):
	}
	p.kill(errors.New("the run has ended"))
	<-p.done
}
