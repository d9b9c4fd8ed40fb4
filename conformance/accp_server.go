// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/accp"
)

// newACCPDesk returns the server that the scripts of the bindings talk to.
func newACCPDesk() (*accp.Server, error) {
	s, err := accp.NewServer("server", &accp.ServerOptions{
		Session: accp.SessionOptions{NewID: accpIDs("5e")},
	})
	if err != nil {
		return nil, err
	}
	s.HandleFunc(accp.IntentReq, accp.OpChat, accpChat)
	s.HandleFunc(accp.IntentReq, accp.OpTool, accpTool)
	s.HandleFunc(accp.IntentReq, accp.OpGenerate, accpGenerate)
	return s, nil
}

func accpChat(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	if m.Schema() != accp.SchemaChat {
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
		{Key: "schema", Value: accp.String(accp.SchemaChat)},
	})
}

func accpTool(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
	if m.Schema() != accp.SchemaTool {
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
			{Key: "schema", Value: accp.String(accp.SchemaTool)},
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
			{Key: "schema", Value: accp.String(accp.SchemaStream)},
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
	t.Cleanup(func() { _ = s.Close(context.Background()) })
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
		scan := accp.NewScanner(w.Body, 0)
		for {
			f, err := scan.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, err
			}
			frames = append(frames, string(f))
		}
		if len(frames) > 0 {
			out["frames"] = frames
		}
		return out, nil
	}, nil
}

// pipeListener connects clients with a server inside the process, so that both
// live in virtual time.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// accpSocket is the fixture of a ws script: one connection, opened at 0.
type accpSocket struct {
	ws   *websocket.Conn
	done chan struct{} // the reader has ended

	mu     sync.Mutex
	frames []string
	code   websocket.StatusCode
}

func openACCPSocket(t *testing.T, _ *Input) (Step, error) {
	s, err := newACCPDesk()
	if err != nil {
		return nil, err
	}
	l := newPipeListener()
	hs := &http.Server{Handler: s}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(l)
	}()
	transport := &http.Transport{DialContext: l.dial}
	ws, _, err := websocket.Dial(context.Background(), "ws://desk"+accp.WebSocketPath, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{accp.Subprotocol},
	})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(1 << 20)
	d := &accpSocket{ws: ws, done: make(chan struct{}), code: -1}
	go d.read()
	t.Cleanup(func() {
		_ = ws.CloseNow()
		<-d.done
		_ = s.Close(context.Background())
		_ = hs.Close()
		transport.CloseIdleConnections()
		<-served
	})
	return d.step, nil
}

func (d *accpSocket) read() {
	defer close(d.done)
	for {
		_, data, err := d.ws.Read(context.Background())
		d.mu.Lock()
		if err != nil {
			d.code = websocket.CloseStatus(err)
			d.mu.Unlock()
			return
		}
		d.frames = append(d.frames, string(data))
		d.mu.Unlock()
	}
}

func (d *accpSocket) isClosed() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

func (d *accpSocket) step(in *Input) (Answer, error) {
	over := d.isClosed()
	switch {
	case in.Has("text"), in.Has("fill"):
		d.write(websocket.MessageText, accpWire(in, "text"), over)
	case in.Has("binaryB64"):
		d.write(websocket.MessageBinary, in.Bytes("binaryB64"), over)
	default:
		if !in.Bool("tick") {
			in.Fail("tick", "a step needs text, binaryB64 or tick")
		}
	}
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	frames := d.frames
	d.frames = nil
	if d.isClosed() {
		a := Answer{"json": Answer{"close": int(d.code)}}
		if len(frames) > 0 {
			a["frames"] = frames
		}
		return a, nil
	}
	if frames == nil {
		frames = []string{}
	}
	return Answer{"frames": frames}, nil
}

func (d *accpSocket) write(typ websocket.MessageType, data []byte, over bool) {
	if !over {
		_ = d.ws.Write(context.Background(), typ, data) // a connection that closes meanwhile shows in the answer
	}
}
