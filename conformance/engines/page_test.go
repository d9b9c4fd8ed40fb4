// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// columns are the engines of the table of faults.
var columns = []string{"Memory", "SQLite", "PostgreSQL", embeddedEngine, "NATS", clusterEngine}

// The reasons why an engine has no result of a fault.
const (
	noteMemory   = "Memory ends with its process, and has no files, no server and no network. [The simulation](../../internal/sim/) ends its processes and changes its clock."
	noteSQLite   = "SQLite has no server and no network."
	noteEmbedded = "The server is in the process, which is killed in another row. There is no network."
	noteSame     = "A NATS server keeps its files as NATS embedded does, where they are damaged."
	noteReplica  = "Not run: the damage of one of three copies."
	noteLog      = "PostgreSQL does not start without its log, and JetStream has none."
	noteFull     = "Not run: a server of PostgreSQL ends or refuses writes by itself."
	noteReadOnly = "The server does not start on a read-only disk, since it writes files there."
	noteLeader   = "There is no leader."
	noteClock    = "A test cannot set the clock of the machine, which a Go program reads. The tests of both packages change the clock inside the engine."
)

var reasons = []string{noteMemory, noteSQLite, noteEmbedded, noteSame, noteReplica, noteLog, noteFull, noteReadOnly, noteLeader, noteClock}

// A kind is a row of the table of faults.
type kind struct {
	name   string
	faults []string // of its results
	absent []string // the reasons by column, empty for an engine with results
}

var kinds = []kind{
	{"kill -9 of writers", []string{"kill -9 of two writers", "kill -9 of the writer"}, []string{noteMemory, "", "", "", "", ""}},
	{"kill -9 of the server", []string{"kill -9 of the server", "kill -9 of one server after the other"}, []string{noteMemory, noteSQLite, "", noteEmbedded, "", ""}},
	{"power loss", []string{"power loss"}, []string{noteMemory, "", "", "", noteSame, noteReplica}},
	{"bit flip", []string{"bit flip"}, []string{noteMemory, "", "", "", noteSame, noteReplica}},
	{"truncation", []string{"truncation"}, []string{noteMemory, "", "", "", noteSame, noteReplica}},
	{"lost WAL", []string{"lost WAL"}, []string{noteMemory, "", noteLog, noteLog, noteLog, noteLog}},
	{"old copy", []string{"old copy"}, []string{noteMemory, "", "", "", noteSame, noteReplica}},
	{"full disk", []string{"full disk"}, []string{noteMemory, "", noteFull, "", noteSame, noteReplica}},
	{"read-only disk", []string{"read-only disk"}, []string{noteMemory, "", noteReadOnly, noteReadOnly, noteReadOnly, noteReadOnly}},
	{"hang of the server", []string{"server stopped for 2 s", "one server after the other stopped for 2 s"}, []string{noteMemory, noteSQLite, "", noteEmbedded, "", ""}},
	{"hang of the leader", []string{"leader stopped for 12 s"}, []string{noteMemory, noteLeader, noteLeader, noteLeader, noteLeader, ""}},
	{"partition", []string{"requests withheld for 2 s", "answers withheld for 2 s", "partition for 2 s", "one server after the other cut off for 12 s"},
		[]string{noteMemory, noteSQLite, "", noteEmbedded, "", ""}},
	{"clock jumps by an hour", []string{"clock of the server jumps by an hour"}, []string{noteMemory, noteClock, "", noteClock, noteClock, noteClock}},
}

// writeFaults writes the table of faults by engine. Each cell has results or a reason, and each result of an engine has a cell.
func writeFaults(t *testing.T, b *strings.Builder, cells []*resultCell) {
	t.Helper()
	fmt.Fprintf(b, "| fault | %s |\n|---%s|\n", strings.Join(columns, " | "), strings.Repeat("|---", len(columns)))
	count := 0
	for _, k := range kinds {
		fmt.Fprintf(b, "| %s |", k.name)
		for i, engine := range columns {
			sum := resultCell{}
			for _, c := range cells {
				if c.Service == "" && c.Engine == engine && slices.Contains(k.faults, c.Fault) {
					count++
					sum.Rounds, sum.Refused, sum.Acknowledged = sum.Rounds+c.Rounds, sum.Refused+c.Refused, sum.Acknowledged+c.Acknowledged
				}
			}
			require.Equal(t, k.absent[i] == "", sum.Rounds > 0, "results of %s on %s", k.name, engine)
			fmt.Fprintf(b, " %s |", sum.summary(k.absent[i]))
		}
		b.WriteString("\n")
	}
	all := 0
	for _, c := range cells {
		if c.Service == "" {
			all++
		}
	}
	require.Equal(t, all, count, "results in the table")
	b.WriteString("\n")
	for i, note := range reasons {
		fmt.Fprintf(b, "%d. %s\n", i+1, note)
	}
	b.WriteString("\n")
}

// summary is the text of a cell of the table of faults: what a failed test does not permit is absent.
func (c *resultCell) summary(absent string) string {
	switch {
	case absent != "":
		return fmt.Sprintf("(%d)", slices.Index(reasons, absent)+1)
	case c.Refused == 0:
		return fmt.Sprintf("%d kept", c.Acknowledged)
	case c.Acknowledged == 0:
		return fmt.Sprintf("refused %d of %d", c.Refused, c.Rounds)
	}
	return fmt.Sprintf("refused %d of %d, %d kept", c.Refused, c.Rounds, c.Acknowledged)
}
