// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
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
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

const (
	childDir   = "NATSSTORE_TEST_DIR" // makes this program the process that is killed
	childRound = "NATSSTORE_TEST_ROUND"
)

// child writes to a store until it is killed, and prints each acknowledged operation.
func child() bool {
	dir, round := os.Getenv(childDir), os.Getenv(childRound)
	if dir == "" {
		return false
	}
	if address, ok := strings.CutPrefix(round, onlyServe); ok {
		if _, err := embedded.Start(dir, &embedded.Options{Listen: address}); err != nil {
			fmt.Println("failed", err)
			return true
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
		return true
	}
	ctx := context.Background()
	s, err := embedded.Open(ctx, dir, &natsstore.Options{SweepInterval: 50 * time.Millisecond})
	if err != nil {
		fmt.Println("failed", err)
		return true
	}
	var mu sync.Mutex
	say := func(words ...any) { // a line is written whole or not at all
		mu.Lock()
		defer mu.Unlock()
		_, _ = os.Stdout.WriteString(fmt.Sprintln(words...))
	}
	must := func(err error) {
		if err != nil {
			say("failed", err)
			os.Exit(1)
		}
	}
	if round == onlyGone {
		must(leaveGone(ctx, s.Store))
		say("ready")
		select {}
	}
	for i := range 3 {
		go func() {
			for n := 0; ; n++ {
				name := fmt.Sprintf("%s-%d-%d", round, i, n)
				rev, err := s.Create(ctx, "key/"+name, []byte(name), 0)
				must(err)
				say("created", name)
				switch n % 3 {
				case 0:
					_, err = s.Update(ctx, "key/"+name, []byte("updated"), rev, time.Hour)
					must(err)
					say("updated", name)
				case 1:
					must(s.Delete(ctx, "key/"+name, rev))
					say("deleted", name)
				}
				seq, err := s.Append(ctx, "queue", name, []byte(name), time.Hour)
				must(err)
				say("appended", name, seq)
				if n%2 == 0 {
					must(s.Ack(ctx, "queue", seq))
					say("acked", name)
				}
				for {
					e, err := s.Get(ctx, "n")
					if errors.Is(err, store.ErrNotFound) {
						_, err = s.Create(ctx, "n", []byte("1"), 0)
					} else {
						must(err)
						was, _ := strconv.Atoi(string(e.Value))
						_, err = s.Update(ctx, "n", []byte(strconv.Itoa(was+1)), e.Revision, 0)
					}
					if err == nil {
						break
					}
					if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists) {
						must(err)
					}
				}
				say("counted", name)
			}
		}()
	}
	select {}
}

const (
	onlyGone  = "gone"   // the round of a child that leaves nothing behind
	onlyServe = "serve " // and of one that serves at an address
)

// leaveGone makes keys and records that have several versions, or several uses,
// and sees all of them go.
func leaveGone(ctx context.Context, s *natsstore.Store) error {
	const ttl = 20 * time.Millisecond
	for i := range 20 {
		key := fmt.Sprint("key/", i)
		// Something has to stay, or the servers remove whole files.
		_, err := s.Create(ctx, fmt.Sprint("kept/", i), nil, 0)
		var rev store.Revision
		if err == nil {
			rev, err = s.Create(ctx, key, []byte("old"), 0)
		}
		if err == nil {
			_, err = s.Append(ctx, "kept", "", nil, 0)
		}
		for range 3 {
			if err == nil {
				rev, err = s.Update(ctx, key, []byte("newer"), rev, time.Hour)
			}
		}
		if err == nil && i%2 == 0 {
			_, err = s.Update(ctx, key, []byte("newest"), rev, ttl)
		} else if err == nil {
			err = s.Delete(ctx, key, 0)
		}
		for range 3 {
			if err == nil {
				_, err = s.Append(ctx, "log", fmt.Sprint(i), nil, ttl)
				time.Sleep(2 * ttl)
			}
		}
		if err != nil {
			return err
		}
	}
	for { // until the servers hold only the sweep lease
		info, err := natsstore.Messages(ctx, s)
		if err != nil || info <= 41 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestKilledProcessRestoresNoReplacedValue: neither a replaced value nor its removed replacement
// comes back when the process is killed after the removal.
func TestKilledProcessRestoresNoReplacedValue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childDir+"="+dir, childRound+"="+onlyGone)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Equal(t, "ready\n", line)
	s, err := embedded.Open(t.Context(), dir, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for e, err := range s.List(t.Context(), "key/") {
		require.NoError(t, err)
		t.Errorf("%s is back: %s", e.Key, e.Value)
	}
	records, err := s.Read(t.Context(), "log", 0, 1000)
	require.NoError(t, err)
	require.Empty(t, records)
}

// TestKilled kills a process with its embedded server at random moments and checks the stored
// state.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reports := map[string]map[string]string{} // by verb, then by name
	for _, verb := range []string{"created", "updated", "deleted", "appended", "acked", "counted"} {
		reports[verb] = map[string]string{}
	}
	counted, reported := 0, 0 // the counter and the number of reports after the previous round
	for round := range roundsOf(3) {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), childDir+"="+dir, childRound+"="+strconv.Itoa(round))
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		kill := sync.OnceFunc(func() {
			time.AfterFunc(rand.N(400*time.Millisecond), func() { _ = cmd.Process.Kill() })
		})
		if round%5 == 4 { // also while it starts
			kill()
		}
		for lines.Scan() {
			kill() // the first line reports that the process works
			words := strings.Fields(lines.Text())
			require.NotEqual(t, "failed", words[0], lines.Text())
			reports[words[0]][words[1]] = words[len(words)-1]
		}
		require.Error(t, cmd.Wait()) // killed
		// The counter may exceed the reports by one for each operation in progress.
		low := counted + len(reports["counted"]) - reported
		counted, reported = checkKilled(t, dir, reports, low, low+3), len(reports["counted"])
	}
	t.Logf("%d keys, %d records, counted to %d", len(reports["created"]), len(reports["appended"]), len(reports["counted"]))
}

func checkKilled(t *testing.T, dir string, reports map[string]map[string]string, low, high int) int {
	t.Helper()
	s, err := embedded.Open(t.Context(), dir, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := t.Context()
	there := map[string]string{}
	for e, err := range s.List(ctx, "key/") {
		require.NoError(t, err)
		there[strings.TrimPrefix(e.Key, "key/")] = string(e.Value)
	}
	for name := range reports["created"] {
		value, ok := there[name]
		n, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
		switch {
		case reports["deleted"][name] != "":
			require.False(t, ok, "%s was deleted", name)
		case reports["updated"][name] != "":
			require.Equal(t, "updated", value, name)
		case n%3 == 0: // perhaps updated
			require.Contains(t, []string{name, "updated"}, value, name)
		case n%3 == 1: // perhaps deleted
			require.Contains(t, []string{name, ""}, value, name)
		default:
			require.Equal(t, name, value)
		}
	}
	queue := map[string][]store.Record{}
	for after := uint64(0); ; {
		records, err := s.Read(ctx, "queue", after, 1000)
		require.NoError(t, err)
		if len(records) == 0 {
			break
		}
		for _, r := range records {
			queue[r.ID] = append(queue[r.ID], r)
			after = r.Seq
		}
	}
	for name, seq := range reports["appended"] {
		n, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
		switch got := queue[name]; {
		case reports["acked"][name] != "":
			require.Empty(t, got, "%s was acknowledged", name)
		case n%2 == 1:
			require.Len(t, got, 1, name)
			require.Equal(t, seq, fmt.Sprint(got[0].Seq))
		default: // perhaps acknowledged
			require.LessOrEqual(t, len(got), 1, name)
		}
		got, err := s.Append(ctx, "queue", name, nil, 0)
		require.ErrorIs(t, err, store.ErrDuplicate, name)
		require.Equal(t, seq, fmt.Sprint(got))
	}
	for id, records := range queue {
		require.Len(t, records, 1, id)
	}
	n := 0
	if e, err := s.Get(ctx, "n"); !errors.Is(err, store.ErrNotFound) {
		require.NoError(t, err)
		n, err = strconv.Atoi(string(e.Value))
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, n, low)
	require.LessOrEqual(t, n, high)
	return n
}
