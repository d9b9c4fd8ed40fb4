// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A failing records the errors of a test.
type failing struct {
	testing.TB
	errors []string
}

func (f *failing) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}
func (f *failing) Helper() {}

func post(t *testing.T, s *Server, body string) (int, string, error) {
	t.Helper()
	res, err := s.Client.Post("http://peer.test/x", "text/plain", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res.StatusCode, string(text), nil
}

func TestLines(t *testing.T) {
	conn := Lines(t, "kit", Send("hello"), Receive("ping"), Answer(func(got string) string { return got + " pong" }), Cut())
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)
	_, err = io.WriteString(conn, "a ping\n")
	require.NoError(t, err)
	line, err = in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "a ping pong\n", line)
	_, err = in.ReadString('\n')
	require.ErrorIs(t, err, io.EOF)
}

func TestHTTP(t *testing.T) {
	s := Serve(t, "kit", HTTP(t, "kit", Receive("one"), Send("1"), Receive("two"), SendStatus(503, http.Header{"Retry-After": {"5"}}, "busy"), Receive(""), Cut()))
	status, text, err := post(t, s, "one")
	require.NoError(t, err)
	require.Equal(t, "200 1", fmt.Sprint(status, " ", text))
	status, text, err = post(t, s, "two")
	require.NoError(t, err)
	require.Equal(t, "503 busy", fmt.Sprint(status, " ", text))
	_, _, err = post(t, s, "three")
	require.Error(t, err, "the connection is cut")
}

// A message of another content, a request after the end, and a script whose requests do not come fail the test.
func TestScriptFailsTest(t *testing.T) {
	f := &failing{TB: t}
	t.Run("script", func(t *testing.T) {
		f.TB = t
		s := Serve(t, "kit", HTTP(f, "kit", Receive("one"), Send("1")))
		_, _, err := post(t, s, "two")
		require.Error(t, err)
		status, _, err := post(t, s, "three")
		require.NoError(t, err)
		require.Equal(t, http.StatusInternalServerError, status)
		HTTP(f, "late", Receive("never"))
	})
	require.Len(t, f.errors, 3)
	require.Contains(t, f.errors[0], `kit: step 1 of the script: received "two", want "one" in it`)
	require.Contains(t, f.errors[1], "after the last step")
	require.Contains(t, f.errors[2], "late: step 1 of the script: no further request")
}

// A step that ends its goroutine, as require does in Answer, cuts the connection: the other end does not wait.
func TestScriptWhoseStepEndsItsGoroutineCuts(t *testing.T) {
	f := &failing{TB: t}
	exit := Answer(func(string) string {
		runtime.Goexit()
		return ""
	})
	t.Run("script", func(t *testing.T) {
		f.TB = t
		s := Serve(t, "kit", HTTP(f, "http", Receive("one"), exit))
		_, _, err := post(t, s, "one")
		require.Error(t, err)
		_, err = bufio.NewReader(Lines(f, "lines", exit)).ReadString('\n')
		require.ErrorIs(t, err, io.EOF)
	})
	require.Equal(t, []string{"http: step 2 of the script: the step ended its goroutine", "lines: step 1 of the script: the step ended its goroutine"}, f.errors)
}

// A script that receives a second request before a response, or cuts no request, fails the test.
func TestScriptWithoutResponseFailsTest(t *testing.T) {
	f := &failing{TB: t}
	t.Run("script", func(t *testing.T) {
		f.TB = t
		for _, steps := range [][]Step{{Receive("one"), Receive("two")}, {Receive("one"), Send("1"), Cut()}} {
			s := Serve(t, "kit", HTTP(f, "kit", steps...))
			_, _, _ = post(t, s, "one")
		}
	})
	require.Equal(t, []string{"kit: step 2 of the script: the last request has no response", "kit: step 3 of the script: no request to answer"}, f.errors)
}

func TestWrap(t *testing.T) {
	s := Serve(t, "kit", http.NotFoundHandler())
	s.Wrap(nil)
	n := 0
	s.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) { n++; return next.RoundTrip(r) })
	})
	status, _, err := post(t, s, "x")
	require.NoError(t, err)
	require.Equal(t, 404, status)
	require.Equal(t, 1, n)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
