// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/netguard"
)

func TestStatus(t *testing.T) {
	var result error
	c := &Command{Name: "prog", Summary: "Tests.", Verbs: []Verb{{
		Name: "go", Arguments: "[flags]", Summary: "Goes.",
		Prepare: func(*flag.FlagSet) func(context.Context, *IO, []string) error {
			return func(_ context.Context, s *IO, _ []string) error {
				return errors.Join(s.Print("text", map[string]int{"n": 1}), result)
			}
		},
	}}}
	for _, tt := range []struct {
		err    error
		status int
		stderr string
	}{
		{nil, Done, ""},
		{errors.New("refused"), Failed, "prog go: refused\n"},
		{CouldNot(errors.New("no network")), NotDone, "prog go: no network\n"},
		{Usage("-x: %w", fs.ErrInvalid), NotDone, "prog go: -x: invalid argument\nUsage: prog go [flags]\n"},
	} {
		for output, text := range map[string]string{"text": "text\n", "json": `{"n":1}` + "\n"} {
			var out, errs bytes.Buffer
			result = tt.err
			require.Equal(t, tt.status, c.Run(t.Context(), []string{"go", "-o", output}, &IO{Out: &out, Err: &errs}))
			require.Equal(t, text, out.String())
			require.Equal(t, tt.stderr, errs.String())
		}
	}
	require.ErrorIs(t, Usage("-x: %w", fs.ErrInvalid), fs.ErrInvalid)
	require.NoError(t, CouldNot(nil))
}

// A time limit that ends each call at once is refused.
func TestTimeoutIsMoreThanZero(t *testing.T) {
	c := &Command{Name: "prog", Verbs: []Verb{{Name: "go", Prepare: func(fs *flag.FlagSet) func(context.Context, *IO, []string) error {
		timeout := fs.Duration("timeout", time.Minute, "longest time")
		return func(context.Context, *IO, []string) error {
			require.Positive(t, *timeout)
			return nil
		}
	}}}}
	for value, want := range map[string]int{"0": NotDone, "-1s": NotDone, "1ns": Done} {
		var errs bytes.Buffer
		require.Equal(t, want, c.Run(t.Context(), []string{"go", "-timeout", value}, &IO{Err: &errs}), value)
		require.Equal(t, want == NotDone, strings.Contains(errs.String(), "prog go: -timeout: want more than 0\n"), errs.String())
	}
}

// The refusal of an address names the flag that permits it.
func TestRefusedAddressNamesFlag(t *testing.T) {
	c := &Command{Name: "prog", Verbs: []Verb{{Name: "go", Prepare: func(fs *flag.FlagSet) func(context.Context, *IO, []string) error {
		insecure := fs.Bool("allow-insecure", false, "permit plain http")
		local := fs.Bool("allow-local", false, "permit local addresses")
		return func(_ context.Context, _ *IO, args []string) error {
			_, err := (&netguard.Guard{AllowPrivate: *local}).URL(args[0], *insecure)
			return Usage("the URL: %w", err)
		}
	}}}}
	for _, tt := range []struct{ args, want string }{
		{"http://example.com", `scheme of the URL of host "example.com" is not allowed; -allow-insecure permits plain http and ws` + "\n"},
		{"-allow-insecure ftp://example.com", "is not allowed; want https or wss\n"},
		{"https://10.1.1.1", "address 10.1.1.1 is not allowed; -allow-local permits loopback and private addresses\n"},
		{"-allow-local https://127.0.0.1", "address 127.0.0.1 is not allowed\n"},
		{"https://me@example.com", `userinfo of the URL of host "example.com" is not allowed` + "\n"},
	} {
		var errs bytes.Buffer
		require.Equal(t, NotDone, c.Run(t.Context(), append([]string{"go"}, strings.Fields(tt.args)...), &IO{Err: &errs}))
		require.Contains(t, errs.String(), tt.want, tt.args)
	}
}

func TestRead(t *testing.T) {
	s := &IO{In: strings.NewReader("input")}
	b, err := s.Read(t.Context(), "-")
	require.NoError(t, err)
	require.Equal(t, "input", string(b))
	_, err = s.Read(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	s.In = zeros{}
	_, err = s.Read(t.Context(), "")
	require.ErrorContains(t, err, "more than 16777216 bytes")

	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.In = r
	_, err = s.Read(ctx, "-")
	require.ErrorIs(t, err, context.Canceled, "an input that does not end")
	require.NoError(t, r.Close())
}

func TestLinesEndsAfterInterruptedCall(t *testing.T) {
	for range 20 { // the end of the input and that of the context race
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s := &IO{In: strings.NewReader("a\nb\n")}
			require.NoError(t, s.Lines(ctx, func(string) error {
				cancel()
				synctest.Wait() // the reader has ended
				return nil
			}))
		})
	}
}

// zeros is an input without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestLines(t *testing.T) {
	var got []string
	s := &IO{In: strings.NewReader("a\n\n  \nb")}
	require.NoError(t, s.Lines(t.Context(), func(line string) error {
		got = append(got, line)
		return nil
	}))
	require.Equal(t, []string{"a", "b"}, got)
	s.In = strings.NewReader("a\nb\n")
	require.ErrorIs(t, s.Lines(t.Context(), func(string) error { return fs.ErrInvalid }), fs.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	s.In = r
	require.NoError(t, s.Lines(ctx, func(string) error { return nil }), "an input that does not end")
	require.NoError(t, r.Close())
}

func TestSecret(t *testing.T) {
	t.Setenv("A_SECRET", "from the environment")
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("from a file\r\n"), 0o600))
	for _, tt := range []struct{ file, want string }{{"", "from the environment"}, {file, "from a file"}} {
		secret, err := Secret(tt.file, "A_SECRET")
		require.NoError(t, err)
		require.Equal(t, tt.want, secret)
	}
	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	_, err := Secret(file, "A_SECRET")
	require.ErrorContains(t, err, "is empty")
	_, err = Secret(file+"s", "A_SECRET")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestOne(t *testing.T) {
	got, err := One([]string{"a"}, "the file", false)
	require.NoError(t, err)
	require.Equal(t, "a", got)
	_, err = One(nil, "the file", true)
	require.NoError(t, err)
	_, err = One(nil, "the file", false)
	require.ErrorContains(t, err, "the file is missing")
	_, err = One([]string{"a", "b"}, "the file", true)
	require.ErrorContains(t, err, `"b": one argument too many`)
}

func TestServeRefusesIncompleteTLS(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "none")
	for args, want := range map[string]string{
		"-cert=" + absent:                          "are needed together",
		"-cert-key=" + absent:                      "are needed together",
		"-cert=" + absent + " -cert-key=" + absent: "open ",
	} {
		fs := flag.NewFlagSet("serve", flag.ContinueOnError)
		serve := NewServeFlags(fs)
		require.NoError(t, fs.Parse(append(strings.Fields(args), "-addr=127.0.0.1:0")))
		var out bytes.Buffer
		err := serve.Serve(t.Context(), &IO{Out: &out}, &http.Server{}, func(context.Context) error { return nil })
		require.ErrorContains(t, err, want)
		require.Empty(t, out.String(), "no address before the certificate is read")
	}
}
