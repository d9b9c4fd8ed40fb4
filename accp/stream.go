// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"math"
	"strings"

	"github.com/fivewire/fivewire/accp/internal/order"
)

const (
	maxBuffered = 1024     // buffered chunks of one stream (ACCP-D60)
	maxStreams  = 1024     // open streams
	maxEnded    = 65536    // recorded ids of ended streams
	maxWaiting  = 16 << 20 // buffered bytes of all streams
)

// A StreamAssembler puts the chunks of streams in order, each stream by its correlation id. The
// zero value is ready for use. It is not safe for concurrent use.
type StreamAssembler struct {
	open     map[string]*assembly
	finished order.Window
	bytes    int // buffered
}

// An assembly is one open stream.
type assembly struct {
	next    int64 // index of the next delivered chunk
	highest int64 // highest index received; -1 before the first
	total   int64 // -1 if unknown
	buffer  map[int64]Value
	bytes   int // of buffer and of the id
}

// Add processes a decoded stream or end message and returns the data of the chunks that are ready, in the order of their
// indices, and whether the stream is complete. Messages may arrive in any order. Errors, none of
// which changes the stream unless stated:
//
//   - a chunk that contradicts earlier chunks is [ErrInvalidType],
//   - a repeated index, or a chunk after the end, is [ErrDuplicate],
//   - an end while chunks are missing is [ErrSequenceGap], caused by [ErrTruncated], and drops the stream,
//   - more than 1,024 open streams, 1,024 buffered chunks of a stream, or 16 MiB of all, is
//     [ErrBudgetExceeded].
func (s *StreamAssembler) Add(m *Message) (data []Value, isDone bool, err error) {
	if s.open == nil {
		s.open, s.finished = map[string]*assembly{}, order.NewWindow(maxEnded)
	}
	const overhead = 128 // of an open stream
	if err := checkStream(m); err != nil {
		return nil, false, err
	}
	cid := m.Meta.CID
	a := s.open[cid]
	if m.Intent == IntentEnd {
		s.end(cid)
		err := a.checkEnd()
		return nil, err == nil, err
	}
	if s.finished.Has(order.MarkOf(cid)) {
		return nil, false, fail(ErrDuplicate, "chunk after the end of the stream")
	}
	if a == nil {
		a = &assembly{highest: -1, total: -1}
	}
	next, err := a.check(m.Params)
	if err != nil {
		return nil, false, err
	}
	size := 0
	if next.index != a.next {
		size = next.data.size()
	}
	isNew := s.open[cid] == nil
	if isNew {
		size += len(cid) + overhead
	}
	if s.bytes+size > maxWaiting && next.index != a.next || isNew && len(s.open) >= maxStreams {
		return nil, false, fail(ErrBudgetExceeded, "too much waits for earlier chunks")
	}
	if isNew {
		a.bytes = len(cid) + overhead
		s.start(cid, a)
	}
	before := a.bytes
	data, isDone = a.add(next)
	s.bytes += a.bytes - before
	if isDone {
		s.end(cid)
	}
	return data, isDone, nil
}

// checkStream checks that m belongs to a stream.
func checkStream(m *Message) error {
	switch {
	case m == nil:
		return errNoMessage()
	case m.Meta == nil || m.Meta.CID == "":
		return fail(ErrParse, "stream chunk without cid")
	case m.Intent != IntentStream && m.Intent != IntentEnd:
		return fail(ErrInvalidIntent, "not a frame of a stream")
	case m.Intent == IntentStream && m.schema() != schemaStream:
		return fail(ErrUnknownSchema, "a stream chunk needs schema ST")
	}
	return nil
}

func (s *StreamAssembler) start(cid string, a *assembly) {
	s.open[strings.Clone(cid)] = a
	s.bytes += a.bytes
}

func (s *StreamAssembler) end(cid string) {
	if a := s.open[cid]; a != nil {
		s.bytes -= a.bytes
	}
	delete(s.open, cid)
	s.finished.Add(order.MarkOf(cid))
}

// checkEnd checks an end message; a is nil if no chunk has arrived.
func (a *assembly) checkEnd() error {
	if a != nil && a.highest >= 0 {
		return &Error{Code: ErrSequenceGap, Message: "the stream ends although chunks are missing", Cause: ErrTruncated}
	}
	return nil
}

// A chunk is a validated chunk.
type chunk struct {
	index, total int64
	data         Value
}

// check validates a chunk in the order of ACCP-D60.
func (a *assembly) check(p Params) (chunk, error) {
	c := chunk{total: a.total}
	v, ok := p.Get("chunk_index")
	index, isInt := v.Int()
	if !ok || !isInt || index < 0 || index == math.MaxInt64 {
		return c, fail(ErrInvalidType, "chunk_index must be an integer from 0")
	}
	c.index = index
	if _, waiting := a.buffer[index]; index < a.next || waiting {
		return c, fail(ErrDuplicate, "chunk %d came before", index)
	}
	isFinal := false
	if v, ok := p.Get("is_final"); ok {
		if isFinal, ok = v.Bool(); !ok {
			return c, fail(ErrInvalidType, "is_final must be a boolean")
		}
	}
	var err error
	if c.total, err = a.checkTotal(p); err == nil {
		err = a.checkPlace(c, isFinal)
	}
	if isFinal {
		c.total = index + 1
	}
	c.data, _ = p.Get("data")
	return c, err
}

// checkTotal returns the number of chunks, or -1 if it is unknown.
func (a *assembly) checkTotal(p Params) (int64, error) {
	v, ok := p.Get("total_chunks")
	if !ok {
		return a.total, nil
	}
	total, ok := v.Int()
	switch {
	case !ok || total < 0:
		return 0, fail(ErrInvalidType, "total_chunks must be an integer from 0")
	case a.total >= 0 && total != a.total:
		return 0, fail(ErrInvalidType, "another total_chunks")
	case a.total < 0 && a.highest >= total-1 && a.highest >= 0:
		// An earlier chunk has an index beyond this total, or is the last one but not marked as
		// final.
		return 0, fail(ErrInvalidType, "total_chunks contradicts earlier chunks")
	}
	return total, nil
}

// checkPlace checks the index of a chunk against the total and the earlier chunks.
func (a *assembly) checkPlace(c chunk, isFinal bool) error {
	switch {
	case c.total >= 0 && c.index >= c.total:
		return fail(ErrInvalidType, "chunk_index beyond total_chunks")
	case c.total >= 0 && isFinal != (c.index == c.total-1):
		return fail(ErrInvalidType, "is_final must be set on the last chunk and on no other")
	case isFinal && c.index < a.highest:
		return fail(ErrInvalidType, "final chunk below an index already seen")
	case c.index != a.next && len(a.buffer) >= maxBuffered:
		return fail(ErrBudgetExceeded, "too many chunks wait for an earlier one")
	}
	return nil
}

// add adds a chunk and returns the data that is ready, and whether the stream is complete.
func (a *assembly) add(c chunk) (data []Value, isDone bool) {
	a.total = c.total
	a.highest = max(a.highest, c.index)
	if c.index != a.next {
		if a.buffer == nil {
			a.buffer = map[int64]Value{}
		}
		v := c.data.detached()
		a.buffer[c.index] = v
		a.bytes += v.size()
		return nil, false
	}
	data = []Value{c.data}
	for a.next++; ; a.next++ {
		v, ok := a.buffer[a.next]
		if !ok {
			break
		}
		delete(a.buffer, a.next)
		a.bytes -= v.size()
		data = append(data, v)
	}
	return data, a.total >= 0 && a.next == a.total
}

// size returns the approximate memory of v in bytes.
func (v *Value) size() int {
	n := 64 + len(v.text)
	for i := range v.list {
		n += len(v.list[i].Key) + v.list[i].Value.size()
	}
	return n
}

// detached returns v without references to the memory of its frame.
func (v Value) detached() Value {
	v.text = strings.Clone(v.text)
	if v.list != nil {
		list := make([]Param, len(v.list))
		for i, p := range v.list {
			list[i] = Param{strings.Clone(p.Key), p.Value.detached()}
		}
		v.list = list
	}
	return v
}
