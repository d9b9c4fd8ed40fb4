// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
	"github.com/fivewire/fivewire/store/sqlstore"
)

// A resultCell is what one engine does under one fault, over all rounds, or a service in several processes on it.
type resultCell struct {
	Service      string `json:"service,omitempty"`
	Processes    int    `json:"processes,omitempty"` // of the service
	Fault        string `json:"fault"`
	Engine       string `json:"engine"`
	Version      string `json:"version"`
	Date         string `json:"date"`
	Rounds       int    `json:"rounds"`
	Refused      int    `json:"refused"` // rounds in which Open or a read reported damage or loss
	Acknowledged int    `json:"acknowledged"`
	Lost         int    `json:"lost"` // without an error; as the next three
	Doubled      int    `json:"doubled"`
	Reordered    int    `json:"reordered"`
	Invented     int    `json:"invented"`

	Silence time.Duration `json:"silence,omitempty"` // the longest time without an acknowledgement
}

// classify compares the acknowledged records of each writer with the stored ones.
func (c *resultCell) classify(acknowledged map[string][]string, s store.Store) error {
	records, err := s.Read(context.Background(), "s", 0, 1_000_000)
	if err != nil {
		return err
	}
	seen := make(map[string]int)
	last := make(map[string]int)
	for _, r := range records {
		writer, number, _ := strings.Cut(r.ID, " ")
		var n int
		if _, err := fmt.Sscan(number, &n); err != nil || string(r.Value) != "value of "+r.ID {
			c.Invented++
			continue
		}
		if seen[r.ID]++; seen[r.ID] > 1 {
			c.Doubled++
		}
		if previous, ok := last[writer]; ok && n < previous {
			c.Reordered++
		}
		last[writer] = n
	}
	for _, ids := range acknowledged {
		c.Acknowledged += len(ids)
		for _, id := range ids {
			if seen[id] == 0 {
				c.Lost++
			}
		}
	}
	return nil
}

// An engineFiles is an engine whose files a test can damage.
type engineFiles struct {
	name string
	open func(dir string) (store.Store, error)
	main string // pattern of the files with the data
	wal  string // pattern of the log
	data string // pattern of all that an older copy replaces
}

var engineFileSets = []engineFiles{
	{"SQLite", func(dir string) (store.Store, error) {
		return sqlstore.Open(context.Background(), filepath.Join(dir, "state.db"), nil)
	}, "state.db", "state.db-wal", "state.db"},
	{"NATS embedded", func(dir string) (store.Store, error) {
		return embedded.Open(context.Background(), dir, nil)
	}, "jetstream/*/streams/fivewire_log/msgs/*.blk", "", "jetstream"},
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

// damageRound fills a store, damages its files, and classifies the records that a second Open serves.
func (c *resultCell) damageRound(t *testing.T, e engineFiles, fault string, round int) {
	const n = 90 // no multiple of the records between two checkpoints of SQLite
	dir, older := t.TempDir(), t.TempDir()
	s, err := e.open(dir)
	require.NoError(t, err)
	acknowledged := map[string][]string{"a": writeRecords(t, s, "a", n)}
	if fault == "old copy" {
		require.NoError(t, s.(io.Closer).Close())
		require.NoError(t, os.CopyFS(older, os.DirFS(dir)))
		s, err = e.open(dir)
		require.NoError(t, err)
		acknowledged["b"] = writeRecords(t, s, "b", n)
	}
	if fault == "power loss" { // what follows is not on the disk
		require.NoError(t, os.CopyFS(older, os.DirFS(dir)))
		writeRecords(t, s, "b", 20)
		data, err := os.ReadFile(filepath.Join(dir, e.wal))
		require.NoError(t, err)
		log, err := os.ReadFile(filepath.Join(older, e.wal))
		require.NoError(t, err)
		rest := bytes.Repeat([]byte{0xff}, 10_000)
		if bytes.HasPrefix(data, log) && len(data) > len(log) { // else the log began again
			rest = data[len(log):]
		}
		require.NoError(t, os.WriteFile(filepath.Join(older, e.wal), append(log, rest[:rand.IntN(len(rest))]...), 0o600))
		require.NoError(t, os.RemoveAll(filepath.Join(older, "state.db-shm")))
	}
	if fault == "lost WAL" {
		time.Sleep(300 * time.Millisecond) // longer than the mark lags
		require.NoError(t, os.CopyFS(older, os.DirFS(dir)))
	}
	require.NoError(t, s.(io.Closer).Close())
	rng := rand.New(rand.NewPCG(uint64(round), 1))
	damage := func(pattern string, change func(data []byte) []byte) {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		require.Len(t, paths, 1)
		data, err := os.ReadFile(paths[0])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(paths[0], change(data), 0o600))
	}
	switch fault {
	case "bit flip":
		damage(e.main, func(data []byte) []byte {
			bit := rng.IntN(8 * len(data))
			data[bit/8] ^= 1 << (bit % 8)
			return data
		})
	case "truncation":
		damage(e.main, func(data []byte) []byte { return data[:rng.IntN(len(data))] })
	case "power loss":
		dir = older
	case "lost WAL":
		dir = older
		require.NoError(t, os.Remove(filepath.Join(dir, e.wal)))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "state.db-shm")))
	case "old copy":
		require.NoError(t, os.RemoveAll(filepath.Join(dir, e.data)))
		if info, err := os.Stat(filepath.Join(older, e.data)); err == nil && info.IsDir() {
			require.NoError(t, os.CopyFS(filepath.Join(dir, e.data), os.DirFS(filepath.Join(older, e.data))))
		} else {
			require.NoError(t, os.Rename(filepath.Join(older, e.data), filepath.Join(dir, e.data)))
		}
	}
	c.reopen(t, e, dir, acknowledged)
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
	require.NoError(t, s.(io.Closer).Close())
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

// writer appends records until it is killed, and prints the acknowledged ids.
func writer(ctx context.Context, s store.Store) error {
	name := os.Getenv(receiverEnv)
	for i := 0; ; i++ {
		id := fmt.Sprint(name, " ", i)
		if _, err := s.Append(ctx, "s", id, []byte("value of "+id), 0); err != nil {
			return err
		}
		if _, err := os.Stdout.WriteString(id + "\n"); err != nil {
			return err
		}
	}
}

// killRounds runs two writers at a time and kills each of them at a random moment.
func (c *resultCell) killRounds(t *testing.T, p *place, rounds int) {
	acknowledged := make(map[string][]string)
	var mu sync.Mutex
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				name := fmt.Sprintf("w%d-%d", round, i)
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), childEnv+"=writer", placeEnv+"="+p.name, receiverEnv+"="+name)
				stdin, err := cmd.StdinPipe()
				if err != nil {
					t.Error(err)
					return
				}
				defer stdin.Close()
				var out bytes.Buffer
				cmd.Stdout = &out
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(100*time.Millisecond + rand.N(300*time.Millisecond))
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				mu.Lock()
				defer mu.Unlock()
				for lines := bufio.NewScanner(&out); lines.Scan(); {
					acknowledged[name] = append(acknowledged[name], lines.Text())
				}
			})
		}
		wg.Wait()
		c.Rounds++
	}
	require.NoError(t, c.classify(acknowledged, p.open(t)))
}

// Every damaged engine reports it, and loses, doubles, reorders and invents nothing silently. The
// long form writes the page of results.
func TestResults(t *testing.T) {
	long := os.Getenv("FIVEWIRE_LONG") != ""
	damaged, kills := 3, 2
	if long {
		damaged, kills = 25, 50
	}
	var cells []*resultCell
	for _, fault := range []string{"bit flip", "truncation", "power loss", "lost WAL", "old copy"} {
		for _, e := range engineFileSets {
			if (fault == "lost WAL" || fault == "power loss") && e.wal == "" {
				continue
			}
			t.Run(fault+"/"+e.name, func(t *testing.T) {
				c := &resultCell{Fault: fault, Engine: e.name}
				cells = append(cells, c)
				for round := range damaged {
					c.damageRound(t, e, fault, round)
				}
			})
		}
	}
	for _, fault := range []string{"full disk", "read-only disk"} {
		t.Run(fault+"/SQLite", func(t *testing.T) {
			c := &resultCell{Fault: fault, Engine: "SQLite"}
			for range damaged {
				c.diskRound(t, engineFileSets[0], fault)
			}
			cells = append(cells, c)
		})
	}
	for _, e := range engines {
		if e.shared {
			t.Run("kill -9 of writers/"+e.name, func(t *testing.T) {
				if !long && e.name != "SQLite" {
					t.Skip("long form only: set FIVEWIRE_LONG")
				}
				p := e.create(t)
				c := &resultCell{Fault: "kill -9 of two writers", Engine: e.name}
				cells = append(cells, c)
				c.killRounds(t, p, kills)
				require.Positive(t, c.Acknowledged)
			})
		}
	}
	for _, r := range serverFaults {
		t.Run(r.fault+"/"+r.engine, func(t *testing.T) {
			rounds := 1
			if long {
				rounds = 20
			} else if r.engine != "NATS" {
				t.Skip("long form only: set FIVEWIRE_LONG")
			}
			place, disturb := r.create(t)
			c := &resultCell{Fault: r.fault, Engine: r.engine}
			cells = append(cells, c)
			c.serverRounds(t, place, rounds, disturb)
			require.Positive(t, c.Acknowledged)
		})
	}
	for _, c := range cells {
		if c.Lost+c.Doubled+c.Reordered+c.Invented > 0 {
			t.Errorf("%+v", *c)
		}
		t.Logf("%+v", *c)
	}
	if long && !t.Failed() {
		publish(t, cells...)
	}
}

// recordService publishes that the invariants of a service held, in the long form of a passed test.
func recordService(t *testing.T, p *place, service string, processes int, fault string, rounds, acknowledged int) {
	t.Helper()
	if os.Getenv("FIVEWIRE_LONG") != "" && !t.Failed() {
		publish(t, &resultCell{Service: service, Processes: processes, Fault: fault, Engine: p.engine(), Rounds: rounds, Acknowledged: acknowledged})
	}
}

// publish replaces rows of results.json and writes the page.
func publish(t *testing.T, cells ...*resultCell) {
	t.Helper()
	var all []*resultCell
	data, err := os.ReadFile("results.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &all))
	for _, c := range cells {
		c.Version, c.Date = engineVersion(t, c.Engine), time.Now().UTC().Format(time.DateOnly)
		i := slices.IndexFunc(all, func(o *resultCell) bool {
			return o.Service == c.Service && o.Fault == c.Fault && o.Engine == c.Engine
		})
		if i < 0 {
			i, all = len(all), append(all, nil)
		}
		all[i] = c
	}
	data, err = json.MarshalIndent(all, "", "  ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("results.json", append(data, '\n'), 0o600))
	require.NoError(t, os.WriteFile("RESULTS.md", page(t, all), 0o600))
}

// engineVersion returns the version of an engine, of the driver or library in go.mod.
func engineVersion(t *testing.T, engine string) (version string) {
	t.Helper()
	if engine == "PostgreSQL" {
		conn, err := pgx.Connect(t.Context(), os.Getenv(postgresEnv))
		require.NoError(t, err)
		defer conn.Close(t.Context())
		require.NoError(t, conn.QueryRow(t.Context(), `SHOW server_version`).Scan(&version))
		return version
	}
	module := map[string]string{"SQLite": "modernc.org/sqlite ", "NATS": "nats-server/v2 ", clusterEngine: "nats-server/v2 ", "NATS embedded": "nats-server/v2 "}[engine]
	text, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(text), module)
	return strings.Fields(after)[0]
}

// The page is that of the results, promises and mutants of today. The long form writes it.
func TestResultsPage(t *testing.T) {
	if os.Getenv("FIVEWIRE_LONG") != "" {
		publish(t)
	}
	data, err := os.ReadFile("results.json")
	require.NoError(t, err)
	var all []*resultCell
	require.NoError(t, json.Unmarshal(data, &all))
	text, err := os.ReadFile("RESULTS.md")
	require.NoError(t, err)
	require.Equal(t, string(page(t, all)), string(text))
}

// page is the Markdown form of the results, with the promises of SECURITY.md and the mutants of the kernels.
func page(t *testing.T, cells []*resultCell) []byte {
	t.Helper()
	var b, services strings.Builder
	b.WriteString("# Results of faults\n\nWritten by the long form of the tests in this folder.\n" +
		"\"Refused\" counts the rounds in which Open or a read returned `store.ErrCorrupt`. The other columns count what the engine\nserved in the remaining rounds without an error; the silence is the longest time in which no writer got an acknowledgement. " +
		"The high-water mark lags 100 ms or 1,000 positions: a smaller loss is not noticed. " +
		"The engine in memory ends with its\nprocess, and a process cannot change its clock: there [the simulation](../../internal/sim/) lets processes end and the clock of the store jump.\n\n")
	b.WriteString("| fault | engine | rounds | refused | acknowledged | lost | doubled | reordered | invented | silence | version, date |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	services.WriteString("\n## Services\n\nProcesses of a service share one engine, and each fault meets one of them. A row is written if the invariants of the service held: " +
		"nothing\nacknowledged is lost, and nothing runs twice that must not.\n\n" +
		"| service | processes | fault | engine | faults | acknowledged | version, date |\n|---|---|---|---|---|---|---|\n")
	for _, c := range cells {
		if c.Service != "" {
			fmt.Fprintf(&services, "| %s | %d | %s | %s | %d | %d | %s, %s |\n", c.Service, c.Processes, c.Fault, c.Engine, c.Rounds, c.Acknowledged, c.Version, c.Date)
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %d | %d | %s | %s, %s |\n",
			c.Fault, c.Engine, c.Rounds, c.Refused, c.Acknowledged, c.Lost, c.Doubled, c.Reordered, c.Invented, c.silence(), c.Version, c.Date)
	}
	security, err := os.ReadFile("../../SECURITY.md")
	require.NoError(t, err)
	_, promises, ok := strings.Cut(string(security), "## Promises\n")
	require.True(t, ok)
	promises, _, _ = strings.Cut(promises[strings.Index(promises, "\n|"):], "\n\n")
	data, err := os.ReadFile("../../internal/sim/kernels/testdata/mutants.json")
	require.NoError(t, err)
	var list []struct {
		Name, Profile, Invariant string
		Seed                     uint64
	}
	require.NoError(t, json.Unmarshal(data, &list))
	var mutants strings.Builder
	for _, m := range list {
		fmt.Fprintf(&mutants, "| %s | %s of %s | %d |\n", m.Name, m.Invariant, m.Profile, m.Seed)
	}
	return []byte(b.String() + services.String() +
		"\n## Promises\n\nThose of [SECURITY.md](../../SECURITY.md#promises): the invariants that judge a promise, the machine that tries to break it, and its seeds a day.\n" + promises + "\n" +
		"\n## Mutants\n\nA mutant is a defect in a kernel of state. Seeds begin with 1, and one of 2,000 has to find it.\n\n| mutant | found by | seeds needed |\n|---|---|---|\n" + mutants.String())
}

// silence returns the longest silence as text, which is empty if it was not measured.
func (c *resultCell) silence() string {
	if c.Silence == 0 {
		return ""
	}
	return c.Silence.Round(100 * time.Millisecond).String()
}
