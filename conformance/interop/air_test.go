// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/probe"
	"github.com/fivewire/fivewire/internal/vector"
)

// Canonical JSON, signatures and sealed boxes of package air against those of other languages.

const airEnvelopes = 10_000

// An airCase is one generated envelope with its expected properties.
type airCase struct {
	Env  string `json:"env"` // with its signature
	Form string `json:"form"`
	Seed string `json:"seed"`
	Pub  string `json:"pub"`
	Sign bool   `json:"sign"` // whether to sign it too; slow peers look

	sum, signature string

	ints     []string // its integers
	odderKey bool     // the order of names depends on how they are compared
}

// An airMaker generates envelopes. Its output depends on its seed only.
type airMaker struct {
	*rand.Rand
	c *airCase
}

// old lists blocks with the same normalization in all versions of Unicode. Of other blocks, only characters that
// normalization does not change are used, because the peers implement different versions.
var old = [][2]rune{
	{0xa0, 0x17f}, {0x1cd, 0x233}, {0x300, 0x362}, {0x370, 0x3ff}, {0x400, 0x45f}, {0x5b0, 0x5bd}, {0x622, 0x626}, {0x64b, 0x655},
	{0x958, 0x95f}, {0xac00, 0xd7a3}, {0x1100, 0x1112}, {0x1161, 0x1175}, {0x11a8, 0x11c2}, {0x1e00, 0x1eff}, {0x1f00, 0x1f15},
	{0x2126, 0x212b}, {0x3041, 0x3099}, {0xf900, 0xfa0d}, {0xfb1f, 0xfb1f}, {0x1d15e, 0x1d164}, {0x2f800, 0x2fa1d},
}

func (m *airMaker) rune() rune {
	switch m.IntN(6) {
	case 0:
		return rune(0x20 + m.IntN(0x5f))
	case 1, 2:
		block := old[m.IntN(len(old))]
		return block[0] + rune(m.IntN(int(block[1]-block[0])+1))
	case 3:
		return []rune{0, 1, 0x1f, '"', '\\', '/', 0x7f, 0x85, 0x2028, 0x2029, 0xfeff, 0xfffe, 0xffff, 0xe000, 0x10ffff, '\b', '\f', '\n', '\r', '\t', '<', '&'}[m.IntN(22)]
	default:
		for {
			r := rune(m.IntN(0x110000)) // any plane
			if m.IntN(2) == 0 {
				r = rune(m.IntN(17))<<16 | rune(m.IntN(0x10000))
			}
			if r >= 0xd800 && r < 0xe000 {
				continue
			}
			p := norm.NFD.PropertiesString(string(r))
			if p.CCC() == 0 && p.Decomposition() == nil && p.BoundaryBefore() {
				return r
			}
		}
	}
}

func (m *airMaker) text() string {
	var b strings.Builder
	for range m.IntN(12) {
		b.WriteRune(m.rune())
	}
	if m.IntN(40) == 0 { // more marks than stream-safe text has in a row
		b.WriteString("a")
		for range 31 + m.IntN(20) {
			b.WriteRune([]rune{0x301, 0x327, 0x308, 0x32e}[m.IntN(4)])
		}
	}
	return b.String()
}

// quote writes a string in one of the ways in which JSON allows.
func (m *airMaker) quote(b *bytes.Buffer, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || m.IntN(20) == 0:
			if r > 0xffff {
				hi, lo := utf16.EncodeRune(r)
				fmt.Fprintf(b, `\u%04x\u%04X`, hi, lo)
			} else {
				fmt.Fprintf(b, `\u%04x`, r)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

func (m *airMaker) integer() string {
	var s string
	switch m.IntN(12) {
	case 0:
		s = []string{"0", "-0", "9007199254740991", "-9007199254740991"}[m.IntN(4)]
	case 1:
		s = strconv.FormatInt(m.Int64(), 10)
		if m.IntN(60) != 0 {
			s = "7"
		}
	case 2:
		s = []string{"9007199254740992", "9007199254740993", "-9007199254740993", "18446744073709551615", "18446744073709551616",
			"-9223372036854775808", "-9223372036854775809", "1152921504606846976", "100000000000000000000", "1000000000000000000000"}[m.IntN(10)]
		if m.IntN(20) != 0 {
			s = "8"
		}
	case 3:
		s = strconv.Itoa(m.IntN(9) + 1)
		for range 20 + m.IntN(40) {
			s += strconv.Itoa(m.IntN(10))
		}
		if m.IntN(60) != 0 {
			s = "9"
		}
	default:
		s = strconv.Itoa(m.IntN(2_000_000) - 1_000_000)
	}
	m.c.ints = append(m.c.ints, s)
	return s
}

func (m *airMaker) space(b *bytes.Buffer) {
	for range max(0, m.IntN(12)-9) {
		b.WriteByte(" \t\r\n"[m.IntN(4)])
	}
}

func (m *airMaker) value(b *bytes.Buffer, depth int) {
	m.space(b)
	switch n := m.IntN(10); {
	case n < 4 || depth > 4 && n < 7:
		m.quote(b, m.text())
	case n < 6 || depth > 4:
		b.WriteString(m.integer())
	case n == 6:
		b.WriteString([]string{"true", "false", "null"}[m.IntN(3)])
	case n == 7:
		b.WriteByte('[')
		for i := range m.IntN(5) {
			if i > 0 {
				b.WriteByte(',')
			}
			m.value(b, depth+1)
		}
		m.space(b)
		b.WriteByte(']')
	default:
		m.object(b, nil, depth+1)
	}
	m.space(b)
}

// object writes an object with the given members and up to six generated ones, in random order.
func (m *airMaker) object(b *bytes.Buffer, given [][2]string, depth int) {
	var names []string
	for _, g := range given {
		names = append(names, g[0])
	}
	for range m.IntN(7) {
		name := m.text()
		if m.IntN(3) > 0 {
			name = string("abcdefghijklmnop"[m.IntN(16)]) + strconv.Itoa(m.IntN(5))
		}
		// Names that are equal after normalization are duplicates (AIR-D05).
		if !slices.ContainsFunc(names, func(o string) bool {
			return norm.NFC.String(o) == norm.NFC.String(name) || norm.NFD.String(o) == norm.NFD.String(name)
		}) {
			names = append(names, name)
		}
	}
	m.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	m.c.odderKey = m.c.odderKey || !slices.Equal(sorted(names, byUnits), sorted(names, byEscapedBytes))
	b.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		m.space(b)
		m.quote(b, name)
		m.space(b)
		b.WriteByte(':')
		at := slices.IndexFunc(given, func(g [2]string) bool { return g[0] == name })
		if at < 0 {
			m.value(b, depth)
		} else {
			b.WriteString(given[at][1])
		}
	}
	b.WriteByte('}')
}

func sorted(names []string, less func(a, b string) int) []string {
	out := slices.Clone(names)
	slices.SortFunc(out, less)
	return out
}

// byUnits is the order of RFC 8785; byEscapedBytes is that of names as they are written.
func byUnits(a, b string) int {
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

func byEscapedBytes(a, b string) int {
	return bytes.Compare(escaped(a), escaped(b))
}

func escaped(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	out := bytes.TrimSpace(b.Bytes())
	out = bytes.ReplaceAll(out, []byte(`\u2028`), []byte("\u2028"))
	return bytes.ReplaceAll(out, []byte(`\u2029`), []byte("\u2029"))
}

// airCases makes, signs and checks the envelopes.
func airCases(t *testing.T, n int) []*airCase {
	t.Helper()
	var keys [16]ed25519.PrivateKey
	for i := range keys {
		keys[i] = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i*7 + 1)}, ed25519.SeedSize))
	}
	cases := make([]*airCase, n)
	for i := range cases {
		c := &airCase{Form: string(air.FormSpec), Sign: i%4 < 2}
		if i%2 == 1 {
			c.Form = string(air.FormDeployed)
		}
		m := &airMaker{Rand: rand.New(rand.NewPCG(8785, uint64(i))), c: c}
		key := keys[i%len(keys)]
		pub, err := air.NewPublicKey(key.Public().(ed25519.PublicKey))
		require.NoError(t, err)
		c.Seed, c.Pub = hex.EncodeToString(key.Seed()), pub.String()
		var body bytes.Buffer
		m.object(&body, [][2]string{{"type", `"x-made"`}}, 1)
		var env bytes.Buffer
		m.object(&env, [][2]string{
			{"id", `"11111111-1111-4111-8111-111111111111"`}, {"from", `"did:wba:example:agents:AIR-AAAA-BBBB-CCCC"`},
			{"to", `"did:wba:example:agents:AIR-DDDD-EEEE-FFFF"`}, {"timestamp", `"2026-05-28T09:00:00.000Z"`},
			{"thread_id", `"22222222-2222-4222-8222-222222222222"`}, {"nonce", `"` + strconv.Itoa(i) + `"`}, {"body", body.String()},
		}, 1)
		data, err := vector.Call[[]byte](airtest.Vector, "signing_input",
			map[string]any{"envelope": env.Bytes(), "form": c.Form})
		require.NoError(t, err, "%s", env.Bytes())
		sum := sha256.Sum256(data)
		c.sum = hex.EncodeToString(sum[:])
		signed, err := air.Sign(env.Bytes(), key, air.Form(c.Form))
		require.NoError(t, err)
		// The peers get the envelope as it was made, not in canonical form.
		c.signature = strings.Trim(member(t, signed, "signature"), `"`)
		c.Env = env.String()[:env.Len()-1] + `, "signature" : "` + c.signature + `"}`
		form, err := air.Verify([]byte(c.Env), pub, "")
		require.NoError(t, err)
		require.Equal(t, air.Form(c.Form), form)
		cases[i] = c
	}
	return cases
}

// safe reports whether a float64 represents an integer exactly and no other integer rounds to the same value.
func safe(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n <= 1<<53-1 && n >= -(1<<53-1)
}

// sameAsFloat reports whether an integer is unchanged by a conversion to float64 and back.
func sameAsFloat(s string) bool {
	f, err := strconv.ParseFloat(s, 64)
	return err == nil && (f < 1e21 && f > -1e21) && strings.TrimPrefix(strconv.FormatFloat(f, 'f', -1, 64), "-0") == strings.TrimPrefix(s, "-0")
}

func TestAIRSignatures(t *testing.T) {
	t.Parallel()
	dir := peersDir()
	peersOf := []struct {
		name, needs string
		command     func(t *testing.T, in, out string) *exec.Cmd
		want        func(c *airCase) string // "" is agreement, "differs" other bytes, else the error
	}{
		{"rfc8785", "python", func(_ *testing.T, in, out string) *exec.Cmd {
			return exec.Command(filepath.Join(dir, "python", "bin", "python"), "-B", filepath.Join("peers", "python", "air_check.py"), in, out)
		}, func(c *airCase) string {
			if slices.ContainsFunc(c.ints, func(s string) bool { return !safe(s) }) {
				return "error IntegerDomainError" // it refuses integers that other peers round
			}
			return ""
		}},
		{"canonicalize", "node", func(t *testing.T, in, out string) *exec.Cmd {
			return nodeCommand(t, "air_check.mjs", in, out)
		}, func(c *airCase) string {
			if slices.ContainsFunc(c.ints, func(s string) bool { return !sameAsFloat(s) }) {
				return "differs" // integers are rounded to floats
			}
			return ""
		}},
		{"serde_jcs", "rust", func(_ *testing.T, in, out string) *exec.Cmd {
			return exec.Command(filepath.Join(dir, "rust", "target", "debug", "air"), in, out)
		}, func(c *airCase) string {
			if slices.ContainsFunc(c.ints, func(s string) bool { return !sameAsFloat(s) }) {
				return "differs" // so are they here, although the type of the values holds 64 bits
			}
			return ""
		}},
	}
	made := sync.OnceValue(func() []*airCase { return airCases(t, airEnvelopes) })
	for _, p := range peersOf {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			peers(t, p.needs)
			cases := made()
			in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
			f, err := os.Create(in)
			require.NoError(t, err)
			w := bufio.NewWriter(f)
			e := json.NewEncoder(w)
			for _, c := range cases {
				require.NoError(t, e.Encode(c))
			}
			require.NoError(t, w.Flush())
			require.NoError(t, f.Close())
			output, err := p.command(t, in, out).CombinedOutput()
			require.NoError(t, err, "%s", output)
			got, err := os.ReadFile(out)
			require.NoError(t, err)
			lines := strings.Split(strings.TrimSuffix(string(got), "\n"), "\n")
			require.Len(t, lines, len(cases))
			counts, wrong, odd := map[string]int{}, 0, 0
			for i, c := range cases {
				if c.odderKey {
					odd++
				}
				have := "differs"
				switch {
				case strings.HasPrefix(lines[i], "error "):
					have = lines[i]
				case lines[i] == c.sum+" good "+c.signature, !c.Sign && lines[i] == c.sum+" good -":
					have = ""
				case strings.Contains(lines[i], " good "):
					have = "verified, but signs otherwise"
				}
				counts[have]++
				if have != "" && !explains(c) {
					t.Errorf("envelope %d: %q, which air probe does not explain\n%s", i, have, c.Env)
				}
				if have != p.want(c) {
					if wrong++; wrong <= 5 {
						t.Errorf("envelope %d: %q, want %q (ints %v, odd order %v)\n%s", i, have, p.want(c), c.ints, c.odderKey, c.Env)
					}
				}
			}
			require.Zero(t, wrong)
			require.Greater(t, counts[""], airEnvelopes*8/10, "most envelopes are within what every peer can do")
			require.Greater(t, odd, airEnvelopes/20, "the order of names is put to the test")
			t.Logf("%v", counts)
		})
	}
}

// explains reports whether the linter of air probe has a reason why peers do not verify the envelope.
func explains(c *airCase) bool {
	rules := []string{probe.RuleInteger, probe.RuleKeyOrder, probe.RuleMarkRun, probe.RuleUnassigned}
	return slices.ContainsFunc(probe.Lint([]byte(c.Env), time.Now()), func(f probe.Finding) bool { return slices.Contains(rules, f.Rule) })
}

// Every envelope on which a peer disagrees is explained by air probe, and some others raise no such finding.
func TestAIRProbeExplains(t *testing.T) {
	t.Parallel()
	quiet := 0
	for _, c := range airCases(t, 1000) {
		isUnsafe := slices.ContainsFunc(c.ints, func(s string) bool { return !safe(s) })
		if !explains(c) {
			require.False(t, isUnsafe || c.odderKey, "%s", c.Env)
			quiet++
		}
	}
	require.Greater(t, quiet, 20)
}

// A probe finds which bodies and which form of signatures the inbox of each peer accepts, and recommends a profile.
func TestAIRProbesPeers(t *testing.T) {
	t.Parallel()
	commands := map[string]func(t *testing.T, args ...string) *exec.Cmd{
		"python": func(t *testing.T, args ...string) *exec.Cmd {
			return exec.Command(filepath.Join(peers(t, "python"), "python", "bin", "python"), append([]string{"-B", filepath.Join("peers", "python", "air_check.py")}, args...)...)
		},
		"node": func(t *testing.T, args ...string) *exec.Cmd { return nodeCommand(t, "air_check.mjs", args...) },
		"rust": func(t *testing.T, args ...string) *exec.Cmd {
			return exec.Command(filepath.Join(peers(t, "rust"), "rust", "target", "debug", "air"), append(args, time.Now().UTC().Add(-5*time.Minute).Format("2006-01-02T15:04:05.000Z"))...)
		},
	}
	for name, command := range commands {
		for _, form := range []air.Form{air.FormSpec, air.FormDeployed} {
			t.Run(name+"/"+string(form), func(t *testing.T) {
				t.Parallel()
				fake := &airtest.Registry{}
				ts := httptest.NewServer(fake)
				defer ts.Close()
				agent := func(id string) *air.Identity {
					made, err := air.GenerateIdentity(airtest.DID(id))
					require.NoError(t, err)
					return made
				}
				sender, recipient := agent("AIR-AAAA-BBBB-CCCC"), agent("AIR-DDDD-EEEE-FFFF")
				fake.Register(sender, "https://example.org/inbox")
				p := start(t, command(t, "serve", string(form), sender.PublicKey().String()))
				port, ok := <-p.lines
				require.True(t, ok)
				fake.Register(recipient, "http://127.0.0.1:"+strings.TrimSpace(string(port))+"/inbox")
				resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: ts.URL, AllowLoopback: true})
				require.NoError(t, err)
				defer resolver.Close()
				r, err := probe.Probe(t.Context(), recipient.DID(), &probe.Options{
					Resolver: resolver, Identity: sender, BodyTypes: []string{"note", "invoice"}, AllowLoopback: true,
				})
				require.NoError(t, err)
				require.Equal(t, probe.KindInbox, r.Kind)
				require.Equal(t, []string{"Offer", "encrypted", "note"}, r.Bodies)
				require.Equal(t, []air.Form{form}, r.Forms)
				require.Equal(t, form == air.FormDeployed, slices.Contains(r.Advice, "send with ProfileDeployed"))
			})
		}
	}
}

// Boxes sealed here are opened by the JavaScript libraries, and the other way round.
func TestAIRBoxes(t *testing.T) {
	t.Parallel()
	p := node(t, "air_box.mjs")
	const n = 200
	type env struct {
		ID       string `json:"id"`
		From     string `json:"from"`
		To       string `json:"to"`
		ThreadID string `json:"thread_id"`
	}
	type box struct {
		Recipient string          `json:"recipient,omitempty"`
		Seed      string          `json:"seed,omitempty"`
		Env       env             `json:"env"`
		Body      json.RawMessage `json:"body"`
	}
	seed := bytes.Repeat([]byte{42}, 32)
	pub, err := air.NewPublicKey(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
	require.NoError(t, err)
	open := func(b air.Binding, body []byte) ([]byte, error) {
		return vector.Call[[]byte](airtest.Vector, "open", map[string]any{"seed": seed, "binding": b, "body": body})
	}
	at := func(i int) (env, air.Binding) {
		e := env{fmt.Sprint("id-", i), "did:wba:example:agents:AIR-AÄ", "did:wba:example:agents:AIR-B", "thread"}
		return e, air.Binding{ID: e.ID, From: e.From, To: e.To, ThreadID: e.ThreadID}
	}
	var plain []string
	var sealed, toSeal []box
	for i := range n {
		c := &airCase{}
		m := &airMaker{Rand: rand.New(rand.NewPCG(14, uint64(i))), c: c}
		var b bytes.Buffer
		m.object(&b, [][2]string{{"type", `"text"`}}, 1)
		if slices.ContainsFunc(c.ints, func(s string) bool { return !sameAsFloat(s) }) {
			b.Reset()
			b.WriteString(`{"type":"text","text":"é́ 漢 😀"}`)
		}
		canonical, err := air.Canonicalize(b.Bytes())
		require.NoError(t, err)
		plain = append(plain, string(canonical))
		e, binding := at(i)
		body, err := air.Seal(pub, binding, b.Bytes())
		require.NoError(t, err)
		sealed = append(sealed, box{Seed: hex.EncodeToString(seed), Env: e, Body: body})
		quoted, err := json.Marshal(string(canonical))
		require.NoError(t, err)
		toSeal = append(toSeal, box{Recipient: pub.String(), Env: e, Body: quoted})
	}
	var opened []string
	p.into(&opened, request{"op": "open", "boxes": sealed})
	require.Equal(t, plain, opened)

	var peerBodies []json.RawMessage
	p.into(&peerBodies, request{"op": "seal", "boxes": toSeal})
	require.Len(t, peerBodies, n)
	for i, body := range peerBodies {
		_, binding := at(i)
		require.Empty(t, probe.Lint(fmt.Appendf(nil, `{"body":%s,"from":"did:wba:example:agents:AIR-AAAA-BBBB-CCCC","id":"%s","nonce":"%d",`+
			`"thread_id":"%[2]s","timestamp":"%[4]s","to":"did:wba:example:agents:AIR-DDDD-EEEE-FFFF"}`,
			body, air.NewID(), i, time.Now().UTC().Format("2006-01-02T15:04:05.000Z")), time.Now()))
		text, err := open(binding, body)
		require.NoError(t, err)
		require.Equal(t, plain[i], string(text))
		// A box opens for its own envelope only.
		_, other := at(i + 1)
		_, err = open(other, body)
		require.ErrorIs(t, err, air.ErrDecryptFailed)
	}
	moved := sealed[0]
	moved.Env.ThreadID = "another"
	p.fails(request{"op": "open", "boxes": []box{moved}})
}
