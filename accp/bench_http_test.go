// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/bench/pair"
)

// The floors of a call parse the frame at both ends, keep no session and record no outcome.

// A floorWire is one side of a call: what it writes and the frame that it reads.
type floorWire struct {
	out   []byte
	frame floorFrame
}

var floorWires = sync.Pool{New: func() any { return new(floorWire) }}

// floorEcho returns the answer to a request.
func (f *floorWire) floorEcho(in []byte) ([]byte, error) {
	if err := floorParse(in, &f.frame); err != nil {
		return nil, err
	}
	open, end := bytes.IndexByte(in, '{'), bytes.LastIndexByte(in, '}')
	if open < 0 || end < open {
		return nil, io.ErrUnexpectedEOF
	}
	f.out = append(append(append(f.out[:0], `@server>done:echo`...), in[open:end+1]...), benchMeta...)
	return f.out, nil
}

// floorRequest writes the request with a number.
func (f *floorWire) floorRequest(seq int64) []byte {
	f.out = strconv.AppendInt(append(f.out[:0], `@client>req:echo{item:pen|n:`...), seq, 10)
	f.out = append(append(f.out, '}'), benchMeta...)
	return f.out
}

// floorHTTP returns calls of net/http.
func floorHTTP(b *testing.B) func(int64) error {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := floorWires.Get().(*floorWire)
		defer floorWires.Put(f)
		in, err := io.ReadAll(r.Body)
		if err == nil {
			in, err = f.floorEcho(in)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = w.Write(in)
	}))
	b.Cleanup(ts.Close)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	b.Cleanup(client.CloseIdleConnections)
	return func(seq int64) error {
		f := floorWires.Get().(*floorWire)
		defer floorWires.Put(f)
		res, err := client.Post(ts.URL, "text/plain", bytes.NewReader(f.floorRequest(seq)))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		in, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		return floorParse(in, &f.frame)
	}
}

// floorWebSocket returns calls over one connection of the bare library, which answers in the order of the requests.
func floorWebSocket(b *testing.B) func(int64) error {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		var f floorWire
		for {
			_, in, err := conn.Read(context.Background())
			if err == nil {
				in, err = f.floorEcho(in)
			}
			if err != nil || conn.Write(context.Background(), websocket.MessageText, in) != nil {
				return
			}
		}
	}))
	b.Cleanup(ts.Close)
	conn, _, err := websocket.Dial(b.Context(), "ws"+strings.TrimPrefix(ts.URL, "http"), nil)
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.CloseNow() })
	waiting := make(chan chan error, 1024)
	go func() {
		var frame floorFrame
		for {
			_, in, err := conn.Read(context.Background())
			if err != nil {
				return
			}
			<-waiting <- floorParse(in, &frame)
		}
	}()
	var mu sync.Mutex
	answers := sync.Pool{New: func() any { return make(chan error, 1) }}
	return func(seq int64) error {
		f := floorWires.Get().(*floorWire)
		defer floorWires.Put(f)
		answer := answers.Get().(chan error)
		defer answers.Put(answer)
		mu.Lock()
		waiting <- answer
		err := conn.Write(context.Background(), websocket.MessageText, f.floorRequest(seq))
		mu.Unlock()
		if err != nil {
			return err
		}
		return <-answer
	}
}

// A call of the client to a handler, which the server records, to the same exchange without session and outcome.
func BenchmarkPairCall(b *testing.B) {
	d := newDesk(b, nil)
	for _, over := range []struct {
		name   string
		client caller
		floor  func(*testing.B) func(int64) error
	}{{"http", d.http(b, nil), floorHTTP}, {"websocket", d.dial(b, nil), floorWebSocket}} {
		call := func(seq int64) error {
			m := msg("req", "echo", text("item", "pen"), accp.Param{Key: "n", Value: accp.Int(seq)})
			_, err := over.client.Call(b.Context(), m, nil)
			return err
		}
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("over=%s/callers=%d/lib=sdk", over.name, callers), func(b *testing.B) {
				pair.RatioCallers(b, callers, call, over.floor(b))
			})
		}
	}
}
