// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// A replayTable maps names of a [ReplayWindow] to numbers above zero. It is faster
// than a map because the names are hashes already, because its slots are small, and
// because it holds no pointers. It is many small tables with linear probing, so
// that growing one never takes long. Start must come first.
type replayTable struct {
	mult  uint64 // odd and random: the senders choose the names, but not where they go
	parts [tableParts]tablePart
}

const (
	tableParts    = 64
	tablePartBits = 6
	tableLeast    = 16 // slots
)

type tablePart struct {
	slots []tableSlot // a power of two
	used  int
	shift uint8 // what leaves as many bits as slots need
}

// A tableSlot holds 96 bits of a name, which nobody finds twice.
type tableSlot struct {
	a     uint64
	b     uint32
	value uint32 // zero: empty
}

func (t *replayTable) start() { t.mult = rand.Uint64() | 1 }

func (k *replayKey) halves() (a uint64, b uint32) {
	return binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint32(k[8:])
}

// mix spreads a name: the first bits choose the part, the next ones the slot.
func (t *replayTable) mix(a uint64, b uint32) uint64 { return (a ^ uint64(b)<<32) * t.mult }

func (t *replayTable) part(x uint64) *tablePart { return &t.parts[x>>(64-tablePartBits)] }

func (p *tablePart) home(x uint64) uint { return uint(x << tablePartBits >> (p.shift & 63)) }

// get returns the number of a name, or zero.
func (t *replayTable) get(k *replayKey) uint32 {
	a, b := k.halves()
	x := t.mix(a, b)
	p := t.part(x)
	if p.used == 0 {
		return 0
	}
	mask := uint(len(p.slots) - 1)
	for i := p.home(x); ; i++ {
		if s := &p.slots[i&mask]; s.value == 0 || s.a == a && s.b == b {
			return s.value
		}
	}
}

// slot returns the slot of a name, or the empty one to put it into with set. There is
// room for one more name after that, so that the next call leaves the slot where it
// is.
func (t *replayTable) slot(k *replayKey) (*tablePart, *tableSlot) {
	a, b := k.halves()
	x := t.mix(a, b)
	p := t.part(x)
	if 8*(p.used+2) > 5*len(p.slots) {
		t.resize(p, max(2*len(p.slots), tableLeast))
	}
	mask := uint(len(p.slots) - 1)
	for i := p.home(x); ; i++ {
		if s := &p.slots[i&mask]; s.value == 0 || s.a == a && s.b == b {
			return p, s
		}
	}
}

// set fills an empty slot.
func (p *tablePart) set(s *tableSlot, k *replayKey, value uint32) {
	p.used++
	s.a, s.b = k.halves()
	s.value = value
}

// put gives a name that is not in the table a number.
func (t *replayTable) put(k *replayKey, value uint32) {
	p, s := t.slot(k)
	p.set(s, k, value)
}

func (t *replayTable) resize(p *tablePart, size int) {
	old := p.slots
	p.slots = make([]tableSlot, size)
	p.shift = uint8(64 - bits.Len(uint(size-1)))
	mask := uint(size - 1)
	for _, s := range old {
		if s.value != 0 {
			i := p.home(t.mix(s.a, s.b))
			for p.slots[i&mask].value != 0 {
				i++
			}
			p.slots[i&mask] = s
		}
	}
}

// remove forgets a name. What stands behind it moves up, so that nothing is left
// that a search would have to pass.
func (t *replayTable) remove(k *replayKey) {
	a, b := k.halves()
	x := t.mix(a, b)
	p := t.part(x)
	if p.used == 0 {
		return
	}
	slots := p.slots
	mask := uint(len(slots) - 1)
	i := p.home(x)
	for ; ; i++ {
		s := &slots[i&mask]
		if s.value == 0 {
			return
		}
		if s.a == a && s.b == b {
			break
		}
	}
	p.used--
	for j := i + 1; ; j++ {
		s := &slots[j&mask]
		if s.value == 0 {
			break
		}
		// It may move to i if its home does not lie behind i on the way to j.
		if (j-p.home(t.mix(s.a, s.b)))&mask >= (j-i)&mask {
			slots[i&mask] = *s
			i = j
		}
	}
	slots[i&mask] = tableSlot{}
	if len(slots) > tableLeast && 16*p.used < len(slots) {
		t.resize(p, len(slots)/4) // memory follows what is alive
	}
}

// len returns how many names there are.
func (t *replayTable) len() (n int) {
	for i := range t.parts {
		n += t.parts[i].used
	}
	return n
}
