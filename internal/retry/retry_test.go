// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errPlain = errors.New("plain")

// A closeError is an error of another kernel that declares its class.
type closeError struct {
	code  int
	class Class
}

func (e *closeError) Error() string     { return fmt.Sprint("closed: ", e.code) }
func (e *closeError) RetryClass() Class { return e.class }

// quiet is a policy without log records.
func quiet(p Policy) Policy {
	p.Logger = slog.New(slog.DiscardHandler)
	return p
}

// outcomes returns an operation that fails with each error in turn and then succeeds. It
// counts its calls.
func outcomes(calls *int, errs ...error) func(context.Context, int) error {
	return func(context.Context, int) error {
		*calls++
		if *calls > len(errs) {
			return nil
		}
		return errs[*calls-1]
	}
}

func status(code int, header ...string) error {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return MarkStatus(fmt.Errorf("status %d", code), code, h)
}

func TestClassOfKnowsErrors(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	get := func(address string, err error) error { return &url.Error{Op: "Get", URL: address, Err: err} }
	badURL := strings.Join([]string{"http://", "::1"}, "[")
	_, parseErr := url.Parse(badURL)
	tests := []struct {
		name string
		err  error
		want Class
	}{
		{"nil", nil, Permanent},
		{"plain", errPlain, Permanent},
		{"marked", Mark(errPlain, Refused, 0), Refused},
		{"marked inside", fmt.Errorf("call: %w", Mark(errPlain, Unsent, 0)), Unsent},
		{"marked again", Mark(fmt.Errorf("call: %w", Mark(dial, Unsent, 0)), Permanent, 0), Permanent},
		{"declared", fmt.Errorf("read: %w", &closeError{1013, Refused}), Refused},
		{"declared and marked", Mark(&closeError{1009, Permanent}, Unknown, 0), Unknown},
		{"dial", dial, Unsent},
		{"dial in request", get("http://a.example/", dial), Unsent},
		{"proxy", get("http://a.example/", &net.OpError{Op: "proxyconnect", Err: io.EOF}), Unsent},
		{"name", &net.DNSError{Err: "no such host", IsNotFound: true}, Unsent},
		{"port missing", &net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port"}}, Permanent},
		{"network", &net.OpError{Op: "dial", Err: net.UnknownNetworkError("udpx")}, Permanent},
		{"read", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, Unknown},
		{"end of stream", fmt.Errorf("read: %w", io.ErrUnexpectedEOF), Unknown},
		{"end of pipe", &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}, Unknown},
		{"missing program", &os.PathError{Op: "fork/exec", Path: "/nowhere", Err: syscall.ENOENT}, Permanent},
		{"deadline", get("http://a.example/", context.DeadlineExceeded), Unknown},
		{"unnamed transport error", get("http://a.example/", errPlain), Unknown},
		{"bad URL", parseErr, Permanent},
		{"scheme", get("ftp://a.example/", errPlain), Permanent},
		{"no scheme", get("a.example/", errPlain), Permanent},
		{"no host", get("http:///path", errPlain), Permanent},
		{"certificate", get("https://a.example/", &tls.CertificateVerificationError{Err: x509.HostnameError{}}), Permanent},
		{"no TLS record", get("https://a.example/", tls.RecordHeaderError{Msg: "first record"}), Permanent},
		{"no TLS", get("https://a.example/", http.ErrSchemeMismatch), Permanent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, ClassOf(tt.err)) })
	}
}

func TestClassOfKnowsStatus(t *testing.T) {
	want := map[Class][]int{
		Permanent: {200, 302, 400, 401, 403, 404, 405, 406, 409, 410, 411, 413, 415, 422, 426, 501, 505},
		Refused:   {425, 429},
		Unknown:   {408, 500, 502, 503, 504, 599},
	}
	for class, codes := range want {
		for _, code := range codes {
			require.Equal(t, class, ClassOf(status(code)), "status %d", code)
		}
	}
	require.Equal(t, Refused, ClassOf(status(503, "Retry-After", "1")))
	require.EqualError(t, status(503), "status 503")
	require.NoError(t, Mark(nil, Unknown, 0))
}

func TestClassOfKnowsRealFailures(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	get := func(address string) error {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get(address)
		if err == nil {
			err = response.Body.Close()
		}
		require.Error(t, err)
		return err
	}
	require.Equal(t, Permanent, ClassOf(get(server.URL)), "the certificate is not trusted")
	require.Equal(t, Permanent, ClassOf(get("gopher"+strings.TrimPrefix(server.URL, "https"))))
	require.Equal(t, Permanent, ClassOf(get("http://")))
	server.Close()
	require.Equal(t, Unsent, ClassOf(get(server.URL)), "no server listens")
}

func TestDoReturnsFirstResult(t *testing.T) {
	calls := 0
	require.NoError(t, Do(t.Context(), quiet(Policy{}), false, outcomes(&calls)))
	require.Equal(t, 1, calls)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errPlain)
	require.ErrorIs(t, Do(ctx, quiet(Policy{}), true, outcomes(&calls)), errPlain)
	require.Equal(t, 1, calls, "an ended context starts no attempt")
}

// A payment of which the peer may know is not sent again. One that surely was not
// processed is repeated until it is, once.
func TestDoNeverRepeatsAPayment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, lost := range []error{
			io.ErrUnexpectedEOF, context.DeadlineExceeded, &net.OpError{Op: "read", Err: syscall.ECONNRESET},
			status(500), status(502), status(503), status(504), status(408), &closeError{1006, Unknown},
		} {
			payments := 0
			err := Do(t.Context(), quiet(Policy{MaxAttempts: 9}), false, outcomes(&payments, lost, lost))
			require.ErrorIs(t, err, lost)
			require.Equal(t, 1, payments, "%v", lost)
		}
		attempts := 0
		err := Do(t.Context(), quiet(Policy{}), false, outcomes(&attempts, status(429),
			&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, status(503, "Retry-After", "2")))
		require.NoError(t, err)
		require.Equal(t, 4, attempts)
	})
}

func TestDoRetriesUnknownIfIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		require.NoError(t, Do(t.Context(), quiet(Policy{}), true, outcomes(&calls, io.EOF, status(500), status(503))))
		require.Equal(t, 4, calls)
		calls = 0
		err := Do(t.Context(), quiet(Policy{}), true, outcomes(&calls, io.EOF, io.EOF, io.EOF, status(500), io.EOF))
		require.EqualError(t, err, "status 500", "the last error is returned")
		require.Equal(t, 4, calls, "4 attempts are the default")
		calls = 0
		require.ErrorIs(t, Do(t.Context(), quiet(Policy{MaxAttempts: -1}), true, outcomes(&calls, io.EOF)), io.EOF)
		require.Equal(t, 1, calls, "a negative number disables retries")
	})
}

// The error of a handler is an answer, whatever it wraps, and is never retried.
func TestDoNeverRepeatsAFailedHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answer := range []error{errPlain, fmt.Errorf("handler: %w", errPlain), Mark(io.EOF, Permanent, 0),
			Mark(status(503, "Retry-After", "1"), Permanent, 0)} {
			calls := 0
			start := time.Now()
			require.ErrorIs(t, Do(t.Context(), quiet(Policy{}), true, outcomes(&calls, answer, answer)), answer)
			require.Equal(t, 1, calls, "%v", answer)
			require.Zero(t, time.Since(start))
		}
	})
}

// A message that is too large for the peer is sent once.
func TestDoNeverRepeatsATooLargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tooLarge := range []error{status(413), &closeError{1009, Permanent}} {
			calls := 0
			start := time.Now()
			require.ErrorIs(t, Do(t.Context(), quiet(Policy{}), true, outcomes(&calls, tooLarge, tooLarge)), tooLarge)
			require.Equal(t, 1, calls)
			require.Zero(t, time.Since(start))
		}
	})
}

func TestDoDelaysWithinBounds(t *testing.T) {
	tests := []struct {
		name   string
		policy Policy
		bounds []time.Duration // of the delays, in milliseconds
	}{
		{"default", Policy{MaxAttempts: 9}, []time.Duration{200, 400, 800, 1600, 3200, 6400, 10000, 10000}},
		{"base and max", Policy{MaxAttempts: 5, Base: time.Second, Max: 3 * time.Second},
			[]time.Duration{1000, 2000, 3000, 3000}},
		{"base above max", Policy{Base: time.Minute, Max: time.Second}, []time.Duration{1000, 1000, 1000}},
		{"no bound", Policy{MaxAttempts: 9, Base: time.Second, Max: -1},
			[]time.Duration{1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000}},
		{"no delay", Policy{MaxAttempts: 9, Base: -1}, []time.Duration{0, 0, 0, 0, 0, 0, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				longest := make([]time.Duration, len(tt.bounds))
				for range 300 {
					start, n := time.Now(), 0
					require.Error(t, Do(t.Context(), quiet(tt.policy), true, func(_ context.Context, attempt int) error {
						n++
						require.Equal(t, n, attempt)
						if n > 1 {
							longest[n-2] = max(longest[n-2], time.Since(start))
						}
						start = time.Now()
						return io.EOF
					}))
					require.Len(t, tt.bounds, n-1)
				}
				for i, bound := range tt.bounds {
					bound *= time.Millisecond
					require.LessOrEqual(t, longest[i], bound, "delay %d", i+1)
					require.GreaterOrEqual(t, longest[i], bound*9/10, "delay %d uses its bound", i+1)
				}
			})
		})
	}
}

func TestDoDelayNeverOverflows(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, limit := range []time.Duration{-1, math.MaxInt64} {
		p := quiet(Policy{Base: math.MaxInt64 - 1, Max: limit})
		require.Equal(t, io.EOF, Do(ctx, p, true, func(context.Context, int) error { return io.EOF }))
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := quiet(Policy{
			MaxAttempts: rapid.IntRange(-1, 11).Draw(rt, "attempts"),
			Base:        time.Duration(rapid.Int64().Draw(rt, "base")),
			Max:         time.Duration(rapid.Int64().Draw(rt, "max")),
		})
		var err error
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err = Do(ctx, p, true, func(context.Context, int) error {
				time.AfterFunc(100*time.Hour, cancel)
				return io.EOF
			})
		})
		require.ErrorIs(rt, err, io.EOF)
	})
}

func TestDoHonorsRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		date := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
		tests := []struct {
			name   string
			policy Policy
			err    error
			want   time.Duration // 0: no retry
		}{
			{"seconds", Policy{}, status(429, "Retry-After", "30"), 30 * time.Second},
			{"date", Policy{}, status(429, "Retry-After", date(20*time.Second)), 20 * time.Second},
			{"mark", Policy{}, Mark(errPlain, Refused, 7*time.Second), 7 * time.Second},
			{"kept by a second mark", Policy{}, Mark(status(503, "Retry-After", "9"), Unsent, 0), 9 * time.Second},
			{"longest", Policy{}, status(429, "Retry-After", "60"), time.Minute},
			{"too long", Policy{}, status(429, "Retry-After", "61"), 0},
			{"beyond numbers", Policy{}, status(429, "Retry-After", "99999999999999999999"), 0},
			{"own bound", Policy{MaxRetryAfter: time.Hour}, status(429, "Retry-After", "3600"), time.Hour},
			{"not allowed", Policy{MaxRetryAfter: -1}, status(429, "Retry-After", "1"), 0},
		}
		for _, tt := range tests {
			calls, start := 0, time.Now()
			err := Do(t.Context(), quiet(tt.policy), false, outcomes(&calls, tt.err))
			if tt.want == 0 {
				require.ErrorIs(t, err, tt.err, tt.name)
				require.Zero(t, time.Since(start), tt.name)
				continue
			}
			require.NoError(t, err, tt.name)
			require.InDelta(t, tt.want, time.Since(start), float64(time.Second), tt.name)
		}
		for _, text := range []string{"0", "-5", "soon", date(-time.Hour)} {
			calls, start := 0, time.Now()
			require.NoError(t, Do(t.Context(), quiet(Policy{}), false, outcomes(&calls, status(429, "Retry-After", text))))
			require.LessOrEqual(t, time.Since(start), 200*time.Millisecond, text)
		}
	})
}

func TestDoEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := status(429, "Retry-After", "30")
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		calls, start := 0, time.Now()
		require.Equal(t, busy, Do(ctx, quiet(Policy{}), false, outcomes(&calls, busy)))
		require.Zero(t, time.Since(start), "a delay that outlasts the deadline is not started")
		cancel()

		stop := errors.New("stopped")
		stopped, end := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { end(stop) })
		calls, start = 0, time.Now()
		err := Do(stopped, quiet(Policy{}), false, outcomes(&calls, busy, busy))
		require.ErrorIs(t, err, stop)
		require.ErrorIs(t, err, busy)
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, 1, calls)

		ctx, cancel = context.WithCancel(t.Context())
		calls = 0
		require.Equal(t, io.EOF, Do(ctx, quiet(Policy{}), true, func(context.Context, int) error {
			calls++
			cancel()
			return io.EOF
		}))
		require.Equal(t, 1, calls, "a canceled call is not repeated")
	})
}

func TestDoRenewsTokenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		renewals := 0
		p := quiet(Policy{MaxAttempts: -1, Renew: func(context.Context) bool {
			renewals++
			return true
		}})
		calls, start := 0, time.Now()
		require.NoError(t, Do(t.Context(), p, false, outcomes(&calls, status(401))))
		require.Equal(t, []int{2, 1}, []int{calls, renewals})
		require.Zero(t, time.Since(start))

		calls, renewals = 0, 0
		require.EqualError(t, Do(t.Context(), p, false, outcomes(&calls, status(401), status(401))), "status 401")
		require.Equal(t, []int{2, 1}, []int{calls, renewals}, "the second 401 is returned")

		calls, renewals = 0, 0
		require.Error(t, Do(t.Context(), p, false, outcomes(&calls, status(403))))
		require.Equal(t, []int{1, 0}, []int{calls, renewals}, "403 renews nothing")

		calls = 0
		p.Renew = func(context.Context) bool { return false }
		require.EqualError(t, Do(t.Context(), p, false, outcomes(&calls, status(401))), "status 401")
		require.Equal(t, 1, calls, "without another token the call is not repeated")
	})
}

func TestLimiterStopsRetryStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := quiet(Policy{Limiter: new(Limiter)})
		down := func(n int) (attempts int) {
			for range n {
				require.ErrorIs(t, Do(t.Context(), p, true, func(context.Context, int) error {
					attempts++
					return io.EOF
				}), io.EOF)
			}
			return attempts
		}
		require.Equal(t, 100+10+9, down(100), "a burst of 10, then one retry for 10 calls")
		require.Equal(t, 1000+100, down(1000))
		for range 1000 {
			require.NoError(t, Do(t.Context(), p, true, func(context.Context, int) error { return nil }))
		}
		require.Equal(t, 4+4+4+2, down(4), "successful calls fill the bucket up to the burst")
		p = quiet(Policy{MaxAttempts: 50})
		require.Equal(t, 100*50, down(100), "without a Limiter only the attempts are bounded")
	})
}

func TestDoLogsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := Policy{Base: -1, Subject: "arc: request", Logger: slog.New(slog.NewTextHandler(&log, nil))}
		calls := 0
		require.NoError(t, Do(t.Context(), p, true, outcomes(&calls, io.EOF)))
		require.Contains(t, log.String(), `level=WARN msg="arc: request retried" attempt=1 delay=0s err=EOF`)
		require.Equal(t, 1, strings.Count(log.String(), "\n"))
	})
}

func TestBreakerOpensAfterFiveFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		try := func(key string, outcome error) error {
			record, err := l.Breaker(key)
			if err == nil {
				record(outcome)
			}
			return err
		}
		for range 5 {
			require.NoError(t, try("a", io.EOF))
		}
		err := try("a", nil)
		require.ErrorIs(t, err, ErrOpen)
		require.Equal(t, Unsent, ClassOf(err))
		require.NoError(t, try("b", nil), "another key is not affected")

		for range 3 {
			time.Sleep(time.Minute)
			_, err := l.Breaker("a") // a probe without an outcome
			require.NoError(t, err)
			require.ErrorIs(t, try("a", nil), ErrOpen, "one probe a minute")
		}
		time.Sleep(time.Minute)
		require.NoError(t, try("a", io.EOF))
		require.ErrorIs(t, try("a", nil), ErrOpen, "a failed probe keeps the breaker open")
		time.Sleep(time.Minute)
		require.NoError(t, try("a", status(404)), "an answer proves that the peer is available")
		for range 4 {
			require.NoError(t, try("a", io.EOF))
		}
		require.NoError(t, try("a", nil))
		for range 9 {
			require.NoError(t, try("a", io.EOF), "success resets the count")
			require.NoError(t, try("a", errPlain))
		}
		for range 9 {
			require.NoError(t, try("a", context.Canceled), "a canceled operation is no failure")
		}
	})
}

func TestBreakerKeysAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		fail := func(key string) error {
			record, err := l.Breaker(key)
			if err == nil {
				record(io.EOF)
			}
			return err
		}
		for range 5 {
			require.NoError(t, fail("a"))
		}
		for i := range 1023 {
			require.NoError(t, fail(fmt.Sprint(i)))
		}
		for range 3 {
			require.NoError(t, fail("7"), "a known key takes no place")
		}
		record, err := l.Breaker("success")
		require.NoError(t, err)
		record(nil)
		require.ErrorIs(t, fail("a"), ErrOpen, "1,024 keys are held")
		require.NoError(t, fail("one more"))
		require.NoError(t, fail("a"), "one more key resets all")
	})
}

func TestBreakerConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := quiet(Policy{Limiter: new(Limiter)})
		for range 8 {
			go func() {
				for i := range 100 {
					if record, err := p.Limiter.Breaker(fmt.Sprint(i % 7)); err == nil {
						record(Do(t.Context(), p, true, func(context.Context, int) error { return io.EOF }))
					}
				}
			}()
		}
	})
}

func TestAfterReturnsRequestedDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Zero(t, After(nil))
		require.Zero(t, After(io.EOF))
		err := MarkStatus(io.EOF, 503, http.Header{"Retry-After": {"7"}})
		require.Equal(t, 7*time.Second, After(fmt.Errorf("wrapped: %w", err)))
		require.Zero(t, After(MarkStatus(io.EOF, 503, http.Header{"Retry-After": {"Mon, 01 Jan 1990 00:00:00 GMT"}})))
	})
}

func TestSleepEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, cause := time.Now(), errors.New("cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		require.NoError(t, Sleep(ctx, time.Minute))
		require.NoError(t, Sleep(ctx, -time.Minute))
		time.AfterFunc(time.Second, func() { cancel(cause) })
		require.Equal(t, cause, Sleep(ctx, time.Minute))
		require.Equal(t, cause, Sleep(ctx, time.Minute))
		require.Equal(t, 61*time.Second, time.Since(start))
	})
}

func TestDelay(t *testing.T) {
	for failures, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 6: 30 * time.Second,
		math.MaxInt: 30 * time.Second,
	} {
		shortest, longest := time.Hour, time.Duration(0)
		for range 1000 {
			d := Delay(failures, time.Second, 30*time.Second)
			shortest, longest = min(shortest, d), max(longest, d)
		}
		require.InDelta(t, 0.8*want.Seconds(), shortest.Seconds(), 0.02*want.Seconds(), "%d failures", failures)
		require.InDelta(t, 1.2*want.Seconds(), longest.Seconds(), 0.02*want.Seconds(), "%d failures", failures)
	}
	require.Zero(t, Delay(math.MaxInt, 0, time.Second))
}
