// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fivewire/fivewire/arc"
)

// arcClientOps returns the operations that test the client of package arc.
func arcClientOps() map[string]Op {
	return map[string]Op{"client_script": Script{OwnReferences: []string{"ID"}, Open: openARCClient}.Run}
}

func openARCClient(_ *testing.T, in *Input) (Step, error) {
	peer := &arcPeer{}
	settings := in.Object("client")
	c, err := newARCClient(settings, settings.StringOr("endpoint", arcPeerURL+"/arc"), &arc.ClientOptions{HTTPClient: &http.Client{Transport: peer}})
	if err != nil {
		return nil, err
	}
	return func(step *Input) (Answer, error) { return arcClientStep(c, peer, step) }, nil
}

// newARCClient returns a client with the settings of a script.
func newARCClient(settings *Input, endpoint string, opts *arc.ClientOptions) (*arc.Client, error) {
	opts.MaxResumes = settings.IntOr("resume", 0)
	if settings.Has("retryAfterMs") {
		opts.Retry = &arc.RetryPolicy{MaxRetryAfter: time.Duration(settings.Int64("retryAfterMs")) * time.Millisecond}
	}
	if settings.Has("token") {
		opts.TokenSource = arc.StaticTokenSource(settings.String("token"))
	}
	self := settings.String("requestAgent")
	if err := settings.Err(); err != nil {
		return nil, err
	}
	return arc.NewClient(endpoint, self, opts)
}

func arcClientStep(c *arc.Client, peer *arcPeer, step *Input) (Answer, error) {
	*peer = arcPeer{}
	for _, r := range step.Objects("replies") {
		peer.replies = append(peer.replies, readARCReply(r))
	}
	a, err := arcClientCall(c, step.Object("call"), func() []byte { return peer.last })
	if peer.fault != nil {
		return nil, peer.fault
	}
	if err != nil {
		return nil, err
	}
	a["attempts"] = peer.attempts
	if peer.url != "" {
		a["sent"] = peer.sent(peer.url)
	}
	return a, nil
}

// arcClientCall makes a call and describes its outcome. The last body is that of the last
// response.
func arcClientCall(c *arc.Client, call *Input, lastBody func() []byte) (Answer, error) {
	method, target := call.String("method"), call.String("target")
	params, stream := json.RawMessage(call.String("params")), call.Bool("stream")
	opts := &arc.CallOptions{TraceID: call.StringOr("traceId", "")}
	if err := call.Err(); err != nil {
		return nil, err
	}
	a := Answer{}
	var err error
	if stream {
		text := ""
		for ev, fault := range c.Stream(context.Background(), target, method, params, opts) {
			if err = fault; err != nil {
				break
			}
			text += ev.Text
		}
		a["text"] = Optional(text)
	} else {
		var res *arc.Response
		if res, err = c.Call(context.Background(), target, method, params, opts); err == nil {
			a["json"] = res.Result
			if method == arc.MethodTaskNotification {
				a["json"] = Optional(res.Result) // only the status counts
			}
		}
	}
	arcOutcome(a, err, stream)
	if a["outcome"] == "invalid_response" && !isARCJSON(lastBody()) {
		a["outcome"] = "parse_error"
	}
	return a, nil
}

// arcOutcome names how a call ended.
func arcOutcome(a Answer, err error, stream bool) {
	var fault *arc.Error
	var status *arc.HTTPError
	switch {
	case err == nil && stream:
		a["outcome"] = "done"
	case err == nil:
		a["outcome"] = "ok"
	case errors.As(err, &fault):
		a["outcome"], a["code"] = "arc_error", Optional(int64(fault.Code))
	case errors.As(err, &status):
		a["outcome"], a["status"] = "http_error", Optional(status.Status)
	default:
		a["outcome"] = "network_error"
		for _, known := range []struct {
			err  error
			name string
		}{{arc.ErrRedirect, "redirect_refused"}, {arc.ErrInvalidResponse, "invalid_response"},
			{arc.ErrInvalidResult, "invalid_result"}, {arc.ErrIDMismatch, "id_mismatch"}, {arc.ErrVersionMismatch, "version_mismatch"},
			{arc.ErrTruncated, "truncated"}, {arc.ErrMalformedEvent, "malformed"}, {arc.ErrTooLarge, "too_large"}} {
			if errors.Is(err, known.err) {
				a["outcome"] = known.name
			}
		}
	}
}

// An arcReply is what a peer does with one exchange.
type arcReply struct {
	fail   string
	status int
	header http.Header
	body   string
	cut    bool // the connection ends before the end of the body
}

func readARCReply(in *Input) arcReply {
	if in.Has("fail") {
		fail := in.String("fail")
		if !slices.Contains([]string{"dial", "reset"}, fail) {
			in.Fail("fail", "is unknown: %q", fail)
		}
		return arcReply{fail: fail}
	}
	r := arcReply{status: in.Int("status"), header: http.Header{}, body: in.String("body"), cut: in.Bool("cut")}
	in.SetHeaders("headers", r.header)
	if in.Has("contentType") {
		r.header.Set("Content-Type", in.String("contentType"))
	}
	return r
}

// An arcPeer answers requests from a list and records the last request that left
// the client.
type arcPeer struct {
	replies  []arcReply
	attempts int
	url      string // of the recorded request; empty if none left the client
	header   http.Header
	body     []byte
	last     []byte // body of the last response
	fault    error  // of the script
}

// sent describes the last request.
func (p *arcPeer) sent(url string) any {
	return Optional(Answer{"url": Optional(url), "headers": Optional(Headers(p.header)), "json": Optional(json.RawMessage(p.body))})
}

// next takes the reply of an exchange.
func (p *arcPeer) next() (arcReply, error) {
	if p.attempts >= len(p.replies) {
		p.fault = errNoReply
		return arcReply{}, errNoReply
	}
	p.attempts++
	return p.replies[p.attempts-1], nil
}

// received records a request.
func (p *arcPeer) received(method, url string, header http.Header, body []byte) {
	if method != http.MethodPost {
		p.fault = fmt.Errorf("the request is %s", method)
	}
	p.url, p.header, p.body = url, maps.Clone(header), body
}

var errNoReply = errors.New("an exchange for which the script has no reply")

// RoundTrip takes the place of the network.
func (p *arcPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	defer req.Body.Close()
	reply, err := p.next()
	if err != nil {
		return nil, err
	}
	if reply.fail == "dial" {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	p.received(req.Method, req.URL.String(), req.Header, body)
	if reply.fail == "reset" {
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	}
	text := strings.ReplaceAll(reply.body, "${ID}", arcIDToken(body))
	p.last = []byte(text)
	res := &http.Response{StatusCode: reply.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: reply.header,
		Body: io.NopCloser(bytes.NewReader([]byte(text))), ContentLength: int64(len(text)), Request: req}
	if reply.cut {
		res.Body, res.ContentLength = cutBody([]byte(text)), -1
	}
	return res, nil
}
