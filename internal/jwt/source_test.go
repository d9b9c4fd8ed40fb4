// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/jwt/jwttest"
)

var (
	bothPaths = []string{jwttest.DiscoveryPath, jwttest.KeysPath}
	keysPath  = []string{jwttest.KeysPath}
)

// long returns a token that outlives each test.
func (f *fixture) long(key *jwttest.Key) string {
	return key.Sign(nil, f.issuer.Claims(map[string]any{"exp": time.Now().Add(1000 * time.Hour).Unix()}))
}

// outage makes all paths of the issuer fail until the returned function is called.
func (f *fixture) outage(status int) (end func()) {
	a, b := f.issuer.Fail(jwttest.DiscoveryPath, status), f.issuer.Fail(jwttest.KeysPath, status)
	return func() { a(); b() }
}

// hang makes a path answer only after the end of the request's context.
func (f *fixture) hang(path string) {
	f.issuer.Handle(path, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
}

func inBubble(t *testing.T, o Options[Token], test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newFixture(t, o)) })
}

func TestForgedTokensCauseOneFetchPerInterval(t *testing.T) {
	inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
		f.accepts(t, f.token(nil), "before")
		require.Equal(t, bothPaths, f.issuer.Requests())
		thief := jwttest.NewKey(t, "")
		for interval := range 20 {
			for n := range 30 {
				thief.ID = fmt.Sprint("k", n) // k1 is a published one
				f.refuses(t, thief.Sign(nil, f.issuer.Claims(nil)), "forged")
				f.refuses(t, thief.Sign(`{"alg":"ES256"}`, f.issuer.Claims(nil)), "forged without kid")
			}
			if interval == 0 {
				require.Empty(t, f.issuer.Requests(), "the first fetch was a moment ago")
			} else {
				require.Equal(t, keysPath, f.issuer.Requests(), interval)
			}
			time.Sleep(30 * time.Second)
		}
		f.accepts(t, f.token(nil), "after")
	})
}

func TestNewKeyIsKnownAfterInterval(t *testing.T) {
	inBubble(t, Options[Token]{MinRefreshInterval: time.Minute}, func(t *testing.T, f *fixture) {
		f.accepts(t, f.long(f.key), "the first key")
		next, same := jwttest.NewKey(t, "k2"), jwttest.NewKey(t, "k2")
		f.issuer.Publish(f.key, next)
		time.Sleep(time.Minute - 1)
		f.refuses(t, f.long(next), "the new key is unknown")
		time.Sleep(time.Nanosecond)
		f.accepts(t, f.long(next), "the new key")
		f.accepts(t, f.long(f.key), "the old key")

		f.issuer.Publish(same)
		time.Sleep(time.Minute)
		f.accepts(t, f.long(same), "another key with the same kid")
		f.refuses(t, f.long(next), "the withdrawn key")
	})
}

func TestWithdrawnKeyEndsWithTTL(t *testing.T) {
	for _, o := range []Options[Token]{
		{}, {KeyTTL: 10 * time.Minute}, {KeyTTL: 10 * time.Second, MinRefreshInterval: time.Hour},
	} {
		ttl := o.withDefaults().KeyTTL
		for _, uses := range []int{1, 3, 50} {
			inBubble(t, o, func(t *testing.T, f *fixture) {
				stolen := jwttest.NewKey(t, "stolen")
				f.issuer.Publish(f.key, stolen)
				token := f.long(stolen)
				f.accepts(t, token, "published")
				f.issuer.Publish(f.key)
				for range uses {
					time.Sleep(ttl / time.Duration(uses))
					_, _ = f.v.Verify(t.Context(), token)
				}
				time.Sleep(time.Duration(uses))
				f.refuses(t, token, fmt.Sprint("withdrawn ", ttl, " ago, used ", uses, " times"))
				f.accepts(t, f.long(f.key), "the other key")
			})
		}
	}
}

// Stale keys serve without delay while they are fetched again.
func TestStaleKeysServeWhileRevalidating(t *testing.T) {
	inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
		withdrawn := jwttest.NewKey(t, "k2")
		f.issuer.Publish(f.key, withdrawn)
		f.accepts(t, f.long(withdrawn), "published")
		f.issuer.Publish(f.key)
		f.issuer.Requests()
		time.Sleep(30*time.Minute - 1)
		f.accepts(t, f.long(withdrawn), "fresh")
		synctest.Wait()
		require.Empty(t, f.issuer.Requests())
		time.Sleep(time.Nanosecond)
		f.accepts(t, f.long(withdrawn), "stale, while the others are fetched")
		synctest.Wait()
		require.Equal(t, bothPaths, f.issuer.Requests())
		f.refuses(t, f.long(withdrawn), "fetched again")
		f.accepts(t, f.long(f.key), "the other key")
	})
}

// An outage of less than half of KeyTTL does no harm; after KeyTTL no key is trusted.
func TestOutage(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	inBubble(t, Options[Token]{MinRefreshInterval: time.Minute, Logger: logger}, func(t *testing.T, f *fixture) {
		token := f.long(f.key)
		f.accepts(t, token, "before")
		f.issuer.Requests()
		end := f.outage(http.StatusBadGateway)
		for range 59 * 6 {
			time.Sleep(10 * time.Second)
			f.accepts(t, token, "an outage in the first hour")
			synctest.Wait()
		}
		requests := len(f.issuer.Requests())
		require.Greater(t, requests, 20, "retried")
		require.LessOrEqual(t, requests, 30, "once a minute, from half of the lifetime")
		require.Equal(t, requests, strings.Count(log.String(), `msg="jwt: keys not refreshed" issuer=`+home+` err=`))
		end()
		time.Sleep(59 * time.Second)
		f.accepts(t, token, "after the outage")
		time.Sleep(29 * time.Minute)
		f.accepts(t, token, "the keys are new")
		synctest.Wait()

		f.outage(http.StatusBadGateway)
		time.Sleep(time.Hour)
		for range 10 {
			err := f.fails(t, token, "the keys are too old")
			var failure *httpx.Error
			require.ErrorAs(t, err, &failure)
			require.Equal(t, http.StatusBadGateway, failure.Status)
			require.ErrorContains(t, err, "jwt: keys unavailable: issuer "+home+": discovery: GET "+home+jwttest.DiscoveryPath)
			time.Sleep(10 * time.Minute)
		}
	})
}

// During an outage an unknown key is not an invalid token; a known key still decides.
func TestOutageOfUnknownKey(t *testing.T) {
	inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
		f.accepts(t, f.long(f.key), "before")
		time.Sleep(time.Minute)
		f.outage(http.StatusInternalServerError)
		for range 3 {
			f.fails(t, f.long(jwttest.NewKey(t, "k2")), "may be new")
			f.refuses(t, f.long(jwttest.NewKey(t, "k1")), "not signed by k1")
			f.accepts(t, f.long(f.key), "known")
		}
		require.Equal(t, Stats{Keys: 1, Fetches: 2, Failures: 1}, f.v.Stats())
	})
}

func TestOutageAtStart(t *testing.T) {
	for _, path := range bothPaths {
		inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
			end := f.issuer.Fail(path, http.StatusNotFound)
			for range 10 {
				f.fails(t, f.long(f.key), "down")
			}
			require.LessOrEqual(t, len(f.issuer.Requests()), 2, "one fetch")
			end()
			time.Sleep(30*time.Second - 1)
			f.fails(t, f.long(f.key), "before the interval ends")
			time.Sleep(time.Nanosecond)
			f.accepts(t, f.long(f.key), "up")
		})
	}
}

// An issuer that hangs delays the tokens without usable keys, for 10 s and once.
func TestHangingIssuer(t *testing.T) {
	for _, path := range bothPaths {
		inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
			token := f.long(f.key)
			restore := f.issuer.Fail(path, 500)
			f.hang(path)
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := f.v.Verify(ctx, token)
			require.ErrorIs(t, err, ErrUnavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, time.Second, time.Since(start))
			require.ErrorIs(t, f.fails(t, token, "hanging"), httpx.ErrTimeout)
			require.Equal(t, 10*time.Second, time.Since(start))
			for range 20 {
				f.fails(t, token, "the same failure")
			}
			require.Equal(t, 10*time.Second, time.Since(start))
			restore()
			time.Sleep(30 * time.Second)
			f.accepts(t, token, "up")

			f.hang(jwttest.DiscoveryPath)
			time.Sleep(31 * time.Minute)
			f.issuer.Requests()
			start = time.Now()
			for range 5 {
				f.accepts(t, token, "hanging, with stale keys")
			}
			require.Equal(t, start, time.Now())
			synctest.Wait()
			require.Len(t, f.issuer.Requests(), 1)
			time.Sleep(time.Minute)
		})
	}
}

// The end of one caller ends no fetch of the others.
func TestCallersShareFetch(t *testing.T) {
	inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
		document := jwttest.Document(`{"keys":[` + f.key.JWK() + `]}`)
		f.issuer.Handle(jwttest.KeysPath, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(2 * time.Second):
			case <-r.Context().Done():
			}
			document(w, r)
		})
		token := f.long(f.key)
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n+1)*50*time.Millisecond)
				defer cancel()
				if _, err := f.v.Verify(ctx, token); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want the deadline", err)
				}
			})
			wg.Go(func() {
				if _, err := f.v.Verify(t.Context(), token); err != nil {
					t.Errorf("got %v, want a principal", err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, bothPaths, f.issuer.Requests())
	})
}

func TestConcurrentTokensCauseOneFetch(t *testing.T) {
	inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
		token := f.long(f.key)
		for _, tt := range []struct {
			pause time.Duration
			want  []string
		}{
			{0, bothPaths}, {time.Minute, nil}, {30 * time.Minute, bothPaths}, {10 * time.Minute, nil},
			{2 * time.Hour, bothPaths}, {time.Minute, nil},
		} {
			time.Sleep(tt.pause)
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					if _, err := f.v.Verify(t.Context(), token); err != nil {
						t.Errorf("got %v, want a principal", err)
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			require.Equal(t, tt.want, f.issuer.Requests(), tt.pause)
		}
	})
}

func TestDiscoveryDocuments(t *testing.T) {
	start := `{"issuer":"` + home + `"`
	for _, text := range []string{
		``, `{}`, `[]`, `null`, start + `}`, start + `,"jwks_uri":7}`, start + `,"jwks_uri":""}`,
		start + `,"jwks_uri":"/keys"}`, start + `,"jwks_uri":"file:///etc/passwd"}`,
		start + `,"jwks_uri":"http://login.example/keys"}`, start + `,"jwks_uri":"http://localhost/keys"}`,
		start + `,"jwks_uri":"https://"}`, start + `,"jwks_uri":"wss://login.example/keys"}`,
		`{"issuer":"` + home + `/","jwks_uri":"` + home + `/keys"}`, `{"jwks_uri":"` + home + `/keys"}`,
		`{"Issuer":"` + home + `","jwks_uri":"` + home + `/keys"}`,
		`{"issuer":"` + away + `","jwks_uri":"` + home + `/keys"}`,
		`{"issuer":"` + away + `","issuer":"` + home + `","jwks_uri":"` + home + `/keys"}`,
		start + `,"jwks_uri":"` + home + `/keys"} x`,
		start + `,"jwks_uri":"` + home + `/keys","x":"` + strings.Repeat("x", maxDocument) + `"}`,
		start + `,"jwks_uri":"` + home + `/keys","x":` + strings.Repeat("[", 50) + strings.Repeat("]", 50) + `}`,
		`<html>`, strings.Repeat("[", maxDocument),
	} {
		f := newFixture(t, Options[Token]{})
		f.issuer.Handle(jwttest.DiscoveryPath, jwttest.Document(text))
		short := text[:min(len(text), 100)]
		f.fails(t, f.token(nil), short)
		require.Equal(t, []string{jwttest.DiscoveryPath}, f.issuer.Requests(), short)
	}
}

// An https issuer must not name an http URL, not even one of this host.
func TestDiscoveryRefusesInsecureKeysOfSecureIssuer(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	local := jwttest.NewIssuer("http://localhost", f.key)
	f.useVerifier(t, Issuer{URL: home, Audience: "api"}, local)
	document := fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, home, local.URL+jwttest.KeysPath)
	f.issuer.Handle(jwttest.DiscoveryPath, jwttest.Document(document))
	f.fails(t, f.token(nil), "http")
	require.Empty(t, local.Requests())
}

// The URL of the keys is read again when they cannot be fetched.
func TestMovedKeys(t *testing.T) {
	inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
		f.accepts(t, f.long(f.key), "before")
		next := jwttest.NewKey(t, "k2")
		f.issuer.Handle("/new", jwttest.Document(`{"keys":[`+next.JWK()+`]}`))
		f.issuer.Handle(jwttest.KeysPath, http.NotFound)
		moved := fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, home, home+"/new")
		f.issuer.Handle(jwttest.DiscoveryPath, jwttest.Document(moved))
		time.Sleep(30 * time.Second)
		f.fails(t, f.long(next), "the old URL")
		time.Sleep(30 * time.Second)
		f.accepts(t, f.long(next), "the new URL")
	})
}

func TestKeysURLNeedsNoDiscovery(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	f.useVerifier(t, Issuer{URL: home, Audience: "api", KeysURL: home + "/keys"})
	f.accepts(t, f.token(nil), "explicit URL")
	require.Equal(t, keysPath, f.issuer.Requests())
}

func TestFetchFollowsNoRedirect(t *testing.T) {
	for _, path := range bothPaths {
		f := newFixture(t, Options[Token]{})
		thief := jwttest.NewIssuer(away, jwttest.NewKey(t, "k1"))
		f.useVerifier(t, Issuer{URL: home, Audience: "api"}, thief)
		f.issuer.Handle(path, http.RedirectHandler(away+path, http.StatusFound).ServeHTTP)
		f.fails(t, f.token(nil), "redirect")
		require.Empty(t, thief.Requests())
	}
}

// A user's client that panics or ends its goroutine fails one fetch.
func TestPanicOfHTTPClient(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("x") }, "Goexit": runtime.Goexit} {
		inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
			f.issuer.Handle(jwttest.KeysPath, func(http.ResponseWriter, *http.Request) { fail() })
			var panicked *guard.PanicError
			require.ErrorAs(t, f.fails(t, f.long(f.key), name), &panicked)
			f.issuer.Publish(f.key)
			time.Sleep(30 * time.Second)
			f.accepts(t, f.long(f.key), name)
		})
	}
}

// A clock that jumps, in either direction, does not keep the keys from being fetched.
func TestClockJumpLocksNothingOut(t *testing.T) {
	for _, jump := range []time.Duration{
		-10000 * time.Hour, -time.Hour, -time.Second, time.Minute, time.Hour, 900 * time.Hour,
	} {
		for _, isDown := range []bool{false, true} {
			inBubble(t, Options[Token]{}, func(t *testing.T, f *fixture) {
				token := f.long(f.key)
				end := func() {}
				if isDown {
					end = f.outage(http.StatusBadGateway)
					f.fails(t, token, "a failed fetch before the jump")
				} else {
					f.accepts(t, token, "keys from before the jump")
				}
				s := f.v.issuers[home]
				s.now = func() time.Time { return time.Now().Add(jump) }
				end()
				if jump > 0 && jump < s.interval {
					time.Sleep(s.interval)
				}
				f.accepts(t, token, fmt.Sprint("after the jump by ", jump))
				next := jwttest.NewKey(t, "k2")
				f.issuer.Publish(next)
				time.Sleep(s.interval)
				f.accepts(t, f.long(next), fmt.Sprint("a new key after the jump by ", jump))
			})
		}
	}
}

// The real clock has a monotonic part, so a change of the wall clock is no jump.
func TestAgeIsMonotonic(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	f.accepts(t, f.token(nil), "fetched")
	s := f.v.issuers[home]
	require.Contains(t, s.set.fetched.String(), " m=")
	require.Contains(t, s.finished.String(), " m=")
	require.Contains(t, s.discoveredAt.String(), " m=")
}

// Negative options: no interval, no expiry.
func TestNegativeOptions(t *testing.T) {
	inBubble(t, Options[Token]{MinRefreshInterval: -1, KeyTTL: -1}, func(t *testing.T, f *fixture) {
		f.accepts(t, f.long(f.key), "first")
		for n := range 3 {
			f.refuses(t, f.long(jwttest.NewKey(t, fmt.Sprint("new", n))), "unknown")
		}
		require.Len(t, f.issuer.Requests(), 5)
		f.outage(http.StatusBadGateway)
		time.Sleep(900 * time.Hour)
		f.accepts(t, f.long(f.key), "kept")
		require.Empty(t, f.issuer.Requests())
	})
}
