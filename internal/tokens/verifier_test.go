// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokens_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/tokens"
	"github.com/fivewire/fivewire/internal/tokens/tokenstest"
)

// A library takes the signature of a token for the name of its key, and believes
// the keys that the issuer names in its key set. The real ones run the suite of
// tokenstest, in their modules.
type library struct {
	check func(context.Context, tokens.Issuer, tokens.KeySet, string) error
}

type keySet struct {
	client *http.Client
	url    string
	known  string
}

func (l library) Keys(client *http.Client, url string) tokens.KeySet {
	return &keySet{client: client, url: url}
}

func (l library) Check(ctx context.Context, i tokens.Issuer, keys tokens.KeySet, token string) error {
	if l.check != nil {
		return l.check(ctx, i, keys, token)
	}
	_, err := keys.VerifySignature(ctx, token)
	return err
}

func (k *keySet) VerifySignature(_ context.Context, token string) ([]byte, error) {
	part := strings.Split(token, ".")
	if !strings.Contains(k.known, part[2]) {
		res, err := k.client.Get(k.url)
		if err != nil {
			return nil, fmt.Errorf("keys: %w", err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("keys: %w", errors.Join(err, errors.New(strings.Repeat("é", 10_000))))
		}
		k.known = string(text)
	}
	if !strings.Contains(k.known, part[2]) {
		return nil, errors.New("signed by nobody")
	}
	return base64.RawURLEncoding.DecodeString(part[1])
}

func token(claims, key string) string {
	return tokenstest.B64([]byte(`{"alg":"ES256"}`)) + "." + tokenstest.B64([]byte(claims)) + "." + key
}

const mine = `{"iss":"https://login.example","sub":"caller"}`

func verifier(t *testing.T, net *tokenstest.Network, lib library, o tokens.Options) *tokens.Verifier {
	t.Helper()
	o.HTTPClient = net.Client()
	v, err := tokens.New([]tokens.Issuer{{URL: "https://login.example"}}, o, lib)
	require.NoError(t, err)
	return v
}

// What a library says becomes one of three answers.
func TestVerify(t *testing.T) {
	var net tokenstest.Network
	tokenstest.NewIssuer(&net, "https://login.example")
	for _, tt := range []struct {
		name  string
		check func(context.Context, tokens.Issuer, tokens.KeySet, string) error
		want  error // nil is a valid token, otherwise as far as it is to be compared
	}{
		{name: "valid", check: func(ctx context.Context, _ tokens.Issuer, k tokens.KeySet, token string) error {
			_, err := k.VerifySignature(ctx, token)
			return err
		}},
		{name: "never asked for keys", want: tokens.Invalid(""), check: func(context.Context, tokens.Issuer, tokens.KeySet, string) error { return nil }},
		{name: "asked about another token", want: tokens.Invalid(""), check: func(ctx context.Context, _ tokens.Issuer, k tokens.KeySet, _ string) error {
			_, err := k.VerifySignature(ctx, token(`{"iss":"https://login.example","sub":"admin"}`, "keys"))
			return err
		}},
		{name: "invalid", want: tokens.Invalid(""), check: func(context.Context, tokens.Issuer, tokens.KeySet, string) error {
			return fmt.Errorf("%w: %s", errors.New("no"), strings.Repeat("x", 100_000))
		}},
		{name: "expired", want: tokens.Expired, check: func(context.Context, tokens.Issuer, tokens.KeySet, string) error {
			return fmt.Errorf("it was: %w", tokens.Expired)
		}},
	} {
		v := verifier(t, &net, library{check: tt.check}, tokens.Options{})
		got, err := v.Verify(t.Context(), token(mine, "keys"))
		var why tokens.Invalid
		switch {
		case tt.want == nil:
			require.NoError(t, err, tt.name)
			require.Equal(t, "caller", got.Subject)
			require.JSONEq(t, mine, string(got.Claims))
		case tt.want == tokens.Expired:
			require.ErrorIs(t, err, tokens.Expired, tt.name)
		default:
			require.ErrorAs(t, err, &why, tt.name)
			require.NotEqual(t, tokens.Expired, why, tt.name)
			require.Less(t, len(why), 400, tt.name)
		}
	}
}

// The text of an error that quotes an answer is short and still UTF-8; what caused
// it can be found in it.
func TestFaultIsBrief(t *testing.T) {
	var net tokenstest.Network
	i := tokenstest.NewIssuer(&net, "https://login.example")
	i.Handle(tokenstest.KeysPath, http.NotFound)
	_, err := verifier(t, &net, library{}, tokens.Options{}).Verify(t.Context(), token(mine, "keys"))
	require.Less(t, len(err.Error()), 400)
	require.Equal(t, err.Error(), strings.ToValidUTF8(err.Error(), "?"))
	require.NotErrorAs(t, err, new(tokens.Invalid))

	cause := errors.New("no route")
	client := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) { return nil, cause })}
	v, err := tokens.New([]tokens.Issuer{{URL: "https://login.example"}}, tokens.Options{HTTPClient: client}, library{})
	require.NoError(t, err)
	_, err = v.Verify(t.Context(), token(mine, "keys"))
	require.ErrorIs(t, err, cause)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Keys are fetched again at half of MaxAge, and not believed after it.
func TestMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net tokenstest.Network
		i := tokenstest.NewIssuer(&net, "https://login.example")
		publish := func(text string) {
			i.Handle(tokenstest.KeysPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"`+text+`"`) })
		}
		publish("one two")
		v := verifier(t, &net, library{}, tokens.Options{})
		try := func(key string) error {
			_, err := v.Verify(t.Context(), token(mine, key))
			synctest.Wait()
			return err
		}
		require.NoError(t, try("one"))
		require.NoError(t, try("two"))
		publish("two")
		net.Asked()
		time.Sleep(30*time.Minute - 1)
		require.NoError(t, try("one"))
		require.Empty(t, net.Asked())
		time.Sleep(time.Nanosecond)
		require.NoError(t, try("one"), "those that are there serve while others are fetched")
		require.Len(t, net.Asked(), 2)
		require.ErrorAs(t, try("one"), new(tokens.Invalid))
		require.NoError(t, try("two"))

		publish("")
		time.Sleep(time.Hour)
		require.ErrorAs(t, try("two"), new(tokens.Invalid))
	})
}

// Keys that were asked for before the present ones do not take their place when
// they come late.
func TestRenewedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net tokenstest.Network
		i := tokenstest.NewIssuer(&net, "https://login.example")
		published, delay := "one two", time.Duration(0)
		i.Handle(tokenstest.KeysPath, func(w http.ResponseWriter, _ *http.Request) {
			text, wait := `"`+published+`"`, delay
			time.Sleep(wait)
			_, _ = io.WriteString(w, text)
		})
		v := verifier(t, &net, library{}, tokens.Options{})
		_, err := v.Verify(t.Context(), token(mine, "one"))
		require.NoError(t, err)
		delay = 9 * time.Second
		time.Sleep(time.Hour - time.Second)
		_, err = v.Verify(t.Context(), token(mine, "one"))
		require.NoError(t, err)
		synctest.Wait()
		published, delay = "two", 0
		time.Sleep(2 * time.Second)
		for range 3 {
			_, err = v.Verify(t.Context(), token(mine, "two"))
			require.NoError(t, err)
			_, err = v.Verify(t.Context(), token(mine, "one"))
			require.ErrorAs(t, err, new(tokens.Invalid))
			time.Sleep(10 * time.Second)
		}
	})
}

// Claims that are read before anybody looks at a signature never panic, and are
// those of the part that is signed.
func FuzzVerify(f *testing.F) {
	f.Add(token(mine, "keys"))
	f.Add(token(`{"iss":"https://login.example","iss":"x"}`, "keys"))
	f.Add(`{"payload":"e30","protected":"e30","signature":"","x":".e30."}`)
	f.Add("e30.e30.")
	f.Add("..")
	v, err := tokens.New([]tokens.Issuer{{URL: "https://login.example", KeysURL: "https://login.example/keys"}}, tokens.Options{}, believer{})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := v.Verify(t.Context(), text)
		if err != nil {
			require.ErrorAs(t, err, new(tokens.Invalid))
			return
		}
		parts := strings.Split(text, ".")
		require.Len(t, parts, 3)
		signed, err := base64.RawURLEncoding.DecodeString(parts[1])
		require.NoError(t, err)
		require.Equal(t, strings.Trim(string(signed), " \t\r\n"), string(got.Claims))
		name, _ := got.Claims.Get("iss").Text()
		require.Equal(t, "https://login.example", name)
	})
}

// A believer takes every signature for a right one.
type believer struct{}

func (believer) Keys(*http.Client, string) tokens.KeySet { return believer{} }

func (believer) Check(ctx context.Context, _ tokens.Issuer, keys tokens.KeySet, token string) error {
	_, err := keys.VerifySignature(ctx, token)
	return err
}

func (believer) VerifySignature(_ context.Context, token string) ([]byte, error) {
	return base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
}
