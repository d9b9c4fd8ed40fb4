// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/store"
)

// Serve runs a process of the service on a store until the program is killed, and prints its address. Each
// operation is a request with the path and the query of its name and its arguments. Events, messages and
// effects of calls are posted to receiver, the URL of an HTTP server.
func Serve(ctx context.Context, db store.Store, receiver string) error {
	f := &front{receiver: receiver}
	o := options{
		ttl: time.Second, post: f.post, receive: f.receive,
		handlers: map[string]handler{"echo": echo, "items": items, "none": none},
	}
	p, err := newProcess(ctx, db, &fault.Plan{}, o)
	for attempt := 1; isSlow(err) && attempt < 30; attempt++ {
		p, err = newProcess(ctx, db, &fault.Plan{}, o)
	}
	if err != nil {
		return err
	}
	f.process = p
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, l.Addr())
	return http.Serve(l, f)
}

// isSlow reports whether a store under load took longer than a short lease.
func isSlow(err error) bool {
	return errors.Is(err, store.ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
}

// A front is the HTTP interface of a process.
type front struct {
	*process
	receiver string
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	arg := r.URL.Query().Get
	ctx := r.Context()
	var answer string
	var err error
	switch r.URL.Path {
	case "/submit":
		answer, err = f.submit(ctx, "user", arg("key"), arg("kind"), "params")
	case "/input":
		err = f.input(ctx, arg("job"), arg("id"), arg("id"))
	case "/job":
		answer, err = f.describe(ctx, arg("id"))
	case "/put":
		err = f.outbox.Put(ctx, "hook/"+arg("stream"), arg("id"), nil)
	case "/call":
		answer, err = f.call(ctx, arg("policy"), arg("key"))
	case "/open":
		if err = f.process.open(ctx, arg("session")); errors.Is(err, errNotHeld) {
			err = nil // an earlier request had this effect
		}
	case "/send":
		err = f.send(ctx, arg("session"), arg("id"), "")
	case "/stream":
		var n int
		if n, err = strconv.Atoi(arg("n")); err == nil {
			err = f.stream(arg("id"), "user", streamlog.Options{Resumable: true}, count(n, time.Millisecond))
		}
	case "/read":
		f.print(ctx, w, arg("id"), arg("after"))
		return
	default:
		err = errors.New("unknown operation")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, answer)
}

// A Job is the answer to the operation job.
type Job struct {
	IsDone      bool
	Result, Err string
	Items       map[string]int // number, by kind
}

func (f *front) describe(ctx context.Context, id string) (string, error) {
	rec, err := f.get(ctx, id)
	if err != nil {
		return "", err
	}
	answer := Job{IsDone: rec.Owner == "", Result: rec.Result, Err: rec.Err, Items: map[string]int{}}
	for item, err := range f.runs.Read(ctx, id) {
		if err != nil {
			return "", err
		}
		answer.Items[item.Kind]++
	}
	text, err := json.Marshal(answer)
	return string(text), err
}

// call has an effect at the receiver, and an outcome that no other attempt has.
func (f *front) call(ctx context.Context, policy, key string) (string, error) {
	k := once.Key{Principal: "user", Scope: "call", ID: key}
	p := once.Repeat
	if policy == "once" {
		p = once.AtMostOnce
	}
	data, _, err := f.calls.Do(ctx, k, p, func(ctx context.Context, _ once.Claim) (once.Result, error) {
		err := f.report(ctx, "effect", key, "")
		if p == once.AtMostOnce && errors.Is(context.Cause(ctx), lease.ErrLost) {
			return once.Result{Data: []byte("lost")}, nil // the effect is unknown, and no other run follows
		}
		return once.Result{Data: []byte(randid.New(""))}, err
	})
	if policy == "once" && errors.Is(err, once.ErrLost) {
		return "lost", nil
	}
	return string(data), err
}

// print writes the items of a stream, each as a line, and how the stream ends.
func (f *front) print(ctx context.Context, w http.ResponseWriter, id, after string) {
	n, err := strconv.ParseUint(after, 10, 64)
	var items []string
	if err == nil {
		items, err = f.read(ctx, id, "user", n)
	}
	for _, item := range items {
		fmt.Fprintln(w, item)
	}
	var cut *streamlog.CutError
	switch {
	case errors.Is(err, io.EOF):
		fmt.Fprintln(w, "end")
	case errors.As(err, &cut):
		fmt.Fprintln(w, "cut")
	default:
		fmt.Fprintln(w, "error:", err)
	}
}

// report passes something to the receiver.
func (f *front) report(ctx context.Context, kind, name, id string) error {
	target := f.receiver + "/" + kind + "?name=" + url.QueryEscape(name) + "&id=" + url.QueryEscape(id)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

func (f *front) post(ctx context.Context, item outbox.Item) outbox.Verdict {
	if err := f.report(ctx, "event", item.Stream, item.ID); err != nil {
		return outbox.Retry(50*time.Millisecond, err)
	}
	return outbox.Done()
}

func (f *front) receive(session, id, _ string) {
	for f.report(context.Background(), "message", session, id) != nil {
		time.Sleep(10 * time.Millisecond)
	}
}
