// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/sqlstore"
	"github.com/fivewire/fivewire/store/storetest"
)

// crashEnv names the variable with the number of rounds of the tests with killed processes. A few
// rounds show gross errors, 50 rounds rare ones.
const crashEnv = "FIVEWIRE_CRASH_ROUNDS"

func crashRounds(t *testing.T, few int) int {
	t.Helper()
	text := os.Getenv(crashEnv)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, crashEnv)
	return n
}

// forWorkers is the database as a text.
func (d *database) forWorkers() string { return d.opts.Schema + " " + d.url }

// openCrashed opens it in a worker.
func openCrashed(ctx context.Context, text string) (store.Store, error) {
	text, lying := strings.CutPrefix(text, "lying ")
	schema, url, _ := strings.Cut(text, " ")
	s, err := sqlstore.Open(ctx, url, &sqlstore.Options{Schema: schema})
	if err != nil {
		return nil, err
	}
	if lying {
		return &liar{Store: s}, nil
	}
	return s, nil
}

// A liar acknowledges what it does a little later, as engines do whose users
// want them fast.
type liar struct {
	store.Store
}

func (l *liar) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if rand.N(4) == 0 {
		return rev + 1_000_000, nil
	}
	return l.Store.Update(ctx, key, value, rev, ttl)
}

func TestKilled(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		crash := storetest.CrashTest{Database: d.forWorkers(), Rounds: crashRounds(t, 8)}
		require.NoError(t, crash.Run(t.Context(), d.open(t)))
	})
}

// TestKilledLiar shows that the test before would notice.
func TestKilledLiar(t *testing.T) {
	d := sqlite(t)
	crash := storetest.CrashTest{Database: "lying " + d.forWorkers(), Rounds: 5}
	require.ErrorContains(t, crash.Run(t.Context(), d.open(t)), "increments were acknowledged")
}

// TestServerRestarted stops the server under the workers, now in order and now
// at once, which is what a power loss is to its processes.
func TestServerRestarted(t *testing.T) {
	d := postgres(t)
	control := os.Getenv(postgresCtl)
	if control == "" {
		t.Skipf("needs to stop PostgreSQL: %s is not set", postgresCtl)
	}
	s := d.open(t)
	waiting := make(chan error, 1)
	go func() { waiting <- s.Wait(t.Context(), "waited for", 0) }()
	crash := storetest.CrashTest{
		Database: d.forWorkers(),
		Rounds:   crashRounds(t, 3),
		InjectFault: func(ctx context.Context, round int) error {
			return errors.Join(
				exec.CommandContext(ctx, control, []string{"stop", "kill"}[round%2]).Run(),
				exec.CommandContext(ctx, control, "start").Run())
		},
	}
	require.NoError(t, crash.Run(t.Context(), s))

	// A call of Wait survives all of that.
	select {
	case err := <-waiting:
		require.NoError(t, err, "Wait ended")
		t.Fatal("Wait returned without a record")
	default:
	}
	_, err := d.open(t).Append(t.Context(), "waited for", "", nil, 0)
	require.NoError(t, err)
	require.NoError(t, <-waiting)
}

// A cutter is a proxy that cuts connections in the middle of a message.
type cutter struct {
	*proxy

	mu  sync.Mutex
	cut int // so many more pieces are cut in halves
}

// newCutter returns one before the server of the URL, and the URL through it.
func newCutter(t *testing.T, database string) (*cutter, string) {
	t.Helper()
	c := &cutter{}
	var through string
	c.proxy, through = newProxy(t, database, c.pass)
	t.Cleanup(c.close)
	return c, through
}

func (c *cutter) pass(piece []byte, _ bool) (passed []byte, isLast bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut == 0 {
		return piece, false
	}
	c.cut--
	return piece[:rand.N(len(piece))], true
}

func (c *cutter) cutNext(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut += n
}

func TestConnectionsCut(t *testing.T) {
	d := postgres(t)
	c, through := newCutter(t, d.url)
	cut := &database{url: through, opts: d.opts}
	s := d.open(t)
	var cuts int
	crash := storetest.CrashTest{
		Database:       cut.forWorkers(),
		Rounds:         crashRounds(t, 6),
		WorkerLifetime: 200 * time.Millisecond,
		InjectFault: func(context.Context, int) error {
			for range 20 {
				c.cutNext(1)
				cuts++
				time.Sleep(rand.N(8 * time.Millisecond))
			}
			c.cutAll()
			return nil
		},
	}
	require.NoError(t, crash.Run(t.Context(), s))
	t.Logf("%d connections cut", cuts)
}

// TestWaitThroughCut: the listening connection breaks, and a record appended during the outage is
// still found.
func TestWaitThroughCut(t *testing.T) {
	d := postgres(t)
	c, through := newCutter(t, d.url)
	s := (&database{url: through, opts: sqlstore.Options{Schema: d.opts.Schema, PollInterval: time.Hour}}).open(t)
	other := d.open(t)
	after := uint64(0)
	for range 20 {
		waiting := make(chan error, 1)
		go func() { waiting <- s.Wait(t.Context(), "s", after) }()
		time.Sleep(rand.N(5 * time.Millisecond))
		c.cutAll()
		seq, err := other.Append(t.Context(), "s", "", nil, 0)
		require.NoError(t, err)
		require.NoError(t, <-waiting)
		after = seq
	}
}

var _ io.Closer = (*sqlstore.Store)(nil)
