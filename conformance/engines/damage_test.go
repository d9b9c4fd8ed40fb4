// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
	"github.com/fivewire/fivewire/store/sqlstore"
)

// An engineFiles is an engine whose files a test can damage.
type engineFiles struct {
	name   string
	create func(t *testing.T) (dir string)
	open   func(dir string) (store.Store, error)
	main   func(t *testing.T) string // pattern of the file with the records
	wal    string                    // pattern of the file to which a write appends
	data   string                    // all that an older copy replaces

	// server starts, stops or kills the server that has the files open. Nil means that there is none after Close.
	server func(action string) error
}

func fixed(pattern string) func(*testing.T) string {
	return func(*testing.T) string { return pattern }
}

const natsBlocks = "jetstream/*/streams/fivewire_log/msgs/*.blk"

var engineFileSets = []func(t *testing.T) engineFiles{
	func(*testing.T) engineFiles {
		return engineFiles{name: "SQLite", create: (*testing.T).TempDir, open: func(dir string) (store.Store, error) {
			return sqlstore.Open(context.Background(), filepath.Join(dir, "state.db"), nil)
		}, main: fixed("state.db"), wal: "state.db-wal", data: "state.db"}
	},
	func(*testing.T) engineFiles {
		return engineFiles{name: embeddedEngine, create: (*testing.T).TempDir, open: func(dir string) (store.Store, error) {
			return embedded.Open(context.Background(), dir, nil)
		}, main: fixed(natsBlocks), wal: natsBlocks, data: "jetstream"}
	},
	postgresFiles,
}

// postgresFiles is a server for one test, with a schema and a mark for each round.
func postgresFiles(t *testing.T) engineFiles {
	p := postgresServer(t)
	var schema string
	return engineFiles{name: "PostgreSQL", create: func(*testing.T) string {
		schema = fmt.Sprintf("test_%016x", rand.Uint64())
		return p.dir
	}, open: func(string) (store.Store, error) {
		return sqlstore.Open(context.Background(), p.url, &sqlstore.Options{Schema: schema, MarkFile: filepath.Join(p.dir, schema+"-mark")})
	}, main: func(t *testing.T) (path string) {
		conn, err := pgx.Connect(t.Context(), p.url)
		require.NoError(t, err)
		defer conn.Close(t.Context())
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT pg_relation_filepath($1::regclass)`, schema+".records").Scan(&path))
		return filepath.Join("data", path)
	}, data: "data", server: p.run}
}

// A postgresProcess is a server of PostgreSQL for one test.
type postgresProcess struct {
	url, dir string
	env      []string // of the server
}

func postgresServer(t *testing.T, env ...string) *postgresProcess {
	t.Helper()
	if os.Getenv(postgresEnv) == "" {
		t.Skipf("needs PostgreSQL: %s is not set", postgresEnv)
	}
	const script = "../../.ci/postgres"
	out, err := exec.Command(script, "start").Output()
	require.NoError(t, err)
	p := &postgresProcess{env: append(os.Environ(), env...)}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		value = strings.Trim(value, "'\n")
		switch name {
		case postgresEnv:
			p.url = value
		case "FIVEWIRE_POSTGRES_DIR":
			p.dir = value
		}
	}
	t.Cleanup(func() { require.NoError(t, exec.Command(script, "stop", p.dir).Run()) })
	return p
}

func (p *postgresProcess) run(action string) error {
	cmd := exec.Command(filepath.Join(p.dir, "ctl"), action)
	cmd.Env = p.env
	return cmd.Run()
}

// offline runs f while the server does not.
func (e *engineFiles) offline(t *testing.T, action string, f func()) {
	t.Helper()
	if e.server == nil {
		f()
		return
	}
	require.NoError(t, e.server(action))
	f()
	require.NoError(t, e.server("start"))
}

// copyTree copies a file or a folder. A server needs its owners and modes.
func (e *engineFiles) copyTree(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	switch {
	case e.server != nil:
		out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
		require.NoError(t, err, "%s", out)
	case err == nil && info.IsDir():
		require.NoError(t, os.CopyFS(to, os.DirFS(from)))
	default:
		data, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, data, 0o600))
	}
}

// change changes the file that matches a pattern.
func change(t *testing.T, dir, pattern string, do func(data []byte) []byte) {
	t.Helper()
	path := theFile(t, dir, pattern)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, do(data), 0o600))
}

func theFile(t *testing.T, dir, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	require.Len(t, paths, 1)
	return paths[0]
}

func writeRecords(t *testing.T, s store.Store, writer string, n int) (ids []string) {
	t.Helper()
	for i := range n {
		id := fmt.Sprint(writer, " ", i)
		_, err := s.Append(t.Context(), "s", id, []byte("value of "+id), 0)
		require.NoError(t, err)
		ids = append(ids, id)
	}
	return ids
}

func closeStore(t *testing.T, s store.Store) {
	t.Helper()
	require.NoError(t, s.(io.Closer).Close())
}

// damageRound fills a store, damages its files, and classifies the records that a second Open serves.
func (c *resultCell) damageRound(t *testing.T, e engineFiles, fault string, round int) {
	const n = 90 // no multiple of the records between two checkpoints of SQLite
	dir, older := e.create(t), filepath.Join(t.TempDir(), "older")
	s, err := e.open(dir)
	require.NoError(t, err)
	acknowledged := map[string][]string{"a": writeRecords(t, s, "a", n)}
	rng := rand.New(rand.NewPCG(uint64(round), 1))
	damage := func(do func(data []byte) []byte) {
		main := e.main(t)
		closeStore(t, s)
		e.offline(t, "stop", func() { change(t, dir, main, do) })
	}
	switch fault {
	case "bit flip":
		damage(func(data []byte) []byte {
			bit := rng.IntN(8 * len(data))
			data[bit/8] ^= 1 << (bit % 8)
			return data
		})
	case "truncation":
		damage(func(data []byte) []byte { return data[:rng.IntN(len(data))] })
	case "power loss":
		if e.server != nil {
			acknowledged["b"] = e.loseServerPower(t, s, dir, older)
			break
		}
		e.losePower(t, s, dir, older)
		dir = older
	case "lost WAL":
		time.Sleep(300 * time.Millisecond) // longer than the mark lags
		e.copyTree(t, dir, older)
		closeStore(t, s)
		dir = older
		require.NoError(t, os.Remove(filepath.Join(dir, e.wal)))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "state.db-shm")))
	case "old copy":
		closeStore(t, s)
		e.offline(t, "stop", func() { e.copyTree(t, filepath.Join(dir, e.data), older) })
		s, err = e.open(dir)
		require.NoError(t, err)
		acknowledged["b"] = writeRecords(t, s, "b", n)
		closeStore(t, s)
		e.offline(t, "stop", func() { e.replace(t, dir, older) })
	}
	c.reopen(t, e, dir, acknowledged)
}

// replace puts an older copy in place of the data.
func (e *engineFiles) replace(t *testing.T, dir, older string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(dir, e.data)))
	e.copyTree(t, older, filepath.Join(dir, e.data))
}

// losePower copies the files to a folder as they are on the disk, with a part of the bytes that a later write appends.
func (e *engineFiles) losePower(t *testing.T, s store.Store, dir, older string) {
	t.Helper()
	e.copyTree(t, dir, older)
	writeRecords(t, s, "b", 20)
	data, err := os.ReadFile(theFile(t, dir, e.wal))
	require.NoError(t, err)
	change(t, older, e.wal, func(log []byte) []byte {
		rest := bytes.Repeat([]byte{0xff}, 10_000)
		if bytes.HasPrefix(data, log) && len(data) > len(log) { // else the log began again
			rest = data[len(log):]
		}
		return append(log, rest[:rand.IntN(len(rest))]...)
	})
	require.NoError(t, os.RemoveAll(filepath.Join(older, "state.db-shm")))
	closeStore(t, s)
}

// loseServerPower leaves the log of a server and its control file, which it syncs, and of all other files an older
// version. It returns the acknowledged records of a writer since.
func (e *engineFiles) loseServerPower(t *testing.T, s store.Store, dir, older string) (acknowledged []string) {
	t.Helper()
	closeStore(t, s)
	e.offline(t, "stop", func() { e.copyTree(t, filepath.Join(dir, e.data), older) })
	s, err := e.open(dir)
	require.NoError(t, err)
	acknowledged = writeRecords(t, s, "b", 90)
	closeStore(t, s)
	e.offline(t, "kill", func() {
		for _, path := range []string{"pg_wal", "global/pg_control"} {
			require.NoError(t, os.RemoveAll(filepath.Join(older, path)))
			e.copyTree(t, filepath.Join(dir, e.data, path), filepath.Join(older, path))
		}
		e.replace(t, dir, older)
	})
	return acknowledged
}

// reopen opens a store again and classifies the records that it serves.
func (c *resultCell) reopen(t *testing.T, e engineFiles, dir string, acknowledged map[string][]string) {
	t.Helper()
	c.Rounds++
	s, err := e.open(dir)
	if err == nil {
		err = errors.Join(c.classify(acknowledged, s), s.(io.Closer).Close())
	}
	if err != nil {
		require.ErrorIs(t, err, store.ErrCorrupt)
		c.Refused++
	}
}

// diskRound fills a store on a small disk, which then is full or read-only, and opens it again there.
func (c *resultCell) diskRound(t *testing.T, e engineFiles, fault string) {
	dir := smallDisk(t)
	s, err := e.open(dir)
	require.NoError(t, err)
	acknowledged := map[string][]string{"a": writeRecords(t, s, "a", 90)}
	if fault == "full disk" {
		require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 16<<20), 0o600), syscall.ENOSPC)
		for i := 0; ; i++ {
			require.Less(t, i, 100_000, "appends on a full disk")
			id := fmt.Sprint("b ", i)
			if _, err := s.Append(t.Context(), "s", id, []byte("value of "+id), 0); err != nil {
				break
			}
			acknowledged["b"] = append(acknowledged["b"], id)
		}
	}
	closeStore(t, s)
	if fault == "read-only disk" {
		require.NoError(t, exec.Command("mount", "-o", "remount,ro", dir).Run())
	}
	c.reopen(t, e, dir, acknowledged)
}

// smallDisk returns a folder on a new file system. Only root can mount it.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("needs to mount a small disk, which is for root on Linux: %v: %s", err, out)
	}
	t.Cleanup(func() { require.NoError(t, exec.Command("umount", dir).Run()) })
	return dir
}

// clockJumps is a server of PostgreSQL whose clock jumps an hour forward and back.
func clockJumps(t *testing.T) (*place, func() error) {
	libraries, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	require.NoError(t, err)
	if len(libraries) == 0 {
		t.Skip("needs libfaketime")
	}
	clock := filepath.Join(t.TempDir(), "clock")
	p := postgresServer(t, "LD_PRELOAD="+libraries[0], "FAKETIME_TIMESTAMP_FILE="+clock, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
	set := func(offset int) { require.NoError(t, os.WriteFile(clock, fmt.Appendf(nil, "%+d\n", offset), 0o644)) }
	set(0)
	for dir := filepath.Dir(clock); dir != os.TempDir(); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755)) // the server is another user
	}
	require.NoError(t, errors.Join(p.run("stop"), p.run("start")))
	n := 0
	return &place{name: "postgres clock " + p.url}, func() error {
		n++
		offset := 3600 * []int{0, 1, 0, -1}[n%4]
		set(offset)
		conn, err := pgx.Connect(t.Context(), p.url)
		if err != nil {
			return err
		}
		defer conn.Close(t.Context())
		var now time.Time
		if err := conn.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		if ahead := time.Until(now); (ahead - time.Duration(offset)*time.Second).Abs() > time.Minute {
			return fmt.Errorf("the clock of the server is %v ahead", ahead)
		}
		return nil
	}
}
