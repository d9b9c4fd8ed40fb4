// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sendq queues the messages that one end of a connection sends.
//
// Two ends that read only while they can write block each other. Therefore the goroutine that
// reads calls only Put, PutControl, Reserve and Release, which neither block nor write. Before it
// admits a request, it reserves space for the response, or refuses the request by PutControl.
package sendq

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
)

// Errors of a Queue.
var (
	ErrFull       = errors.New("sendq: queue full")
	ErrClosed     = errors.New("sendq: closed")
	ErrSlowReader = errors.New("sendq: slow reader") // cause of a cut after WriteTimeout
)

const (
	overhead = 64       // bytes charged for a message in addition to its length
	maxCopy  = 16 << 10 // longest message that is always copied
	maxBatch = 64 << 10 // bytes of one Write call
	data     = 0        // lane, and account of charged bytes
	control  = 1
)

// Options adjusts a Queue. A negative number removes a bound. A message counts 64 bytes more.
type Options struct {
	MaxBytes     int           // of data; zero means 1 MiB
	MaxMessages  int           // of data; zero means 1,024
	MaxReserve   int           // bytes of control messages; zero means 64 KiB
	WriteTimeout time.Duration // of a write without progress; zero means 30 s
	Separate     bool          // one Write call for each message; else for up to 64 KiB
	OnCut        func(error)   // called once by a cut; makes Write return by closing the connection
}

// A lane is written in order. Control chunks precede data chunks, but never two in a row.
type lane struct {
	chunks  []*chunk
	free    *chunk // list, until the next check
	in, out uint64 // messages accepted and written
}

// A chunk is one kept message, or a list of copied messages.
type chunk struct {
	next   *chunk // of lane.free
	kept   []byte
	copied []byte
	sizes  []int  // of the messages
	cost   [2]int // bytes charged to data and control
}

// A Queue writes messages by one Write call at a time. All methods may be called concurrently.
type Queue struct {
	w     io.Writer
	o     Options
	run   func()        // drain; a go statement with a variable does not allocate
	turn  chan struct{} // held by the first of the callers that wait for space
	space chan struct{} // signals to this caller that the queue changed

	mu        sync.Mutex
	err       error // why messages are refused
	cut       error // cause of the cut
	isWriting bool  // if not, the lanes are empty
	isFull    bool  // control refused a message since it was last written
	lanes     [2]lane
	last      int       // lane of the last chunk
	used      [2]int    // bytes charged to data and control, with reservations
	reserved  int       // reservations
	waiting   int       // callers that wait for space
	progress  time.Time // of the writer
	timer     *time.Timer
	written   sync.Cond
}

// New returns a queue to w, to be ended by Close or Cut. It has a goroutine while it has messages.
func New(w io.Writer, o Options) *Queue {
	o.MaxBytes, o.MaxMessages = option.Count(o.MaxBytes, 1<<20), option.Count(o.MaxMessages, 1024)
	o.MaxReserve = option.Count(o.MaxReserve, 64<<10)
	o.WriteTimeout = option.Duration(o.WriteTimeout, 30*time.Second)
	q := &Queue{w: w, o: o, turn: make(chan struct{}, 1), space: make(chan struct{}, 1)}
	q.run, q.written.L, q.timer = q.drain, &q.mu, time.AfterFunc(o.WriteTimeout, q.check)
	return q
}

// A Reservation is space for one message in the data lane. Zero is no reservation.
type Reservation int

// Reserve takes space for a message of n bytes, or returns ErrFull. It never blocks. The
// reservation is used up once, by Release or with a message.
func (q *Queue) Reserve(n int) (Reservation, error) {
	return reservation(n, q.put(nil, entry{space: n + overhead}))
}

// ReserveWait is Reserve, but waits for space until ctx ends.
func (q *Queue) ReserveWait(ctx context.Context, n int) (Reservation, error) {
	return reservation(n, q.putWait(ctx, nil, entry{space: n + overhead}))
}

func reservation(n int, err error) (Reservation, error) {
	if err != nil {
		return 0, err
	}
	return Reservation(n + overhead), nil
}

// Release returns the space of a reservation.
func (q *Queue) Release(r Reservation) { q.release(r, 0) }

func (q *Queue) release(r Reservation, waiting int) {
	q.mu.Lock()
	_ = q.admitLocked(0, entry{r: r})
	q.waiting += waiting
	q.mu.Unlock()
	q.signal()
}

// An entry specifies how a message is added.
type entry struct {
	account   int
	r         Reservation
	space     int    // of a reservation, instead of a message
	after     uint64 // position that a control message follows
	inline    bool   // the caller writes if it starts the writer
	hasWaited bool   // overtakes waiting callers
}

// admitLocked charges n bytes instead of e.r. q.mu must be held.
func (q *Queue) admitLocked(n int, e entry) error {
	if q.err != nil {
		return q.err
	}
	hasSpace := n <= int(e.r)
	if e.account == control {
		hasSpace = n <= q.o.MaxReserve-q.used[control] || q.used[control] == 0
		q.isFull = q.isFull || !hasSpace
	} else if !hasSpace && (e.hasWaited || q.waiting == 0) {
		queued, rest := int(q.lanes[data].in-q.lanes[data].out), q.o.MaxBytes-q.used[data]+int(e.r)
		hasBytes := n <= rest || n > q.o.MaxBytes && queued == 0
		hasSpace = hasBytes && queued+q.reserved-min(int(e.r), 1) < q.o.MaxMessages
	}
	if !hasSpace {
		return ErrFull
	}
	q.used[e.account] += n - int(e.r)
	if e.r > 0 {
		q.reserved--
	}
	return nil
}

// signal wakes the first of the callers that wait for space, and all callers of Flush.
func (q *Queue) signal() {
	q.written.Broadcast()
	select {
	case q.space <- struct{}{}:
	default:
	}
}

// Put adds a message to the data lane, or returns ErrFull, also while other callers wait for
// space. It never blocks. A message above MaxBytes needs an empty lane. A reservation is used up
// unless Put fails. After a cut, the error is its cause. A message above 16 KiB that fills half
// of its buffer belongs to the queue after success; others are copied.
func (q *Queue) Put(m []byte, r Reservation) error { return q.put(m, entry{r: r}) }

// PutWait is Put, but waits for space until ctx ends. It uses the reservation up in any case.
func (q *Queue) PutWait(ctx context.Context, m []byte, r Reservation) error {
	return q.putWait(ctx, m, entry{r: r})
}

// Write is PutWait for a caller that a slow peer may block for WriteTimeout, even if ctx ends:
// if no write is in progress, the caller writes the message, which is then not kept.
func (q *Queue) Write(ctx context.Context, m []byte, r Reservation) error {
	return q.putWait(ctx, m, entry{r: r, inline: true})
}

func (q *Queue) putWait(ctx context.Context, m []byte, e entry) error {
	err := context.Cause(ctx)
	if err == nil {
		err = q.put(m, e)
	}
	if err != nil {
		q.release(e.r, 1)
		defer q.release(0, -1)
	}
	if !errors.Is(err, ErrFull) {
		return err
	}
	select {
	case q.turn <- struct{}{}: // in the order of the callers
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-q.turn }()
	for errors.Is(err, ErrFull) {
		select {
		case <-q.space:
			err = q.put(m, entry{space: e.space, hasWaited: true})
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return err
}

// PutControl adds a message that precedes data, except for the first after messages: a cancel
// does not precede its request. It never blocks. ErrFull means that the reserve is full; if it
// remains full for WriteTimeout, the queue is cut. A larger message needs an empty reserve.
func (q *Queue) PutControl(m []byte, after uint64) error {
	return q.put(m, entry{account: control, after: after})
}

// PutControlWait is PutControl, but waits for space in the reserve until ctx ends.
func (q *Queue) PutControlWait(ctx context.Context, m []byte, after uint64) error {
	defer context.AfterFunc(ctx, func() { q.Release(0) })()
	e := entry{account: control, after: after}
	for {
		err := q.put(m, e)
		if !errors.Is(err, ErrFull) {
			return err
		}
		q.mu.Lock()
		for q.used[control]+len(m)+overhead > q.o.MaxReserve && q.used[control] > 0 && q.err == nil && ctx.Err() == nil {
			q.written.Wait()
		}
		q.mu.Unlock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// Position returns the number of data messages accepted so far, for PutControl.
func (q *Queue) Position() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lanes[data].in
}

func (q *Queue) put(m []byte, e entry) error {
	q.mu.Lock()
	err := q.admitLocked(cmp.Or(e.space, len(m)+overhead), e)
	if err == nil && e.space > 0 {
		q.reserved++
	}
	if err != nil || e.space > 0 {
		q.mu.Unlock()
		return err
	}
	e.inline = e.inline && !q.isWriting
	mustStart := q.appendLocked(m, e)
	var own *chunk
	if e.inline {
		own = q.nextLocked() // before a control message can precede it
	}
	q.mu.Unlock()
	if mustStart && (!e.inline || q.write(own)) {
		go q.run()
	}
	return nil
}

// appendLocked adds a message and reports whether the caller must start the writer. q.mu must be held.
func (q *Queue) appendLocked(m []byte, e entry) bool {
	l := &q.lanes[e.account]
	if e.after > q.lanes[data].out {
		l = &q.lanes[data]
	}
	keep := e.inline || len(m) > maxCopy && len(m) >= cap(m)/2
	n := len(l.chunks)
	if n == 0 || keep || l.chunks[n-1].kept != nil || len(l.chunks[n-1].copied)+len(m) > maxBatch {
		if l.free == nil {
			l.free = new(chunk)
		}
		l.chunks = append(l.chunks, l.free)
		l.free, l.free.next = l.free.next, nil
	}
	c := l.chunks[len(l.chunks)-1]
	if keep {
		c.kept = m
	} else {
		c.copied = append(c.copied, m...)
	}
	c.sizes = append(c.sizes, len(m))
	c.cost[e.account] += len(m) + overhead
	l.in++
	if q.isWriting {
		return false
	}
	q.isWriting, q.progress = true, time.Now()
	q.timer.Reset(q.o.WriteTimeout)
	return true
}

func (q *Queue) drain() {
	for more := true; more; {
		q.mu.Lock()
		c := q.nextLocked()
		q.mu.Unlock()
		more = q.write(c)
	}
}

// nextLocked removes the next chunk: of the last lane if the other is empty. q.mu must be held, by the writer.
func (q *Queue) nextLocked() *chunk {
	if len(q.lanes[1-q.last].chunks) > 0 {
		q.last = 1 - q.last
	}
	l := &q.lanes[q.last]
	c := l.chunks[0]
	l.chunks = slices.Delete(l.chunks, 0, 1)
	q.isFull = q.isFull && c.cost[control] == 0
	return c
}

// write writes a chunk and reports whether there are more.
func (q *Queue) write(c *chunk) bool {
	if err := q.output(c); err != nil {
		q.Cut(err)
	}
	q.mu.Lock()
	l := &q.lanes[q.last]
	if q.cut != nil {
		q.lanes[data].chunks, q.lanes[control].chunks = nil, nil
	} else {
		l.out += uint64(len(c.sizes))
		q.used[data] -= c.cost[data]
		q.used[control] -= c.cost[control]
	}
	*c = chunk{copied: c.copied[:0], sizes: c.sizes[:0]}
	c.next, l.free = l.free, c
	more := len(q.lanes[data].chunks)+len(q.lanes[control].chunks) > 0
	q.isWriting = more
	q.mu.Unlock()
	q.signal()
	return more
}

func (q *Queue) output(c *chunk) error {
	for _, rest := range [2][]byte{c.kept, c.copied} {
		for i := 0; len(rest) > 0; i++ {
			n := min(len(rest), maxBatch)
			if q.o.Separate {
				n = c.sizes[i]
			}
			q.Progress()
			written := 0
			err := guard.Call("stream", func() (err error) {
				written, err = q.w.Write(rest[:n])
				return err
			})
			if err == nil && written < n {
				err = io.ErrShortWrite
			}
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
	}
	return nil
}

// Progress reports that the current Write call has passed on some of its bytes.
func (q *Queue) Progress() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.isFull {
		q.progress = time.Now()
	}
}

// check cuts the queue after WriteTimeout without progress, and frees unused memory.
func (q *Queue) check() {
	q.mu.Lock()
	rest := q.o.WriteTimeout - time.Since(q.progress)
	isSlow := q.isWriting && rest <= 0
	q.lanes[data].free, q.lanes[control].free = nil, nil
	if q.isWriting && !isSlow {
		q.timer.Reset(rest)
	}
	q.mu.Unlock()
	if isSlow {
		q.Cut(ErrSlowReader)
	}
}

// Flush waits until all messages accepted so far are written, the queue is cut, or ctx ends.
func (q *Queue) Flush(ctx context.Context) error {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() { q.Release(0) })()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	target := q.lanes
	for q.lanes[data].out < target[data].in || q.lanes[control].out < target[control].in {
		if err := cmp.Or(q.cut, context.Cause(ctx)); err != nil {
			return err
		}
		q.written.Wait()
	}
	return nil
}

// Close refuses further messages and flushes the queue. If ctx ends before, it cuts the queue.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	q.err = cmp.Or(q.err, ErrClosed)
	q.mu.Unlock()
	q.signal()
	err := q.Flush(ctx)
	if err != nil {
		q.Cut(err)
	}
	q.timer.Stop()
	return err
}

// Cut drops all messages. The first cause, or ErrClosed if it is nil, is the error of later calls.
func (q *Queue) Cut(cause error) {
	q.mu.Lock()
	isFirst := q.cut == nil
	if isFirst {
		q.cut = cmp.Or(cause, ErrClosed)
		q.err = q.cut
		q.timer.Stop()
	}
	q.mu.Unlock()
	q.signal()
	if isFirst && q.o.OnCut != nil {
		q.o.OnCut(q.cut)
	}
}
