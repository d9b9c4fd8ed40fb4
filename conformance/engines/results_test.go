// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
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

// killRounds runs some writers at a time and kills each of them at a random moment.
func (c *resultCell) killRounds(t *testing.T, p *place, rounds, writers int) {
	acknowledged := make(map[string][]string)
	var mu sync.Mutex
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range writers {
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
	var files []engineFiles
	for i, create := range engineFileSets {
		if i < 2 || long {
			files = append(files, create(t))
		}
	}
	for _, fault := range []string{"bit flip", "truncation", "power loss", "lost WAL", "old copy"} {
		for _, e := range files {
			if fault == "lost WAL" && e.name != "SQLite" {
				continue
			}
			t.Run(fault+"/"+e.name, func(t *testing.T) {
				c := &resultCell{Fault: fault, Engine: e.name}
				rounds := damaged
				if e.server != nil {
					rounds = 10 // each one stops and starts it
				}
				for round := range rounds {
					c.damageRound(t, e, fault, round)
				}
				cells = append(cells, c)
			})
		}
	}
	disk := func(fault string, e engineFiles, rounds int) {
		t.Run(fault+"/"+e.name, func(t *testing.T) {
			c := &resultCell{Fault: fault, Engine: e.name}
			for range rounds {
				c.diskRound(t, e, fault)
			}
			cells = append(cells, c)
		})
	}
	disk("full disk", files[0], damaged)
	disk("read-only disk", files[0], damaged)
	if long {
		disk("full disk", files[1], 5) // each one takes the CallTimeout
	}
	kill := func(fault string, writers int, engine string, create func(t *testing.T) *place) {
		t.Run(fault+"/"+engine, func(t *testing.T) {
			if !long && engine != "SQLite" {
				t.Skip("long form only: set FIVEWIRE_LONG")
			}
			p := create(t)
			c := &resultCell{Fault: fault, Engine: engine}
			c.killRounds(t, p, kills, writers)
			require.Positive(t, c.Acknowledged)
			cells = append(cells, c)
		})
	}
	for _, e := range engines {
		if e.shared {
			kill("kill -9 of two writers", 2, e.name, e.create)
		}
	}
	kill("kill -9 of two writers", 2, clusterEngine, func(t *testing.T) *place {
		p, _, _ := natsCluster(t)
		return p
	})
	kill("kill -9 of the writer", 1, embeddedEngine, func(t *testing.T) *place { return &place{name: "embedded " + t.TempDir()} })
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
		isWhole := slices.Contains([]string{"power loss", "full disk", "read-only disk"}, c.Fault) // and must be served
		if c.Lost+c.Doubled+c.Reordered+c.Invented > 0 || isWhole && c.Refused > 0 {
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
	module := map[string]string{"SQLite": "modernc.org/sqlite ", "NATS": "nats-server/v2 ", clusterEngine: "nats-server/v2 ", embeddedEngine: "nats-server/v2 "}[engine]
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
	b.WriteString("# Results of faults\n\nWritten by the long form of the tests in this folder. " +
		"A test fails, and writes nothing, if an engine serves fewer records\nthan it has acknowledged, one of them twice, in another order, or one that was never written, without an error. " +
		"\"Refused\" are rounds in\nwhich Open or a read returned `store.ErrCorrupt`, and \"kept\" are the acknowledged records that the other rounds served. A number in\nbrackets is the reason why there is no result.\n\n")
	writeFaults(t, &b, cells)
	b.WriteString("The high-water mark lags 100 ms or 1,000 positions: a smaller loss is not noticed.\n\n## Each fault\n\n" +
		"The silence is the longest time in which no writer got an acknowledgement.\n\n")
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
