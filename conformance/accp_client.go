// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
)

// accpCaller is the fixture of a client script: a client and the other side,
// which answers from a list.
type accpCaller struct {
	client *accp.Client
	peer   *accpPeer
}

func openACCPClient(_ *testing.T, in *Input) (Step, error) {
	peer := &accpPeer{}
	c, err := newACCPClient(in, "http://127.0.0.1"+accp.FramesPath, &http.Client{Transport: peer}, func(o *accp.SessionOptions) {
		accptest.SetIDs(o, accpIDs("c1"))
	})
	return (&accpCaller{client: c, peer: peer}).step, err
}

// newACCPClient returns a client with the settings of a script.
func newACCPClient(in *Input, url string, hc *http.Client, setIDs func(*accp.SessionOptions)) (*accp.Client, error) {
	r, err := accpRegistry(in)
	if err != nil {
		return nil, err
	}
	session := accp.SessionOptions{Registry: r}
	setIDs(&session)
	opts := &accp.ClientOptions{SessionID: "s1", HTTPClient: hc, Session: session}
	if !in.BoolOr("hello", true) {
		accptest.SkipGreeting(opts)
	}
	return accp.NewClient(url, "client", opts)
}

func (c *accpCaller) step(in *Input) (Answer, error) {
	*c.peer = accpPeer{posts: []string{}}
	for _, a := range in.Objects("answers") {
		c.peer.answers = append(c.peer.answers, readACCPAnswer(a))
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	json, err := accpAct(in, c.client)
	if err == nil {
		err = c.peer.end()
	}
	return Answer{"frames": c.peer.posts, "json": json}, err
}

// accpAct carries out a call or a sync and returns its result.
func accpAct(in *Input, c *accp.Client) (Answer, error) {
	ctx := context.Background()
	switch do := in.String("do"); do {
	case "call":
		opts := &accp.CallOptions{Idempotent: in.Bool("idempotent")}
		m, err := accpJSON[accp.Message](in, "message")
		if err != nil {
			return nil, err
		}
		answer, err := c.Call(ctx, &m, opts)
		if err != nil {
			return accpLocal(err)
		}
		return Answer{"message": answer}, nil
	case "sync":
		state, err := accpJSON[accp.Params](in, "state")
		if err != nil {
			return nil, err
		}
		if err := c.Sync(ctx, state); err != nil {
			return accpLocal(err)
		}
		version, _ := c.Session().State()
		return Answer{"version": version}, nil
	default:
		in.Fail("do", "unknown step %q", do)
		return nil, in.Err()
	}
}

// accpLocal names the error of a call.
func accpLocal(err error) (Answer, error) {
	var c *accp.CallError
	var e *accp.Error
	if !errors.As(err, &c) {
		return nil, err
	}
	code := "unreachable"
	switch {
	case errors.Is(err, accp.ErrUnreachable):
	case errors.As(err, &e):
		code = string(e.Code)
	case c.Status != 0:
		code = "http_error"
	default:
		return nil, err
	}
	return Answer{"error": Answer{"code": code, "mayHaveRun": c.MayHaveRun}}, nil
}

// An accpAnswer is the reaction of the other side to one post.
type accpAnswer struct {
	lost, unreachable bool
	cut               bool // the connection ends before the end of the body
	status            int
	header            http.Header
	body              string
}

func readACCPAnswer(in *Input) accpAnswer {
	a := accpAnswer{lost: in.Bool("lost"), unreachable: in.Bool("unreachable"), cut: in.Bool("cut"),
		status: in.IntOr("status", http.StatusOK), header: http.Header{}}
	in.SetHeaders("headers", a.header)
	for _, frame := range in.StringsOr("frames") {
		a.body += frame + "\n"
	}
	if a.cut && a.body != "" {
		a.body = a.body[:len(a.body)-len("]\n")]
	}
	if a.body != "" {
		a.header.Set("Content-Type", accp.MediaType)
	}
	return a
}

// An accpPeer takes the place of the network.
type accpPeer struct {
	answers []accpAnswer
	posts   []string
	fault   error // of the script
}

// next records a post and takes its answer.
func (p *accpPeer) next(body []byte) (accpAnswer, error) {
	if len(p.answers) == 0 {
		p.fault = errors.New("a post for which the script has no answer")
		return accpAnswer{}, p.fault
	}
	a := p.answers[0]
	p.answers = p.answers[1:]
	p.posts = append(p.posts, strings.TrimSuffix(string(body), "\n"))
	return a, nil
}

// end returns the fault of a step.
func (p *accpPeer) end() error {
	if p.fault == nil && len(p.answers) > 0 {
		return fmt.Errorf("%d answers are left over", len(p.answers))
	}
	return p.fault
}

// RoundTrip is a post.
func (p *accpPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	defer req.Body.Close()
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	a, err := p.next(body)
	switch {
	case err != nil:
		return nil, err
	case a.unreachable:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	case a.lost:
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	}
	res := &http.Response{StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header,
		Body: io.NopCloser(bytes.NewReader([]byte(a.body))), ContentLength: int64(len(a.body)), Request: req}
	if a.cut {
		res.Body, res.ContentLength = cutBody([]byte(a.body)), -1
	}
	return res, nil
}
