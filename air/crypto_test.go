// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mr-tron/base58"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/air"
)

func key(t testing.TB, n byte) (ed25519.PrivateKey, *air.PublicKey) {
	t.Helper()
	priv := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, 32))
	pub, err := air.NewPublicKey(priv.Public().(ed25519.PublicKey))
	require.NoError(t, err)
	return priv, pub
}

// A signature verifies in the form in which it was made, and in no other (AIR-070, AIR-073,
// AIR-D10).
func TestSignedVerifies(t *testing.T) {
	priv, pub := key(t, 1)
	_, stranger := key(t, 2)
	rapid.Check(t, func(t *rapid.T) {
		member := rapid.SampledFrom([]string{"", `"signature":null`}).Draw(t, "signature")
		parts := []string{`"nested":{"signature":"z"}`, `"zz":` + value(3).Draw(t, "v"), `"a":` + value(3).Draw(t, "w")}
		if rapid.Bool().Draw(t, "fewer") {
			parts = parts[:rapid.IntRange(0, 2).Draw(t, "n")]
		}
		if member != "" {
			parts = append(parts, member)
		}
		text := "{" + strings.Join(rapid.Permutation(parts).Draw(t, "order"), ",") + "}"
		form := rapid.SampledFrom([]air.Form{air.FormSpec, air.FormDeployed}).Draw(t, "form")
		wire, err := air.Sign([]byte(text), priv, form)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if got, err := air.Verify(wire, pub, ""); err != nil || got != form {
			t.Fatalf("%q: %v, %v", wire, got, err)
		}
		other := air.FormSpec
		if form == air.FormSpec {
			other = air.FormDeployed
		}
		if _, err := air.Verify(wire, pub, other); !errors.Is(err, air.ErrBadSignature) {
			t.Fatalf("%q verifies in the other form: %v", wire, err)
		}
		if _, err := air.Verify(wire, stranger, ""); !errors.Is(err, air.ErrBadSignature) {
			t.Fatalf("%q verifies under another key: %v", wire, err)
		}
		if _, err := air.Sign(wire, priv, form); !errors.Is(err, air.ErrAlreadySigned) {
			t.Fatalf("signed twice: %v", err)
		}
		input, err := air.SigningInput(wire, form)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := air.Canonicalize(input); err != nil || !bytes.Equal(second, input) {
			t.Fatalf("the signing input %q is not canonical: %q, %v", input, second, err)
		}
	})
}

const unsigned = `{"id":"00000001-0021-4000-9000-026aa6ead519",` +
	`"from":"did:wba:agentidentityregistry.org:agents:AIR-S1EN-D3RA-GNT0",` +
	`"to":"did:wba:agentidentityregistry.org:agents:AIR-A1B2-C3D4-E5F6",` +
	`"timestamp":"2026-05-28T09:00:00.000Z","thread_id":"00000011-0001-4002-9000-002f96af9a3d","nonce":"n-1",` +
	`"body":{"type":"Offer","description":"한국 \u00e9","price":{"amount_cents":9007199254740993,"currency":"USD"},` +
	`"expires_at":"2026-05-28T10:00:00.000Z"}}`

// Any changed byte of a signed envelope is noticed (AIR-126, AIR-077).
func TestEveryByteCounts(t *testing.T) {
	priv, pub := key(t, 1)
	for _, form := range []air.Form{air.FormSpec, air.FormDeployed} {
		wire, err := air.Sign([]byte(unsigned), priv, form)
		require.NoError(t, err)
		for i := range wire {
			for _, flip := range []byte{1, 0x20} {
				bad := bytes.Clone(wire)
				bad[i] ^= flip
				_, err := air.Verify(bad, pub, "")
				require.Errorf(t, err, "byte %d: %q", i, bad)
			}
			_, err := air.Verify(append(bytes.Clone(wire[:i]), wire[i+1:]...), pub, "")
			require.Errorf(t, err, "without byte %d", i)
		}
	}
}

// A relay that exchanges composed and decomposed text does not break the signature, and the
// receiver reads the same text (AIR-D03, AIR-065).
func TestWhatIsVerifiedIsWhatIsRead(t *testing.T) {
	priv, pub := key(t, 1)
	wire, err := air.Sign([]byte(unsigned), priv, air.FormSpec)
	require.NoError(t, err)
	swapped := bytes.Replace(wire, []byte("é"), []byte("e\u0301"), 1)
	require.NotEqual(t, wire, swapped)
	for _, data := range [][]byte{wire, swapped} {
		e, err := air.DecodeEnvelope(data, nil)
		require.NoError(t, err)
		form, err := e.Verify(pub, "")
		require.NoError(t, err)
		require.Equal(t, air.FormSpec, form)
		require.Equal(t, "한국 é", e.Body().(*air.Offer).Description)
		require.Equal(t, "9007199254740993", e.Body().(*air.Offer).Price.Amount.String())
		require.Equal(t, string(wire), string(e.Bytes()))
	}
}

// A signature has exactly one spelling (AIR-071, AIR-072, AIR-D13, AIR-D15).
func TestSignatureText(t *testing.T) {
	priv, pub := key(t, 1)
	wire, err := air.Sign([]byte(unsigned), priv, air.FormSpec)
	require.NoError(t, err)
	e, err := air.DecodeEnvelope(wire, nil)
	require.NoError(t, err)
	good := e.Signature
	raw, err := base58.Decode(good[1:])
	require.NoError(t, err)
	for _, bad := range []string{
		"", "z", good[1:], "m" + good[1:], "Z" + good[1:], good + "1", "z1" + good[1:], " " + good, good + " ", good[:len(good)-1],
		"z" + hex.EncodeToString(raw), "u" + good[1:], strings.Replace(good, "z", "z0", 1), "z" + strings.Repeat("z", 88), "z" + strings.Repeat("1", 64),
		"z" + base58.Encode(raw[:63]), "z" + base58.Encode(append([]byte{1}, raw...)), good[:5] + "\\u0000" + good[6:],
	} {
		text := bytes.Replace(wire, []byte(good), []byte(bad), 1)
		_, err := air.Verify(text, pub, "")
		require.ErrorIs(t, err, air.ErrBadSignature, bad)
		e, err := air.DecodeEnvelope(text, nil)
		require.NoError(t, err)
		_, err = e.Verify(pub, "")
		require.ErrorIs(t, err, air.ErrBadSignature, bad)
	}
	for _, bad := range []string{"1", "[]", "{}", "true"} {
		text := bytes.Replace(wire, []byte(`"`+good+`"`), []byte(bad), 1)
		_, err := air.Verify(text, pub, "")
		require.ErrorIs(t, err, air.ErrInvalidEnvelope, bad)
		_, err = air.Sign(text, priv, air.FormSpec)
		require.ErrorIs(t, err, air.ErrAlreadySigned, bad)
		_, err = air.DecodeEnvelope(text, nil)
		require.ErrorIs(t, err, air.ErrInvalidEnvelope, bad)
	}
}

type brokenSigner struct{ ed25519.PublicKey }

func (s brokenSigner) Public() crypto.PublicKey { return s.PublicKey }
func (brokenSigner) Sign(_ io.Reader, message []byte, _ crypto.SignerOpts) ([]byte, error) {
	if len(message) > 5 {
		return nil, errors.New("the token was pulled out")
	}
	return []byte("short"), nil
}

type hardware struct{ ed25519.PrivateKey }

func TestSigners(t *testing.T) {
	priv, pub := key(t, 1)
	wire, err := air.Sign([]byte(unsigned), hardware{priv}, air.FormSpec)
	require.NoError(t, err)
	_, err = air.Verify(wire, pub, air.FormSpec)
	require.NoError(t, err)
	for _, text := range []string{unsigned, "{}"} {
		_, err = air.Sign([]byte(text), brokenSigner{}, air.FormDeployed)
		require.ErrorIs(t, err, air.ErrBadKey)
	}
}

// Keys are encoded as in other libraries, and decoded from that encoding only (AIR-061, AIR-076,
// AIR-D31).
func TestKeysAgreeWithBase58Library(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "key")
		text := air.EncodeKey(air.KeyX25519, raw)
		if want := "z" + base58.Encode(append([]byte{0xec, 1}, raw...)); text != want {
			t.Fatalf("got %s, want %s", text, want)
		}
		raw[31] &= 0x3f // surely reduced
		back, err := air.DecodeKey(air.KeyX25519, air.EncodeKey(air.KeyX25519, raw))
		if err != nil || !bytes.Equal(back, raw) {
			t.Fatalf("%v, %v", back, err)
		}
	})
}

func TestBadKeys(t *testing.T) {
	_, pub := key(t, 1)
	good := pub.String()
	require.Equal(t, "", air.EncodeKey(air.KeyEd25519, make([]byte, 31)))
	for _, text := range []string{
		"", "z", good[1:], "m" + good[1:], good + "1", good[:len(good)-1], "z1" + good[1:], good + "0",
		air.EncodeKey(air.KeyX25519, pub.X25519()), "z" + base58.Encode([]byte{0xed, 1}), strings.Repeat("z", 200),
	} {
		_, err := air.DecodeKey(air.KeyEd25519, text)
		require.ErrorIs(t, err, air.ErrBadKey, text)
		_, err = air.ParsePublicKey(text)
		require.ErrorIs(t, err, air.ErrBadKey, text)
	}
	p := bytes.Repeat([]byte{0xff}, 32) // 2^255-19 and above, and points of small or mixed order
	p[0], p[31] = 0xed, 0x7f
	for name, raw := range map[string][]byte{
		"identity":                 append([]byte{1}, make([]byte, 31)...),
		"identity not reduced":     append([]byte{0xee}, append(bytes.Repeat([]byte{0xff}, 30), 0x7f)...),
		"y is zero":                make([]byte, 32),
		"y is the prime":           p,
		"negative zero x":          append([]byte{1}, append(make([]byte, 30), 0x80)...),
		"order eight":              decode(t, "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
		"not on the curve":         append([]byte{2}, make([]byte, 31)...),
		"short":                    make([]byte, 31),
		"with a small-order share": mixed(t),
	} {
		_, err := air.NewPublicKey(raw)
		require.ErrorIs(t, err, air.ErrBadKey, name)
		if len(raw) == 32 {
			_, err = air.DecodeKey(air.KeyEd25519, air.EncodeKey(air.KeyEd25519, raw))
			require.ErrorIs(t, err, air.ErrBadKey, name)
		}
	}
	for _, u := range [][]byte{p, append([]byte{0xff}, p[1:]...), append(make([]byte, 31), 0x80)} {
		_, err := air.DecodeKey(air.KeyX25519, air.EncodeKey(air.KeyX25519, u))
		require.ErrorIs(t, err, air.ErrBadKey)
	}
	p[0]-- // the largest that is reduced
	_, err := air.DecodeKey(air.KeyX25519, air.EncodeKey(air.KeyX25519, p))
	require.NoError(t, err)
}

func decode(t *testing.T, text string) []byte {
	b, err := hex.DecodeString(text)
	require.NoError(t, err)
	return b
}

// Sealing and opening are inverse; a box opens in its own envelope only, and
// nothing of it may change (AIR-147..156, AIR-169, AIR-D36, AIR-D38).
func TestSealedBox(t *testing.T) {
	_, pub := key(t, 3)
	box, err := air.NewBoxKey(bytes.Repeat([]byte{3}, 32))
	require.NoError(t, err)
	require.Equal(t, pub.X25519(), box.PublicBytes())
	stranger, err := air.NewBoxKey(bytes.Repeat([]byte{4}, 32))
	require.NoError(t, err)
	b := air.Binding{ID: "i", From: "f", To: "t", ThreadID: "h"}
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(`{"type":"x","v":` + value(3).Draw(t, "v") + `}`)
		sealed, err := air.Seal(pub, b, body)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := box.Open(b, sealed)
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := air.Canonicalize(body); !bytes.Equal(plain, want) {
			t.Fatalf("got %q, want %q", plain, want)
		}
		if _, err := stranger.Open(b, sealed); !errors.Is(err, air.ErrDecryptFailed) {
			t.Fatalf("another key opened it: %v", err)
		}
	})
	sealed, err := air.Seal(pub, b, []byte(`{"type":"x"}`))
	require.NoError(t, err)
	for _, other := range []air.Binding{
		{ID: "j", From: "f", To: "t", ThreadID: "h"}, {ID: "i", From: "g", To: "t", ThreadID: "h"},
		{ID: "i", From: "f", To: "u", ThreadID: "h"}, {ID: "i", From: "f", To: "t", ThreadID: "k"},
		{ID: "", From: "f", To: "t", ThreadID: "h"}, {ID: "i\x00f", From: "t", To: "h", ThreadID: "x"},
	} {
		_, err := box.Open(other, sealed)
		require.ErrorIs(t, err, air.ErrDecryptFailed)
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		_, err := box.Open(b, bad)
		require.ErrorIsf(t, err, air.ErrDecryptFailed, "byte %d of %s", i, sealed)
	}
	second, err := air.Seal(pub, b, []byte(`{"type":"x"}`))
	require.NoError(t, err)
	require.NotEqual(t, sealed, second)
}

func TestSealRefuses(t *testing.T) {
	_, pub := key(t, 3)
	good := air.Binding{ID: "i", From: "f", To: "t", ThreadID: "h"}
	tests := []struct {
		name string
		b    air.Binding
		body string
		want air.Code
	}{
		{"no id", air.Binding{From: "f", To: "t", ThreadID: "h"}, "{", air.Code("bad_aad")},
		{"NUL", air.Binding{ID: "i", From: "f\x00", To: "t", ThreadID: "h"}, "{}", air.Code("bad_aad")},
		{"no JSON", good, "{", air.ErrInvalidJSON},
		{"duplicate", good, `{"a":1,"a":1}`, air.ErrDuplicateKey},
		{"float", good, `{"a":1.5}`, air.ErrFloatForbidden},
		{"no object", good, `[]`, air.ErrInvalidEnvelope},
		{"null in a negotiation", good, `{"type":"Decline","reason":null}`, air.ErrNullForbidden},
		{"empty list in a negotiation", good, `{"type":"Offer","x":[]}`, air.ErrEmptyArray},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := air.Seal(pub, tt.b, []byte(tt.body))
			require.ErrorIs(t, err, tt.want)
		})
	}
	_, err := air.Seal(pub, good, []byte(`{"type":"x","a":null,"b":[]}`)) // AIR-D37
	require.NoError(t, err)
	_, err = air.SealWith(strings.NewReader("too short"), pub, good, []byte(`{}`))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// An identity that is formatted or logged by mistake does not show its keys.
func TestIdentityHidesKeys(t *testing.T) {
	retired := bytes.Repeat([]byte{1}, 32)
	id, err := air.NewIdentity("did:wba:agentidentityregistry.org:agents:AIR-A1B2-C3D4-E5F6", bytes.Repeat([]byte{2}, 32), retired)
	require.NoError(t, err)
	var out bytes.Buffer
	fmt.Fprintf(&out, "%v %+v %#v", id, id, id)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "identity", id)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "identity", id)
	for _, text := range []string{"2 2 2", "0x2, 0x2", "020202", "1 1 1", "0x1, 0x1", "010101"} {
		require.NotContains(t, out.String(), text)
	}
}

func TestIdentityFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "id.json")
	const did = "did:wba:agentidentityregistry.org:agents:AIR-A1B2-C3D4-E5F6"
	id, err := air.GenerateIdentity(did)
	require.NoError(t, err)
	seed := make([]byte, 32)
	rand.Read(seed)
	rotated, err := id.Rotate(seed)
	require.NoError(t, err)
	require.False(t, rotated.PublicKey().Equal(id.PublicKey()))
	require.NoError(t, air.SaveIdentity(path, id))
	require.NoError(t, air.SaveIdentity(path, rotated)) // over the old one
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1) // nothing is left behind
	back, err := air.LoadIdentity(path)
	require.NoError(t, err)
	require.Equal(t, did, back.DID())
	require.Equal(t, "AIR-A1B2-C3D4-E5F6", back.AIRID())
	require.True(t, back.PublicKey().Equal(rotated.PublicKey()))

	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, mode := range []os.FileMode{0o644, 0o660, 0o604, 0o620, 0o601} {
		require.NoError(t, os.Chmod(path, mode))
		_, err = air.LoadIdentity(path)
		require.ErrorContains(t, err, "0600", mode)
	}
	for _, mode := range []os.FileMode{0o400, 0o440, 0o640} { // mounted secrets (AIR-D89)
		require.NoError(t, os.Chmod(path, mode))
		back, err = air.LoadIdentity(path)
		require.NoError(t, err)
		require.True(t, back.PublicKey().Equal(rotated.PublicKey()))
	}
	back, err = air.ReadIdentity(bytes.NewReader(text))
	require.NoError(t, err)
	require.True(t, back.PublicKey().Equal(rotated.PublicKey()))
	_, err = air.ReadIdentity(io.MultiReader(bytes.NewReader(text), strings.NewReader(strings.Repeat(" ", 1<<20))))
	require.Error(t, err)
	require.NoError(t, os.Chmod(path, 0o600))
	require.NoError(t, os.WriteFile(path, []byte(`{"did":"`+did+`","seed":"xx"}`), 0o600))
	require.NoError(t, os.Chmod(path, 0o600))
	_, err = air.LoadIdentity(path)
	require.ErrorIs(t, err, air.ErrBadKey)
	require.NoError(t, os.WriteFile(path, []byte(`{`), 0o600))
	_, err = air.LoadIdentity(path)
	require.Error(t, err)
	_, err = air.LoadIdentity(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)

	priv, _ := key(t, 1)
	opaque, err := air.NewIdentityFromSigner(did, hardware{priv})
	require.NoError(t, err)
	require.Error(t, air.SaveIdentity(path, opaque))
	_, err = opaque.Rotate(seed)
	require.Error(t, err)
	_, err = air.NewIdentity(did, seed[:31])
	require.ErrorIs(t, err, air.ErrBadKey)
	_, err = air.NewIdentity("me", seed)
	require.ErrorIs(t, err, air.ErrBadDID)
	_, err = air.NewIdentity(did, seed, seed[:1])
	require.ErrorIs(t, err, air.ErrBadKey)
}

func FuzzMultibase(f *testing.F) {
	vectorInputs(f, func(data []byte) { f.Add(string(data)) })
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []air.KeyKind{air.KeyEd25519, air.KeyX25519} {
			if raw, err := air.DecodeKey(kind, text); err == nil {
				require.Equal(t, text, air.EncodeKey(kind, raw)) // one spelling only
			} else {
				require.ErrorIs(t, err, air.ErrBadKey)
			}
		}
	})
}

func FuzzOpen(f *testing.F) {
	box, err := air.NewBoxKey(bytes.Repeat([]byte{3}, 32))
	require.NoError(f, err)
	vectorInputs(f, func(data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, body []byte) {
		_, err := box.Open(air.Binding{ID: "i", From: "f", To: "t", ThreadID: "h"}, body)
		require.ErrorIs(t, err, air.ErrDecryptFailed) // random bytes instead of a box
	})
}

// An identity opens what was sealed to its key or to a retired one.
func TestIdentityOpensSealedEnvelopes(t *testing.T) {
	did := "did:wba:example.org:agents:AIR-A1B2-C3D4-E5F6"
	old, err := air.NewIdentity(did, bytes.Repeat([]byte{3}, 32))
	require.NoError(t, err)
	id, err := old.Rotate(bytes.Repeat([]byte{4}, 32))
	require.NoError(t, err)
	external, err := air.NewIdentityFromSigner(did, id.Signer())
	require.NoError(t, err)
	for _, to := range []*air.Identity{old, id} {
		d := &air.Draft{ID: air.NewID(), From: did, To: did, ThreadID: air.NewID(), Time: time.Now()}
		box, err := air.Seal(to.PublicKey(), air.Binding{ID: d.ID, From: d.From, To: d.To, ThreadID: d.ThreadID}, []byte(`{"type":"text"}`))
		require.NoError(t, err)
		d.Body = &air.Raw{Type: "encrypted", JSON: box}
		e, err := air.NewEnvelope(d, id.Signer(), nil)
		require.NoError(t, err)
		plain, err := id.Open(e)
		require.NoError(t, err)
		require.JSONEq(t, `{"type":"text"}`, string(plain))
		_, err = external.Open(e)
		require.ErrorIs(t, err, air.ErrDecryptFailed)
	}
}
