// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fivewire/fivewire/store"
)

// The checksum of a row of PostgreSQL is the CRC32C of the client's part (names and value), in
// the upper bits, XOR the position and the times, which the server chooses. So one statement stores
// a row, and Expire changes the checksums of a stream without reading its values. A statement that
// reads takes the server's part away again and returns the client's.
//
// Each row has its expiry twice, in the columns expires and life. A row where they differ counts as
// alive, so that a damaged expiry hides nothing and no sweep removes the row.

// microsOf is a time in microseconds since 1970, or -1 for none.
func microsOf(column string) string {
	return `coalesce((extract(epoch FROM ` + column + `) * 1000000)::bigint, -1)`
}

const (
	entryPart  = `sum # rev # {expires}`
	recordPart = `sum # seq # {time} # {expires}`
	idPart     = `sum # position # {expires}`
)

func inUpper(s summer) int64 { return int64(s) << 31 }

func pgEntrySum(key string, value []byte) int64 {
	return inUpper(sumOf(sumEntry).text(key).bytes(value))
}

func pgRecordSum(stream, id string, value []byte) int64 {
	return inUpper(sumOf(sumRecord).text(stream).text(id).bytes(value))
}

func pgIDSum(stream, id string) int64 { return inUpper(sumOf(sumID).text(stream).text(id)) }

// damaged is the error of a row whose checksum does not match.
func (p *postgres) damaged(stream, key string, position uint64) error {
	return &store.CorruptError{Path: p.place(), Stream: stream, Key: key, Position: position}
}

// place names the tables in errors and reports.
func (p *postgres) place() string { return "PostgreSQL schema " + p.opts.Schema }

// A pgTable is how the rows of a table get and prove their checksums.
type pgTable struct {
	name    string
	columns string // the key columns, then the value if there is one
	key     string // the condition for one row, from the parameter $2 on
	part    string
}

var pgTables = [...]pgTable{
	{"entries", "key, content", "key = $2", entryPart},
	{"records", "stream, id, content, seq", "stream = $2 AND seq = $3", recordPart},
	{"ids", "stream, id", "stream = $2 AND id = $3", idPart},
}

// A pgRow is a row of any table.
type pgRow struct {
	stream, key, id string
	position        uint64
	sum             int64 // the client's part
	args            []any // of the condition for the row
}

// scan reads the key columns of a table, and further ones.
func (t *pgTable) scan(scan func(...any) error, more ...any) (r pgRow, err error) {
	var value []byte
	switch t.name {
	case "entries":
		err = scan(append([]any{&r.key, &value}, more...)...)
		r.sum, r.args = pgEntrySum(r.key, value), []any{r.key}
	case "records":
		err = scan(append([]any{&r.stream, &r.id, &value, &r.position}, more...)...)
		r.sum, r.args = pgRecordSum(r.stream, r.id, value), []any{r.stream, int64(r.position)}
	default:
		err = scan(append([]any{&r.stream, &r.id}, more...)...)
		r.sum, r.args = pgIDSum(r.stream, r.id), []any{r.stream, r.id}
	}
	return r, err
}

// addSums gives rows of version 1 their checksums in batches, one transaction each. If it is
// interrupted, the next Open continues.
func (p *postgres) addSums(ctx context.Context, conn *pgx.Conn) error {
	for i := range pgTables {
		for more := true; more; {
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
				more, err = p.addBatch(ctx, tx, &pgTables[i])
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *postgres) addBatch(ctx context.Context, tx pgx.Tx, t *pgTable) (more bool, err error) {
	const limit = 100 // values may be long
	rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT %s FROM %s.%s WHERE sum IS NULL LIMIT %d FOR UPDATE`, t.columns, p.schema, t.name, limit))
	if err != nil {
		return false, err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (pgRow, error) { return t.scan(row.Scan) })
	if err != nil {
		return false, err
	}
	// With a sum of zero, the part of the client is that of the server.
	server := strings.TrimPrefix(fillTimes(t.part), "sum # ")
	update := fmt.Sprintf(`UPDATE %s.%s SET life = %s, sum = $1::bigint # %s WHERE %s`, p.schema, t.name, microsOf("expires"), server, t.key)
	batch := &pgx.Batch{}
	for _, r := range found {
		batch.Queue(update, append([]any{r.sum}, r.args...)...)
	}
	return len(found) == limit, tx.SendBatch(ctx, batch).Close()
}

func fillTimes(text string) string {
	return strings.NewReplacer("{expires}", microsOf("expires"), "{time}", microsOf("time")).Replace(text)
}

// verify reads all rows in one snapshot.
func (p *postgres) verify(ctx context.Context, r *Report) error {
	r.Path = p.place()
	return p.damageOf(pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = on`); err != nil { // tables without their indexes
			return err
		}
		for i := range pgTables {
			if err := p.verifyTable(ctx, tx, &pgTables[i], r); err != nil {
				return err
			}
		}
		if err := p.verifyIDs(ctx, tx, r); err != nil {
			return err
		}
		// The sequence is not part of the snapshot, and only rises.
		r.Mark = p.highest.Load()
		last, err := p.lastPosition(ctx, tx)
		if err != nil {
			return err
		}
		r.Last = last
		var highest uint64
		text := `SELECT greatest((SELECT coalesce(max(rev), 0) FROM {s}.entries), (SELECT coalesce(max(seq), 0) FROM {s}.records))`
		if err := tx.QueryRow(ctx, strings.ReplaceAll(text, "{s}", p.schema)).Scan(&highest); err != nil {
			return err
		}
		if highest = max(highest, r.Mark); highest > last {
			loss := store.LossError{Path: p.place(), Have: last, Want: highest}
			r.add(Damage{Table: "positions", Problem: loss.Error()})
		}
		return nil
	}))
}

func (p *postgres) verifyTable(ctx context.Context, tx pgx.Tx, t *pgTable, r *Report) error {
	rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT %s, %s, coalesce(expires <= statement_timestamp(), false), life = %s FROM %s.%s`,
		t.columns, fillTimes(t.part), microsOf("expires"), p.schema, t.name))
	if err != nil {
		return err
	}
	defer rows.Close()
	count := map[string]*int{"entries": &r.Entries, "records": &r.Records, "ids": &r.IDs}[t.name]
	for rows.Next() {
		var part int64
		var expired, isLife bool
		row, err := t.scan(rows.Scan, &part, &expired, &isLife)
		if err != nil {
			return err
		}
		*count++
		if expired {
			r.Expired++
		}
		if part != row.sum || !isLife {
			r.add(Damage{Table: t.name, Stream: row.stream, Key: row.key, ID: row.id, Position: row.position, Problem: "checksum does not match"})
		}
	}
	return rows.Err()
}

// verifyIDs compares ids with records, as far as they have not expired.
func (p *postgres) verifyIDs(ctx context.Context, tx pgx.Tx, r *Report) error {
	for _, text := range []string{
		`SELECT stream, id, seq, 'id is not known' FROM {s}.records r WHERE id <> '' AND (expires IS NULL OR expires > statement_timestamp())
			AND NOT EXISTS (SELECT FROM {s}.ids i WHERE i.stream = r.stream AND i.id = r.id AND i.position = r.seq)`,
		`SELECT stream, id, position, 'record is missing' FROM {s}.ids i WHERE expires IS NULL
			AND NOT EXISTS (SELECT FROM {s}.records r WHERE r.stream = i.stream AND r.seq = i.position)`,
	} {
		rows, err := tx.Query(ctx, strings.ReplaceAll(text, "{s}", p.schema))
		if err != nil {
			return err
		}
		orphans, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Damage, err error) {
			d.Table = "ids"
			err = row.Scan(&d.Stream, &d.ID, &d.Position, &d.Problem)
			return d, err
		})
		if err != nil {
			return err
		}
		for _, d := range orphans {
			r.add(d)
		}
	}
	return nil
}

func (p *postgres) backup(context.Context, string) error {
	return fmt.Errorf("%w on PostgreSQL: use pg_dump", errors.ErrUnsupported)
}
