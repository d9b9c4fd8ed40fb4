// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"encoding/base64"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/fivewire/fivewire/store"
)

// A record is a message, and its position is the number of that message. The subjects of a stream:
//
//	r.<stream>.<id>  the record with that id; a record without id has a random one, which begins with noID
//	a.<stream>.<id>  the mark of an acknowledged record with a ttl whose id is still known. The
//	                 steps of Expire apply to it as to the record, so that the order of Ack and
//	                 Expire makes no difference
//	m.<stream>       the steps of Expire, see expiry; they are read before the records, see
//	                 lifetimes
//
// Append with an id requires that no message matches *.<stream>.<id>, so that the record itself
// prevents a second one: record and id are stored together. The mark under a. is written before the
// record is removed, and the servers check against the messages that their leader has stored. A random
// id does the same for the attempts of one Append, which may arrive when the servers have forgotten the
// id of the message. It has no mark.

const (
	idHeader  = "Fivewire-ID"    // base64
	seqHeader = "Fivewire-Seq"   // under a.: the position of the record
	atHeader  = "Fivewire-Until" // under a.: when the id is forgotten, other Expires aside

	noID = "-" // instead of the digest of an id, or in front of a random one

	defaultRead = 100
	batchMost   = 256
	walkMost    = 32 // below that a batch costs more than it saves
	batchBytes  = 8 << 20
	ackAtOnce   = 32
)

// A recordFact is what a record was given when it was appended.
type recordFact struct {
	stream, id string // digests; noID without an id
	own        int64  // expiry without Expire; 0: never
}

func (s *Store) factOf(m *stored) recordFact {
	rest := strings.TrimPrefix(m.subject, s.log.prefix+"r.")
	stream, id, _ := strings.Cut(rest, ".")
	if m.header.Get(idHeader) == "" {
		id = noID
	}
	return recordFact{stream, id, m.expires()}
}

// A mark is the state of an id: its position, and its expiry without Expire.
type mark struct {
	at  uint64 // number of the message
	seq uint64 // position of the record
	own int64
}

func (s *Store) markOf(m *stored) *mark {
	if m == nil {
		return nil
	}
	if strings.HasPrefix(m.subject, s.log.prefix+"r.") {
		return &mark{m.seq, m.seq, m.expires()}
	}
	seq, err := strconv.ParseUint(m.header.Get(seqHeader), 10, 64)
	own, err2 := strconv.ParseInt(m.header.Get(atHeader), 10, 64)
	if err != nil || err2 != nil {
		return &mark{m.seq, m.seq, 1} // a hand has been at it
	}
	return &mark{m.seq, seq, own}
}

// Append implements [store.Log].
func (s *Store) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := store.ValidateID("id", id); err != nil {
		return 0, err
	}
	ctx, end, err := s.enterWrite(ctx, "stream name", stream, value, ttl)
	if err != nil {
		return 0, err
	}
	defer end()
	name, h, token := digest(stream), lifeOf(ttl), noID
	subject := s.log.prefix + "r." + name + "." + noID + nuid.Next()
	c := condition{subject: subject}
	if id != "" {
		token = digest(id)
		h[idHeader] = []string{base64.StdEncoding.EncodeToString([]byte(id))}
		subject = s.log.prefix + "r." + name + "." + token
		c.subject = s.log.prefix + "*." + name + "." + token
	}
	for {
		seq, err := s.publish(ctx, s.log, subject, h, value, c)
		if !errors.Is(err, errConflict) || id == "" {
			if err == nil {
				s.records.put(seq, recordFact{name, token, after(s.clock.now(), ttl)})
			}
			return seq, err
		}
		prev, last, err := s.lookupID(ctx, name, token)
		if err != nil {
			return 0, err
		}
		if prev != 0 {
			return prev, store.ErrDuplicate
		}
		c.seq = last
	}
}

// lookupID returns the position of the record with that id, or zero, and the number of the last
// message about it.
func (s *Store) lookupID(ctx context.Context, stream, id string) (seq, last uint64, err error) {
	lives, err := s.lifetimes(ctx, stream)
	if err != nil {
		return 0, 0, err
	}
	var record, acked *stored
	err = together(
		func() (err error) {
			record, err = s.fetch(ctx, s.log, lastOf(s.log.prefix+"r."+stream+"."+id))
			return err
		},
		func() (err error) {
			acked, err = s.fetch(ctx, s.log, lastOf(s.log.prefix+"a."+stream+"."+id))
			return err
		},
	)
	if err != nil {
		return 0, 0, err
	}
	for _, k := range []*mark{s.markOf(record), s.markOf(acked)} {
		if k == nil {
			continue
		}
		last = max(last, k.at)
		if lives.alive(k.seq, k.own) {
			seq = k.seq
		}
	}
	return seq, last, nil
}

// together runs all of f at once and returns the first error of them.
func together(f ...func() error) error {
	faults := make([]error, len(f))
	var wg sync.WaitGroup
	for i := range f[1:] {
		wg.Go(func() { faults[i+1] = f[i+1]() })
	}
	faults[0] = f[0]()
	wg.Wait()
	for _, err := range faults {
		if err != nil {
			return err
		}
	}
	return nil
}

// Read implements [store.Log].
func (s *Store) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	ctx, end, err := s.enter(ctx, "stream name", stream)
	if err != nil {
		return nil, err
	}
	defer end()
	if limit < 1 {
		limit = defaultRead
	}
	return s.read(ctx, digest(stream), after, limit)
}

func (s *Store) read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	if after == math.MaxUint64 {
		return nil, nil
	}
	filter := s.log.prefix + "r." + stream + ".*"
	var records []store.Record
	for {
		// The steps are read with each page, since an Expire may run concurrently.
		lives, err := s.lifetimes(ctx, stream)
		if err != nil {
			return nil, err
		}
		page, more, err := s.page(ctx, filter, after+1, min(limit-len(records), batchMost))
		if err != nil {
			return nil, err
		}
		for _, m := range page {
			after = m.seq
			fact := s.factOf(m)
			expires := lives.expiry(m.seq, fact.own)
			if !alive(expires, lives.now) {
				continue
			}
			s.records.put(m.seq, fact)
			id, err := base64.StdEncoding.DecodeString(m.header.Get(idHeader))
			if err != nil {
				continue // none of ours
			}
			records = append(records, store.Record{Seq: m.seq, ID: string(id), Value: m.value, Time: moment(m.at), Expires: moment(expires)})
		}
		if !more || len(records) >= limit || after == math.MaxUint64 {
			return records, nil
		}
	}
}

// page returns up to most messages that match filter, from the number seq on,
// and whether there may be more.
func (s *Store) page(ctx context.Context, filter string, seq uint64, limit int) (page []*stored, more bool, err error) {
	err = s.persist(ctx, func(ctx context.Context) (err error) {
		switch {
		case limit == 1:
			var m *stored
			if m, err = s.get(ctx, s.log, query{seq: seq, next: filter}); m != nil {
				page, more = []*stored{m}, true
			}
		case s.log.alone.Load() && limit > walkMost:
			page, more, err = s.batch(ctx, filter, seq, limit)
		default:
			page, more, err = s.walk(ctx, filter, seq, limit)
		}
		return err
	})
	return page, more, err
}

// batch has one server send many messages for one request.
func (s *Store) batch(ctx context.Context, filter string, seq uint64, limit int) (page []*stored, more bool, err error) {
	inbox := s.nc.NewRespInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, false, temporary(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	msg := &nats.Msg{Subject: "$JS.API.DIRECT.GET." + s.log.name, Reply: inbox, Data: query{seq: seq, next: filter}.body(limit)}
	if err := s.nc.PublishMsg(msg); err != nil {
		return nil, false, temporary(err)
	}
	last := uint64(0)
	for {
		res, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, false, temporary(err)
		}
		status := res.Header.Get("Status")
		if status == "404" {
			return nil, false, nil
		}
		// Each message carries the number of its predecessor, so that a missing one is detected.
		if before := res.Header.Get("Nats-Last-Sequence"); before != strconv.FormatUint(last, 10) {
			return nil, false, retry{errors.New("natsstore: a message of a batch is missing")}
		}
		if status == "204" {
			return page, res.Header.Get("Nats-Num-Pending") != "0", nil
		}
		m, err := checked(s.log, res)
		if err != nil || m == nil {
			return nil, false, err
		}
		page, last = append(page, m), m.seq
	}
}

// walk asks the leader for one message after the other. Where the messages of a
// stream follow each other closely, it asks for several numbers at once: the
// answers to "the first from n on" for neighbouring n are together all there is.
func (s *Store) walk(ctx context.Context, filter string, seq uint64, limit int) (page []*stored, more bool, err error) {
	for width := 2; len(page) < limit; {
		width = min(width, limit-len(page), 32)
		if uint64(width) > math.MaxUint64-seq {
			width = 1
		}
		found := make([]*stored, width)
		ask := make([]func() error, width)
		for i := range ask {
			ask[i] = func() (err error) {
				found[i], err = s.get(ctx, s.log, query{seq: seq + uint64(i), next: filter})
				return err
			}
		}
		if err := together(ask...); err != nil {
			return nil, false, err
		}
		// The responses are of different moments: each is used only for its query, the first
		// message after the previous one. All messages below a response existed before it, so none
		// is missed.
		fresh, from := 0, seq
		for seq-from < uint64(width) {
			m := found[seq-from]
			if m == nil {
				return page, false, nil
			}
			page, seq = append(page, m), m.seq+1
			fresh++
			if seq == 0 {
				return page, false, nil
			}
		}
		if fresh*2 >= width {
			width *= 2
		} else {
			width = max(1, width/2)
		}
	}
	return page, true, nil
}

// Ack implements [store.Log].
func (s *Store) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	ctx, end, err := s.enter(ctx, "stream name", stream)
	if err != nil {
		return err
	}
	defer end()
	name := digest(stream)
	for len(seqs) > 0 {
		n := min(len(seqs), ackAtOnce)
		acks := make([]func() error, n)
		for i, seq := range seqs[:n] {
			acks[i] = func() error { return s.ack(ctx, name, seq) }
		}
		if err := together(acks...); err != nil {
			return err
		}
		seqs = seqs[n:]
	}
	return nil
}

func (s *Store) ack(ctx context.Context, stream string, seq uint64) error {
	if seq == 0 {
		return nil
	}
	fact, ok := s.records.get(seq)
	if !ok {
		m, err := s.fetch(ctx, s.log, query{seq: seq})
		if m == nil || err != nil || !strings.HasPrefix(m.subject, s.log.prefix+"r.") {
			return err
		}
		fact = s.factOf(m)
		s.records.put(seq, fact)
	}
	if fact.stream != stream {
		return nil
	}
	if fact.id != noID {
		if err := s.keepID(ctx, fact, seq); err != nil {
			return err
		}
	}
	return s.remove(ctx, s.log, seq)
}

// keepID lets the id of a record outlive it, if it has a ttl.
func (s *Store) keepID(ctx context.Context, fact recordFact, seq uint64) error {
	l, err := s.lifetimes(ctx, fact.stream)
	if err != nil {
		return err
	}
	m, err := s.fetch(ctx, s.log, query{seq: seq})
	if err != nil || m == nil {
		return err
	}
	until := l.expiry(seq, m.expires())
	if until == 0 || !alive(until, l.now) {
		return nil
	}
	h := nats.Header{seqHeader: {strconv.FormatUint(seq, 10)}, atHeader: {strconv.FormatInt(until, 10)}}
	subject := fact.stream + "." + fact.id
	// The condition is that the record is the last message of the id: a late Ack must not mark a
	// record that others have acknowledged, when the id may be in use again.
	_, err = s.publish(ctx, s.log, s.log.prefix+"a."+subject, h, nil, condition{s.log.prefix + "*." + subject, seq})
	if errors.Is(err, errConflict) {
		return nil
	}
	return err
}
