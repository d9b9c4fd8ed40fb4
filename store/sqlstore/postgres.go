// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fivewire/fivewire/store"
)

const (
	postgresVersion = 3 // of the tables
	postgresSums    = 2 // rows of version 1 are getting their checksums

	// Codes of errors of PostgreSQL.
	pgSerialization  = "40001"
	pgDeadlock       = "40P01"
	pgDataCorrupted  = "XX001"
	pgIndexCorrupted = "XX002"

	retries = 10 // of a statement that loses against others
)

// schemaName matches valid names of a schema: the name is part of statements and of texts in
// statements.
var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// postgres is the engine on PostgreSQL. Time is that of the server alone, so
// that the clocks of its clients may differ.
type postgres struct {
	opts    *Options
	ctx     context.Context // of the store
	waits   *waiters
	pool    *pgxpool.Pool
	schema  string // quoted
	channel string // of notifications
	appends *combiner[*pgAppend]
	sql     map[string]string // statements, by name

	marker  *marker       // nil without Options.MarkFile
	highest atomic.Uint64 // position that this process was given
}

// alive is the condition for entries that have not expired. The time is that of the arrival of the
// statement, after it got the locks of earlier ones. A row with a damaged expiry counts as alive.
const alive = `(expires IS NULL OR expires > statement_timestamp() OR life <> {expires})`

// lasting is when what gets the ttl in a parameter expires.
func lasting(parameter string) string {
	return `CASE WHEN ` + parameter + `::bigint = 0 THEN NULL ELSE statement_timestamp() + ` + parameter + `::bigint * interval '1 microsecond' END`
}

func postgresSQL(schema string) map[string]string {
	statements := map[string]string{
		"get": `SELECT content, rev, expires, ` + entryPart + ` FROM {schema}.entries WHERE key = $1 AND ` + alive,

		// An existing key is read first: an insert that finds it would lock it and write to the
		// disk. The insert detects a key created in between.
		"create": `WITH n AS (SELECT nextval('{schema}.positions') AS rev, ` + lasting("$3") + ` AS expires
			WHERE NOT EXISTS (SELECT FROM {schema}.entries WHERE key = $1 AND ` + alive + `)),
		new AS (
			INSERT INTO {schema}.entries AS e (key, rev, expires, life, sum, content)
			SELECT $1, rev, expires, {expires}, $4::bigint # rev # {expires}, $2 FROM n
			ON CONFLICT (key) DO UPDATE SET rev = excluded.rev, expires = excluded.expires, life = excluded.life,
				sum = excluded.sum, content = excluded.content
			WHERE e.expires <= statement_timestamp() AND e.life = ` + microsOf("e.expires") + `
			RETURNING rev)
		SELECT rev FROM new`,

		// The second column of these two is the revision found, if any. If it is the expected one
		// but nothing was changed, another caller was faster.
		"update": `WITH new AS (
			UPDATE {schema}.entries SET rev = n.next, expires = n.until, life = {until}, sum = $5::bigint # n.next # {until}, content = $2
			FROM (SELECT nextval('{schema}.positions') AS next, ` + lasting("$4") + ` AS until) n
			WHERE key = $1 AND rev = $3 AND ` + alive + ` RETURNING rev)
		SELECT coalesce((SELECT rev FROM new), 0), coalesce((SELECT rev FROM {schema}.entries WHERE key = $1 AND ` + alive + `), 0)`,
		"delete": `WITH old AS (DELETE FROM {schema}.entries WHERE key = $1 AND rev = $2 RETURNING rev)
		SELECT coalesce((SELECT rev FROM old), 0), coalesce((SELECT rev FROM {schema}.entries WHERE key = $1 AND ` + alive + `), 0)`,
		"remove": `DELETE FROM {schema}.entries WHERE key = $1`,

		// The length of a long value is known without reading it.
		"page": `SELECT content, rev, expires, key, part FROM (
			SELECT content, rev, expires, key, ` + entryPart + ` AS part,
				sum(octet_length(content)) OVER (ORDER BY key ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS size
			FROM (SELECT * FROM {schema}.entries WHERE key >= $1 AND key < $2 AND ` + alive + ` ORDER BY key LIMIT $3) e) p
		WHERE size IS NULL OR size < $4 ORDER BY key`,

		// The lock makes positions of one stream visible in their order: a transaction takes its
		// position after it got the lock, and keeps the lock until the record is visible. The lock
		// is a separate statement, so that the next one sees everything committed before.
		"lock": `SELECT pg_advisory_xact_lock($1)`,
		"append": `WITH known AS (
			SELECT position, ` + idPart + ` AS part FROM {schema}.ids WHERE stream = $1 AND id = $2 AND $2 <> '' AND ` + alive + `),
		n AS (
			SELECT nextval('{schema}.positions') AS seq, statement_timestamp() AS time, ` + lasting("$4") + ` AS expires
			WHERE NOT EXISTS (SELECT FROM known)),
		new AS (
			INSERT INTO {schema}.records (stream, seq, id, time, expires, life, sum, content)
			SELECT $1, seq, $2, time, expires, {expires}, $5::bigint # seq # {time} # {expires}, $3 FROM n RETURNING seq, expires),
		noted AS (
			INSERT INTO {schema}.ids (stream, id, position, expires, life, sum)
			SELECT $1, $2, seq, expires, {expires}, $6::bigint # seq # {expires} FROM new WHERE $2 <> ''
			ON CONFLICT (stream, id) DO UPDATE SET position = excluded.position, expires = excluded.expires,
				life = excluded.life, sum = excluded.sum)
		SELECT seq, 1, 0::bigint FROM new UNION ALL SELECT position, 0, part FROM known`,

		// To notify takes a lock of the whole database until the end of the
		// transaction; in that of the record, no two could be written to the disk at
		// once.
		"notify": `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)`,

		"read": `SELECT content, seq, id, time, expires, ` + recordPart + ` FROM {schema}.records WHERE stream = $1 AND seq > $2 AND ` + alive + ` ORDER BY seq LIMIT $3`,
		"has":  `SELECT 1 FROM {schema}.records WHERE stream = $1 AND seq > $2 AND ` + alive + ` ORDER BY seq LIMIT 1`,
		"ack": `WITH gone AS (
			DELETE FROM {schema}.records WHERE stream = $1 AND seq = ANY($2) RETURNING seq, id)
		DELETE FROM {schema}.ids i USING gone WHERE i.stream = $1 AND i.id = gone.id AND i.position = gone.seq AND i.expires IS NULL`,

		// Records come first, as in ack, or the two would wait for each other.
		"expire": `WITH n AS (SELECT ` + lasting("$2") + ` AS until),
		r AS (
			UPDATE {schema}.records SET expires = until, life = {until}, sum = sum # {expires} # {until}
			FROM n WHERE stream = $1 AND ` + alive + ` RETURNING seq)
		UPDATE {schema}.ids SET expires = until, life = {until}, sum = sum # {expires} # {until}
		FROM n WHERE (SELECT count(*) FROM r) >= 0 AND stream = $1 AND ` + alive,
		"empty": `WITH r AS (DELETE FROM {schema}.records WHERE stream = $1 RETURNING seq)
		DELETE FROM {schema}.ids WHERE (SELECT count(*) FROM r) >= 0 AND stream = $1`,
	}
	for table, key := range map[string]string{"entries": "key", "records": "stream, seq", "ids": "stream, id"} {
		// Rows locked by another process are skipped.
		statements["sweep "+table] = fmt.Sprintf(`WITH old AS (
			SELECT %[2]s FROM {schema}.%[1]s WHERE expires <= statement_timestamp() AND life = {expires} LIMIT %[3]d FOR UPDATE SKIP LOCKED)
		DELETE FROM {schema}.%[1]s t WHERE (%[2]s) IN (SELECT %[2]s FROM old) AND expires <= statement_timestamp() AND life = {expires}`, table, key, sweepMost)
	}
	for name, text := range statements {
		text = strings.ReplaceAll(text, "{until}", microsOf("until"))
		statements[name] = strings.ReplaceAll(fillTimes(text), "{schema}", schema)
	}
	return statements
}

// hash is a number for a name: for locks and channels, where two names that
// share one do no harm.
func hash(parts ...string) int64 {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write([]byte(part)) // it never fails
		_, _ = h.Write([]byte{0})
	}
	return int64(h.Sum64())
}

func openPostgres(ctx, life context.Context, database string, o *Options, waits *waiters) (engine, error) {
	if !schemaName.MatchString(o.Schema) {
		return nil, fmt.Errorf("%w: schema %.70q", store.ErrInvalid, o.Schema)
	}
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return nil, err // without the password: pgx takes that out
	}
	switch {
	case o.MaxConns > 0:
		config.MaxConns = int32(min(o.MaxConns, 1<<20))
	case !strings.Contains(database, "pool_max_conns"):
		config.MaxConns = defaultConns
	}
	// A silent server would otherwise keep Open, and each place of the pool for two minutes, also after a failover.
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, o.OutageTimeout)
	p := &postgres{
		opts: o, ctx: life, waits: waits, schema: pgx.Identifier{o.Schema}.Sanitize(),
		channel: fmt.Sprintf("fivewire_%016x", uint64(hash("channel", o.Schema))),
	}
	p.sql = postgresSQL(p.schema)
	p.appends = newCombiner(p.appendAll)
	if err := p.migrate(ctx, config.ConnConfig); err != nil {
		return nil, p.damageOf(err)
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := errors.Join(p.setUp(ctx, conn), p.checkEnd(ctx, conn)); err != nil {
			return err
		}
		for _, name := range []string{"lock", "append", "notify"} {
			if _, err := conn.Prepare(ctx, "fivewire_"+name, p.sql[name]); err != nil {
				return err
			}
		}
		return nil
	}
	if p.pool, err = pgxpool.NewWithConfig(life, config); err != nil {
		return nil, err
	}
	if err := errors.Join(p.pool.Ping(ctx), p.compareMark(ctx)); err != nil {
		return nil, errors.Join(p.damageOf(err), p.close())
	}
	return p, nil
}

// setUp makes a session what the statements rely on, whatever is the default of
// the server, the database or the role.
func (p *postgres) setUp(ctx context.Context, conn *pgx.Conn) error {
	durable := `SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`
	if p.opts.AsyncCommit {
		durable = `SELECT set_config('synchronous_commit', 'off', false)`
	}
	// With a snapshot for the whole transaction, what the lock waits for would not be seen. A sequential scan ends
	// without an error at the end of a truncated file; an index names the missing page.
	_, err := conn.Exec(ctx, `SET default_transaction_isolation = 'read committed'; SET bytea_output = 'hex'; SET enable_seqscan = off; `+durable)
	return err
}

// migrate creates or updates the tables.
func (p *postgres) migrate(ctx context.Context, config *pgx.ConnConfig) (err error) {
	conn, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var encoding string
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_encoding')`).Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("the database has the encoding %s, not UTF8", encoding)
	}
	if version, err := p.version(ctx, conn); err != nil || version == postgresVersion {
		return err // without a lock, and without the right to create anything
	}
	if err := p.migrateTo(ctx, conn, config, postgresSums); err != nil {
		return err
	}
	if err := p.addSums(ctx, conn); err != nil {
		return err
	}
	return p.migrateTo(ctx, conn, config, postgresVersion)
}

// migrateTo brings the tables to a version in one transaction, if they are older.
func (p *postgres) migrateTo(ctx context.Context, conn *pgx.Conn, config *pgx.ConnConfig, wanted int) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // nothing after Commit
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, hash("migrate", p.opts.Schema)); err != nil {
		return err
	}
	if wanted == postgresSums {
		if err := p.locks(ctx, config); err != nil {
			return err
		}
	}
	// CREATE SCHEMA IF NOT EXISTS needs the right to create one also if it exists.
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, p.opts.Schema).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS `+p.schema); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+p.schema+`.migrations (version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())`); err != nil {
		return err
	}
	version, err := p.version(ctx, tx)
	if err != nil {
		return err
	}
	for version < wanted {
		version++
		text, err := migration("postgres", version)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, strings.ReplaceAll(text, "{schema}", p.schema)); err != nil {
			return fmt.Errorf("migration %d: %w", version, err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO `+p.schema+`.migrations (version) VALUES ($1)`, version); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

// locks makes sure that a lock that this session holds keeps others out. There
// are databases that speak the protocol and only pretend.
func (p *postgres) locks(ctx context.Context, config *pgx.ConnConfig) error {
	other, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return err
	}
	defer other.Close(context.WithoutCancel(ctx))
	var got bool
	if err := other.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, hash("migrate", p.opts.Schema)).Scan(&got); err != nil {
		return err
	}
	if got {
		return errors.New("the database has no advisory locks, without which records appear out of order")
	}
	return nil
}

// version returns that of the tables, 0 if there are none.
func (p *postgres) version(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (version int, err error) {
	var there bool
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations')`, p.opts.Schema).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	if err := db.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM `+p.schema+`.migrations`).Scan(&version); err != nil {
		return 0, err
	}
	if version > postgresVersion {
		return 0, fmt.Errorf("the tables are of version %d, made by a later version of this package, which knows %d", version, postgresVersion)
	}
	return version, nil
}

func (p *postgres) close() error {
	p.appends.wait()
	p.pool.Close()
	if p.marker == nil {
		return nil
	}
	p.writeMark()
	return p.marker.file.Close()
}

// retry repeats do after errors that prove that it changed nothing: it lost against another
// transaction, or was not sent. A call that only reads is also repeated after a broken connection,
// such as a restart of the server leaves in the pool. An unreachable server is retried for at most
// the OutageTimeout.
func (p *postgres) retry(ctx context.Context, reads bool, do func() error) error {
	start, patience := time.Now(), p.opts.OutageTimeout
	for n := 1; ; n++ {
		err := do()
		if err == nil || ctx.Err() != nil {
			return err
		}
		var answer *pgconn.PgError
		var connecting *pgconn.ConnectError
		repeat := false
		switch refused := errors.As(err, &answer); {
		case errors.As(err, &connecting):
			repeat = (!refused || ending(answer)) && time.Since(start) < patience // else the password is wrong
		case refused && lost(answer):
			repeat = n < retries
		case refused:
			repeat = reads && ending(answer) && time.Since(start) < patience
		case errors.Is(err, store.ErrCorrupt):
		case pgconn.SafeToRetry(err), reads && !noLonger(err) && !errors.Is(err, pgx.ErrNoRows):
			repeat = time.Since(start) < patience
		}
		if !repeat {
			return p.damageOf(err)
		}
		select {
		case <-time.After(time.Duration(min(n, 25)) * (time.Millisecond + rand.N(9*time.Millisecond))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// damageOf converts an error of the server that reports damage: a page whose checksum does not match, or that is absent.
func (p *postgres) damageOf(err error) error {
	var answer *pgconn.PgError
	if errors.As(err, &answer) && (answer.Code == pgDataCorrupted || answer.Code == pgIndexCorrupted) {
		return &store.CorruptError{Path: p.place(), Cause: err}
	}
	return err
}

// lost reports whether a transaction was rolled back in favor of another one.
func lost(err *pgconn.PgError) bool {
	return err.Code == pgSerialization || err.Code == pgDeadlock
}

// ending reports whether the server is starting or shutting down.
func ending(err *pgconn.PgError) bool {
	return strings.HasPrefix(err.Code, "57P0")
}

func (p *postgres) get(ctx context.Context, key string) (store.Entry, error) {
	e := store.Entry{Key: key}
	err := p.retry(ctx, true, func() error {
		var expires *time.Time
		var part int64
		err := p.pool.QueryRow(ctx, p.sql["get"], key).Scan(&e.Value, &e.Revision, &expires, &part)
		if err == nil && part != pgEntrySum(key, e.Value) {
			return p.damaged("", key, uint64(e.Revision))
		}
		e.Expires = timeOf(expires)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Entry{}, err
	}
	return e, nil
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func (p *postgres) create(ctx context.Context, key string, value []byte, ttl int64) (store.Revision, error) {
	var rev uint64
	before := p.highest.Load()
	err := p.retry(ctx, false, func() error {
		return p.pool.QueryRow(ctx, p.sql["create"], key, notNil(value), ttl, pgEntrySum(key, value)).Scan(&rev)
	})
	if err == nil {
		err = p.given(before, rev)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = store.ErrExists
	}
	return store.Revision(rev), err
}

// notNil keeps an empty value from being null.
func notNil(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

func (p *postgres) update(ctx context.Context, key string, value []byte, rev, ttl int64) (store.Revision, error) {
	before := p.highest.Load()
	next, err := p.change(ctx, rev, store.ErrNotFound, p.sql["update"], key, notNil(value), rev, ttl, pgEntrySum(key, value))
	if err == nil {
		err = p.given(before, uint64(next))
	}
	return store.Revision(next), err
}

func (p *postgres) delete(ctx context.Context, key string, rev int64) error {
	if rev == 0 {
		return p.retry(ctx, false, func() error {
			_, err := p.pool.Exec(ctx, p.sql["remove"], key)
			return err
		})
	}
	_, err := p.change(ctx, rev, nil, p.sql["delete"], key, rev)
	return err
}

// change runs a compare-and-set.
func (p *postgres) change(ctx context.Context, rev int64, absent error, text string, args ...any) (int64, error) {
	for {
		var done, seen int64
		err := p.retry(ctx, false, func() error {
			return p.pool.QueryRow(ctx, text, args...).Scan(&done, &seen)
		})
		switch {
		case err != nil:
			return 0, err
		case done != 0:
			return done, nil
		case seen == 0:
			return 0, absent
		case seen != rev:
			return 0, store.ErrConflict
		}
		// The row was changed or removed after the statement began to read. No revision is
		// returned, so the next attempt finds the current one.
	}
}

func (p *postgres) page(ctx context.Context, from, to string, limit int) ([]store.Entry, error) {
	return query(ctx, p, "page", func(rows pgx.CollectableRow) (e store.Entry, err error) {
		var expires *time.Time
		var part int64
		err = rows.Scan(&e.Value, &e.Revision, &expires, &e.Key, &part)
		if err == nil && part != pgEntrySum(e.Key, e.Value) {
			err = p.damaged("", e.Key, uint64(e.Revision))
		}
		e.Expires = timeOf(expires)
		return e, err
	}, from, to, limit, listBytes)
}

// query returns all rows of a statement that only reads.
func query[T any](ctx context.Context, p *postgres, name string, row pgx.RowToFunc[T], args ...any) ([]T, error) {
	var all []T
	err := p.retry(ctx, true, func() error {
		rows, err := p.pool.Query(ctx, p.sql[name], args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, row)
		return err
	})
	return all, err
}

func (p *postgres) read(ctx context.Context, stream string, after int64, limit int) ([]store.Record, error) {
	return query(ctx, p, "read", func(rows pgx.CollectableRow) (r store.Record, err error) {
		var expires *time.Time
		var part int64
		err = rows.Scan(&r.Value, &r.Seq, &r.ID, &r.Time, &expires, &part)
		if err == nil && part != pgRecordSum(stream, r.ID, r.Value) {
			err = p.damaged(stream, "", r.Seq)
		}
		r.Expires = timeOf(expires)
		return r, err
	}, stream, after, limit)
}

func (p *postgres) has(ctx context.Context, stream string, after int64) (bool, error) {
	rows, err := query(ctx, p, "has", pgx.RowTo[int32], stream, after)
	return len(rows) > 0, err
}

func (p *postgres) ack(ctx context.Context, stream string, seqs []int64) error {
	slices.Sort(seqs)
	return p.retry(ctx, false, func() error {
		_, err := p.pool.Exec(ctx, p.sql["ack"], stream, seqs)
		return err
	})
}

// expire takes the lock of the stream, as append does. Without it, a record appended while the
// statement waits for another one would be missed although later records are not, and the old
// record of a reused id would count. Both statements are sent at once, in one transaction, so that a process that is
// stopped or cut off in between does not keep the lock.
func (p *postgres) expire(ctx context.Context, stream string, ttl int64) error {
	text, args := p.sql["expire"], []any{stream, ttl}
	if ttl == 0 {
		text, args = p.sql["empty"], args[:1]
	}
	return p.retry(ctx, false, func() error {
		b := &pgx.Batch{}
		b.Queue(p.sql["lock"], p.lockOf(stream))
		b.Queue(text, args...)
		return p.pool.SendBatch(ctx, b).Close()
	})
}

// lockOf is the number of the lock of a stream.
func (p *postgres) lockOf(stream string) int64 { return hash("stream", p.opts.Schema, stream) }

func (p *postgres) sweep(ctx context.Context) (more bool, err error) {
	for _, table := range []string{"entries", "records", "ids"} {
		tag, err := p.pool.Exec(ctx, p.sql["sweep "+table])
		if err != nil {
			return false, p.damageOf(err)
		}
		more = more || tag.RowsAffected() == sweepMost
	}
	return more, nil
}
