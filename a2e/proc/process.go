// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
)

// A process is one that an agent has started.
type process struct {
	id      string
	reqID   string // of the spawn request
	text    string // the command, for people
	group   *group
	cmd     *exec.Cmd
	in      io.WriteCloser // nil: no input
	mark    string         // in the environment of its descendants
	outputs [2]*output
	timer   *time.Timer
	began   time.Time
	window  *window
	chain   *chainOutput // takes the output in place of the agent; nil for none
	limits  *Limits
	isLate  bool // started without its limits
	onEnd   func()
	done    chan struct{} // closed when the process has ended
	isSent  atomic.Bool   // its output and its exit

	writing sync.Mutex // serializes writes to the input

	mu    sync.Mutex // guards everything below
	state string
	cause string // the state to report after a kill
	code  *int64
	seq   int64
	size  int64 // bytes of output
	isCut bool  // above a limit

	sending sync.Mutex // keeps the events in the order of their numbers
}

func (p *process) start(stdin string) error {
	var err error
	if stdin != "null" {
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			return err
		}
	}
	for i, pipe := range []func() (io.ReadCloser, error){p.cmd.StdoutPipe, p.cmd.StderrPipe} {
		r, err := pipe()
		if err != nil {
			return err
		}
		p.outputs[i] = newOutput(r)
	}
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.isLate, err = p.limits.restrict(p.cmd.Process.Pid)
	if err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
	return err
}

// run sends the output of the process and its exit to the agent, after the answer to the request of it.
func (p *process) run(answered <-chan struct{}) {
	defer p.isSent.Store(true)
	var outputs sync.WaitGroup
	for i, stream := range []string{"stdout", "stderr"} {
		outputs.Go(func() {
			p.outputs[i].pieces(func(piece []byte) {
				if p.chain != nil {
					p.chain.add(p, i, piece)
					return
				}
				<-answered
				if p.count(len(piece)) && p.window.take(p.group.session.Context(), len(piece)) {
					p.push(stream, textOf(piece))
				}
			})
		})
	}
	if p.isLate {
		p.limits.restrictTree(p.mark)
	}
	status, err := p.cmd.Process.Wait() // not that of cmd, which closes the outputs
	p.timer.Stop()
	_ = signalGroup(p.cmd, "SIGKILL") // remaining processes of the group
	killMarked(p.mark)
	code := int64(-1)
	if err == nil {
		code = int64(exitCode(status))
	}
	for _, o := range p.outputs {
		o.finish()
	}
	if p.in != nil {
		_ = p.in.Close()
	}
	p.onEnd()
	p.finish(code)
	outputs.Wait()
	if p.chain != nil {
		close(p.chain.done)
		return
	}
	<-answered
	p.pushExit(code)
}

// finish sets the state of the ended process.
func (p *process) finish(code int64) {
	defer close(p.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.code = &code
	switch {
	case p.cause != "":
		p.state = p.cause
	case code == 0:
		p.state = StateStopped
	default:
		p.state = StateCrashed
	}
}

// pushExit sends the last event of the process.
func (p *process) pushExit(code int64) {
	p.mu.Lock()
	killed, isCut := p.cause != "", p.isCut
	p.mu.Unlock()
	exit := struct {
		Code   int64  `json:"code"`
		Reason string `json:"reason,omitempty"`
	}{Code: code}
	if isCut {
		exit.Reason = "limit"
	}
	switch {
	case killed:
		p.push("killed", exit)
	case code == 0:
		p.push("stdout", exit)
	default:
		p.push("stderr", exit)
	}
}

// count counts a piece of output, and reports whether the output is within its limit.
func (p *process) count(n int) bool {
	p.mu.Lock()
	p.size += int64(n)
	isOver := p.size > p.limits.MaxOutput
	p.mu.Unlock()
	if isOver {
		p.exceed()
	}
	return !isOver
}

// exceed ends a process that is above a limit.
func (p *process) exceed() {
	p.mu.Lock()
	p.isCut = p.isCut || p.state == StateRunning && p.cause == ""
	p.mu.Unlock()
	p.stop(StateCrashed, "SIGKILL")
}

// textOf returns output as the data of an event. Output that is not valid UTF-8 is also sent as
// base64, so that nothing is lost.
func textOf(part []byte) map[string]string {
	if utf8.Valid(part) {
		return map[string]string{"text": string(part)}
	}
	return map[string]string{"text": strings.ToValidUTF8(string(part), "\uFFFD"), "base64": base64.StdEncoding.EncodeToString(part)}
}

// push sends an event. It blocks while the agent does not read, which stops the process when its
// pipe is full.
func (p *process) push(stream string, data any) {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.mu.Lock()
	seq := p.seq
	p.seq++
	p.mu.Unlock()
	raw, err := guard.Encode(data)
	if err != nil {
		return
	}
	_ = p.group.session.Send(p.group.session.Context(), "proc/read/event", &ReadEvent{Kind: a2e.EventStatus, ReqID: p.reqID,
		Data: raw, Seq: seq, ProcID: p.id, StreamType: stream}) // an ended session needs no events
}

func (p *process) isRunning() bool {
	state, _ := p.now()
	return state == StateRunning
}

func (p *process) now() (state string, code *int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, p.code
}

// stop tells the process group to end, for a cause that becomes its state.
func (p *process) stop(cause, signal string) {
	p.mu.Lock()
	running := p.state == StateRunning
	if running && p.cause == "" {
		p.cause = cause
	}
	p.mu.Unlock()
	if !running {
		return
	}
	_ = signalGroup(p.cmd, signal)
	if signal == "SIGKILL" {
		_ = p.cmd.Process.Kill() // it may have joined another group
	}
}

// write writes to the input until ctx ends.
func (p *process) write(ctx context.Context, data string, eof bool) error {
	if p.in == nil {
		return os.ErrClosed
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if d, ok := p.in.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(time.Time{})
		cut := make(chan struct{})
		stop := context.AfterFunc(ctx, func() { defer close(cut); _ = d.SetWriteDeadline(time.Now()) })
		defer func() {
			if !stop() {
				<-cut // else it might cut the next write
			}
		}()
	}
	if _, err := io.WriteString(p.in, data); err != nil {
		return err
	}
	if eof {
		return p.in.Close()
	}
	return nil
}

// describe returns the process as a [Status].
func (p *process) describe() (json.RawMessage, error) {
	state, code := p.now()
	return a2e.EncodeModel(&Status{ProcID: p.id, Cmd: p.text, State: state, PID: int64(p.cmd.Process.Pid), ExitCode: code,
		StartedAt: wire.Timestamp(p.began)})
}
