// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/store"
)

// A pgAppend is one Append and its answer.
type pgAppend struct {
	id    string
	value []byte
	ttl   int64

	seq   uint64
	added bool  // else the id was known
	part  int64 // of the checksum of a known id
}

func (p *postgres) append(ctx context.Context, stream, id string, value []byte, ttl int64) (uint64, error) {
	a := &pgAppend{id: id, value: bytes.Clone(notNil(value)), ttl: ttl}
	before := p.highest.Load()
	a, err := p.appends.do(ctx, p.ctx, stream, len(value), a)
	switch {
	case err != nil:
		return 0, err
	case !a.added && a.part != pgIDSum(stream, id):
		return 0, p.damaged(stream, "", a.seq)
	case !a.added:
		return a.seq, store.ErrDuplicate
	}
	return a.seq, p.given(before, a.seq)
}

// appendAll adds to one stream in one transaction. The stream is locked until the end of the
// transaction, so concurrent callers would otherwise wait for the disk one by one.
func (p *postgres) appendAll(ctx context.Context, stream string, tasks []*task[*pgAppend]) {
	fail := func(tasks []*task[*pgAppend], err error) {
		for _, t := range tasks {
			t.err = err
		}
	}
	err := p.retry(ctx, false, func() error { return p.pipeline(ctx, stream, tasks) })
	var answer *pgconn.PgError
	isRejected := errors.As(err, &answer) && !ending(answer) || errors.Is(err, store.ErrCorrupt)
	if err == nil || len(tasks) == 1 || !isRejected {
		fail(tasks, err)
		return
	}
	// The server rejected one of them and rolled all back. The others are repeated one by one.
	for i := range tasks {
		one := tasks[i : i+1]
		fail(one, p.retry(ctx, false, func() error { return p.pipeline(ctx, stream, one) }))
	}
}

// pipeline sends everything at once: the transaction, and a second one that
// tells those who wait. So the server has both even if this process ends before
// it has the answer.
func (p *postgres) pipeline(ctx context.Context, stream string, tasks []*task[*pgAppend]) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	pipe := conn.Conn().PgConn().StartPipeline(ctx)
	const text, binary = 0, 1
	number := func(n int64) []byte { return strconv.AppendInt(nil, n, 10) }
	pipe.SendQueryPrepared("fivewire_lock", [][]byte{number(p.lockOf(stream))}, nil, nil)
	for _, t := range tasks {
		pipe.SendQueryPrepared("fivewire_append", [][]byte{[]byte(stream), []byte(t.of.id), t.of.value, number(t.of.ttl),
			number(pgRecordSum(stream, t.of.id, t.of.value)), number(pgIDSum(stream, t.of.id))}, []int16{text, text, binary, text, text, text}, nil)
	}
	pipe.SendPipelineSync()
	pipe.SendQueryPrepared("fivewire_notify", [][]byte{[]byte(p.channel), []byte(stream)}, nil, nil)
	pipe.SendPipelineSync()
	err = pipe.Flush()
	if err == nil {
		err = answers(pipe, tasks)
	}
	if closing := pipe.Close(); err == nil && closing != nil {
		// The records are stored. Waiters read again within their poll interval.
		p.opts.Logger.WarnContext(ctx, "sqlstore: notification failed", "err", closing)
	}
	return err
}

// answers reads the response for the first of the two transactions. It reports success only after
// it has read that this transaction was committed.
func answers(pipe *pgconn.Pipeline, tasks []*task[*pgAppend]) error {
	for i := -1; ; {
		results, err := pipe.GetResults()
		if err != nil {
			return err
		}
		switch r := results.(type) {
		case *pgconn.PipelineSync:
			if i != len(tasks) {
				return fmt.Errorf("%d answers to %d appends", i, len(tasks))
			}
			return nil
		case *pgconn.ResultReader:
			for r.NextRow() {
				if values := r.Values(); i >= 0 && i < len(tasks) && len(values) == 3 {
					a := tasks[i].of
					if a.seq, err = strconv.ParseUint(string(values[0]), 10, 64); err != nil {
						return err
					}
					a.added = string(values[1]) == "1"
					if a.part, err = strconv.ParseInt(string(values[2]), 10, 64); err != nil {
						return err
					}
				}
			}
			if _, err := r.Close(); err != nil {
				return err
			}
			i++
		default:
			return fmt.Errorf("unexpected %T in the pipeline", results)
		}
	}
}

const (
	listenIdle  = 15 * time.Second // until a silent connection is tried
	listenPing  = 5 * time.Second  // until it counts as broken
	listenAgain = time.Second      // until the next attempt to connect, at most
)

// watch listens for appended records. A new connection may have missed notifications, so all
// waiters then read.
func (p *postgres) watch(ctx context.Context) {
	every := max(option.Or(p.opts.PollInterval, 5*time.Second, 5*time.Second), minPoll)
	polling, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { p.keepMark(polling) })
	work.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				p.waits.wakeAll()
			case <-polling.Done():
				return
			}
		}
	})
	defer func() {
		stop()
		work.Wait()
	}()
	const shortest = 10 * time.Millisecond
	pause := shortest
	for ctx.Err() == nil {
		listened, err := p.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		p.opts.Logger.WarnContext(ctx, "sqlstore: listener fails and will try again", "err", err)
		if listened {
			pause = shortest
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, listenAgain)
	}
}

// listen returns when its connection breaks or ctx ends, and whether it had one.
func (p *postgres) listen(ctx context.Context) (listened bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, p.pool.Config().ConnConfig.Copy())
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, `LISTEN `+p.channel); err != nil {
		return false, err
	}
	p.waits.wakeAll()
	for {
		idle, cancel := context.WithTimeout(ctx, listenIdle)
		n, err := conn.WaitForNotification(idle)
		cancel()
		switch {
		case err == nil:
			p.waits.notify(n.Payload)
		case pgconn.Timeout(err) && ctx.Err() == nil && !conn.IsClosed():
			alive, cancel := context.WithTimeout(ctx, listenPing)
			err := conn.Ping(alive)
			cancel()
			if err != nil {
				return true, err
			}
		default:
			return true, err
		}
	}
}
