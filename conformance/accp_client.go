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
	r, err := accpRegistry(in)
	if err != nil {
		return nil, err
	}
	peer := &accpPeer{}
	session := accp.SessionOptions{Registry: r}
	accptest.SetIDs(&session, accpIDs("c1"))
	opts := &accp.ClientOptions{SessionID: "s1", HTTPClient: &http.Client{Transport: peer}, Session: session}
	if !in.BoolOr("hello", true) {
		accptest.SkipGreeting(opts)
	}
	c, err := accp.NewClient("http://127.0.0.1"+accp.FramesPath, "client", opts)
	return (&accpCaller{client: c, peer: peer}).step, err
}

func (c *accpCaller) step(in *Input) (Answer, error) {
	*c.peer = accpPeer{posts: []string{}}
	for _, a := range in.Objects("answers") {
		c.peer.answers = append(c.peer.answers, readACCPAnswer(a))
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	json, err := c.act(in)
	if err == nil {
		err = c.peer.fault
	}
	if err == nil && len(c.peer.answers) > 0 {
		err = fmt.Errorf("%d answers are left over", len(c.peer.answers))
	}
	return Answer{"frames": c.peer.posts, "json": json}, err
}

// act carries out a call or a sync and returns its result.
func (c *accpCaller) act(in *Input) (Answer, error) {
	ctx := context.Background()
	switch do := in.String("do"); do {
	case "call":
		opts := &accp.CallOptions{Idempotent: in.Bool("idempotent")}
		m, err := accpJSON[accp.Message](in, "message")
		if err != nil {
			return nil, err
		}
		answer, err := c.client.Call(ctx, &m, opts)
		if err != nil {
			return accpLocal(err)
		}
		return Answer{"message": answer}, nil
	case "sync":
		state, err := accpJSON[accp.Params](in, "state")
		if err != nil {
			return nil, err
		}
		if err := c.client.Sync(ctx, state); err != nil {
			return accpLocal(err)
		}
		version, _ := c.client.Session().State()
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
	default:
		return nil, err
	}
	return Answer{"error": Answer{"code": code, "mayHaveRun": c.MayHaveRun}}, nil
}

// An accpAnswer is the reaction of the other side to one post.
type accpAnswer struct {
	lost, unreachable bool
	status            int
	body              string
}

func readACCPAnswer(in *Input) accpAnswer {
	a := accpAnswer{lost: in.Bool("lost"), unreachable: in.Bool("unreachable"), status: in.IntOr("status", http.StatusOK)}
	for _, frame := range in.StringsOr("frames") {
		a.body += frame + "\n"
	}
	return a
}

// An accpPeer takes the place of the network.
type accpPeer struct {
	answers []accpAnswer
	posts   []string
	fault   error // of the script
}

// RoundTrip is a post.
func (p *accpPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	defer req.Body.Close()
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if len(p.answers) == 0 {
		p.fault = errors.New("a post for which the script has no answer")
		return nil, p.fault
	}
	a := p.answers[0]
	p.answers = p.answers[1:]
	p.posts = append(p.posts, strings.TrimSuffix(string(body), "\n"))
	switch {
	case a.unreachable:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	case a.lost:
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	}
	h := http.Header{}
	if a.body != "" {
		h.Set("Content-Type", accp.MediaType)
	}
	return &http.Response{StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h,
		Body: io.NopCloser(bytes.NewReader([]byte(a.body))), ContentLength: int64(len(a.body)), Request: req}, nil
}
