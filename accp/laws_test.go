// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp"
)

// Strict decoding and encoding preserve the bytes, up to the order of keys, the spelling of
// escapes, the case of a message id, and the word null, which is marked as text (ACCP-D10).
func FuzzStrict(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		var c accp.Codec
		m, err := c.DecodeRaw(frame)
		if err != nil {
			return
		}
		out, err := c.AppendRaw(nil, m)
		require.NoError(t, err)
		require.LessOrEqual(t, len(out), len(frame)*4)
		if bytes.IndexByte(frame, '\\') >= 0 || bytes.Contains(frame, []byte("null")) {
			return
		}
		if m.Meta != nil && !bytes.Contains(frame, []byte("mid:"+m.Meta.MID)) {
			return // in capitals
		}
		a, b := slices.Sorted(slices.Values(frame)), slices.Sorted(slices.Values(out))
		require.Equal(t, string(a), string(b), "%s\n%s", frame, out)
	})
}

// Decoding an encoded message returns it, through schemas, short keys and defaults (ACCP-026,
// ACCP-D30, ACCP-D33): for every message with full keys and defaults filled in, which is the form
// that decoding returns.
func TestDecodeEncodes(t *testing.T) {
	custom := accp.NewRegistry()
	require.NoError(t, custom.Register(accp.Schema{Name: "odd", Code: "OD", Version: 1, Fields: []string{"d", "data", "pri", "x"},
		Defaults: accp.Params{{Key: "x", Value: accp.Null()}, text("pri", "")}, Abbr: map[string]string{"q": "data", "src": "x", "zz": "extra"}}))
	keys := rapid.SampledFrom(strings.Fields("d data f findings nx next_action src source q query pri priority v version ts ttl who target x zz extra " +
		"role content turn lang tool tool_name args res stat status txn amt currency acc retry retryable msg message idx done tot period deps task k1 k2"))
	rapid.Check(t, func(t *rapid.T) {
		c := accp.Codec{Registry: custom}
		m := &accp.Message{From: "a", Intent: rapid.SampledFrom(someIntents).Draw(t, "intent"), Op: "x"}
		if s := rapid.SampledFrom([]string{"", "OD", "CH", "TC", "TA", "SR", "odd", "chat"}).Draw(t, "schema"); s != "" {
			m.Params = append(m.Params, text("schema", s))
		}
		for _, k := range rapid.SliceOfNDistinct(keys, 0, 8, rapid.ID).Draw(t, "keys") {
			m.Params = append(m.Params, accp.Param{Key: k, Value: values(2).Draw(t, "value")})
		}
		frame, err := c.Append(nil, m)
		if err != nil {
			require.ErrorIs(t, err, accp.ErrParse, "two spellings of one key")
			return
		}
		full, err := c.Decode(frame)
		require.NoError(t, err, "%s", frame)
		second, err := c.Append(nil, full)
		require.NoError(t, err)
		require.Equal(t, string(frame), string(second), "canonical and stable")
		back, err := c.Decode(second)
		require.NoError(t, err)
		require.True(t, full.Equal(back))
		canonical, err := c.Canonical(frame)
		require.NoError(t, err)
		require.Equal(t, string(frame), string(canonical))
		for _, p := range m.Params { // nothing was lost or changed
			key, _, err := custom.Key(p.Key, m.Schema())
			require.NoError(t, err)
			v, ok := full.Params.Get(key)
			require.True(t, ok && (v.Equal(p.Value) || key == "schema"), "%s: %s", p.Key, frame)
		}
		// The other ways of writing mean the same.
		for _, other := range []accp.Codec{{Registry: custom, WriteLongKeys: true}, {Registry: custom, KeepDefaults: true}} {
			f, err := other.Append(nil, full)
			require.NoError(t, err)
			back, err := c.Decode(f)
			require.NoError(t, err, "%s", f)
			require.True(t, full.Equal(back), "%s", f)
		}
	})
}

// hostile returns texts of about n bytes that make a careless parser slow or greedy.
func hostile(n int) map[string]string {
	rep := func(s string) string { return strings.Repeat(s, max(1, n/len(s))) }
	meta := "[mid:49679033e07c,seq:1,ts:1]"
	keys := func() string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			fmt.Fprintf(&b, "k%d:1,", i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}()
	return map[string]string{
		"open arrays": "@a>req:x{k:" + rep("["), "open maps": "@a>req:x{k:" + rep("{a:"), "open params": "@a>req:x{" + rep("k:1|"),
		"many keys": "@a>req:x{k:{" + keys + "}}" + meta, "same keys": "@a>req:x{k:{" + rep("k:1,") + "k:1}}",
		"elements": "@a>req:x{k:[" + rep("1,") + "1]}" + meta, "escapes": "@a>req:x{k:" + rep(`\u{41}`) + "}" + meta,
		"spaces": "@a>req:x{k:" + rep(" "), "digits": "@a>req:x{k:" + rep("9") + "}", "text": "@a>req:x{k:" + rep("x") + "}" + meta,
		"names": "@" + rep("a"), "metadata": "@a>req:x{}[" + keys + "]", "pairs": "@a>req:x{k:[" + rep("a:1,") + "a:1]}", "backslashes": "@a>req:x{k:" + rep(`\`) + "}",
		"wide": "@a>req:x{k:" + rep("한") + "}" + meta, "references": "@a>req:x{k:$" + rep("a.") + "a}", "text mode": `@a>req:x{k:\_` + rep("_") + "}" + meta,
	}
}

// No input costs more than linear time and memory (ACCP-137, ACCP-D18): with the
// limits of the draft memory is bounded, and without them it follows the input.
func TestNoInputIsExpensive(t *testing.T) {
	huge := accp.FrameLimits{MaxFrame: 1 << 30, MaxDepth: 100, MaxParams: 1 << 30, MaxMeta: 1 << 30, MaxValues: 1 << 30, MaxNumber: 1 << 30}
	for _, lenient := range []bool{false, true} {
		for _, tt := range []struct {
			codec accp.Codec
			n     int
		}{{accp.Codec{Lenient: lenient}, 64 << 10}, {accp.Codec{Lenient: lenient}, 1 << 20}, {accp.Codec{Lenient: lenient, FrameLimits: huge}, 128 << 10}} {
			for name, in := range hostile(tt.n) {
				frame := []byte(in)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				m, err := tt.codec.Decode(frame)
				if err == nil {
					_, err = tt.codec.Append(nil, m)
					require.NoError(t, err)
				}
				took := time.Since(start)
				runtime.ReadMemStats(&after)
				used := after.TotalAlloc - before.TotalAlloc
				require.Less(t, took, time.Minute, "%s: with the square of its length it would be minutes", name)
				switch {
				case tt.codec.FrameLimits != huge && tt.n > 1<<16:
					require.Less(t, used, uint64(64<<10), "%s: too long, so nothing is allocated for it", name)
				case tt.codec.FrameLimits != huge:
					require.Less(t, used, uint64(2<<20), name)
				default: // the largest multiple is that of values of two bytes, decoded and encoded
					require.Less(t, used, uint64(500*len(frame)), name)
				}
			}
		}
	}
}
