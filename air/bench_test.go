// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ed25519"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/floor"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/bench/sample"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/seen"
)

// The inputs of the benchmarks, by name.
var benchInputs = []struct {
	name   string
	size   int
	korean bool
}{{"1KB", 1 << 10, false}, {"1KBKorean", 1 << 10, true}, {"16KB", 16 << 10, false}, {"16KBKorean", 16 << 10, true}}

// The samples have ids of version 4 but no recipient that a test could be.
func benchKey(t testing.TB) (ed25519.PrivateKey, *PublicKey) {
	priv := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	pub, err := NewPublicKey(priv.Public().(ed25519.PublicKey))
	require.NoError(t, err)
	return priv, pub
}

func signedSample(t testing.TB, size int, korean bool) []byte {
	priv, _ := benchKey(t)
	wire, err := Sign(sample.Envelope(size, korean), priv, FormSpec)
	require.NoError(t, err)
	return wire
}

func loop(b *testing.B, f func()) {
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
}

func BenchmarkCanonical(b *testing.B) {
	for _, in := range benchInputs {
		text := sample.Envelope(in.size, in.korean)
		var dst []byte
		b.Run("in="+in.name+"/lib=sdk", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			loop(b, func() { dst, _ = appendCanonical(dst[:0], text) })
		})
	}
}

func BenchmarkPairCanonical(b *testing.B) {
	for _, in := range benchInputs {
		text := sample.Envelope(in.size, in.korean)
		var c floor.Canon
		var dst, base []byte
		b.Run("in="+in.name+"/lib=sdk", func(b *testing.B) {
			pair.Ratio(b, pair.Loop(func() { dst, _ = appendCanonical(dst[:0], text) }),
				pair.Loop(func() { base, _ = c.Append(base[:0], text) }))
		})
	}
}

// verifyWhole is the work of an inbox for one envelope, except the cached lookup.
func verifyWhole(data []byte, key *PublicKey, w *replayWindow, n uint64, until time.Time) error {
	e, err := DecodeEnvelope(data, nil)
	if err != nil {
		return err
	}
	if _, err := e.Verify(key, ""); err != nil {
		return err
	}
	var nonce [8]byte
	binary.BigEndian.PutUint64(nonce[:], n)
	e.ID, e.Nonce = string(nonce[:]), string(nonce[:])
	k := namesOf(e)
	return w.record(e.From, e.ThreadID, &k, until)
}

func BenchmarkVerifyEnvelope(b *testing.B) {
	_, pub := benchKey(b)
	for _, in := range benchInputs {
		data := signedSample(b, in.size, in.korean)
		b.Run("in="+in.name+"/lib=sdk", func(b *testing.B) {
			w := &replayWindow{nonces: seen.New(seen.Options{Total: -1, PerScope: -1}), ids: seen.New(seen.Options{Total: -1, PerScope: -1})}
			until, n := time.Now().Add(time.Hour), uint64(0)
			b.SetBytes(int64(len(data)))
			loop(b, func() {
				n++
				if err := verifyWhole(data, pub, w, n, until); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func BenchmarkSignEnvelope(b *testing.B) {
	priv, _ := benchKey(b)
	text := sample.Envelope(1<<10, false)
	var dst []byte
	b.Run("in=1KB/lib=sdk", func(b *testing.B) {
		loop(b, func() { dst, _ = appendSigned(dst[:0], text, priv, FormSpec) })
	})
}

func BenchmarkSealedBox(b *testing.B) {
	_, pub := benchKey(b)
	box, bind, _ := benchBox(b)
	for _, in := range benchInputs[:3] {
		body := sample.Envelope(in.size, in.korean)
		sealed, err := Seal(pub, bind, body)
		require.NoError(b, err)
		b.Run("in="+in.name+"/op=seal/lib=sdk", func(b *testing.B) { loop(b, func() { _, _ = Seal(pub, bind, body) }) })
		b.Run("in="+in.name+"/op=open/lib=sdk", func(b *testing.B) { loop(b, func() { _, _ = box.openBody(bind, sealed) }) })
	}
}

func BenchmarkPairVerifyEnvelope(b *testing.B) {
	_, pub := benchKey(b)
	for _, in := range benchInputs {
		data := signedSample(b, in.size, in.korean)
		canonical, err := signingInput(data, FormSpec)
		require.NoError(b, err)
		priv, _ := benchKey(b)
		sig := ed25519.Sign(priv, canonical)
		base := pair.Loop(func() { ed25519.Verify(pub.ed, canonical, sig) })
		b.Run("in="+in.name+"/lib=sdk", func(b *testing.B) {
			w := &replayWindow{nonces: seen.New(seen.Options{Total: -1, PerScope: -1}), ids: seen.New(seen.Options{Total: -1, PerScope: -1})}
			until, n := time.Now().Add(time.Hour), uint64(0)
			pair.Ratio(b, pair.Loop(func() {
				n++
				if err := verifyWhole(data, pub, w, n, until); err != nil {
					panic(err)
				}
			}), base)
		})
		b.Run("in="+in.name+"/op=raw/lib=sdk", func(b *testing.B) {
			pair.Ratio(b, pair.Loop(func() {
				if _, err := Verify(data, pub, ""); err != nil {
					panic(err)
				}
			}), base)
		})
	}
}

func BenchmarkPairSignEnvelope(b *testing.B) {
	priv, _ := benchKey(b)
	text := sample.Envelope(1<<10, false)
	var dst []byte
	b.Run("in=1KB/lib=sdk", func(b *testing.B) {
		pair.Ratio(b, pair.Loop(func() { dst, _ = appendSigned(dst[:0], text, priv, FormSpec) }),
			pair.Loop(func() { ed25519.Sign(priv, text) }))
	})
}

func benchBox(t testing.TB) (*boxKey, Binding, []byte) {
	box, err := newBoxKey(bytes.Repeat([]byte{7}, 32))
	require.NoError(t, err)
	return box, Binding{ID: "id", From: "from", To: "to", ThreadID: "thread"}, sample.Envelope(1<<10, false)
}

func BenchmarkPairSealedBox(b *testing.B) {
	_, pub := benchKey(b)
	box, bind, body := benchBox(b)
	sealed, err := Seal(pub, bind, body)
	require.NoError(b, err)
	eph, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{9}, 32))
	require.NoError(b, err)
	base := pair.Loop(func() { _, _ = eph.ECDH(pub.x) })
	b.Run("op=seal/lib=sdk", func(b *testing.B) {
		pair.Ratio(b, pair.Loop(func() { _, _ = Seal(pub, bind, body) }), base)
	})
	b.Run("op=open/lib=sdk", func(b *testing.B) {
		pair.Ratio(b, pair.Loop(func() {
			if _, err := box.openBody(bind, sealed); err != nil {
				panic(err)
			}
		}), base)
	})
}

// Allocations are exact, so their goals are tests.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	priv, pub := benchKey(t)
	box, bind, body := benchBox(t)
	sealed, err := Seal(pub, bind, body)
	require.NoError(t, err)
	dst := make([]byte, 0, 64<<10)
	w := newReplayWindow(&Limits{})
	until := time.Now().Add(time.Hour)
	tests := []struct {
		name string
		max  float64
		f    func()
	}{
		{"canonical, appending", 0, func() { _, err = appendCanonical(dst, body) }},
		{"verify", 0, func() { _, err = Verify(signed1KB(t), pub, "") }},
		{"decode", 3, func() { _, err = DecodeEnvelope(signed1KB(t), nil) }},
		{"sign, appending", 2, func() { _, err = appendSigned(dst, body, priv, FormSpec) }},
		{"seal", 9, func() { _, err = Seal(pub, bind, body) }},
		{"open", 5, func() { _, err = box.openBody(bind, sealed) }},
		{"replay", 0, func() {
			k := namesOf(&Envelope{From: "from", ThreadID: "thread", ID: "known", Nonce: "known"})
			err = w.record("from", "thread", &k, until)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.f()
			require.LessOrEqual(t, testing.AllocsPerRun(200, tt.f), tt.max)
		})
	}
	require.ErrorIs(t, err, seen.ErrSeen)
}

var signed1KB = func() func(t *testing.T) []byte {
	var once sync.Once
	var data []byte
	return func(t *testing.T) []byte {
		once.Do(func() { data = signedSample(t, 1<<10, false) })
		return data
	}
}()
