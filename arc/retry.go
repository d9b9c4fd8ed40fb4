// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"
)

// methodCapabilities is the method of ARC-D50, which changes nothing.
const methodCapabilities = "agent.getCapabilities"

// again decides by ARC-D49 whether an attempt that the network failed is repeated,
// and waits. What the server cannot have seen is sent again whatever it asks for;
// what it may have seen, only if to run it twice does no harm.
func (c *Client) shouldRetry(ctx context.Context, x *transfer, attempt int, err error) bool {
	if attempt > c.opts.MaxRetries || ctx.Err() != nil || errors.Is(err, ErrRedirect) || permanent(err) {
		return false
	}
	if !c.harmless(x.out) && !unseen(err, x.read.Load()) {
		return false
	}
	c.opts.Logger.DebugContext(ctx, "arc: request is sent again", "method", x.out.Method, "attempt", attempt, "error", err)
	return c.wait.Wait(ctx, attempt) == nil
}

// harmless reports whether running a request twice does no harm.
func (c *Client) harmless(out *ClientRequest) bool {
	return c.opts.Idempotent || out.Deduplicates || out.Method == MethodTaskInfo || out.Method == methodCapabilities
}

// unseen reports whether the server cannot have received a request: no connection
// was made, or it failed before the body was sent.
func unseen(err error, read bool) bool {
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect" || op.Op == "socks connect") {
		return true
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return true
	}
	return !read && broken(err)
}

// broken reports whether a connection failed, not user code.
func broken(err error) bool {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // itself a net.Error, whatever it holds
	}
	var n net.Error
	var no syscall.Errno
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &no) || errors.As(err, &n)
}

// permanent reports a failure that another attempt would meet again.
func permanent(err error) bool {
	var cert *tls.CertificateVerificationError
	var host x509.HostnameError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	return errors.As(err, &cert) || errors.As(err, &host) || errors.As(err, &alert) || errors.As(err, &record)
}

// later reports whether the server asks to come again later and the user agreed
// to that, and waits. The answer is then used up.
func (c *Client) later(ctx context.Context, x *transfer, attempt int, resp *http.Response) bool {
	if c.opts.MaxRetryAfter <= 0 || attempt > c.opts.MaxRetries ||
		resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return false
	}
	d, ok := retryAfter(resp.Header.Get("Retry-After"))
	if !ok || d > c.opts.MaxRetryAfter {
		return false
	}
	if end, has := ctx.Deadline(); has && time.Until(end) <= d {
		return false // the answer tells more than a timeout would
	}
	discard(resp)
	c.opts.Logger.DebugContext(ctx, "arc: server asks to wait", "method", x.out.Method, "attempt", attempt, "wait", d)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done(): // the next attempt fails at once with the cause
	}
	return true
}

// retryAfter reads the header in both its forms.
func retryAfter(text string) (time.Duration, bool) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(n) * time.Second, true
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at)), true
	}
	return 0, false
}
