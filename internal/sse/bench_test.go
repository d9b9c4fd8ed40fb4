// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fivewire/fivewire/internal/bench/floor"
	"github.com/fivewire/fivewire/internal/bench/pair"
)

// The streams of these benchmarks have a hundred events of some 150 bytes.
const events = 100

var prompt = strings.Repeat("tokens of a model ", 6)

func appendJSON(dst []byte, i int) []byte {
	dst = append(dst, `{"chunkId":`...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	dst = append(dst, `,"text":"`...)
	dst = append(dst, prompt...)
	dst = append(dst, `","final":`...)
	dst = strconv.AppendBool(dst, i == events-1)
	return append(dst, '}')
}

var scratch = sync.Pool{New: func() any { return new([]byte) }}

// leanHandler writes events by hand and flushes each.
func leanHandler(w http.ResponseWriter, _ *http.Request) {
	p := scratch.Get().(*[]byte)
	defer scratch.Put(p)
	w.Header()["Content-Type"] = []string{"text/event-stream"}
	f := w.(http.Flusher)
	for i := range events {
		b := append((*p)[:0], "event: stream\ndata: "...)
		b = append(appendJSON(b, i), "\n\n"...)
		*p = b
		w.Write(b)
		f.Flush()
	}
}

// readyHandler has all events ready at once.
func readyHandler(w http.ResponseWriter, r *http.Request) {
	p := scratch.Get().(*[]byte)
	defer scratch.Put(p)
	sw := NewWriter(w, nil)
	defer sw.Close()
	for i := range events {
		*p = appendJSON((*p)[:0], i)
		if sw.Send(r.Context(), "stream", "", *p) != nil {
			return
		}
	}
}

// pacedHandler sends an event when the previous one is flushed.
func pacedHandler(w http.ResponseWriter, r *http.Request) {
	p := scratch.Get().(*[]byte)
	defer scratch.Put(p)
	f := &flushed{ResponseWriter: w, done: make(chan struct{}, 1)}
	sw := NewWriter(f, nil)
	defer sw.Close()
	for i := range events {
		*p = appendJSON((*p)[:0], i)
		if sw.Send(r.Context(), "stream", "", *p) != nil {
			return
		}
		<-f.done
	}
}

// flushed signals each completed flush.
type flushed struct {
	http.ResponseWriter
	done chan struct{}
}

func (f *flushed) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func (f *flushed) FlushError() error {
	err := http.NewResponseController(f.ResponseWriter).Flush()
	f.done <- struct{}{}
	return err
}

// leanClient scans lines.
func leanClient(body io.Reader) error {
	br := readers.Get().(*bufio.Reader)
	defer readers.Put(br)
	br.Reset(body)
	for n := 0; ; {
		line, err := br.ReadSlice('\n')
		if err == io.EOF {
			return check(n)
		}
		if err != nil {
			return err
		}
		if d, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			if !floor.Valid(d) {
				return errors.New("bad JSON")
			}
			n++
		}
	}
}

var readers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

func client(body io.Reader) error {
	r := NewReader(body, nil)
	for n := 0; ; n++ {
		ev, err := r.Next()
		if err == io.EOF {
			return check(n)
		}
		if err != nil {
			return err
		}
		if ev.Name != "stream" || !floor.Valid(ev.Data) {
			return errors.New("bad event")
		}
	}
}

func check(n int) error {
	if n != events {
		return fmt.Errorf("%d events", n)
	}
	return nil
}

// stream returns an operation that reads one stream.
func stream(b *testing.B, handler http.HandlerFunc, read func(io.Reader) error) func(int64) error {
	ts := httptest.NewServer(handler)
	tr := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	b.Cleanup(ts.Close)
	b.Cleanup(tr.CloseIdleConnections)
	cl := &http.Client{Transport: tr}
	return func(int64) error {
		res, err := cl.Post(ts.URL, "application/json", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return read(res.Body)
	}
}

// The base writes by hand, flushes each event and scans lines.
func BenchmarkPairHTTPStream100(b *testing.B) {
	for _, callers := range []int{1, 64} {
		for _, p := range []struct {
			name    string
			handler http.HandlerFunc
		}{{"ready", readyHandler}, {"paced", pacedHandler}} {
			b.Run(fmt.Sprintf("events=%s/callers=%d", p.name, callers), func(b *testing.B) {
				pair.RatioCallers(b, callers, stream(b, p.handler, client), stream(b, leanHandler, leanClient))
			})
		}
	}
}

// The base finds only the lines of an event.
func BenchmarkPairReader(b *testing.B) {
	var wire []byte
	for i := range events {
		wire = append(appendJSON(append(wire, "event: stream\ndata: "...), i), "\n\n"...)
	}
	src := bytes.NewReader(nil)
	pair.Ratio(b,
		pair.Loop(func() {
			src.Reset(wire)
			r := NewReader(src, nil)
			for n := 0; ; n++ {
				if _, err := r.Next(); err != nil {
					break
				}
			}
		}),
		pair.Loop(func() {
			src.Reset(wire)
			br := readers.Get().(*bufio.Reader)
			defer readers.Put(br)
			for br.Reset(src); ; {
				if _, err := br.ReadSlice('\n'); err != nil {
					break
				}
			}
		}))
}
