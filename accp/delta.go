// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import "slices"

// applyDelta returns state changed by a delta: null removes, maps merge at every level, any other value
// replaces (ACCP-D44). The arguments do not change.
func applyDelta(state, delta Params) Params {
	out := slices.Clone(state)
	for _, d := range delta {
		at := out.index(d.Key)
		switch {
		case d.Value.kind == KindNull:
			if at >= 0 {
				out = slices.Delete(out, at, at+1)
			}
		case d.Value.kind == KindMap:
			var old Params
			if at >= 0 {
				old = out[at].Value.Entries()
			}
			out = out.put(at, d.Key, Value{kind: KindMap, list: applyDelta(old, d.Value.list)})
		default:
			out = out.put(at, d.Key, d.Value)
		}
	}
	return out
}

// diffStates returns the smallest delta between two states, so that applyDelta(old, diffStates(old, new)) equals
// new. Nulls in new count as absent (ACCP-D44).
func diffStates(old, new Params) Params {
	var out Params
	oldAt, newAt := indexed(old), indexed(new)
	for _, o := range old {
		if v, ok := newAt(o.Key); !ok || v.kind == KindNull {
			if o.Value.kind != KindNull {
				out = append(out, Param{Key: o.Key})
			}
		}
	}
	for _, n := range new {
		if n.Value.kind == KindNull {
			continue
		}
		o, ok := oldAt(n.Key)
		switch {
		case ok && o.kind == KindMap && n.Value.kind == KindMap:
			if d := diffStates(o.list, n.Value.list); len(d) > 0 {
				out = append(out, Param{n.Key, Value{kind: KindMap, list: d}})
			}
		case !ok || !o.Equal(withoutNulls(n.Value)):
			out = append(out, Param{n.Key, withoutNulls(n.Value)})
		}
	}
	return out
}

// withoutNulls returns a value whose maps hold no nulls. Arrays are unchanged, since a delta
// replaces them as a whole.
func withoutNulls(v Value) Value {
	if v.kind != KindMap {
		return v
	}
	return Value{kind: KindMap, list: applyDelta(nil, v.list)}
}

func (p Params) index(key string) int {
	return slices.IndexFunc(p, func(x Param) bool { return x.Key == key })
}

func (p Params) put(at int, key string, v Value) Params {
	if at < 0 {
		return append(p, Param{key, v})
	}
	p[at].Value = v
	return p
}

// indexed returns a lookup function in p that takes constant time for long lists.
func indexed(p Params) func(string) (Value, bool) {
	if len(p) <= 16 {
		return p.Get
	}
	m := make(map[string]Value, len(p))
	for _, x := range p {
		m[x.Key] = x.Value
	}
	return func(key string) (Value, bool) { v, ok := m[key]; return v, ok }
}
