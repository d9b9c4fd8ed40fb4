// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokenstest

import (
	"context"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/sparing"
	"github.com/fivewire/fivewire/internal/tokens"
)

// Verify checks a token and returns whom it stands for. Of the errors,
// [tokens.Expired] and an [tokens.Invalid] say that it is not valid.
type Verify func(ctx context.Context, token string) (subject string, err error)

// Start makes a verifier.
type Start func(issuers []tokens.Issuer, o tokens.Options) (Verify, error)

const (
	home = "https://login.example"
	away = "https://elsewhere.example"
)

// A world is what most tests begin with.
type world struct {
	net    Network
	login  *Issuer
	key    *Key
	verify Verify
}

func begin(t *testing.T, start Start, o tokens.Options) *world {
	t.Helper()
	w := &world{key: NewKey(t, "k1")}
	w.login = NewIssuer(&w.net, home, w.key)
	o.HTTPClient = w.net.Client()
	var err error
	w.verify, err = start([]tokens.Issuer{{URL: home, Audience: "api"}}, o)
	require.NoError(t, err)
	return w
}

// good is a token that is valid for an hour.
func (w *world) good() string { return w.key.Sign(nil, w.login.Claims(nil)) }

// check has a token verified, and waits for what goes on in the background: a key
// set may keep what it fetched a moment after it has handed it out.
func (w *world) check(t *testing.T, token string) (string, error) {
	defer synctest.Wait()
	return w.verify(t.Context(), token)
}

// accepts checks that a token is taken.
func (w *world) accepts(t *testing.T, token, why string) {
	t.Helper()
	subject, err := w.check(t, token)
	require.NoError(t, err, why)
	require.Equal(t, "caller", subject, why)
}

// refuses checks that a token is not valid.
func (w *world) refuses(t *testing.T, token, why string) {
	t.Helper()
	subject, err := w.check(t, token)
	require.Empty(t, subject, why)
	var invalid tokens.Invalid
	require.ErrorAs(t, err, &invalid, why)
	require.NotErrorIs(t, err, tokens.Expired, why)
}

// cannot checks that nobody can say whether a token is valid.
func (w *world) cannot(t *testing.T, token, why string) {
	t.Helper()
	_, err := w.check(t, token)
	require.Error(t, err, why)
	var invalid tokens.Invalid
	require.False(t, errors.As(err, &invalid), "%s: %v", why, err)
	require.Less(t, len(err.Error()), 500, "%s: an answer does not fill the log", why)
}

// Run holds a verifier to all that package tokens promises.
func Run(t *testing.T, start Start) {
	for name, test := range map[string]func(*testing.T, Start){
		"Header":      testHeader,
		"Claims":      testClaims,
		"Form":        testForm,
		"Issuers":     testIssuers,
		"Forgeries":   testForgeries,
		"Rotation":    testRotation,
		"Withdrawn":   testWithdrawn,
		"Outage":      testOutage,
		"Start":       testStart,
		"Hanging":     testHanging,
		"Callers":     testCallers,
		"Documents":   testDocuments,
		"KeySets":     testKeySets,
		"Redirects":   testRedirects,
		"Concurrency": testConcurrency,
		"Refused":     testRefused,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, start) })
		})
	}
}

// What the header says moves nobody to take another key or algorithm.
func testHeader(t *testing.T, start Start) {
	w := begin(t, start, tokens.Options{})
	claims := w.login.Claims(nil)
	for _, header := range []string{
		`{"alg":"ES256","kid":"k1"}`, `{"alg":"ES256"}`, `{"alg":"ES256","kid":""}`,
		`{"alg":"ES256","kid":"k1","typ":"JWT"}`, `{"alg":"ES256","kid":"k1","typ":"at+jwt"}`, `{"alg":"ES256","kid":"k1","typ":"application/at+JWT"}`,
		`{"alg":"ES256","kid":"k1","typ":"Bearer"}`, `{"alg":"ES256","kid":"k1","x":[1]}`,
	} {
		w.accepts(t, w.key.Sign(header, claims), header)
	}

	thief := NewKey(t, "k1")
	jwk, err := json.Marshal(thief.JWK())
	require.NoError(t, err)
	w.net.Asked()
	for _, header := range []string{
		fmt.Sprintf(`{"alg":"ES256","kid":"k1","jwk":%s}`, jwk),
		fmt.Sprintf(`{"alg":"ES256","jwk":%s}`, jwk),
		`{"alg":"ES256","kid":"k1","jku":"` + away + `/keys"}`,
		`{"alg":"ES256","kid":"k1","x5u":"` + away + `/keys"}`,
		`{"alg":"ES256","kid":"` + away + `/keys"}`,
		`{"alg":"ES256","kid":"../../keys"}`,
	} {
		w.refuses(t, thief.Sign(header, claims), header)
	}
	require.Empty(t, w.net.Asked(), "nobody goes where a header points to")

	for _, header := range []string{
		`{"alg":"none","kid":"k1"}`, `{"alg":"None","kid":"k1"}`, `{"alg":"NONE"}`, `{"alg":"","kid":"k1"}`, `{"kid":"k1"}`, `{}`,
		`{"alg":null,"kid":"k1"}`, `{"alg":["ES256"],"kid":"k1"}`, `{"alg":256,"kid":"k1"}`, `{"alg":"es256","kid":"k1"}`,
		`{"alg":"RS256","kid":"k1"}`, `{"alg":"PS256","kid":"k1"}`, `{"alg":"ES384","kid":"k1"}`, `{"alg":"EdDSA","kid":"k1"}`, `{"alg":"HS256","kid":"k1"}`,
		`{"alg":"fetching keys","kid":"k1"}`,
		`{"alg":"ES256","kid":7}`, `{"alg":"ES256","kid":["k1"]}`, `{"alg":"ES256","kid":"k2"}`, `{"alg":"ES256","kid":"K1"}`, `{"alg":"ES256","kid":"k1\u0000"}`,
		`{"alg":"ES256","kid":"k1","crit":["exp"],"exp":1}`, `{"alg":"ES256","kid":"k1","crit":["b64"],"b64":false}`, `{"alg":"ES256","kid":"k1","crit":["b64"],"b64":true}`,
		`{"alg":"ES256","kid":"k1","crit":[]}`, `{"alg":"ES256","kid":"k1","crit":null}`, `{"alg":"ES256","kid":"k1","crit":"x"}`,
		`{"alg":"none","alg":"ES256","kid":"k1"}`, `{"alg":"ES256","kid":"k1","kid":"k1"}`,
		`{"alg":"ES256","kid":"k1","typ":"logout+jwt"}`, `{"alg":"ES256","kid":"k1","typ":"application/secevent+JWT"}`,
		`["ES256"]`, `"ES256"`, `null`, `{"alg":"ES256","kid":"k1"} ` + "\x00", `{"alg":"ES256","kid":"k1"`, "",
		"{\"alg\":\"ES256\",\"kid\":\"\xff\"}",
	} {
		w.refuses(t, w.key.Sign(header, claims), header)
		w.refuses(t, strings.TrimRight(w.key.Sign(header, claims), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"), header+" without a signature")
	}

	// The public key as the secret of a symmetric signature, in each form that somebody could take it in.
	public := w.key.JWK()
	text, err := json.Marshal(public)
	require.NoError(t, err)
	for _, secret := range []string{string(text), public["x"], public["x"] + public["y"], "", "k1"} {
		signed := B64([]byte(`{"alg":"HS256","kid":"k1"}`)) + "." + B64(encoded(claims))
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(signed))
		w.refuses(t, signed+"."+B64(mac.Sum(nil)), "HMAC with "+secret)
	}
}

// Each claim is wanted as it is meant, and read in one way only.
func testClaims(t *testing.T, start Start) {
	w := begin(t, start, tokens.Options{})
	now := time.Now()
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	many := make([]string, 2000)
	for n := range many {
		many[n] = fmt.Sprint("service-", n)
	}
	for _, more := range []map[string]any{
		{},
		{"aud": []string{"x", "api", "y"}},
		{"aud": append(many, "api")},
		{"exp": at(time.Second)},
		{"exp": json.Number(fmt.Sprint(at(time.Hour), ".5"))},
		{"nbf": at(0)},
		{"nbf": at(4 * time.Minute)}, // clocks differ
		{"iat": at(time.Hour)},
		{"Sub": "admin", "subject": "admin"},
		{"roles": []any{"a", 1, nil}},
	} {
		w.accepts(t, w.key.Sign(nil, w.login.Claims(more)), fmt.Sprint(more))
	}
	for _, more := range []map[string]any{
		{"aud": nil}, {"aud": []string{}}, {"aud": ""}, {"aud": "API"}, {"aud": "api "}, {"aud": "apis"}, {"aud": many}, {"aud": "x api"},
		{"aud": map[string]any{"api": "api"}}, {"aud": []any{[]any{"api"}}}, {"aud": 1},
		{"iss": nil}, {"iss": ""}, {"iss": home + "/"}, {"iss": strings.ToUpper(home)}, {"iss": []string{home}}, {"iss": away},
		{"exp": "soon"}, {"exp": json.RawMessage("null")}, {"exp": []int64{at(time.Hour)}}, {"exp": true}, {"exp": map[string]any{}}, {"exp": fmt.Sprint(at(time.Hour))}, {"nbf": "0"},
		{"nbf": at(6 * time.Minute)}, {"nbf": "now"},
		{"EXP": at(time.Hour), "exp": at(-time.Hour)}, {"Exp": at(time.Hour), "exp": nil}, {"AUD": "api", "aud": "x"}, {"Iss": home}, {"NBF": 0},
		{"deep": json.RawMessage(strings.Repeat("[", 40) + strings.Repeat("]", 40))},
	} {
		w.refuses(t, w.key.Sign(nil, w.login.Claims(more)), fmt.Sprint(more))
	}
	for _, more := range []map[string]any{
		{"exp": nil}, {"exp": 0}, {"exp": -1}, {"exp": at(-time.Second)}, {"exp": at(-365 * 24 * time.Hour)},
		{"exp": json.RawMessage("-9223372036854775808")},
	} {
		_, err := w.verify(t.Context(), w.key.Sign(nil, w.login.Claims(more)))
		require.ErrorIs(t, err, tokens.Expired, more)
	}
	for _, claims := range []string{
		`{"iss":"` + home + `","aud":"api","sub":"caller","exp":99999999999,"sub":"admin"}`,
		`{"iss":"` + home + `","aud":"api","sub":"caller","exp":1,"exp":99999999999}`,
		`{"iss":"` + home + `","iss":"` + home + `","aud":"api","sub":"caller","exp":99999999999}`,
		`{"iss":"` + home + `","aud":"api","sub":"caller","exp":99999999999} {}`,
		`{"iss":"` + home + `","aud":"api","sub":"` + "\xff" + `","exp":99999999999}`,
		`[{"iss":"` + home + `","aud":"api","sub":"caller","exp":99999999999}]`, `null`, `""`, ``, `{`,
	} {
		w.refuses(t, w.key.Sign(nil, claims), claims)
	}
	w.accepts(t, w.key.Sign(nil, ` {"iss":"`+home+`","aud":"api","sub":"caller","exp":99999999999} `), "white space around it")

	// Every time that a claim can name is a time.
	for _, exp := range []string{"9223372036854775807", "1e30", "1e400", "-1e400"} {
		_, err := w.verify(t.Context(), w.key.Sign(nil, w.login.Claims(map[string]any{"exp": json.RawMessage(exp)})))
		var invalid tokens.Invalid
		require.ErrorAs(t, err, &invalid, exp)
	}

	// The end comes with the clock.
	token := w.key.Sign(nil, w.login.Claims(map[string]any{"exp": at(time.Minute)}))
	w.accepts(t, token, "before the end")
	time.Sleep(time.Minute + time.Second)
	_, err := w.verify(t.Context(), token)
	require.ErrorIs(t, err, tokens.Expired)
}

// A token is three parts of Base64 and nothing else.
func testForm(t *testing.T, start Start) {
	w := begin(t, start, tokens.Options{})
	token := w.good()
	w.accepts(t, token, "as it is")
	parts := strings.Split(token, ".")
	lie := B64(encoded(w.login.Claims(map[string]any{"sub": "admin"})))
	jws := func(m any) string { return string(encoded(m)) }
	w.accepts(t, w.key.Sign(nil, w.login.Claims(map[string]any{"pad": strings.Repeat("A", tokens.MaxToken*3/4-300)})), "as long as it may be")
	for why, bad := range map[string]string{
		"empty":              "",
		"opaque":             "6f1d0b7a",
		"two parts":          parts[0] + "." + parts[1],
		"four parts":         token + "." + parts[2],
		"a part more before": "." + token,
		"an end more":        token + ".",
		"space before":       " " + token,
		"space behind":       token + " ",
		"a line break":       parts[0] + "." + parts[1] + ".\n" + parts[2],
		"a break in claims":  parts[0] + "." + parts[1][:4] + "\r\n" + parts[1][4:] + "." + parts[2],
		"padding":            token + "==",
		"other alphabet":     parts[0] + "." + parts[1] + "." + strings.Repeat("+/", 43),
		"no signature":       parts[0] + "." + parts[1] + ".",
		"half a signature":   parts[0] + "." + parts[1] + "." + parts[2][:43],
		"zeros":              parts[0] + "." + parts[1] + "." + B64(make([]byte, 64)),
		"other claims":       parts[0] + "." + lie + "." + parts[2],
		"other header":       B64([]byte(`{"kid":"k1","alg":"ES256"}`)) + "." + parts[1] + "." + parts[2],
		"too long":           w.key.Sign(nil, w.login.Claims(map[string]any{"pad": strings.Repeat("A", tokens.MaxToken*3/4)})),
		"all full stops":     strings.Repeat(".", tokens.MaxToken),
		"encrypted":          parts[0] + "." + parts[1] + "." + parts[2] + "." + parts[1] + "." + parts[2],
		"JSON form":          jws(map[string]any{"payload": parts[1], "protected": parts[0], "signature": parts[2]}),
		"JSON, other claims": jws(map[string]any{"payload": parts[1], "protected": parts[0], "signature": parts[2], "x": "." + lie + "."}),
		"JSON, general form": jws(map[string]any{"payload": parts[1], "x": "." + lie + ".", "signatures": []any{map[string]any{"protected": parts[0], "signature": parts[2]}}}),
		"JSON, claims first": `{"x":"A.` + lie + `.A","payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`,
	} {
		w.refuses(t, bad, why)
	}

	// ASN.1, which is how the rest of the world writes such signatures.
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	asn1, err := ecdsa.SignASN1(rand.Reader, w.key.private, sum[:])
	require.NoError(t, err)
	w.refuses(t, parts[0]+"."+parts[1]+"."+B64(asn1), "ASN.1")
}

// An issuer speaks for itself alone.
func testIssuers(t *testing.T, start Start) {
	var net Network
	one, two := NewKey(t, "k"), NewKey(t, "k")
	a, b := NewIssuer(&net, home, one), NewIssuer(&net, away, two)
	verify, err := start([]tokens.Issuer{{URL: home, Audience: "api"}, {URL: away, Audience: "api"}}, tokens.Options{HTTPClient: net.Client()})
	require.NoError(t, err)
	w := &world{verify: verify}
	for _, i := range []struct {
		*Issuer
		key, other *Key
	}{{a, one, two}, {b, two, one}} {
		subject, err := verify(t.Context(), i.key.Sign(nil, i.Claims(nil)))
		require.NoError(t, err)
		require.Equal(t, i.URL+" caller", subject, "two issuers may know two people of one name")
		w.refuses(t, i.other.Sign(nil, i.Claims(nil)), "the key of the other issuer")
	}

	// A document of another issuer names no keys of this one.
	a.Discovery(away, home+"/keys")
	verify, err = start([]tokens.Issuer{{URL: home}}, tokens.Options{HTTPClient: net.Client()})
	require.NoError(t, err)
	w = &world{verify: verify}
	w.cannot(t, one.Sign(nil, a.Claims(nil)), "a document of another issuer")
}

// However many forged tokens come, the issuer is asked once in a while only.
func testForgeries(t *testing.T, start Start) {
	w := begin(t, start, tokens.Options{MinRefresh: time.Minute})
	thief := NewKey(t, "")
	w.accepts(t, w.good(), "before")
	require.Equal(t, []string{home + DiscoveryPath, home + KeysPath}, w.net.Asked())
	for minute := range 5 {
		for n := range 20 {
			thief.ID = fmt.Sprint("k", n)
			w.refuses(t, thief.Sign(nil, w.login.Claims(nil)), "forged")
		}
		require.LessOrEqual(t, len(w.net.Asked()), 1, minute)
		time.Sleep(time.Minute)
	}
	w.accepts(t, w.good(), "after")
}

// A new key is known when MinRefresh is over.
func testRotation(t *testing.T, start Start) {
	w := begin(t, start, tokens.Options{MinRefresh: time.Minute})
	w.accepts(t, w.good(), "the first key")
	next := NewKey(t, "k2")
	w.login.Publish(w.key, next)
	time.Sleep(time.Minute)
	w.accepts(t, next.Sign(nil, w.login.Claims(nil)), "the new key")
	w.accepts(t, w.good(), "the old key")

	// The same name for another key.
	again := NewKey(t, "k2")
	w.login.Publish(again)
	time.Sleep(time.Minute)
	w.accepts(t, again.Sign(nil, w.login.Claims(nil)), "another key of that name")
	w.refuses(t, next.Sign(nil, w.login.Claims(nil)), "the key that had the name")
}

// A key that was withdrawn is forgotten when MaxAge is over, however often it is
// used until then.
func testWithdrawn(t *testing.T, start Start) {
	for _, o := range []tokens.Options{{}, {MaxAge: 10 * time.Minute}, {MaxAge: 10 * time.Second, MinRefresh: time.Hour}} {
		age := o.MaxAge
		if age == 0 {
			age = time.Hour
		}
		for _, use := range []int{1, 3, 50} {
			w := begin(t, start, o)
			stolen := NewKey(t, "stolen")
			w.login.Publish(w.key, stolen)
			claims := w.login.Claims(map[string]any{"exp": time.Now().Add(100 * age).Unix()})
			token := stolen.Sign(nil, claims)
			w.accepts(t, token, "before it was withdrawn")
			w.login.Publish(w.key)
			for range use - 1 {
				time.Sleep(age / time.Duration(use))
				_, _ = w.check(t, token)
			}
			time.Sleep(age / time.Duration(use))
			w.refuses(t, token, fmt.Sprint("withdrawn ", age, " ago, used ", use, " times"))
			w.accepts(t, w.key.Sign(nil, claims), "the others stay")
		}
	}
}

func broken(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, strings.Repeat("down ", 10_000), http.StatusBadGateway)
}

// An issuer that is down for less than half of MaxAge does no harm to tokens of
// keys that are known; when it is down for longer, nothing is believed.
func testOutage(t *testing.T, start Start) {
	w := begin(t, start, tokens.Options{MaxAge: time.Hour, MinRefresh: time.Minute})
	claims := w.login.Claims(map[string]any{"exp": time.Now().Add(100 * time.Hour).Unix()})
	token := w.key.Sign(nil, claims)
	w.accepts(t, token, "at first")
	w.net.Asked()
	up := w.login.Down(broken)
	for range 59 * 6 {
		time.Sleep(10 * time.Second)
		w.accepts(t, token, "an outage in the first hour")
	}
	asked := len(w.net.Asked())
	require.Greater(t, asked, 20, "it was asked again and again")
	require.LessOrEqual(t, asked, 30, "and in the second half only")
	up()
	time.Sleep(59 * time.Second)
	w.accepts(t, token, "and it is up again")
	time.Sleep(29 * time.Minute)
	w.accepts(t, token, "the keys are new ones")
	w.login.Down(broken)
	time.Sleep(time.Hour)
	for range 10 {
		w.cannot(t, token, "keys are too old")
		time.Sleep(10 * time.Minute)
	}
}

// An issuer that is down when the first token comes.
func testStart(t *testing.T, start Start) {
	for _, path := range []string{DiscoveryPath, KeysPath} {
		w := begin(t, start, tokens.Options{MinRefresh: time.Minute})
		up := w.login.Handle(path, broken)
		for range 10 {
			w.cannot(t, w.good(), "down")
		}
		require.LessOrEqual(t, len(w.net.Asked()), 2, "asked once only")
		up()
		time.Sleep(time.Minute)
		w.accepts(t, w.good(), "up")
	}
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// An issuer that takes a connection and says nothing holds nobody up who goes
// away, and the others for a while only, once; keys that are known still serve.
func testHanging(t *testing.T, start Start) {
	for _, path := range []string{DiscoveryPath, KeysPath} {
		w := begin(t, start, tokens.Options{MinRefresh: time.Minute})
		up := w.login.Handle(path, hang)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := w.verify(ctx, w.good())
		cancel()
		require.Error(t, err)
		var invalid tokens.Invalid
		require.False(t, errors.As(err, &invalid))
		require.Equal(t, time.Second, time.Since(began), path)
		w.cannot(t, w.good(), "hanging")
		require.Equal(t, 10*time.Second, time.Since(began), path)
		for range 20 {
			w.cannot(t, w.good(), "hanging still")
		}
		require.Equal(t, 10*time.Second, time.Since(began), path)
		up()
		time.Sleep(time.Minute)
		w.accepts(t, w.good(), "up")

		w.login.Down(hang)
		time.Sleep(31 * time.Minute)
		w.net.Asked()
		began = time.Now()
		for range 5 {
			w.accepts(t, w.good(), "hanging, with keys that are known")
		}
		require.Equal(t, began, time.Now())
		require.Len(t, w.net.Asked(), 1, "one waits for the others")
		time.Sleep(time.Minute)
	}
}

// A caller that goes away takes nothing from the others, and does not cause
// another request.
func testCallers(t *testing.T, start Start) {
	for _, path := range []string{DiscoveryPath, KeysPath} {
		w := begin(t, start, tokens.Options{})
		w.login.mu.Lock()
		real := w.login.docs[path]
		w.login.mu.Unlock()
		w.login.Handle(path, func(rw http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(2 * time.Second):
			case <-r.Context().Done():
			}
			real.ServeHTTP(rw, r)
		})
		token := w.good()
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n+1)*50*time.Millisecond)
				defer cancel()
				if _, err := w.verify(ctx, token); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			if _, err := w.verify(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		require.Equal(t, []string{home + DiscoveryPath, home + KeysPath}, w.net.Asked())
	}
}

// Discovery documents that say nothing, or nothing safe.
func testDocuments(t *testing.T, start Start) {
	for _, text := range []string{
		``, `{}`, `[]`, `null`, `{"issuer":"` + home + `"}`, `{"issuer":"` + home + `","jwks_uri":7}`, `{"issuer":"` + home + `","jwks_uri":""}`,
		`{"issuer":"` + home + `","jwks_uri":"/keys"}`, `{"issuer":"` + home + `","jwks_uri":"file:///etc/passwd"}`,
		`{"issuer":"` + home + `","jwks_uri":"http://login.example/keys"}`, `{"issuer":"` + home + `","jwks_uri":"https://"}`,
		`{"issuer":"` + home + `/","jwks_uri":"` + home + `/keys"}`, `{"jwks_uri":"` + home + `/keys"}`,
		`{"Issuer":"` + home + `","jwks_uri":"` + home + `/keys"}`,
		`{"issuer":"` + away + `","issuer":"` + home + `","jwks_uri":"` + home + `/keys"}`,
		`{"issuer":"` + home + `","jwks_uri":"` + home + `/keys"} x`,
		`{"issuer":"` + home + `","jwks_uri":"` + home + `/keys","x":"` + strings.Repeat("x", sparing.MaxDocument) + `"}`,
		`{"issuer":"` + home + `","jwks_uri":"` + home + `/keys","x":` + strings.Repeat("[", 50) + strings.Repeat("]", 50) + `}`,
		`<html>`, strings.Repeat("[", sparing.MaxDocument),
	} {
		w := begin(t, start, tokens.Options{})
		w.login.Handle(DiscoveryPath, document(text))
		short := text[:min(len(text), 100)]
		w.cannot(t, w.good(), short)
		require.Equal(t, []string{home + DiscoveryPath}, w.net.Asked(), short)
	}

	// A good one in an answer that is none.
	w := begin(t, start, tokens.Options{})
	w.login.Handle(DiscoveryPath, func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(rw, `{"issuer":%q,"jwks_uri":%q}`, home, home+KeysPath)
	})
	w.cannot(t, w.good(), "an error")
}

// Key sets that are none, and such with strange keys beside the one that counts.
func testKeySets(t *testing.T, start Start) {
	w := begin(t, start, tokens.Options{})
	text, err := json.Marshal(w.key.JWK())
	require.NoError(t, err)
	jwk := string(text)
	for _, set := range []string{
		``, `[]`, `"keys"`, `{"keys":1}`, `{"keys":[1]}`, `{"keys":[` + jwk + `]} x`, `{"keys":[],"keys":[` + jwk + `]}`, `<html>`,
		`{"keys":[` + jwk + `],"x":"` + strings.Repeat("x", sparing.MaxDocument) + `"}`, strings.Repeat("[", 1000) + strings.Repeat("]", 1000),
	} {
		w := begin(t, start, tokens.Options{})
		w.login.Handle(KeysPath, document(set))
		w.cannot(t, w.good(), set[:min(len(set), 100)])
	}
	for _, set := range []string{`{}`, `{"keys":[]}`, `{"keys":null}`} {
		w := begin(t, start, tokens.Options{})
		w.login.Handle(KeysPath, document(set))
		w.refuses(t, w.good(), set)
	}
	for _, more := range []string{
		`{"kty":"oct","kid":"k1","k":"AAAA"}`,
		`{"kty":"oct","kid":"k0","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","alg":"HS256"}`,
		`{"kty":"OKP","crv":"X25519","kid":"k1","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`,
		`{"kty":"NEW","kid":"k1"}`,
		`{"kty":"RSA","kid":"k1","n":"AQAB","e":"AQAB"}`,
		`{"kty":"EC","crv":"secp256k1","alg":"ES256K","kid":"k0","x":"AA","y":"AA"}`,
	} {
		w := begin(t, start, tokens.Options{})
		own, err := json.Marshal(w.key.JWK())
		require.NoError(t, err)
		w.login.Handle(KeysPath, document(`{"keys":[`+more+`,`+string(own)+`]}`))
		w.accepts(t, w.good(), more)
		signed := B64([]byte(`{"alg":"HS256","kid":"k0"}`)) + "." + B64(encoded(w.login.Claims(nil)))
		mac := hmac.New(sha256.New, make([]byte, 32))
		mac.Write([]byte(signed))
		w.refuses(t, signed+"."+B64(mac.Sum(nil)), "a secret that the issuer publishes")
	}
}

// Who began with https goes on with it.
func testRedirects(t *testing.T, start Start) {
	to := func(url string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, url, http.StatusFound) }
	}
	for _, path := range []string{DiscoveryPath, KeysPath} {
		w := begin(t, start, tokens.Options{})
		thief := NewKey(t, "k1")
		NewIssuer(&w.net, "http://login.example", thief).Discovery(home, home+"/keys")
		w.login.Handle(path, to("http://login.example"+path))
		w.cannot(t, w.good(), "to http")
		require.NotContains(t, w.net.Asked(), "http://login.example"+path)
		w.cannot(t, thief.Sign(nil, w.login.Claims(nil)), "of a thief")

		w = begin(t, start, tokens.Options{})
		NewIssuer(&w.net, away, w.key).Discovery(home, away+"/keys")
		w.login.Handle(path, to(away+path))
		w.accepts(t, w.good(), "to another host")

		w = begin(t, start, tokens.Options{})
		w.login.Handle(path, to(home+path))
		w.cannot(t, w.good(), "in a circle")
		require.LessOrEqual(t, len(w.net.Asked()), 2)

		w = begin(t, start, tokens.Options{})
		n := 0
		w.login.Handle(path, func(rw http.ResponseWriter, r *http.Request) {
			n++
			http.Redirect(rw, r, fmt.Sprint(home, path, "?", n), http.StatusFound)
		})
		w.cannot(t, w.good(), "for ever")
		require.LessOrEqual(t, len(w.net.Asked()), 11)
	}

	// What a client of the user's refuses stays refused.
	var net Network
	key := NewKey(t, "k1")
	login := NewIssuer(&net, home, key)
	NewIssuer(&net, away, key).Discovery(home, away+"/keys")
	login.Handle(DiscoveryPath, to(away+DiscoveryPath))
	client := net.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return errors.New("none here") }
	verify, err := start([]tokens.Issuer{{URL: home}}, tokens.Options{HTTPClient: client})
	require.NoError(t, err)
	(&world{verify: verify}).cannot(t, key.Sign(nil, login.Claims(nil)), "by the client")
	require.Equal(t, []string{home + DiscoveryPath}, net.Asked())
}

// Many at once, at the start and whenever the keys are renewed, ask once.
func testConcurrency(t *testing.T, start Start) {
	w := begin(t, start, tokens.Options{MaxAge: time.Hour})
	token := w.key.Sign(nil, w.login.Claims(map[string]any{"exp": time.Now().Add(100 * time.Hour).Unix()}))
	both := []string{home + DiscoveryPath, home + KeysPath}
	for _, pause := range []time.Duration{0, time.Minute, 30 * time.Minute, 10 * time.Minute, 2 * time.Hour, time.Minute} {
		time.Sleep(pause)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if subject, err := w.verify(t.Context(), token); subject != "caller" || err != nil {
					t.Error(subject, err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		want := both
		if pause == time.Minute || pause == 10*time.Minute {
			want = nil
		}
		require.Equal(t, want, w.net.Asked(), pause)
	}
}

// What no verifier is made of.
func testRefused(t *testing.T, start Start) {
	for _, bad := range [][]tokens.Issuer{nil, {{}}, {{URL: "a"}, {URL: "a"}}, {{URL: "a"}, {URL: "a b"}}, {{URL: "a", Algorithms: []string{"HS256"}}}, {{URL: "a", Algorithms: []string{"none"}}},
		{{URL: "a", Algorithms: []string{"ES256", "hs256"}}}, {{URL: "a", Algorithms: []string{""}}}} {
		_, err := start(bad, tokens.Options{})
		require.Error(t, err)
	}

	// Only the algorithms that are named are accepted; none are all of them.
	var net Network
	key := NewKey(t, "k1")
	login := NewIssuer(&net, home, key)
	for _, tt := range []struct {
		algorithms []string
		ok         bool
	}{{nil, true}, {[]string{}, true}, {[]string{"ES256"}, true}, {[]string{"RS256", "ES384", "EdDSA"}, false}} {
		verify, err := start([]tokens.Issuer{{URL: home, Algorithms: tt.algorithms}}, tokens.Options{HTTPClient: net.Client()})
		require.NoError(t, err)
		w := &world{verify: verify}
		token := key.Sign(nil, login.Claims(map[string]any{"aud": nil}))
		if tt.ok {
			w.accepts(t, token, fmt.Sprint(tt.algorithms))
		} else {
			w.refuses(t, token, fmt.Sprint(tt.algorithms))
		}
	}
}
