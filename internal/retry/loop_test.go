// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errDial = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// A session is one call of the function of a Loop.
type session struct {
	up  time.Duration // how long the connection lasts; 0: none is made
	err error
}

// loopOver runs a Loop over sessions and cancels it after the delay that follows the last
// session. It returns all delays.
func loopOver(t *testing.T, p Policy, sessions ...session) (delays []time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n, start := 0, time.Now()
	err = Loop(ctx, p, func(ctx context.Context, connected func()) error {
		delays = append(delays, time.Since(start))
		if n == len(sessions) {
			cancel()
			return ctx.Err()
		}
		s := sessions[n]
		n++
		if s.up > 0 {
			connected()
			time.Sleep(s.up)
		}
		start = time.Now()
		return s.err
	})
	return delays, err
}

// A loop with a URL, certificate, status or close code that never works ends with the error.
func TestLoopEndsOnPermanentError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permanent := []error{status(400), status(401), status(403), status(404), status(405), status(410), status(413),
			Mark(errors.New("version mismatch"), Permanent, 0), &closeError{1003, Permanent}, &closeError{1008, Permanent},
			&closeError{1009, Permanent}, &closeError{4001, Permanent}}
		for _, want := range permanent {
			delays, err := loopOver(t, quiet(Policy{}), session{0, errDial}, session{0, want}, session{})
			require.Equal(t, want, err)
			require.Len(t, delays, 2, "%v", want)
		}
	})
}

func TestLoopEndsOnNil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delays, err := loopOver(t, quiet(Policy{}), session{0, errDial}, session{time.Second, nil}, session{})
		require.NoError(t, err)
		require.Len(t, delays, 2)
	})
}

func TestLoopRetriesStatusOfDeployment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delays, err := loopOver(t, quiet(Policy{}), session{time.Hour, io.EOF},
			session{0, status(404)}, session{0, status(400)}, session{0, status(405)}, session{0, status(403)}, session{})
		require.Equal(t, status(403).Error(), err.Error(), "403 is permanent all the time")
		require.Len(t, delays, 5)
		delays, err = loopOver(t, quiet(Policy{}), session{time.Hour, io.EOF},
			session{0, Mark(status(404), Permanent, 0)}, session{})
		require.EqualError(t, err, "status 404", "a mark overrides the status")
		require.Len(t, delays, 2)
	})
}

func TestLoopRetriesAllOtherErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delays, err := loopOver(t, quiet(Policy{MaxAttempts: 1}), session{0, errPlain}, session{0, status(503)},
			session{0, io.EOF}, session{time.Hour, &closeError{1001, Unknown}}, session{0, context.Canceled}, session{0, status(429)})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "status 429", "the last error is returned when the context ends")
		require.Len(t, delays, 7)
	})
}

func TestLoopReturnsLastErrorWhenContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		err := Loop(ctx, quiet(Policy{}), func(ctx context.Context, _ func()) error {
			if time.Since(start) > 30*time.Second {
				<-ctx.Done()
				return ctx.Err()
			}
			return errDial
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errDial, "an interrupted attempt does not hide the reason")
		require.Equal(t, time.Minute, time.Since(start))

		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, Loop(ctx, quiet(Policy{}), nil), context.Canceled)
	})
}

func TestLoopBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const runs = 200
		longest := make([]time.Duration, 6)
		for range runs {
			delays, _ := loopOver(t, quiet(Policy{}), session{0, errDial}, session{0, errDial},
				session{time.Millisecond, io.EOF}, session{time.Hour, io.EOF}, session{0, status(429, "Retry-After", "3600")})
			for i, d := range delays {
				longest[i] = max(longest[i], d)
			}
		}
		bounds := []time.Duration{0, 200, 400, 800, 200, 60000}
		for i, bound := range bounds {
			bound *= time.Millisecond
			require.LessOrEqual(t, longest[i], bound, "delay %d", i)
			require.GreaterOrEqual(t, longest[i], bound*9/10, "delay %d", i)
		}
	})
}

func TestLoopRenewsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		renewals := 0
		p := quiet(Policy{Renew: func(context.Context) bool {
			renewals++
			return true
		}})
		delays, err := loopOver(t, p, session{0, status(401)}, session{time.Hour, io.EOF}, session{0, status(401)},
			session{0, errDial}, session{0, status(401)}, session{})
		require.EqualError(t, err, "status 401", "a second 401 without a connection in between ends the loop")
		require.Len(t, delays, 5)
		require.Equal(t, 2, renewals)
	})
}

// A loop that cannot connect is visible in the log, and does not fill it.
func TestLoopNeverFailsSilently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := Policy{Subject: "altar: connection", Logger: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+30*time.Second)
		defer cancel()
		first := true
		_ = Loop(ctx, p, func(ctx context.Context, connected func()) error {
			if !first {
				require.Contains(t, log.String(), `level=WARN msg="altar: connection failed" failures=1`, "the first failure")
			}
			first = false
			connected() // a connection that is lost at once is a failure too
			return errDial
		})
		lines := strings.Count(log.String(), "\n")
		require.GreaterOrEqual(t, lines, 9, "once a minute")
		require.LessOrEqual(t, lines, 11)
		log.Reset()
		ctx, cancel = context.WithCancel(t.Context())
		_ = Loop(ctx, p, func(ctx context.Context, connected func()) error {
			connected()
			cancel()
			return ctx.Err()
		})
		require.Empty(t, log.String(), "the end of the context is no failure")
	})
}

// The delays begin again after a connection of use, and their bound may change.
func TestLoopDelaysBeginAgainAfterUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, isUsed := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			longest, bound, n, start := time.Duration(0), time.Hour, 0, time.Now()
			p := quiet(Policy{Base: time.Second, MaxNow: func() time.Duration { return bound }})
			_ = Loop(ctx, p, func(_ context.Context, connected func()) error {
				longest = max(longest, time.Since(start))
				if n++; n == 200 {
					cancel()
				}
				connected()
				if isUsed {
					connected()
				}
				start = time.Now()
				return io.EOF
			})
			require.Equal(t, isUsed, longest <= time.Second, longest)

			ctx, cancel = context.WithCancel(t.Context())
			longest, n, bound, start = 0, 0, time.Second, time.Now()
			_ = Loop(ctx, p, func(context.Context, func()) error {
				longest = max(longest, time.Since(start))
				if n++; n == 100 {
					require.LessOrEqual(t, longest, time.Second)
					bound = time.Hour
				} else if n == 200 {
					cancel()
				}
				start = time.Now()
				return io.EOF
			})
			require.Greater(t, longest, time.Second)
		}
	})
}
