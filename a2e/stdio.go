// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/retry"
)

// Join returns one stream of a reader and a writer, such as two pipes. Close closes both, the
// writer first, if they are closers.
func Join(r io.Reader, w io.Writer) io.ReadWriteCloser { return &joined{r: r, w: w} }

type joined struct {
	r    io.Reader
	w    io.Writer
	once sync.Once
	err  error
}

func (j *joined) Read(b []byte) (int, error)  { return j.r.Read(b) }
func (j *joined) Write(b []byte) (int, error) { return j.w.Write(b) }

func (j *joined) Close() error {
	j.once.Do(func() {
		var errs []error
		if c, ok := j.w.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
		if c, ok := j.r.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
		j.err = errors.Join(errs...)
	})
	return j.err
}

// Stdio returns the standard input and output of the process as one stream, to serve the parent
// process. Nothing else may write to the standard output; logs belong to the standard error. Call
// it once.
//
// A read of the standard input cannot be interrupted, so the reading goroutine ends with the input
// or the process, not with Close.
func Stdio() io.ReadWriteCloser {
	return Join(interruptible(os.Stdin), os.Stdout)
}

// interruptible reads r in a goroutine, so that Close frees who waits for it.
func interruptible(r io.Reader) io.ReadCloser {
	end, feed := Pipe()
	go func() {
		_, _ = io.Copy(feed, r)
		_ = feed.(*pipeEnd).CloseWrite()
	}()
	return end
}

// ServeListener serves each connection of l as a separate session until ctx ends or l fails permanently, and
// returns when all sessions have ended. Use a listener of crypto/tls on networks. It closes l.
func (h *Host) ServeListener(ctx context.Context, l net.Listener) error {
	if l == nil {
		return errors.New("a2e: serve: no listener")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer l.Close()
	for failures := 0; ; {
		conn, err := l.Accept()
		if t, ok := errors.AsType[interface {
			error
			Temporary() bool
		}](err); ok && t.Temporary() && ctx.Err() == nil { // too many open files, for example: the sessions continue
			failures++
			h.log.WarnContext(ctx, "a2e: connection not accepted", "err", err)
			_ = retry.Sleep(ctx, retry.Delay(failures, 5*time.Millisecond, time.Second))
			continue
		}
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			cancel()
			return err
		}
		failures = 0
		sessions.Go(func() {
			if err := h.Serve(ctx, conn); err != nil && ctx.Err() == nil {
				h.log.InfoContext(ctx, "a2e: connection failed", "peer", conn.RemoteAddr(), "err", err)
			}
		})
	}
}
