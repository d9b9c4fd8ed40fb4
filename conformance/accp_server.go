// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/accp/profile"
)

// newACCPDesk returns the server that the scripts of the bindings talk to.
func newACCPDesk() (*accp.Server, error) {
	opts := accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}}
	accptest.SetIDs(&opts.Session, accpIDs("5e"))
	s, err := accp.NewServer("server", &opts)
	if err != nil {
		return nil, err
	}
	runs := &accpRuns{}
	s.Handle(accp.IntentReq, profile.OpExecute, accp.HandlerFunc(runs.execute))
	s.Handle(accp.IntentReq, profile.OpTransaction, accp.HandlerFunc(runs.transact))
	s.Handle(accp.IntentReq, profile.OpChat, accp.HandlerFunc(accpChat))
	s.Handle(accp.IntentReq, profile.OpTool, accp.HandlerFunc(accpTool))
	s.Handle(accp.IntentReq, profile.OpGenerate, accp.HandlerFunc(accpGenerate))
	return s, nil
}

// accpRuns counts the requests of one desk that ran.
type accpRuns struct{ count atomic.Int64 }

func (r *accpRuns) execute(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
	return w.SendResult(accp.Params{{Key: "runs", Value: accp.Int(r.count.Add(1))}})
}

func (r *accpRuns) transact(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	if m.Params.Text("schema") != profile.SchemaTransaction {
		return accp.ErrInvalidIntent
	}
	runs := r.count.Add(1)
	v, _ := m.Params.Get("reference")
	if text, _ := v.Text(); text == "boom" {
		return accp.ErrToolExecFailed
	}
	result := accp.Params{
		{Key: "status", Value: accp.String("settled")},
		{Key: "runs", Value: accp.Int(runs)},
		{Key: "schema", Value: accp.String(profile.SchemaTransaction)},
	}
	if id, ok := m.Params.Get("transaction_id"); ok {
		result = append(result, accp.Param{Key: "transaction_id", Value: id})
	}
	return w.SendResult(result)
}

func accpChat(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	if m.Params.Text("schema") != profile.SchemaChat {
		return accp.ErrInvalidIntent
	}
	v, _ := m.Params.Get("content")
	content, ok := v.Text()
	turn := int64(0)
	if t, there := m.Params.Get("turn"); there {
		var isInt bool
		turn, isInt = t.Int()
		ok = ok && isInt
	}
	if !ok {
		return accp.ErrInvalidType
	}
	return w.SendResult(accp.Params{
		{Key: "content", Value: accp.String("You said: " + content)},
		{Key: "turn", Value: accp.Int(turn + 1)},
		{Key: "schema", Value: accp.String(profile.SchemaChat)},
	})
}

func accpTool(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	if m.Params.Text("schema") != profile.SchemaTool {
		return accp.ErrInvalidIntent
	}
	v, _ := m.Params.Get("tool_name")
	name, ok := v.Text()
	args, there := m.Params.Get("arguments")
	if !there {
		args = accp.Map()
	}
	if !ok || args.Kind() != accp.KindMap {
		return accp.ErrToolSchema
	}
	switch name {
	case "boom":
		return accp.ErrToolExecFailed
	case "echo":
		return w.SendResult(accp.Params{
			{Key: "tool_name", Value: accp.String(name)},
			{Key: "result", Value: args},
			{Key: "schema", Value: accp.String(profile.SchemaTool)},
		})
	}
	return accp.ErrToolNotFound
}

func accpGenerate(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	v, _ := m.Params.Get("data")
	text, ok := v.Text()
	if !ok {
		return accp.ErrInvalidType
	}
	words := strings.Split(text, " ")
	for i, word := range words {
		err := w.Send(&accp.Message{Intent: accp.IntentStream, Op: m.Op, Params: accp.Params{
			{Key: "chunk_index", Value: accp.Int(int64(i))},
			{Key: "total_chunks", Value: accp.Int(int64(len(words)))},
			{Key: "data", Value: accp.String(word)},
			{Key: "is_final", Value: accp.Bool(i == len(words)-1)},
			{Key: "schema", Value: accp.String(profile.SchemaStream)},
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// openACCPHTTP is the fixture of an http script.
func openACCPHTTP(t *testing.T, _ *Input) (Step, error) {
	s, err := newACCPDesk()
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Shutdown(context.Background()) })
	return accpPost(s), nil
}

// accpPost returns the step of an http script.
func accpPost(s http.Handler) Step {
	return func(in *Input) (Answer, error) {
		r := httptest.NewRequest(in.StringOr("method", http.MethodPost), in.StringOr("path", accp.FramesPath),
			bytes.NewReader(accpWire(in, "body")))
		r.Header.Set("Content-Type", in.StringOr("contentType", accp.MediaType))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		a := Answer{"status": w.Code}
		if typ := w.Header().Get("Content-Type"); typ != "" {
			a["type"] = typ
		}
		if allow := w.Header().Get("Allow"); allow != "" {
			a["allow"] = allow
		}
		out := Answer{"json": a}
		frames := []string{}
		for f, err := range accp.ScanFrames(w.Body, 0) {
			if err != nil {
				return nil, err
			}
			frames = append(frames, string(f))
		}
		if len(frames) > 0 {
			out["frames"] = frames
		}
		return out, nil
	}
}

// accpSocket is the fixture of a ws script: one desk, and one connection to it
// at a time.
type accpSocket struct {
	dial    func() (*websocket.Conn, error)
	wait    func()              // until the server is idle
	rewrite func([]byte) []byte // frames to the server
	restore func([]byte) []byte // frames of the server
	conn    *accpConn
}

// accpConn is one connection and its received frames.
type accpConn struct {
	ws     *websocket.Conn
	frames tape[string]
	change func([]byte) []byte  // of received frames
	done   chan struct{}        // closed when the reader has ended
	code   websocket.StatusCode // after the end
}

func openACCPSocket(t *testing.T, _ *Input) (Step, error) {
	s, err := newACCPDesk()
	if err != nil {
		return nil, err
	}
	transport := accptest.NewServer(t, s).HTTPClient.Transport
	same := func(b []byte) []byte { return b }
	d := &accpSocket{wait: synctest.Wait, rewrite: same, restore: same, dial: func() (*websocket.Conn, error) { return accpDial("ws://desk", transport) }}
	t.Cleanup(func() {
		d.close()
		_ = s.Shutdown(context.Background())
	})
	return d.step, d.open()
}

func accpDial(base string, transport http.RoundTripper) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, base+accp.WebSocketPath, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{"accp.v1"},
	})
	return ws, err
}

func (d *accpSocket) open() error {
	ws, err := d.dial()
	if err != nil {
		return err
	}
	ws.SetReadLimit(1 << 20)
	d.conn = &accpConn{ws: ws, change: d.restore, done: make(chan struct{})}
	go d.conn.read()
	return nil
}

func (d *accpSocket) close() {
	if d.conn != nil {
		_ = d.conn.ws.CloseNow()
		<-d.conn.done
	}
}

func (c *accpConn) read() {
	defer close(c.done)
	for {
		_, data, err := c.ws.Read(context.Background())
		if err != nil {
			c.code = websocket.CloseStatus(err)
			return
		}
		c.frames.add(string(c.change(data)))
	}
}

func (c *accpConn) isClosed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (d *accpSocket) step(in *Input) (Answer, error) {
	if in.Repeatable() {
		if err := d.act(in); err != nil {
			return nil, err
		}
	}
	d.wait()
	if in.Bool("reopen") {
		return Answer{"json": Answer{"open": true}}, nil
	}
	return d.conn.answer(in), nil
}

// act carries out the action of a step.
func (d *accpSocket) act(in *Input) error {
	switch {
	case in.Has("text"), in.Has("fill"):
		d.conn.write(websocket.MessageText, d.rewrite(accpWire(in, "text")))
	case in.Has("binaryB64"):
		d.conn.write(websocket.MessageBinary, in.Bytes("binaryB64"))
	case in.Bool("reopen"):
		d.close()
		return d.open()
	default:
		if !in.Bool("tick") {
			in.Fail("tick", "a step needs text, binaryB64, reopen or tick")
		}
	}
	return nil
}

// answer returns the frames since the step before, and the close code of a closed
// connection.
func (c *accpConn) answer(step *Input) Answer {
	frames := c.frames.since(step)
	if !c.isClosed() {
		return Answer{"frames": append([]string{}, frames...)}
	}
	a := Answer{"json": Answer{"close": int(c.code)}}
	if len(frames) > 0 {
		a["frames"] = frames
	}
	return a
}

func (c *accpConn) write(typ websocket.MessageType, data []byte) {
	if !c.isClosed() {
		_ = c.ws.Write(context.Background(), typ, data) // the answer shows a connection that closes
	}
}
