// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fivewire/fivewire/store"
)

// given notes a position that the server gave to a call. The position is higher than any that was given before
// the call began: else the server lost the end of its data while the store was open.
func (p *postgres) given(before, position uint64) error {
	if position <= before && !p.opts.AsyncCommit {
		return &store.LossError{Path: p.place(), Have: position - 1, Want: before}
	}
	for {
		old := p.highest.Load()
		if position <= old || p.highest.CompareAndSwap(old, position) {
			return nil
		}
	}
}

// compareMark compares the last position given with the file of the mark, if there is one.
func (p *postgres) compareMark(ctx context.Context) error {
	if p.opts.MarkFile == "" {
		return nil
	}
	f, err := os.OpenFile(p.opts.MarkFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	m := &marker{path: f.Name(), file: f}
	if err := p.compare(ctx, m); err != nil {
		return errors.Join(err, f.Close())
	}
	p.marker = m
	return nil
}

func (p *postgres) compare(ctx context.Context, m *marker) error {
	last, err := m.load()
	if err != nil && !p.opts.AcceptLoss {
		return err
	}
	have, err := p.lastPosition(ctx, p.pool)
	if err != nil {
		return err
	}
	p.highest.Store(have)
	if have >= last.last {
		return nil
	}
	loss := &store.LossError{Path: p.place(), Have: have, Want: last.last}
	if !p.opts.AcceptLoss {
		return loss
	}
	p.opts.Logger.WarnContext(ctx, "sqlstore: loss of data accepted", "err", loss)
	text := `SELECT setval('{s}.positions', greatest($1, (SELECT last_value FROM {s}.positions)))`
	_, err = p.pool.Exec(ctx, strings.ReplaceAll(text, "{s}", p.schema), int64(last.last+lossMargin))
	return err
}

// checkEnd compares the end of the data with the positions that this process was given, on each new connection: a server
// that was restored, or a standby that was promoted, may have lost the end.
func (p *postgres) checkEnd(ctx context.Context, conn *pgx.Conn) error {
	want := p.highest.Load()
	if want == 0 || p.opts.AsyncCommit {
		return nil
	}
	have, err := p.lastPosition(ctx, conn)
	if err == nil && have < want {
		return &store.LossError{Path: p.place(), Have: have, Want: want}
	}
	return err
}

// lastPosition returns the highest position that the server has given.
func (p *postgres) lastPosition(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (last uint64, err error) {
	err = db.QueryRow(ctx, `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM `+p.schema+`.positions`).Scan(&last)
	return last, err
}

// keepMark writes the mark a little later than positions are given, until ctx ends.
func (p *postgres) keepMark(ctx context.Context) {
	if p.marker == nil {
		return
	}
	tick := time.NewTicker(markLag)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.writeMark()
		}
	}
}

func (p *postgres) writeMark() {
	if err := p.marker.advance(p.highest.Load()); err != nil {
		p.opts.Logger.WarnContext(p.ctx, "sqlstore: high-water mark not written", "err", err)
	}
}
