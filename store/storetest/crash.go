// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A CrashTest tests an engine with processes that share a database and are killed at random
// moments. It checks that no acknowledged operation is lost and none is done twice. The processes
// are the test binary itself, which must call [CrashWorkerMain] first in its TestMain.
//
// The workers append to one log and to one queue, take records from the queue, increment one key,
// and compete for others. The check knows the acknowledged operations, and that each worker may
// have done one more.
type CrashTest struct {
	// Database is what workers hand to the open of CrashWorkerMain.
	Database string

	// Rounds is how often workers are started and killed. Zero means 5.
	Rounds int

	// Workers is how many work at once. Zero means 2.
	Workers int

	// WorkerLifetime is how long a worker works at most before it is killed. Zero means 100 ms.
	WorkerLifetime time.Duration

	// InjectFault is called in every round while the workers work, and does what the
	// database should survive besides: it restarts the server, or cuts
	// connections. Workers then may meet errors, and try again; without Disturb
	// an error fails the test. When it returns, the database works.
	InjectFault func(ctx context.Context, round int) error
}

const (
	crashDatabase = "STORETEST_CRASH_DATABASE"
	crashName     = "STORETEST_CRASH_NAME"

	crashLog     = "crash/log"
	crashQueue   = "crash/queue"
	crashCounter = "crash/counter"
)

// CrashWorkerMain returns at once in a process that is not a worker. Otherwise it works on the
// store that open returns until it is killed.
func CrashWorkerMain(open func(ctx context.Context, database string) (store.Store, error)) {
	database, name := os.Getenv(crashDatabase), os.Getenv(crashName)
	if name == "" {
		return
	}
	ctx := context.Background()
	go func() { // the parent may be killed too, and the worker must end with it
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	w := &crashWorker{name: name, out: os.Stdout}
	var err error
	for { // the database may be down at the moment
		if w.s, err = open(ctx, database); err == nil {
			break
		}
		w.say("!", "open: "+err.Error())
		time.Sleep(10 * time.Millisecond)
	}
	for n := 0; ; n++ {
		w.turn(ctx, n)
	}
}

// A crashWorker runs operations and prints each acknowledged one as a line: the kind, and a number
// or a text.
type crashWorker struct {
	name string // round and number: r/w
	s    store.Store
	out  io.Writer
}

func (w *crashWorker) say(kind string, what any) {
	if _, err := fmt.Fprintf(w.out, "%s %v\n", kind, what); err != nil {
		os.Exit(1) // the parent has exited
	}
}

// failed says that nothing is known about what was tried.
func (w *crashWorker) failed(what string, err error) {
	w.say("!", what+": "+strings.ReplaceAll(err.Error(), "\n", " "))
	time.Sleep(5 * time.Millisecond)
}

// round is the part of the name that the workers of a round share.
func crashRound(name string) string { return name[:strings.IndexByte(name, '/')] }

func (w *crashWorker) turn(ctx context.Context, n int) {
	round := crashRound(w.name)

	// The log: with an id, so that it may be tried again.
	id := fmt.Sprint(w.name, "/", n)
	for {
		seq, err := w.s.Append(ctx, crashLog, id, []byte(id), time.Hour)
		if err == nil || errors.Is(err, store.ErrDuplicate) {
			w.say("log", seq)
			break
		}
		w.failed("Append", err)
	}

	// The counter: an update of which nothing is known may have been made.
	for done := false; !done; {
		e, err := w.s.Get(ctx, crashCounter)
		if err != nil {
			w.failed("Get", err)
			continue
		}
		var count int
		_, _ = fmt.Sscan(string(e.Value), &count)
		_, err = w.s.Update(ctx, crashCounter, fmt.Append(nil, count+1), e.Revision, 0)
		switch {
		case err == nil:
			w.say("count", count+1)
			done = true
		case !errors.Is(err, store.ErrConflict):
			w.say("maybe", count+1)
			w.failed("Update", err)
			done = true
		}
	}

	// A claim, for which all workers of the round compete.
	_, err := w.s.Create(ctx, fmt.Sprint("crash/claim/", round, "/", n), []byte(w.name), time.Hour)
	switch {
	case err == nil:
		w.say("claim", n)
	case !errors.Is(err, store.ErrExists):
		w.failed("Create", err)
	}

	// The queue: in at the end, out at the front.
	if seq, err := w.s.Append(ctx, crashQueue, "", nil, 0); err == nil {
		w.say("push", seq)
	} else {
		w.failed("Append", err)
	}
	records, err := w.s.Read(ctx, crashQueue, 0, 1)
	if err != nil {
		w.failed("Read", err)
		return
	}
	for _, r := range records {
		_, err := w.s.Create(ctx, fmt.Sprint("crash/did/", r.Seq), []byte(w.name), 0)
		switch {
		case err == nil:
			w.say("did", r.Seq)
		case !errors.Is(err, store.ErrExists):
			w.failed("Create", err)
			continue
		}
		if err := w.s.Ack(ctx, crashQueue, r.Seq); err != nil {
			w.failed("Ack", err)
			continue
		}
		w.say("ack", r.Seq)
	}
}

// Run runs the test. The store s uses the same database, and stays open. The error reports an
// operation that was lost or done twice, or a failed worker.
func (c CrashTest) Run(ctx context.Context, s store.Store) error {
	if c.Rounds == 0 {
		c.Rounds = 5
	}
	if c.Workers == 0 {
		c.Workers = 2
	}
	if c.WorkerLifetime == 0 {
		c.WorkerLifetime = 100 * time.Millisecond
	}
	k := &crashCheck{c: c, s: s, log: map[uint64]string{}, did: map[uint64]string{}}
	if _, err := s.Create(ctx, crashCounter, []byte("0"), 0); err != nil {
		return fmt.Errorf("the database has to be empty: %w", err)
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	followed := make(chan []uint64, 1)
	go func() { followed <- k.follow(following) }()
	for round := range c.Rounds {
		if err := k.round(ctx, round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	last, err := k.end(ctx)
	if err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	// A reader with a cursor sees the same records within the timeout.
	seq, err := k.retry(func() (uint64, error) { return s.Append(ctx, crashLog, "the end", nil, time.Hour) })
	if err != nil {
		return err
	}
	select {
	case seen := <-followed:
		if len(seen) != len(last) {
			return fmt.Errorf("a reader with a cursor saw %d records of %d", len(seen), len(last))
		}
		for i := range seen {
			if seen[i] != last[i] {
				return fmt.Errorf("a reader with a cursor saw position %d, not %d", seen[i], last[i])
			}
		}
	case <-time.After(time.Minute):
		return fmt.Errorf("a reader with a cursor does not get to the last record, at %d", seq)
	}
	return nil
}

// A crashCheck is the expected content of the database.
type crashCheck struct {
	c CrashTest
	s store.Store

	log            map[uint64]string // acknowledged records by position
	did            map[uint64]string // the worker whose Ack of a position was acknowledged
	counted, maybe int               // increments that were acknowledged, and that may have been made besides
	all            []uint64          // positions in the log, verified
}

// retry does it again as long as a broken connection may be the reason.
func (k *crashCheck) retry(do func() (uint64, error)) (n uint64, err error) {
	for range 40 {
		if n, err = do(); err == nil || k.c.InjectFault == nil || errors.Is(err, store.ErrDuplicate) {
			return n, err
		}
		time.Sleep(25 * time.Millisecond)
	}
	return n, err
}

// follow reads the log as a consumer does and returns the positions that it saw.
func (k *crashCheck) follow(ctx context.Context) (seen []uint64) {
	after := uint64(0)
	for ctx.Err() == nil {
		if err := k.s.Wait(ctx, crashLog, after); err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		records, err := k.s.Read(ctx, crashLog, after, 50)
		if err != nil {
			continue
		}
		for _, r := range records {
			if r.ID == "the end" {
				return seen
			}
			after = r.Seq
			seen = append(seen, r.Seq)
		}
	}
	return seen
}

// A crashReport is what one worker said.
type crashReport struct {
	name  string
	lines [][2]string
	cmd   *exec.Cmd
	stdin io.Closer
	first chan struct{} // closed with the first acknowledgement
	done  chan struct{}
}

func (k *crashCheck) start(ctx context.Context, name string) (*crashReport, error) {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), crashDatabase+"="+k.c.Database, crashName+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &crashReport{name: name, cmd: cmd, stdin: in, first: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		acknowledged := false
		for lines := bufio.NewReader(out); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				return // half a line was not said
			}
			kind, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			r.lines = append(r.lines, [2]string{kind, what})
			if kind != "!" && !acknowledged {
				acknowledged = true
				close(r.first)
			}
		}
	}()
	return r, nil
}

func (k *crashCheck) round(ctx context.Context, round int) error {
	reports := make([]*crashReport, k.c.Workers)
	defer func() {
		for _, r := range reports {
			if r != nil { // again, in case of an error
				_ = r.cmd.Process.Kill()
				<-r.done
				_ = r.cmd.Wait()
				_ = r.stdin.Close()
			}
		}
	}()
	for i := range reports {
		r, err := k.start(ctx, fmt.Sprint(round, "/", i))
		if err != nil {
			return err
		}
		reports[i] = r
	}
	for _, r := range reports {
		select {
		case <-r.first:
		case <-r.done:
			return fmt.Errorf("worker %s ended before it was killed", r.name)
		case <-time.After(time.Minute):
			return fmt.Errorf("worker %s does not get to work", r.name)
		}
	}
	if k.c.InjectFault != nil {
		time.Sleep(rand.N(k.c.WorkerLifetime / 2))
		if err := k.c.InjectFault(ctx, round); err != nil {
			return err
		}
	}
	var killing sync.WaitGroup
	for _, r := range reports {
		killing.Go(func() {
			time.Sleep(rand.N(k.c.WorkerLifetime))
			_ = r.cmd.Process.Kill()
			<-r.done
		})
	}
	killing.Wait()
	return k.check(ctx, fmt.Sprint(round), reports)
}

// check compares the acknowledged operations of the workers of a round with the database.
func (k *crashCheck) check(ctx context.Context, round string, reports []*crashReport) error {
	turns := map[string]int{}
	claims := map[string]string{}
	var pushed, acked []uint64
	for _, r := range reports {
		for _, line := range r.lines {
			var n uint64
			_, _ = fmt.Sscan(line[1], &n)
			switch line[0] {
			case "!":
				if k.c.InjectFault == nil {
					return fmt.Errorf("worker %s failed: %s", r.name, line[1])
				}
			case "log":
				if other, twice := k.log[n]; twice {
					return fmt.Errorf("position %d of the log was given to %s and %s", n, other, r.name)
				}
				k.log[n] = fmt.Sprint(r.name, "/", turns[r.name])
				turns[r.name]++
			case "count":
				k.counted++
			case "maybe":
				k.maybe++
			case "claim":
				if other, twice := claims[line[1]]; twice {
					return fmt.Errorf("claim %s was given to %s and %s", line[1], other, r.name)
				}
				claims[line[1]] = r.name
			case "push":
				pushed = append(pushed, n)
			case "did":
				if other, twice := k.did[n]; twice {
					return fmt.Errorf("record %d of the queue was done by %s and %s", n, other, r.name)
				}
				k.did[n] = r.name
			case "ack":
				acked = append(acked, n)
			}
		}
		k.maybe++ // what it was at when it was killed
	}
	return errors.Join(k.checkLog(ctx, turns), k.checkCounter(ctx), k.checkClaims(ctx, round, claims), k.checkQueue(ctx, pushed, acked))
}

// checkLog compares the records appended since the last check. The ids of unacknowledged appends
// are known exactly if the record exists.
func (k *crashCheck) checkLog(ctx context.Context, turns map[string]int) error {
	after := uint64(0)
	if n := len(k.all); n > 0 {
		after = k.all[n-1]
	}
	seen := map[string]uint64{}
	for {
		records, err := k.s.Read(ctx, crashLog, after, 1000)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		for _, r := range records {
			if r.Seq <= after {
				return fmt.Errorf("position %d follows %d", r.Seq, after)
			}
			after = r.Seq
			if string(r.Value) != r.ID {
				return fmt.Errorf("record %q holds %q", r.ID, r.Value)
			}
			if first, twice := seen[r.ID]; twice {
				return fmt.Errorf("record %q is there twice, at %d and %d", r.ID, first, r.Seq)
			}
			seen[r.ID] = r.Seq
			if id, acknowledged := k.log[r.Seq]; acknowledged && id != r.ID {
				return fmt.Errorf("position %d was given to %q, and holds %q", r.Seq, id, r.ID)
			}
			k.all = append(k.all, r.Seq)
		}
		if len(records) == 0 {
			break
		}
	}
	for name, n := range turns {
		for i := range n {
			if _, there := seen[fmt.Sprint(name, "/", i)]; !there {
				return fmt.Errorf("record %s/%d was acknowledged and is lost", name, i)
			}
		}
		// The operation in progress: done once or not at all.
		id := fmt.Sprint(name, "/", n)
		before, there := seen[id]
		seq, err := k.retry(func() (uint64, error) { return k.s.Append(ctx, crashLog, id, []byte(id), time.Hour) })
		switch {
		case there && (!errors.Is(err, store.ErrDuplicate) || seq != before):
			return fmt.Errorf("the id of record %q at %d is not known: got %d, %v", id, before, seq, err)
		case !there && err != nil && (!errors.Is(err, store.ErrDuplicate) || seq <= after):
			// A server may have continued its call after the client was killed.
			return fmt.Errorf("the id of a missing record: got %d, %v", seq, err)
		}
	}
	return nil
}

func (k *crashCheck) checkCounter(ctx context.Context) error {
	e, err := k.s.Get(ctx, crashCounter)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	var count int
	if _, err := fmt.Sscan(string(e.Value), &count); err != nil {
		return fmt.Errorf("the counter holds %q", e.Value)
	}
	if count < k.counted || count > k.counted+k.maybe {
		return fmt.Errorf("the counter is %d; %d increments were acknowledged and at most %d more can have been made", count, k.counted, k.maybe)
	}
	return nil
}

func (k *crashCheck) checkClaims(ctx context.Context, round string, claims map[string]string) error {
	prefix := "crash/claim/" + round + "/"
	for e, err := range k.s.List(ctx, prefix) {
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		n := strings.TrimPrefix(e.Key, prefix)
		if winner, acknowledged := claims[n]; acknowledged && winner != string(e.Value) {
			return fmt.Errorf("claim %s was given to %s and belongs to %s", n, winner, e.Value)
		}
		delete(claims, n)
	}
	if len(claims) > 0 {
		return fmt.Errorf("claims that were acknowledged are lost: %v", claims)
	}
	return nil
}

func (k *crashCheck) checkQueue(ctx context.Context, pushed, acked []uint64) error {
	there := map[uint64]bool{}
	for after := uint64(0); ; {
		records, err := k.s.Read(ctx, crashQueue, after, 1000)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		for _, r := range records {
			there[r.Seq] = true
			after = r.Seq
		}
		if len(records) == 0 {
			break
		}
	}
	for _, seq := range acked {
		if there[seq] {
			return fmt.Errorf("record %d of the queue was acknowledged and is back", seq)
		}
	}
	for _, seq := range pushed {
		if there[seq] {
			continue
		}
		if _, err := k.s.Get(ctx, fmt.Sprint("crash/did/", seq)); err != nil {
			return fmt.Errorf("record %d of the queue is missing, and no worker has done it: %w", seq, err)
		}
	}
	return nil
}

// end checks the final state: no round removed the effects of an earlier one.
func (k *crashCheck) end(ctx context.Context) ([]uint64, error) {
	k.all = nil
	if err := k.checkLog(ctx, nil); err != nil {
		return nil, err
	}
	there := map[uint64]bool{}
	for _, seq := range k.all {
		there[seq] = true
	}
	for seq, id := range k.log {
		if !there[seq] {
			return nil, fmt.Errorf("record %q at %d is lost since", id, seq)
		}
	}
	for seq, name := range k.did {
		e, err := k.s.Get(ctx, fmt.Sprint("crash/did/", seq))
		if err != nil || string(e.Value) != name {
			return nil, fmt.Errorf("record %d of the queue was done by %s: got %q, %v", seq, name, e.Value, err)
		}
	}
	return k.all, k.checkCounter(ctx)
}
