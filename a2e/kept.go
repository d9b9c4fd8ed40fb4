// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/plugin"
	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A kept is a durable session that this process owns.
type kept struct {
	durable *durable
	key     string
	owner   lease.Owner
	token   string // of the claims of this owner
	id      string // of the session
	term    int    // of this owner
	session *Session
	writer  *streamlog.Writer
	out     *storedOutput

	epoch  context.Context // of the lease
	ctx    context.Context // ends with the epoch, or after the session
	cancel context.CancelFunc
	inbox  context.Context // ends when no body is taken
	closed context.CancelFunc
	hints  chan struct{} // the inbox has entries
	tidied chan struct{} // answers are stored, or calls have ended

	replied, claimed map[string]struct{} // ids of requests of the failed owner, until the session has them
	isRecovering     bool                // used by the goroutine of the inbox only

	hold    budget.Hold // of its data in the store besides the inbox
	isMoved bool        // another process continues; guarded by the mutex of the session

	mu         sync.Mutex // guards everything below
	settled    []settlement
	claims     []claim // the oldest first
	claimBytes int64
	isLost     bool // a later owner is known
	idle       *time.Timer
}

// A keptBody is an entry of the inbox.
type keptBody struct {
	id      string
	pos     uint64
	arrived time.Time // at a failed host, by the clock of the store; zero for this host
	open    int       // unanswered requests; guarded by the mutex of the session
	isFed   bool
	isAcked bool // guarded by the mutex of the kept
}

// A settlement is an answer, or the last answer of a body.
type settlement struct {
	seq  uint64 // of the last message that must be stored first
	body *keptBody
	id   string // of the answered request while its body is open, else empty
}

// A claim is an entry of the log of claims.
type claim struct {
	pos  uint64
	body *keptBody // nil if the claim is of an earlier owner
	size int
}

// maxClaims is the number of claims that are kept after their answers, so that their ids stay refused.
const maxClaims = 2 * answeredIDs

// A claimRecord is a claim, or the answered requests of an open body.
type claimRecord struct {
	Token string   `json:",omitempty"`
	ID    string   `json:",omitempty"`
	Done  []string `json:",omitempty"`
}

// init completes a session whose epoch and stream are known.
func (k *kept) init(epoch context.Context, w *streamlog.Writer) {
	limits := &k.durable.host.opts.Limits
	k.token, k.writer = randid.New(""), w
	k.out = &storedOutput{keep: limits.MaxReplayEvents, limit: limits.unread()}
	k.epoch = epoch
	k.ctx, k.cancel = context.WithCancel(epoch)
	k.inbox, k.closed = context.WithCancel(k.ctx)
	k.hints, k.tidied = make(chan struct{}, 1), make(chan struct{}, 1)
}

// attachLocked ties k to its session, whose mutex must be held.
func (k *kept) attachLocked(s *Session) {
	k.session = s
	k.out.overflow = func() { s.abort(session.EndCut) }
	context.AfterFunc(s.ctx, k.closed)
	s.onEnd = append(s.onEnd, func(session.End) { k.out.finish() })
}

// run starts the goroutines of the session.
func (k *kept) run() {
	d := k.durable
	context.AfterFunc(k.ctx, k.lose)
	if timeout := d.host.opts.Timing.SessionIdleTimeout; timeout > 0 {
		k.mu.Lock()
		k.idle = time.AfterFunc(timeout, k.expire)
		k.mu.Unlock()
	}
	d.spawn(k.read)
	d.spawn(k.write)
	d.spawn(k.tidy)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// touch restarts the idle timer. The inbox may have entries.
func (k *kept) touch() {
	k.mu.Lock()
	if k.idle != nil {
		k.idle.Reset(k.durable.host.patience())
	}
	k.mu.Unlock()
	signal(k.hints)
}

// isOver reports whether the session has ended, and not only here.
func (k *kept) isOver() bool {
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	return k.session.core.State() == session.StateClosed && !k.isMoved
}

// expire ends a session that was unused for too long.
func (k *kept) expire() {
	if k.durable.hasReader(k.key) {
		k.touch()
		return
	}
	k.session.abort(session.EndIdle)
}

// loseTo ends the session here because its store has shown a later owner, or refuses its messages.
func (k *kept) loseTo(err error) {
	k.mu.Lock()
	isFirst := !k.isLost
	k.isLost = true
	k.mu.Unlock()
	if isFirst {
		k.durable.host.log.WarnContext(k.ctx, "a2e: session lost", "session", k.id, "err", err)
		k.cancel()
	}
}

// lose ends the session here without a change of the store.
func (k *kept) lose() {
	s := k.session
	s.mu.Lock()
	k.isMoved = true
	s.mu.Unlock()
	k.out.cut()
	s.abort(session.EndHost)
}

// read takes the entries of the inbox in their order.
func (k *kept) read() {
	db, name := k.durable.db, inboxName(k.key)
	for cursor := uint64(0); k.inbox.Err() == nil; {
		records, err := db.Read(k.inbox, name, cursor, 4)
		for _, r := range records {
			if k.inbox.Err() != nil {
				return
			}
			k.take(r)
			cursor = r.Seq
		}
		if len(records) > 0 {
			continue
		}
		pause := time.Duration(storeKeep)
		if err != nil {
			pause = time.Second
		} else if k.isRecovering {
			k.isRecovering = false
			k.session.step(func(core *session.Session, _ time.Time) { core.Recovered() })
		}
		timer := time.NewTimer(pause)
		select {
		case <-k.hints:
		case <-timer.C:
		case <-k.inbox.Done():
		}
		timer.Stop()
	}
}

// take processes an entry of the inbox.
func (k *kept) take(r store.Record) {
	s := k.session
	data, err := state.Data(r.Value)
	body := &keptBody{id: r.ID, pos: r.Seq}
	if k.isRecovering {
		body.arrived = r.Time
	}
	switch {
	case err != nil || len(data) == 0:
		s.host.log.ErrorContext(s.ctx, "a2e: stored message not readable", "session", k.id, "err", err)
	case data[0] == inboxEnd:
		s.abort(session.EndAgent)
		return
	default:
		s.body = body
		s.feedLines(data[1:])
		s.body = nil
	}
	s.conn.add(item{then: func(int) { // behind the refusals
		s.mu.Lock()
		body.isFed = true
		isDone := body.open == 0
		s.mu.Unlock()
		if isDone {
			k.addSettlement(settlement{body: body})
		}
	}})
	s.conn.flush()
}

// finish notes that the answer of a call is queued.
func (k *kept) finish(c *Call) {
	b := c.body
	st := settlement{body: b}
	k.session.mu.Lock()
	b.open--
	if !b.isFed || b.open > 0 {
		st.id = c.Message.ID
	}
	k.session.mu.Unlock()
	k.addSettlement(st)
}

// addSettlement acknowledges an entry, or one request of it, after the messages so far are stored.
func (k *kept) addSettlement(st settlement) {
	st.seq = k.out.last()
	k.mu.Lock()
	k.settled = append(k.settled, st)
	k.mu.Unlock()
	signal(k.tidied)
}

// tidy removes the entries that no later owner needs.
func (k *kept) tidy() {
	renewal := time.NewTicker(storeKeep / 4)
	defer renewal.Stop()
	for {
		select {
		case <-renewal.C:
			k.renew()
		case <-k.tidied:
			k.tidyOnce()
		case <-k.session.ctx.Done():
			return
		}
	}
}

// renew extends the life of the entries of a session that is open for long.
func (k *kept) renew() {
	d := k.durable
	_, err := store.Modify(k.ctx, d.db, offerKey(k.key), storeKeep, func(old store.Entry, _ bool) ([]byte, error) { return old.Value, nil })
	err = errors.Join(err, d.modify(k.ctx, k.key, k.owner, storeKeep, func(*sessionRecord) {}),
		k.session.eachPlace(func(place plugin.Place, name string) error { return place.Renew(k.ctx, name) }))
	switch {
	case errors.Is(err, plugin.ErrMoved), errors.Is(err, lease.ErrLost):
		k.loseTo(err)
	case err != nil:
		d.host.log.WarnContext(k.ctx, "a2e: session not renewed", "session", k.id, "err", err)
	}
}

func (k *kept) tidyOnce() {
	stored := k.out.stored()
	var acks []uint64
	var bodies []*keptBody
	var done []string
	k.mu.Lock()
	n := 0
	for _, st := range slices.Backward(k.settled) { // a body follows its requests
		switch {
		case st.seq > stored:
			n++
			k.settled[len(k.settled)-n] = st
		case st.id == "":
			acks, bodies = append(acks, st.body.pos), append(bodies, st.body)
		case !slices.Contains(bodies, st.body):
			done = append(done, st.id)
		}
	}
	k.settled = slices.Clone(k.settled[len(k.settled)-n:])
	k.mu.Unlock()
	db := k.durable.db
	if len(done) > 0 {
		if err := k.record(k.ctx, "", &claimRecord{Done: done}, nil); err != nil {
			k.session.host.log.WarnContext(k.ctx, "a2e: outcome not marked", "session", k.id, "err", err)
		}
	}
	if len(acks) > 0 {
		if k.durable.change(k.ctx, func(ctx context.Context) error { return db.Ack(ctx, inboxName(k.key), acks...) }) != nil {
			return // the next owner finds the answers in the stream
		}
	}
	k.durable.storage.release(k.key, func(b *storedBody) bool {
		return slices.ContainsFunc(bodies, func(body *keptBody) bool { return body.id == b.id })
	})
	k.mu.Lock()
	for _, b := range bodies {
		b.isAcked = true
	}
	var old []uint64
	for len(k.claims) > maxClaims && (k.claims[0].body == nil || k.claims[0].body.isAcked) {
		old = append(old, k.claims[0].pos)
		k.claimBytes -= int64(k.claims[0].size)
		k.claims = k.claims[1:]
	}
	k.mu.Unlock()
	if len(old) > 0 {
		_ = db.Ack(k.ctx, claimName(k.key), old...)
	}
}

// record appends to the log of claims.
func (k *kept) record(ctx context.Context, id string, r *claimRecord, body *keptBody) error {
	value, err := state.Encode(r)
	if err != nil {
		return err
	}
	if id == "" {
		id = "done/" + randid.New("")
	}
	db, name, pos := k.durable.db, claimName(k.key), uint64(0)
	err = k.durable.change(ctx, func(ctx context.Context) (err error) {
		pos, err = db.Append(ctx, name, id, value, storeKeep)
		if !errors.Is(err, store.ErrDuplicate) {
			return err
		}
		page, readErr := db.Read(ctx, name, pos-1, 1)
		if readErr != nil {
			return readErr
		}
		if len(page) > 0 && page[0].Seq == pos && bytes.Equal(page[0].Value, value) {
			return nil // an earlier attempt
		}
		return err
	})
	if err == nil {
		k.mu.Lock()
		k.addClaimLocked(claim{pos, body, len(value) + itemStorage})
		k.mu.Unlock()
	}
	return err
}

// addClaimLocked adds an entry of the log of claims. k.mu must be held if k is shared.
func (k *kept) addClaimLocked(c claim) {
	k.claims = append(k.claims, c)
	k.claimBytes += int64(c.size)
}

// claim permits a request to run. It does so once, whatever processes take the request.
func (k *kept) claim(ctx context.Context, c *Call) error {
	err := k.record(ctx, state.Join("id", c.Message.ID), &claimRecord{Token: k.token, ID: c.Message.ID}, c.body)
	if errors.Is(err, store.ErrDuplicate) {
		f := failed{id: c.Message.ID, capability: c.core.Capability, call: c}
		return f.error(session.ReasonInterrupted)
	}
	return err
}

// maxReadFailures bounds the failed reads in a row of a stream that is taken over.
const maxReadFailures = 3

// recover reads which requests the failed owner has answered and started.
func (k *kept) recover(ctx context.Context, streams *streamlog.Table, w *streamlog.Writer) error {
	k.isRecovering, k.replied, k.claimed = true, map[string]struct{}{}, map[string]struct{}{}
	last, err := w.Sync(ctx)
	if err != nil {
		return err
	}
	r, err := streams.Read(ctx, k.key, "", 0)
	var gap *streamlog.GapError
	if errors.As(err, &gap) {
		r, err = streams.Read(ctx, k.key, "", gap.First-1)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	first, failures := uint64(0), 0
	if gap != nil {
		first = gap.First - 1
	}
	for buf := make([]streamlog.Item, 0, 64); first < last; {
		items, err := r.Next(ctx, buf)
		if failures++; err != nil && (failures > maxReadFailures || ctx.Err() != nil) {
			return err
		}
		if err == nil {
			failures = 0
		}
		for _, item := range items {
			k.noteReply(item.Data)
			first = item.N
		}
	}
	return k.readClaims(ctx)
}

// noteReply notes the request that a message answers.
func (k *kept) noteReply(line []byte) {
	v, err := strictjson.Check(line, strictjson.Options{MaxDepth: maxDepth})
	if err != nil {
		return
	}
	name, _ := v.Get("type").Text()
	if t := k.durable.host.codec.Types.lookup(name, true); t != nil && t.Kind == KindEvent || t == nil && kindOf(name) == KindEvent {
		return
	}
	if id, ok := v.Get("req_id").Text(); ok && id != "" {
		k.replied[id] = struct{}{}
	}
}

func (k *kept) readClaims(ctx context.Context) error {
	for pos := uint64(0); ; {
		page, err := k.durable.db.Read(ctx, claimName(k.key), pos, 100)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, stored := range page {
			var r claimRecord
			if err := state.Decode(stored.Value, &r); err != nil {
				return err
			}
			for _, id := range r.Done {
				k.replied[id] = struct{}{}
			}
			if r.ID != "" {
				k.claimed[r.ID] = struct{}{}
			}
			k.addClaimLocked(claim{stored.Seq, nil, len(stored.Value) + itemStorage})
			pos = stored.Seq
		}
	}
}

// write stores the messages of the session, and its end.
func (k *kept) write() {
	s := k.session
	for {
		lines := k.out.take(k.ctx)
		if len(lines) == 0 {
			break
		}
		if !k.reserve(lines) {
			k.out.cut()
			break
		}
		for _, line := range lines {
			if _, err := k.writer.Append(k.ctx, line); err != nil {
				k.loseTo(err)
				break
			}
		}
		if _, err := k.writer.Sync(k.ctx); err != nil {
			k.cancel()
			break
		}
		k.out.store(len(lines))
		_ = k.hold.Resize(k.size()) // what the stream has trimmed
		signal(k.tidied)
	}
	<-s.ctx.Done()
	s.mu.Lock()
	isMoved := k.isMoved
	s.mu.Unlock()
	k.mu.Lock()
	if k.idle != nil {
		k.idle.Stop()
		k.idle = nil
	}
	k.mu.Unlock()
	if !isMoved && k.end() {
		k.durable.addPast(k)
	}
	k.durable.storage.release(k.key, anyBody)
	k.hold.Release()
	<-s.finished // no process adopts a session whose handlers still run in it
	k.durable.remove(k)
	isLost := k.ctx.Err() != nil
	k.cancel()
	if isLost && k.durable.ctx.Err() == nil {
		k.durable.retake(k)
	}
}

// end stores the end of the session, and reports whether it succeeded.
func (k *kept) end() bool {
	d := k.durable
	ctx, cancel := lazy.WithTimeout(k.ctx, storeOutage)
	defer cancel()
	last, err := k.writer.Sync(ctx)
	if err == nil {
		err = k.writer.Finish(ctx, nil)
	}
	if err == nil {
		err = d.modify(ctx, k.key, k.owner, d.host.patience(), func(r *sessionRecord) { r.IsEnded, r.Last = true, last })
	}
	if err == nil {
		err = d.clear(ctx, k.key)
	}
	if l, _, missing := d.parts(); err == nil && missing == nil {
		err = l.Finish(ctx, k.owner, sessionKind, k.key)
	}
	if err != nil {
		d.host.log.WarnContext(ctx, "a2e: end of the session not stored", "session", k.id, "err", err)
	}
	return err == nil
}

// handOverLocked stops the session here, so that another process continues it, and reports whether it does: calls
// that have not started stay in the inbox. The mutex of the session must be held.
func (k *kept) handOverLocked() bool {
	if k == nil || k.isMoved || k.session.core.State() != session.StateActive {
		return false
	}
	k.isMoved = true
	k.closed()
	return true
}
