// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwt

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jwt/jwttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	home = "https://login.example"
	away = "https://elsewhere.example"
)

// tokenProfile makes the verified token the principal.
var tokenProfile = Profile[Token]{
	Principal: func(t *Token) (*Token, error) { return t, nil },
	Expires:   func(t *Token) *time.Time { return &t.Expires },
}

// A fixture is a verifier and its issuer.
type fixture struct {
	issuer *jwttest.Issuer
	key    *jwttest.Key
	v      *Verifier[Token]
}

func newFixture(t testing.TB, o Options[Token]) *fixture {
	t.Helper()
	f := &fixture{key: jwttest.NewKey(t, "k1")}
	f.issuer = jwttest.NewIssuer(home, f.key)
	o.HTTPClient = jwttest.Client(f.issuer)
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	var err error
	f.v, err = New([]Issuer{{URL: home, Audience: "api"}}, &o, tokenProfile)
	require.NoError(t, err)
	return f
}

// useVerifier replaces the verifier by one of an issuer that reaches the servers.
func (f *fixture) useVerifier(t *testing.T, i Issuer, servers ...*jwttest.Issuer) {
	t.Helper()
	client := jwttest.Client(append(servers, f.issuer)...)
	v, err := New([]Issuer{i}, &Options[Token]{HTTPClient: client}, tokenProfile)
	require.NoError(t, err)
	f.v = v
}

// token returns a valid token, apart from the claims in more.
func (f *fixture) token(more map[string]any) string { return f.key.Sign(nil, f.issuer.Claims(more)) }

func (f *fixture) accepts(t *testing.T, token, why string) {
	t.Helper()
	p, err := f.v.Verify(t.Context(), token)
	require.NoError(t, err, why)
	require.Equal(t, home+"#caller", p.Principal, why)
}

// refuses wants ErrInvalid.
func (f *fixture) refuses(t *testing.T, token, why string) {
	t.Helper()
	p, err := f.v.Verify(t.Context(), token)
	require.ErrorIs(t, err, ErrInvalid, why)
	require.NotErrorIs(t, err, ErrExpired, why)
	require.Nil(t, p, why)
}

// fails wants ErrUnavailable.
func (f *fixture) fails(t *testing.T, token, why string) error {
	t.Helper()
	p, err := f.v.Verify(t.Context(), token)
	require.ErrorIs(t, err, ErrUnavailable, why)
	require.NotErrorIs(t, err, ErrInvalid, why)
	require.Less(t, len(err.Error()), 500, "%s: an answer must not fill the log", why)
	require.Nil(t, p, why)
	return err
}

func TestNewRefusesIncompleteIssuers(t *testing.T) {
	good := Issuer{URL: home, Audience: "api"}
	with := func(change func(*Issuer)) []Issuer {
		i := good
		change(&i)
		return []Issuer{i}
	}
	for name, bad := range map[string][]Issuer{
		"none":              nil,
		"URL empty":         with(func(i *Issuer) { i.URL = "" }),
		"URL only of keys":  with(func(i *Issuer) { i.URL, i.KeysURL = "", home }),
		"URL blank":         with(func(i *Issuer) { i.URL = " " }),
		"URL with fragment": with(func(i *Issuer) { i.URL = home + "#a" }),
		"name with #":       with(func(i *Issuer) { i.URL, i.KeysURL = "a#b", home }),
		"URL with space":    with(func(i *Issuer) { i.URL, i.KeysURL = home+"/a b", home }),
		"URL relative":      with(func(i *Issuer) { i.URL = "login" }),
		"URL insecure":      with(func(i *Issuer) { i.URL = "http://login.example" }),
		"URL wss":           with(func(i *Issuer) { i.URL = "wss://login.example" }),
		"URL file":          with(func(i *Issuer) { i.URL = "file:///etc/passwd" }),
		"keys insecure":     with(func(i *Issuer) { i.KeysURL = "http://login.example/keys" }),
		"keys with secret":  with(func(i *Issuer) { i.KeysURL = "https://a:b@login.example/keys" }),
		"audience empty":    with(func(i *Issuer) { i.Audience = "" }),
		"audience blank":    with(func(i *Issuer) { i.Audience = " \t" }),
		"algorithm none":    with(func(i *Issuer) { i.Algorithms = []string{"none"} }),
		"algorithm HS256":   with(func(i *Issuer) { i.Algorithms = []string{"ES256", "HS256"} }),
		"algorithm lower":   with(func(i *Issuer) { i.Algorithms = []string{"es256"} }),
		"algorithm empty":   with(func(i *Issuer) { i.Algorithms = []string{""} }),
		"algorithm list":    with(func(i *Issuer) { i.Algorithms = []string{"RS256 RS384"} }),
		"twice":             {good, good},
		"second bad":        {good, {URL: away}},
	} {
		_, err := New(bad, nil, tokenProfile)
		require.Error(t, err, name)
		require.ErrorContains(t, err, "jwt: ", name)
	}
	for name, o := range map[string]Options[Token]{
		"zero": {}, "insecure": {AllowInsecure: true}, "off": {KeyTTL: -1, MinRefreshInterval: -1},
	} {
		issuers := []Issuer{
			good,
			{URL: "http://localhost:8080/realms/a", Audience: AnyAudience},
			{URL: "accounts.example", Audience: "api", KeysURL: home},
		}
		if o.AllowInsecure {
			issuers = append(issuers, Issuer{URL: "http://keycloak.internal", Audience: "api"})
		}
		_, err := New(issuers, &o, tokenProfile)
		require.NoError(t, err, name)
	}
}

// Only the named algorithms are accepted; none means all.
func TestVerifyAcceptsNamedAlgorithmsOnly(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	for _, tt := range []struct {
		algorithms []string
		isAccepted bool
	}{{nil, true}, {[]string{}, true}, {[]string{"ES256"}, true}, {[]string{"RS256", "ES384", "EdDSA"}, false}} {
		f.useVerifier(t, Issuer{URL: home, Audience: "api", Algorithms: tt.algorithms})
		if tt.isAccepted {
			f.accepts(t, f.token(nil), fmt.Sprint(tt.algorithms))
		} else {
			f.refuses(t, f.token(nil), fmt.Sprint(tt.algorithms))
		}
	}
}

// The header selects a published key and nothing else.
func TestVerifyHeader(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	claims := f.issuer.Claims(nil)
	for _, header := range []string{
		`{"alg":"ES256","kid":"k1"}`, `{"alg":"ES256"}`, `{"alg":"ES256","kid":""}`,
		`{"alg":"ES256","kid":"k1","Crit":["x"]}`,
		`{"alg":"ES256","kid":"k1","typ":"JWT"}`, `{"alg":"ES256","kid":"k1","typ":"at+jwt"}`,
		`{"alg":"ES256","kid":"k1","typ":"application/at+JWT"}`,
		`{"alg":"ES256","kid":"k1","typ":"Bearer"}`, `{"alg":"ES256","kid":"k1","x":[1]}`,
		`{"alg":"ES256","kid":"k1","jku":"` + away + `"}`,
	} {
		f.accepts(t, f.key.Sign(header, claims), header)
	}
	for _, header := range []string{
		`{"alg":"none","kid":"k1"}`, `{"alg":"None","kid":"k1"}`, `{"alg":"NONE"}`, `{"alg":"","kid":"k1"}`,
		`{"kid":"k1"}`, `{}`,
		`{"alg":null,"kid":"k1"}`, `{"alg":["ES256"],"kid":"k1"}`, `{"alg":256,"kid":"k1"}`,
		`{"alg":"es256","kid":"k1"}`, `{"Alg":"ES256","kid":"k1"}`,
		`{"alg":"RS256","kid":"k1"}`, `{"alg":"PS256","kid":"k1"}`, `{"alg":"ES384","kid":"k1"}`,
		`{"alg":"EdDSA","kid":"k1"}`, `{"alg":"HS256","kid":"k1"}`,
		`{"alg":"ES256","kid":7}`, `{"alg":"ES256","kid":null}`, `{"alg":"ES256","kid":["k1"]}`,
		`{"alg":"ES256","kid":"k2"}`, `{"alg":"ES256","kid":"K1"}`, `{"alg":"ES256","kid":"k1\u0000"}`,
		`{"alg":"ES256","kid":"k1","crit":["exp"],"exp":1}`, `{"alg":"ES256","kid":"k1","crit":["b64"],"b64":true}`,
		`{"alg":"ES256","kid":"k1","b64":true}`,
		`{"alg":"ES256","kid":"k1","crit":[]}`, `{"alg":"ES256","kid":"k1","crit":null}`,
		`{"alg":"ES256","kid":"k1","crit":"x"}`,
		`{"alg":"none","alg":"ES256","kid":"k1"}`, `{"alg":"ES256","kid":"k1","kid":"k1"}`,
		`{"alg":"ES256","kid":"k1","typ":"logout+jwt"}`, `{"alg":"ES256","kid":"k1","typ":"application/secevent+JWT"}`,
		`["ES256"]`, `"ES256"`, `null`, `{"alg":"ES256","kid":"k1"} ` + "\x00", `{"alg":"ES256","kid":"k1"`, "",
		"{\"alg\":\"ES256\",\"kid\":\"\xff\"}",
	} {
		token := f.key.Sign(header, claims)
		f.refuses(t, token, header)
		f.refuses(t, token[:strings.LastIndexByte(token, '.')+1], header+" without a signature")
	}
}

// A key in the token is not used, nor is its URL.
func TestVerifyUsesNoKeyOfToken(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	thief := jwttest.NewKey(t, "k1")
	server := jwttest.NewIssuer(away, thief)
	f.useVerifier(t, Issuer{URL: home, Audience: "api"}, server)
	claims := f.issuer.Claims(nil)
	for _, header := range []string{
		`{"alg":"ES256","kid":"k1","jwk":` + thief.JWK() + `}`, `{"alg":"ES256","jwk":` + thief.JWK() + `}`,
		`{"alg":"ES256","kid":"k1","jku":"` + away + `/keys"}`, `{"alg":"ES256","kid":"k1","x5u":"` + away + `/keys"}`,
		`{"alg":"ES256","kid":"` + away + `/keys"}`, `{"alg":"ES256","kid":"../../keys"}`,
		`{"alg":"ES256","kid":"k1","x5c":["AAAA"]}`,
	} {
		f.refuses(t, thief.Sign(header, claims), header)
	}
	require.Empty(t, server.Requests())

	// The public key as the secret of a symmetric signature.
	for _, secret := range []string{f.key.JWK(), "", "k1"} {
		signed := jwttest.B64([]byte(`{"alg":"HS256","kid":"k1"}`)) + "." + strings.Split(f.token(nil), ".")[1]
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(signed))
		f.refuses(t, signed+"."+jwttest.B64(mac.Sum(nil)), "HMAC with "+secret)
	}
}

func TestVerifyClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options[Token]{})
		at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
		raw := func(format string, args ...any) json.RawMessage { return json.RawMessage(fmt.Sprintf(format, args...)) }
		many := make([]string, 2000)
		for n := range many {
			many[n] = fmt.Sprint("service-", n)
		}
		for _, more := range []map[string]any{
			{}, {"aud": []string{"x", "api", "y"}}, {"aud": append(many, "api")},
			{"exp": at(time.Second)}, {"exp": at(0)}, {"exp": at(-59 * time.Second)},
			{"exp": raw("%d.0", at(time.Hour))}, {"exp": int64(1<<53 - 1)},
			{"nbf": at(0)}, {"nbf": at(60 * time.Second)}, {"nbf": -1}, {"iat": at(60 * time.Second)},
			{"iat": at(-1000 * time.Hour)}, {"iat": 0},
			{"subject": "admin"}, {"roles": []any{"a", 1, nil}}, {"cnf": raw("null")},
		} {
			f.accepts(t, f.token(more), fmt.Sprint(more))
		}
		for _, more := range []map[string]any{
			{"aud": nil}, {"aud": []string{}}, {"aud": ""}, {"aud": "API"}, {"aud": "api "}, {"aud": "apis"},
			{"aud": many}, {"aud": "x api"}, {"aud": AnyAudience},
			{"aud": map[string]any{"api": "api"}}, {"aud": []any{[]any{"api"}}}, {"aud": 1}, {"aud": []any{"api", 1}},
			{"aud": raw("null")},
			{"iss": nil}, {"iss": ""}, {"iss": home + "/"}, {"iss": strings.ToUpper(home)}, {"iss": []string{home}},
			{"iss": away},
			{"exp": nil}, {"exp": "soon"}, {"exp": raw("null")}, {"exp": []int64{at(time.Hour)}}, {"exp": true},
			{"exp": fmt.Sprint(at(time.Hour))},
			{"exp": raw("%d.5", at(time.Hour))}, {"exp": int64(1 << 53)}, {"exp": raw("9223372036854775807")},
			{"exp": raw("1e30")}, {"exp": raw("1e400")}, {"exp": raw("-1e400")},
			{"exp": raw("-9223372036854775808")}, {"exp": int64(-1 << 53)},
			{"nbf": at(61 * time.Second)}, {"nbf": "0"}, {"nbf": raw("null")}, {"nbf": raw("0.5")}, {"nbf": int64(1 << 53)},
			{"iat": at(61 * time.Second)}, {"iat": at(time.Hour)}, {"iat": "0"}, {"iat": raw("1.5")},
			{"iat": int64(-1 << 53)},
			{"sub": nil}, {"sub": ""}, {"sub": 7}, {"sub": raw("null")}, {"sub": []string{"caller"}},
			{"EXP": at(time.Hour), "exp": at(-time.Hour)}, {"Exp": at(time.Hour), "exp": nil},
			{"AUD": "api", "aud": "x"}, {"Iss": home}, {"NBF": 0}, {"Sub": "admin"}, {"IAT": 0}, {"Cnf": 0},
			{"\u017fub": "admin"}, // folds to sub
			{"deep": raw("%s", strings.Repeat("[", 40)+strings.Repeat("]", 40))},
		} {
			f.refuses(t, f.token(more), fmt.Sprint(more))
		}
		for _, exp := range []int64{0, -1, at(-60 * time.Second), at(-365 * 24 * time.Hour)} {
			_, err := f.v.Verify(t.Context(), f.token(map[string]any{"exp": exp}))
			require.ErrorIs(t, err, ErrExpired, exp)
			require.ErrorIs(t, err, ErrInvalid, exp)
		}
		rest := `"aud":"api","sub":"caller","exp":99999999999`
		for _, claims := range []string{
			`{"iss":"` + home + `",` + rest + `,"sub":"admin"}`, `{"iss":"` + home + `","exp":1,` + rest + `}`,
			`{"iss":"` + home + `","iss":"` + home + `",` + rest + `}`,
			`{"iss":"` + home + `",` + rest + `} {}`, `{"iss":"` + home + `",` + rest + `,"x":"` + "\xff" + `"}`,
			`[{"iss":"` + home + `",` + rest + `}]`, `null`, `""`, ``, `{`,
		} {
			f.refuses(t, f.key.Sign(nil, claims), claims)
		}
		f.accepts(t, f.key.Sign(nil, ` {"iss":"`+home+`",`+rest+`} `), "white space around the claims")

		token := f.token(map[string]any{"exp": at(time.Minute)})
		time.Sleep(2*time.Minute - time.Second)
		f.accepts(t, token, "within the tolerance")
		time.Sleep(time.Second)
		_, err := f.v.Verify(t.Context(), token)
		require.ErrorIs(t, err, ErrExpired)
	})
}

func TestVerifyAnyAudience(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	f.useVerifier(t, Issuer{URL: home, Audience: AnyAudience})
	for _, aud := range []any{nil, "x", []string{}, 7} {
		f.accepts(t, f.token(map[string]any{"aud": aud}), fmt.Sprint(aud))
	}
}

// A token is three parts of canonical base64url and nothing else.
func TestVerifyForm(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	token := f.token(nil)
	f.accepts(t, token, "unchanged")
	parts := strings.Split(token, ".")
	lie := strings.Split(f.token(map[string]any{"sub": "admin"}), ".")[1]
	pad := func(n int) string { return f.token(map[string]any{"pad": strings.Repeat("A", n)}) }
	longest := pad(48<<10 - 300)
	require.LessOrEqual(t, len(longest), 64<<10)
	f.accepts(t, longest, "at most 64 KiB")
	last := parts[2][len(parts[2])-1]
	flat := fmt.Sprintf(`"payload":%q,"protected":%q,"signature":%q`, parts[1], parts[0], parts[2])
	for why, bad := range map[string]string{
		"empty":              "",
		"opaque":             "6f1d0b7a",
		"two parts":          parts[0] + "." + parts[1],
		"four parts":         token + "." + parts[2],
		"part before":        "." + token,
		"end":                token + ".",
		"space before":       " " + token,
		"space after":        token + " ",
		"line break":         parts[0] + "." + parts[1] + ".\n" + parts[2],
		"break in claims":    parts[0] + "." + parts[1][:4] + "\r\n" + parts[1][4:] + "." + parts[2],
		"break in signature": parts[0] + "." + parts[1] + "." + parts[2][:4] + "\n" + parts[2][4:],
		"padding":            token + "==",
		"other alphabet":     parts[0] + "." + parts[1] + "." + strings.Repeat("+/", 43),
		"trailing bits":      token[:len(token)-1] + string(map[byte]byte{'A': 'B', 'Q': 'R', 'g': 'h', 'w': 'x'}[last]),
		"no signature":       parts[0] + "." + parts[1] + ".",
		"half a signature":   parts[0] + "." + parts[1] + "." + parts[2][:42],
		"zeros":              parts[0] + "." + parts[1] + "." + jwttest.B64(make([]byte, 64)),
		"other claims":       parts[0] + "." + lie + "." + parts[2],
		"other header":       jwttest.B64([]byte(`{"kid":"k1","alg":"ES256"}`)) + "." + parts[1] + "." + parts[2],
		"too long":           pad(48 << 10),
		"full stops":         strings.Repeat(".", maxToken),
		"encrypted":          parts[0] + "." + parts[1] + "." + parts[2] + "." + parts[1] + "." + parts[2],
		"JSON form":          "{" + flat + "}",
		"JSON, other claims": "{" + flat + `,"x":".` + lie + `."}`,
		"JSON, claims first": `{"x":"A.` + lie + `.A",` + flat + "}",
	} {
		f.refuses(t, bad, why)
	}
}

// The id of a principal has issuer and subject even with one issuer, so a second issuer renames
// nothing.
func TestPrincipalKeepsIDWithSecondIssuer(t *testing.T) {
	one, two := jwttest.NewKey(t, "k"), jwttest.NewKey(t, "k")
	a, b := jwttest.NewIssuer(home, one), jwttest.NewIssuer(away, two)
	opts := &Options[Token]{HTTPClient: jwttest.Client(a, b)}
	alone, err := New([]Issuer{{URL: home, Audience: "api"}}, opts, tokenProfile)
	require.NoError(t, err)
	both, err := New([]Issuer{{URL: home, Audience: "api"}, {URL: away, Audience: "api"}}, opts, tokenProfile)
	require.NoError(t, err)
	for _, tt := range []struct {
		v    *Verifier[Token]
		i    *jwttest.Issuer
		key  *jwttest.Key
		want string
	}{
		{alone, a, one, home + "#caller"}, {both, a, one, home + "#caller"}, {both, b, two, away + "#caller"},
		{both, a, two, ""}, {both, b, one, ""}, {alone, b, two, ""},
	} {
		p, err := tt.v.Verify(t.Context(), tt.key.Sign(nil, tt.i.Claims(nil)))
		if tt.want == "" {
			require.ErrorIs(t, err, ErrInvalid, "the key of the other issuer")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.want, p.Principal)
	}
	p, err := alone.Verify(t.Context(), one.Sign(nil, a.Claims(map[string]any{"sub": "a#b"})))
	require.NoError(t, err)
	require.Equal(t, home+"#a#b", p.Principal, "the first # ends the issuer")
}

func TestPrincipalExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &Token{Principal: "shared"}
		isExp := func(exp time.Time) time.Time { return exp }
		later := time.Now().Add(100 * time.Hour)
		for name, tt := range map[string]struct {
			hook func(json.RawMessage) (*Token, error)
			want func(exp time.Time) time.Time
		}{
			"default": {nil, isExp},
			"hook":    {func(json.RawMessage) (*Token, error) { return shared, nil }, isExp},
			"hook decides": {
				func(json.RawMessage) (*Token, error) { return &Token{Expires: later}, nil },
				func(time.Time) time.Time { return later },
			},
		} {
			f := newFixture(t, Options[Token]{Principal: tt.hook})
			for _, life := range []time.Duration{time.Hour, time.Second} {
				exp := time.Now().Add(life)
				p, err := f.v.Verify(t.Context(), f.token(map[string]any{"exp": exp.Unix()}))
				require.NoError(t, err, name)
				require.WithinDuration(t, tt.want(exp), p.Expires, 0, name)
			}
			// A token that is accepted only because clocks differ opens a connection that lasts.
			exp := time.Now().Add(-10 * time.Second)
			p, err := f.v.Verify(t.Context(), f.token(map[string]any{"exp": exp.Unix()}))
			require.NoError(t, err, name)
			require.WithinDuration(t, tt.want(exp.Add(skew)), p.Expires, 0, name)
			require.True(t, p.Expires.After(time.Now()), name)
		}
		require.Zero(t, shared.Expires, "the value of the hook is not changed")
	})
}

func TestPrincipalHook(t *testing.T) {
	refusal := errors.New("blocked")
	for name, tt := range map[string]struct {
		hook func(json.RawMessage) (*Token, error)
		want error
	}{
		"error": {func(json.RawMessage) (*Token, error) { return &Token{}, refusal }, refusal},
		"nil":   {func(json.RawMessage) (*Token, error) { return nil, nil }, nil},
	} {
		p, err := newFixture(t, Options[Token]{Principal: tt.hook}).verify(t, map[string]any{"sub": nil})
		require.Nil(t, p, name)
		require.ErrorIs(t, err, tt.want, name)
		require.NotErrorIs(t, err, ErrInvalid, name)
	}
	_, err := newFixture(t, Options[Token]{Principal: func(json.RawMessage) (*Token, error) { panic("x") }}).verify(t, nil)
	var panicked *guard.PanicError
	require.ErrorAs(t, err, &panicked)

	f := newFixture(t, Options[Token]{})
	f.v.profile.Principal = func(*Token) (*Token, error) { return &Token{}, refusal }
	f.v.profile.Invalid, f.v.profile.Expired = errors.New("protocol: invalid"), errors.New("protocol: expired")
	p, err := f.verify(t, nil)
	require.Nil(t, p)
	require.ErrorIs(t, err, refusal)
	require.ErrorIs(t, err, f.v.profile.Invalid)
	_, err = f.verify(t, map[string]any{"exp": 1})
	require.ErrorIs(t, err, f.v.profile.Expired)
	require.NotErrorIs(t, err, f.v.profile.Invalid)
}

func (f *fixture) verify(t *testing.T, more map[string]any) (*Token, error) {
	return f.v.Verify(t.Context(), f.token(more))
}

// A token that is bound to a key is not a bearer token.
func TestConfirm(t *testing.T) {
	cnf := map[string]any{"cnf": map[string]any{"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}}
	f := newFixture(t, Options[Token]{})
	f.refuses(t, f.token(cnf), "without a hook")

	type proof struct{}
	calls := 0
	f = newFixture(t, Options[Token]{Confirm: func(ctx context.Context, cnf json.RawMessage) error {
		calls++
		if ctx.Value(proof{}) == nil || !strings.Contains(string(cnf), "0ZcOCORZNYy") {
			return errors.New("no proof")
		}
		return nil
	}})
	f.accepts(t, f.token(nil), "a bearer token")
	require.Zero(t, calls)
	f.refuses(t, f.token(cnf), "without proof")
	_, err := f.v.Verify(context.WithValue(t.Context(), proof{}, true), f.token(cnf))
	require.NoError(t, err)
	thief := jwttest.NewKey(t, "k1")
	f.refuses(t, thief.Sign(nil, f.issuer.Claims(cnf)), "another signature")
	require.Equal(t, 2, calls, "only valid tokens reach the hook")

	f = newFixture(t, Options[Token]{Confirm: func(context.Context, json.RawMessage) error { panic("x") }})
	_, err = f.verify(t, cnf)
	var panicked *guard.PanicError
	require.ErrorAs(t, err, &panicked)
}

func TestTokenReadsClaims(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	p, err := f.verify(t, map[string]any{
		"a": "x", "b": []any{"x", 1, "y", nil}, "n": 7, "z": json.RawMessage("null"), "big": json.Number("9007199254740993"),
	})
	require.NoError(t, err)
	for name, want := range map[string]string{"a": "x", "z": "", "absent": ""} {
		got, err := p.Text(name)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for _, name := range []string{"n", "b"} {
		_, err := p.Text(name)
		require.Error(t, err, name)
	}
	require.Equal(t, []string{"x", "y"}, p.Strings("b"))
	require.Empty(t, p.Strings("a"))
	require.Contains(t, string(p.Claims), "9007199254740993")
}

// No token passes unless the key of the issuer signed it, and none that another decoder may read as a
// token of another principal or time.
func FuzzVerify(f *testing.F) {
	const claims = `{"iss":"` + home + `","aud":"api","sub":"caller","exp":99999999999}`
	for _, header := range []string{
		`{"alg":"ES256","kid":"k1"}`, `{"alg":"none"}`, `{"alg":"HS256","kid":"k1"}`, `{"alg":"ES256","jwk":{"kty":"EC"}}`,
		`{"alg":"ES256","crit":["b64"],"b64":false}`,
	} {
		f.Add(header, claims, true)
		f.Add(header, claims, false)
	}
	f.Add(`{"alg":"ES256","kid":"k1"}`,
		`{"iss":"`+home+`","aud":["x","api"],"sub":"caller","exp":1,"Exp":99999999999,"nbf":0}`, true)
	x := newFixture(f, Options[Token]{KeyTTL: -1})
	thief := jwttest.NewKey(f, "k1")
	f.Fuzz(func(t *testing.T, header, claims string, isOwn bool) {
		key := thief
		if isOwn {
			key = x.key
		}
		p, err := x.v.Verify(t.Context(), key.Sign(header, claims))
		if err != nil {
			require.Nil(t, p)
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.True(t, isOwn)
		var other struct {
			Iss, Sub string
			Exp      float64
		}
		require.NoError(t, json.Unmarshal([]byte(claims), &other))
		require.Greater(t, other.Exp, float64(time.Now().Add(-skew).Unix()-1))
		require.Equal(t, p.Principal, other.Iss+"#"+other.Sub)
	})
}

func TestVerifyIgnoresHTTPHeadersOfKeys(t *testing.T) {
	f := newFixture(t, Options[Token]{})
	f.issuer.Handle(jwttest.KeysPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, `{"keys":[`+f.key.JWK()+`]}`)
	})
	f.accepts(t, f.token(nil), "many issuers send another media type")
}
