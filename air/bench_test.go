// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/floor"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/bench/sample"
	"github.com/fivewire/fivewire/internal/race"
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
			loop(b, func() { dst, _ = AppendCanonical(dst[:0], text) })
		})
	}
}

func BenchmarkPairCanonical(b *testing.B) {
	for _, in := range benchInputs {
		text := sample.Envelope(in.size, in.korean)
		var c floor.Canon
		var dst, base []byte
		b.Run("in="+in.name+"/lib=sdk", func(b *testing.B) {
			pair.Ratio(b, pair.Loop(func() { dst, _ = AppendCanonical(dst[:0], text) }),
				pair.Loop(func() { base, _ = c.Append(base[:0], text) }))
		})
	}
}

// What an inbox does for each envelope, but for the look-up, which is cached.
func verifyWhole(data []byte, key *PublicKey, w *ReplayWindow, n uint64, until time.Time) error {
	e, err := DecodeEnvelope(data, nil)
	if err != nil {
		return err
	}
	if _, err := e.Verify(key, FormSetAny); err != nil {
		return err
	}
	var nonce [8]byte
	binary.BigEndian.PutUint64(nonce[:], n)
	return w.Record(e.From, e.ThreadID, string(nonce[:]), string(nonce[:]), until)
}

func BenchmarkVerifyEnvelope(b *testing.B) {
	_, pub := benchKey(b)
	for _, in := range benchInputs {
		data := signedSample(b, in.size, in.korean)
		b.Run("in="+in.name+"/lib=sdk", func(b *testing.B) {
			w := &ReplayWindow{PerThread: 1 << 30, Total: 1 << 30}
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
		loop(b, func() { dst, _ = AppendSigned(dst[:0], text, priv, FormSpec) })
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
		b.Run("in="+in.name+"/op=open/lib=sdk", func(b *testing.B) { loop(b, func() { _, _ = box.Open(bind, sealed) }) })
	}
}

func BenchmarkReplayWindow(b *testing.B) {
	w := &ReplayWindow{PerThread: 1 << 30, Total: 1 << 30}
	now, n := time.Unix(1e9, 0), uint64(0)
	keys := make([]due, 40000)
	for i := range keys {
		keys[i] = replayKeys("from", "thread", fmt.Sprint(i), fmt.Sprint(i))
	}
	b.Run("lib=sdk", func(b *testing.B) {
		loop(b, func() {
			n++
			now = now.Add(time.Millisecond)
			_ = w.record(keys[n%40000], now.Add(9*time.Second), now, true)
		})
	})
}

func BenchmarkPairVerifyEnvelope(b *testing.B) {
	_, pub := benchKey(b)
	for _, in := range benchInputs {
		data := signedSample(b, in.size, in.korean)
		canonical, err := SigningInput(data, FormSpec)
		require.NoError(b, err)
		priv, _ := benchKey(b)
		sig := ed25519.Sign(priv, canonical)
		base := pair.Loop(func() { ed25519.Verify(pub.ed, canonical, sig) })
		b.Run("in="+in.name+"/lib=sdk", func(b *testing.B) {
			w := &ReplayWindow{PerThread: 1 << 30, Total: 1 << 30}
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
				if _, err := Verify(data, pub, FormSetAny); err != nil {
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
		pair.Ratio(b, pair.Loop(func() { dst, _ = AppendSigned(dst[:0], text, priv, FormSpec) }),
			pair.Loop(func() { ed25519.Sign(priv, text) }))
	})
}

func benchBox(t testing.TB) (*BoxKey, Binding, []byte) {
	box, err := NewBoxKey(bytes.Repeat([]byte{7}, 32))
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
			if _, err := box.Open(bind, sealed); err != nil {
				panic(err)
			}
		}), base)
	})
}

// mapRing is the floor of replay windows: it knows 10,000 keys and forgets the
// oldest, without looking at any clock.
type mapRing struct {
	mu   sync.Mutex
	m    map[[32]byte]struct{}
	ring [10000][32]byte
	i    int
}

func (r *mapRing) add(k [32]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, dup := r.m[k]; !dup {
		if r.i >= len(r.ring) {
			delete(r.m, r.ring[r.i%len(r.ring)])
		}
		r.ring[r.i%len(r.ring)] = k
		r.m[k] = struct{}{}
	}
	r.i++
}

func BenchmarkPairReplayWindow(b *testing.B) {
	keys, whole := make([]due, 40000), make([][32]byte, 40000)
	for i := range keys {
		keys[i] = replayKeys("from", "thread", fmt.Sprint(i), fmt.Sprint(i))
		whole[i] = sha256.Sum256(fmt.Append(nil, i))
	}
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d/lib=sdk", callers), func(b *testing.B) {
			r := &mapRing{m: make(map[[32]byte]struct{})}
			w := &ReplayWindow{PerThread: 1 << 30, Total: 1 << 30}
			start := time.Unix(1e9, 0)
			// The clock of the window is that of its callers: an entry ends after
			// 10,000 others, as in the ring. It does not stand still between batches.
			var n, m atomic.Int64
			pair.RatioCallers(b, callers, func(int64) error {
				i := n.Add(1)
				now := start.Add(time.Duration(i) * time.Millisecond)
				if err := w.record(keys[i%int64(len(keys))], now.Add(9*time.Second), now, true); err != nil && callers == 1 {
					return err
				}
				return nil
			}, func(int64) error {
				r.add(whole[m.Add(1)%int64(len(keys))])
				return nil
			})
		})
	}
}

// What callers see: the names are hashed outside of the lock, so many callers are
// not slower than one, which is the base.
func BenchmarkPairReplayWindowCallers(b *testing.B) {
	w := &ReplayWindow{PerThread: 1 << 30, Total: 1 << 30}
	var n atomic.Int64
	record := func() {
		i := n.Add(1)
		var nonce [8]byte
		binary.BigEndian.PutUint64(nonce[:], uint64(i))
		// An entry lives for a moment, so that the window stays small.
		if err := w.Record("did:wba:example.org:agents:AIR-A1B2-C3D4-E5F6", "thread", string(nonce[:]), string(nonce[:]), time.Now().Add(20*time.Millisecond)); err != nil {
			panic(err)
		}
	}
	b.Run("callers=64/lib=sdk", func(b *testing.B) {
		pair.Ratio(b, func(n int) {
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					for k := i; k < n; k += 64 {
						record()
					}
				})
			}
			wg.Wait()
		}, pair.Loop(record))
	})
}

// A queue is what a relay does for one mailbox, below HTTP.
type queue struct {
	boxes *boxes
	box   string
	m     *mail
	ids   []string
	n     uint64
}

func newQueue(t testing.TB, relay *Relay, box string) *queue {
	m, err := parseMail(signedSample(t, 1<<10, false))
	require.NoError(t, err)
	return &queue{boxes: &relay.boxes, box: box, m: m, ids: []string{m.id}}
}

// cycle pushes an envelope, pulls and acknowledges it.
func (q *queue) cycle() error {
	ctx := context.Background()
	q.n++
	binary.BigEndian.PutUint64(q.m.data[20:], q.n) // other bytes, so that it is stored again
	if _, err := q.boxes.push(ctx, q.box, q.m); err != nil {
		return err
	}
	list, _, err := q.boxes.pull(ctx, q.box, 0, 1)
	if err != nil || len(list) != 1 {
		return fmt.Errorf("pulled %d: %w", len(list), err)
	}
	if k, err := q.boxes.ack(ctx, q.box, q.ids); err != nil || k != 1 {
		return fmt.Errorf("acknowledged %d: %w", k, err)
	}
	return nil
}

func BenchmarkRelayQueue(b *testing.B) {
	b.Run("store=memory/lib=sdk", func(b *testing.B) {
		q := newQueue(b, NewRelay(nil), "box")
		loop(b, func() {
			if err := q.cycle(); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// mapQueue is the floor of queues: it copies what it is given and knows nothing of
// duplicates, of what was handed out, or of any end.
type mapQueue struct {
	mu sync.Mutex
	n  int64
	q  []mapItem
}

type mapItem struct {
	id   int64
	body []byte
}

func (m *mapQueue) cycle(body []byte) {
	item := mapItem{body: bytes.Clone(body)}
	m.mu.Lock()
	m.n++
	item.id = m.n
	m.q = append(m.q, item)
	m.mu.Unlock()
	m.mu.Lock()
	item = m.q[0]
	m.mu.Unlock()
	m.mu.Lock()
	for i, it := range m.q {
		if it.id == item.id {
			m.q = slices.Delete(m.q, i, i+1)
			break
		}
	}
	m.mu.Unlock()
}

func BenchmarkPairRelayQueue(b *testing.B) {
	b.Run("store=memory/lib=sdk", func(b *testing.B) {
		q := newQueue(b, NewRelay(&RelayOptions{TTL: time.Second}), "box")
		var floor mapQueue
		pair.Ratio(b, pair.Loop(func() {
			if err := q.cycle(); err != nil {
				panic(err)
			}
		}), pair.Loop(func() { floor.cycle(q.m.data) }))
	})
	b.Run("op=hash", func(b *testing.B) { // the part that a queue without AIR-D61 has not
		q := newQueue(b, NewRelay(nil), "box")
		var floor mapQueue
		pair.Ratio(b, pair.Loop(func() { sha256.Sum256(q.m.data) }), pair.Loop(func() { floor.cycle(q.m.data) }))
	})
}

// The base is the leanest handler that reads the body and answers as long an
// answer.
func BenchmarkPairRelayHTTP(b *testing.B) {
	relay := NewRelay(&RelayOptions{OpenInboxes: true, RateLimit: -1, MaxQueued: 1 << 30, TTL: 3 * time.Second})
	lean := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := readBody(r, DefaultMaxBytes)
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(data[:80])
	})
	one, two := httptest.NewServer(relay), httptest.NewServer(lean)
	defer one.Close()
	defer two.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	base := signedSample(b, 1<<10, false)
	post := func(url string, seq int64) error {
		// The nonce changes, so that every envelope is stored.
		data := bytes.Replace(base, []byte("r4nd0mN0nc3-abc123xyz789"), fmt.Appendf(nil, "r4nd0mN0nc3-%012d", seq), 1)
		res, err := client.Post(url, jsonType, bytes.NewReader(data))
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		if res.StatusCode != http.StatusAccepted {
			err = fmt.Errorf("status %d", res.StatusCode)
		}
		_ = res.Body.Close()
		return err
	}
	for _, callers := range []int{1, 16} {
		b.Run(fmt.Sprintf("op=push/callers=%d/lib=sdk", callers), func(b *testing.B) {
			pair.RatioCallers(b, callers, func(seq int64) error { return post(one.URL+"/inbox/AIR-A1B2-C3D4-E5F6", seq) },
				func(seq int64) error { return post(two.URL, seq) })
		})
	}
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
	w, q := &ReplayWindow{}, newQueue(t, NewRelay(nil), "box")
	until, n := time.Now().Add(time.Hour), 0
	tests := []struct {
		name string
		most float64
		f    func()
	}{
		{"canonical, appending", 0, func() { _, err = AppendCanonical(dst, body) }},
		{"verify", 0, func() { _, err = Verify(signed1KB(t), pub, FormSetAny) }},
		{"decode", 3, func() { _, err = DecodeEnvelope(signed1KB(t), nil) }},
		{"sign, appending", 2, func() { _, err = AppendSigned(dst, body, priv, FormSpec) }},
		{"seal", 9, func() { _, err = Seal(pub, bind, body) }},
		{"open", 5, func() { _, err = box.Open(bind, sealed) }},
		{"queue cycle", 4, func() { err = errors.Join(err, q.cycle()) }},
		{"replay", 0, func() { n++; err = w.Record("from", "thread", "known", "known", until) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.f()
			require.LessOrEqual(t, testing.AllocsPerRun(200, tt.f), tt.most)
		})
	}
	require.ErrorIs(t, err, ErrReplay)
}

var signed1KB = func() func(t *testing.T) []byte {
	var once sync.Once
	var data []byte
	return func(t *testing.T) []byte {
		once.Do(func() { data = signedSample(t, 1<<10, false) })
		return data
	}
}()
