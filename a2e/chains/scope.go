// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"cmp"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A scope holds the values that the paths of a chain select: the members of the initial input, and
// over them the outputs by node.
type scope struct {
	input   strictjson.Value // an object
	outputs map[string]strictjson.Value
	names   []string // of outputs, in their order

	mu    sync.Mutex // guards everything below
	trees map[string]*tree
	root  *tree            // of input
	text  strictjson.Value // of all; nil after a change
}

func newScope(input strictjson.Value) *scope {
	return &scope{input: compact(input), outputs: map[string]strictjson.Value{}, trees: map[string]*tree{}}
}

// add adds the output of a node and returns it without white space. No other method runs concurrently.
func (s *scope) add(name string, output strictjson.Value) strictjson.Value {
	s.outputs[name] = compact(output)
	s.names = append(s.names, name)
	s.text = nil
	return s.outputs[name]
}

// compact returns a large value without white space, which indexes need.
func compact(v strictjson.Value) strictjson.Value {
	if len(v) < indexed {
		return v
	}
	return strictjson.AppendCompact(make([]byte, 0, len(v)), v)
}

// find returns the value at a path, or null. An item, if not nil, is the member item of the scope.
func (s *scope) find(path string, item strictjson.Value) strictjson.Value {
	rest, isInner := strings.CutPrefix(path, "$.")
	if !isInner {
		return s.all(item)
	}
	name, rest, isDeeper := strings.Cut(rest, ".")
	if name == "item" && item != nil {
		if isDeeper {
			return walk(item, "$."+rest)
		}
		return item
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.memberLocked(name)
	for isDeeper && t != nil {
		if len(t.value) < indexed {
			return walk(t.value, "$."+rest)
		}
		name, rest, isDeeper = strings.Cut(rest, ".")
		t = t.child(name)
	}
	if t == nil {
		return strictjson.Value("null")
	}
	return t.value
}

// memberLocked returns a member of the scope, or nil. s.mu must be held.
func (s *scope) memberLocked(name string) *tree {
	output, ok := s.outputs[name]
	if !ok {
		if s.root == nil {
			s.root = &tree{value: s.input}
		}
		return s.root.child(name)
	}
	t := s.trees[name]
	if t == nil {
		t = &tree{value: output}
		s.trees[name] = t
	}
	return t
}

// all returns the whole scope as an object.
func (s *scope) all(item strictjson.Value) strictjson.Value {
	s.mu.Lock()
	defer s.mu.Unlock()
	if item == nil && s.text != nil {
		return s.text
	}
	size := len(s.input) + len(item) + 16
	for name, output := range s.outputs {
		size += len(name) + len(output) + 4
	}
	text := append(make([]byte, 0, size), '{')
	for m := s.input.Members(); m.Next(); {
		name, value := string(m.Name), m.Value
		if output, ok := s.outputs[name]; ok {
			value = output
		}
		if name != "item" || item == nil {
			text = appendMember(text, m.Key, value)
		}
	}
	for _, name := range s.names {
		if isNew := s.isNewLocked(name); isNew && (name != "item" || item == nil) {
			text = appendMember(text, strictjson.AppendString(nil, name), s.outputs[name])
		}
	}
	if item != nil {
		return append(appendMember(text, strictjson.Value(`"item"`), item), '}')
	}
	s.text = append(text, '}')
	return s.text
}

// isNewLocked reports whether the input has no member of that name. s.mu must be held.
func (s *scope) isNewLocked(name string) bool {
	if s.root == nil {
		s.root = &tree{value: s.input}
	}
	return s.root.child(name) == nil
}

// outputText returns the outputs by node as an object.
func (s *scope) outputText() []byte {
	size := 2
	for name, output := range s.outputs {
		size += len(name) + len(output) + 4
	}
	text := append(make([]byte, 0, size), '{')
	for _, name := range s.names {
		text = appendMember(text, strictjson.AppendString(nil, name), s.outputs[name])
	}
	return append(text, '}')
}

// appendMember appends a member to an open object.
func appendMember(dst []byte, key, value strictjson.Value) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(append(dst, key...), ':')
	return append(dst, value...)
}

// indexed is the size from which an object or a list has an index.
const indexed = 4 << 10

// A tree is a JSON value. Large objects and lists are without white space and get an index when a
// path first leads through them, so that the work for many paths is linear in the value.
type tree struct {
	value    strictjson.Value
	children map[int]*tree // large ones, by their position; nil before there is an index

	values []uint32 // where the values begin, and the end of the last with a separator
	names  []uint32 // where the names of an object begin, like values
	order  []hashed // the names of an object by their hashes
	seed   maphash.Seed
}

// A hashed is a name of an object with its position.
type hashed struct{ hash, at uint32 }

// child returns the member or element of that name, or nil.
func (t *tree) child(name string) *tree {
	if len(t.value) < indexed || uint64(len(t.value)) >= math.MaxUint32 {
		if v := step(t.value, name); v != nil {
			return &tree{value: v}
		}
		return nil
	}
	if t.children == nil {
		t.build()
	}
	i := t.position(name)
	if i < 0 {
		return nil
	}
	if child := t.children[i]; child != nil {
		return child
	}
	begins := t.values
	if t.value.IsObject() {
		begins = t.names
	}
	child := &tree{value: t.value[t.values[i] : begins[i+1]-1]}
	if len(child.value) >= indexed {
		t.children[i] = child
	}
	return child
}

// position returns the position of a member or an element, or -1.
func (t *tree) position(name string) int {
	if t.value.IsArray() {
		if n, err := strconv.Atoi(name); err == nil && n >= 0 && n < len(t.values)-1 {
			return n
		}
		return -1
	}
	hash := uint32(maphash.String(t.seed, name))
	i, _ := slices.BinarySearchFunc(t.order, hash, func(h hashed, hash uint32) int { return cmp.Compare(h.hash, hash) })
	for ; i < len(t.order) && t.order[i].hash == hash; i++ {
		at := int(t.order[i].at)
		if own, _ := t.value[t.names[at] : t.values[at]-1].TextBytes(); string(own) == name {
			return at
		}
	}
	return -1
}

// build makes the index.
func (t *tree) build() {
	t.children = map[int]*tree{}
	n, at := 0, 1
	for e := t.value.Elements(); e.Next(); {
		n++
	}
	for m := t.value.Members(); m.Next(); {
		n++
	}
	t.values = make([]uint32, 0, n+1)
	for e := t.value.Elements(); e.Next(); at += len(e.Value) + 1 {
		t.values = append(t.values, uint32(at))
	}
	if !t.value.IsObject() {
		t.values = append(t.values, uint32(at))
		return
	}
	t.seed = maphash.MakeSeed()
	t.names, t.order = make([]uint32, 0, n+1), make([]hashed, 0, n)
	for m := t.value.Members(); m.Next(); at += len(m.Key) + len(m.Value) + 2 {
		t.order = append(t.order, hashed{uint32(maphash.Bytes(t.seed, m.Name)), uint32(len(t.names))})
		t.names = append(t.names, uint32(at))
		t.values = append(t.values, uint32(at+len(m.Key)+1))
	}
	t.names = append(t.names, uint32(at))
	slices.SortFunc(t.order, func(a, b hashed) int { return cmp.Compare(a.hash, b.hash) })
}
