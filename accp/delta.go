// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import "slices"

// applyDelta returns state changed by a delta: null removes, maps merge at every level, any other value
// replaces (ACCP-D44). The arguments do not change.
func applyDelta(state, delta Params) Params {
	out := slices.Clone(state)
	at := newPlaces(out, len(delta))
	isShorter := false
	for _, d := range delta {
		i, ok := at.find(out, d.Key)
		switch {
		case d.Value.kind == KindNull && !ok:
			continue
		case d.Value.kind == KindNull:
			isShorter = true
		case d.Value.kind == KindMap:
			var old Params
			if ok {
				old = out[i].Value.Entries()
			}
			d.Value = Value{kind: KindMap, list: applyDelta(old, d.Value.list)}
		}
		if ok {
			out[i].Value = d.Value
		} else {
			at.add(d.Key, len(out))
			out = append(out, d)
		}
	}
	if isShorter { // a state has no nulls
		out = slices.DeleteFunc(out, func(p Param) bool { return p.Value.kind == KindNull })
	}
	return out
}

// Places are the places of keys in a list. A long list of changes has an index.
type places map[string]int

func newPlaces(list Params, changes int) places {
	if changes <= 16 {
		return nil
	}
	at := make(places, len(list)+changes)
	for i := range list {
		at[list[i].Key] = i
	}
	return at
}

func (at places) add(key string, i int) {
	if at != nil {
		at[key] = i
	}
}

func (at places) find(list Params, key string) (i int, ok bool) {
	if at == nil {
		i = list.index(key)
		return i, i >= 0
	}
	i, ok = at[key]
	return i, ok
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
