// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// Kinds of keys in the set of an index. Each ends with the number of a document.
const (
	kindWord   = 'w' // the word, 0, number of times
	kindTag    = 't' // the quoted tag, 0
	kindHash   = 'h' // of the key of the entry
	kindExpiry = 'e' // only of entries that expire
)

// A hash identifies the key of an entry.
type hash [16]byte

// A document is what an index has of an entry besides its words and tags.
type document struct {
	hash     hash
	revision store.Revision // of its row; 0 of a removed document
	position int64          // in the order of insertion
	stamp    int64          // of the last change
	expires  int64          // Unix microseconds; 0 never
	score    float64
	size     uint32 // bytes of its row
	words    uint32
}

// An index finds the live entries of a shelf. Removed documents keep their words until a sweep.
type index struct {
	keys  keySet
	docs  []document
	free  []uint32
	dead  []uint32
	count int   // of live entries
	bytes int64 // of their rows
	words int64
	key   []byte // scratch
}

func (x *index) makeKey(kind byte, text []byte, doc uint32) []byte {
	x.key = append(append(x.key[:0], kind), text...)
	x.key = binary.BigEndian.AppendUint32(x.key, doc)
	return x.key
}

func (x *index) expiryKey(t int64, doc uint32) []byte {
	var text [8]byte
	binary.BigEndian.PutUint64(text[:], uint64(t))
	return x.makeKey(kindExpiry, text[:], doc)
}

// docOf returns the number at the end of a key.
func docOf(key []byte) uint32 { return binary.BigEndian.Uint32(key[len(key)-4:]) }

// find returns the document of a key.
func (x *index) find(h hash) (doc uint32, ok bool) {
	x.key = append(append(x.key[:0], kindHash), h[:]...)
	x.keys.ascend(x.key, func(key []byte, _ uint64) bool {
		doc, ok = docOf(key), true
		return false
	})
	return doc, ok
}

// put adds an entry, or replaces the one of its key.
func (x *index) put(d document, entry strictjson.Value) {
	x.removeHash(d.hash)
	doc := uint32(len(x.docs))
	if n := len(x.free); n > 0 {
		doc, x.free = x.free[n-1], x.free[:n-1]
	} else {
		x.docs = append(x.docs, document{})
	}
	words := entryWords(entry)
	d.words = uint32(len(words))
	x.docs[doc] = d
	slices.Sort(words)
	var text []byte
	for i := 0; i < len(words); {
		n := 1
		for i+n < len(words) && words[i+n] == words[i] {
			n++
		}
		text = append(append(text[:0], words[i]...), 0)
		x.keys.set(x.makeKey(kindWord, text, doc), uint64(n))
		i += n
	}
	for e := entry.Get("tags").Elements(); e.Next(); {
		tag, _ := e.Value.Text()
		x.keys.set(x.makeKey(kindTag, tagText(tag), doc), 1)
	}
	x.keys.set(x.makeKey(kindHash, d.hash[:], doc), 0)
	if d.expires > 0 {
		x.keys.set(x.expiryKey(d.expires, doc), 0)
	}
	x.count++
	x.bytes += int64(d.size)
	x.words += int64(d.words)
}

// tagText is the part of a key for a tag: no tag is the beginning of another one.
func tagText(tag string) []byte { return append(strconv.AppendQuote(nil, tag), 0) }

// removeHash removes the entry of a key.
func (x *index) removeHash(h hash) {
	if doc, ok := x.find(h); ok {
		x.remove(doc)
	}
}

func (x *index) remove(doc uint32) {
	d := &x.docs[doc]
	x.keys.remove(x.makeKey(kindHash, d.hash[:], doc))
	if d.expires > 0 {
		x.keys.remove(x.expiryKey(d.expires, doc))
	}
	x.count--
	x.bytes -= int64(d.size)
	x.words -= int64(d.words)
	d.revision = 0
	x.dead = append(x.dead, doc)
	if len(x.dead) > x.count/4+64 {
		x.keys.sweep(func(key []byte) bool { return x.docs[docOf(key)].revision != 0 })
		x.free, x.dead = append(x.free, x.dead...), nil
	}
}

// expire removes the entries that expired before now.
func (x *index) expire(now int64) {
	for {
		var first []byte
		x.keys.ascend([]byte{kindExpiry}, func(key []byte, _ uint64) bool {
			first = slices.Clone(key)
			return false
		})
		if first == nil || int64(binary.BigEndian.Uint64(first[1:])) > now {
			return
		}
		x.remove(docOf(first))
	}
}

// eachMatch calls f with the documents that have a word with a prefix, and how often.
func (x *index) eachMatch(word string, f func(doc uint32, n uint64)) {
	isClean := len(x.dead) == 0
	x.keys.ascend(append([]byte{kindWord}, word...), func(key []byte, n uint64) bool {
		if doc := docOf(key); isClean || x.docs[doc].revision != 0 {
			f(doc, n)
		}
		return true
	})
}

// tagged returns the documents that have one of the tags.
func (x *index) tagged(tags []string) map[uint32]bool {
	found := map[uint32]bool{}
	for _, tag := range tags {
		x.keys.ascend(append([]byte{kindTag}, tagText(tag)...), func(key []byte, _ uint64) bool {
			if doc := docOf(key); x.docs[doc].revision != 0 {
				found[doc] = true
			}
			return true
		})
	}
	return found
}

// A row is an entry in the store: position, stamp and score, 8 bytes each, and the text of the entry.
const rowHeader = 24

func appendRow(dst []byte, d *document, text []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(d.position))
	dst = binary.BigEndian.AppendUint64(dst, uint64(d.stamp))
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(d.score))
	return append(dst, text...)
}

// readRow returns the document and the text of a row, unless the row has another form.
func readRow(h hash, e store.Entry) (d document, text []byte, ok bool) {
	if len(e.Value) < rowHeader {
		return document{}, nil, false
	}
	d = document{
		hash: h, revision: e.Revision, size: uint32(len(e.Value) - rowHeader),
		position: int64(binary.BigEndian.Uint64(e.Value)), stamp: int64(binary.BigEndian.Uint64(e.Value[8:])),
		score: math.Float64frombits(binary.BigEndian.Uint64(e.Value[16:])),
	}
	if !e.Expires.IsZero() {
		d.expires = e.Expires.UnixMicro()
	}
	return d, e.Value[rowHeader:], true
}
