// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

// echo returns two inputs.
func echo(ctx context.Context, _ *process, r *Run) (string, error) {
	var inputs []string
	for range 2 {
		data, err := r.Await(ctx)
		if err != nil {
			return "", err
		}
		inputs = append(inputs, string(data))
	}
	return strings.Join(inputs, " "), nil
}

// A counter is a step that returns how often it ran.
type counter struct {
	mu    sync.Mutex
	ids   []string
	delay time.Duration
}

func (c *counter) run(ctx context.Context, stepID string) ([]byte, error) {
	c.mu.Lock()
	c.ids = append(c.ids, stepID)
	n := len(c.ids)
	c.mu.Unlock()
	select {
	case <-time.After(c.delay):
		return fmt.Appendf(nil, "run %d", n), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// calls returns the ids of the runs, in their order of text.
func (c *counter) calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.ids))
}

func TestStepReturnsRecordedResult(t *testing.T) {
	c := &counter{}
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		var results []string
		for _, name := range []string{"a", "b", "a"} {
			data, err := r.Step(ctx, name, c.run)
			if err != nil {
				return "", err
			}
			results = append(results, string(data))
			data[0] = 'x' // the caller owns it
		}
		_, err := r.Await(ctx)
		return strings.Join(results, ", "), err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		synctest.Wait()
		p[0].crash()
		_, err := p[1].deliver(t.Context(), "1", "i", "")
		require.NoError(t, err)
		requireResult(t, p[1], "1", "run 1, run 2, run 3")
		require.Len(t, c.calls(), 3)
		require.Len(t, slices.Compact(c.calls()), 3, "ids of the steps")
		require.Equal(t, 1, p[1].startsOf("1"))
	})
}

func TestStepRunsAgainWithSameIDUntilRecorded(t *testing.T) {
	c := &counter{delay: time.Minute}
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		data, err := r.Step(ctx, "a", c.run)
		return string(data), err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		require.NoError(t, p[0].create(t.Context(), "2"))
		synctest.Wait()
		p[0].crash()
		time.Sleep(2 * time.Minute)
		w, err := p[1].get(t.Context(), "1")
		require.NoError(t, err)
		require.Contains(t, w.Result, "run ")
		require.Len(t, c.calls(), 4)
		ids := c.calls()
		require.Equal(t, ids[0], ids[1])
		require.Equal(t, ids[2], ids[3])
		require.NotEqual(t, ids[0], ids[2], "ids of two runs")
	})
}

func TestStepOfNextOwnerIsNotRunByFormerOne(t *testing.T) {
	c := &counter{}
	inProcesses(t, 2, echo, func(t *testing.T, p []*process) {
		former, err := p[0].Open(t.Context(), "1", RunOptions{})
		require.NoError(t, err)
		defer former.Close()
		next, err := p[1].Open(t.Context(), "1", RunOptions{})
		require.NoError(t, err)
		defer next.Close()
		for _, r := range []*Run{next, former} {
			data, err := r.Step(t.Context(), "a", c.run)
			require.NoError(t, err)
			require.Equal(t, "run 1", string(data))
		}
		require.Len(t, c.calls(), 1)
	})
}

func TestFailedStepRunsAgainWithSameID(t *testing.T) {
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		var ids []string
		for n := range 3 {
			_, err := r.Step(ctx, "a", func(ctx context.Context, stepID string) ([]byte, error) {
				ids = append(ids, stepID)
				switch n {
				case 0:
					return nil, errors.New("not now")
				case 1:
					panic("not now")
				}
				return nil, nil
			})
			if (err == nil) != (n == 2) {
				return "", fmt.Errorf("attempt %d: %w", n, err)
			}
		}
		_, err := r.Step(ctx, "a", func(ctx context.Context, stepID string) ([]byte, error) {
			ids = append(ids, stepID)
			return nil, nil
		})
		return fmt.Sprint(ids[0] == ids[1], ids[1] == ids[2], ids[2] == ids[3]), err
	}
	inProcesses(t, 1, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		requireResult(t, p[0], "1", "true true false")
	})
}

func TestOtherKindOfCallIsErrChanged(t *testing.T) {
	isChanged := false
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		if isChanged {
			return "", r.Sleep(ctx, "pay", time.Second)
		}
		_, err := r.Step(ctx, "pay", new(counter).run)
		if err == nil {
			_, err = r.Await(ctx)
		}
		return "", err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		synctest.Wait()
		p[0].crash()
		isChanged = true
		_, err := p[1].deliver(t.Context(), "1", "i", "")
		require.NoError(t, err)
		requireResult(t, p[1], "1",
			"error: journal: program changed: name:pay#1 is a step in the journal and a sleep in the program")
	})
}

func TestAwaitGetsInputsInOrder(t *testing.T) {
	inProcesses(t, 2, echo, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		for i, data := range []string{"a", "b", "a"} {
			first, err := p[1].deliver(t.Context(), "1", data, data)
			require.NoError(t, err)
			require.Equal(t, i < 2, first, "first delivery of %s", data)
		}
		requireResult(t, p[1], "1", "a b")
		require.Equal(t, 1, p[0].startsOf("1"))
	})
}

func TestSecondAwaitAtOnceIsErrBusy(t *testing.T) {
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		second := make(chan error)
		go func() {
			time.Sleep(time.Second)
			_, err := r.Await(ctx)
			second <- err
		}()
		data, err := r.Await(ctx)
		return fmt.Sprintf("%s %v", data, errors.Is(<-second, ErrBusy)), err
	}
	inProcesses(t, 1, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		time.Sleep(2 * time.Second)
		_, err := p[0].deliver(t.Context(), "1", "i", "a")
		require.NoError(t, err)
		requireResult(t, p[0], "1", "a true")
	})
}

func TestAwaitIsRepeatedAfterEndOfItsContext(t *testing.T) {
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := r.Await(short)
		if !errors.Is(err, context.DeadlineExceeded) {
			return "", err
		}
		data, err := r.Await(ctx)
		return string(data), err
	}
	inProcesses(t, 1, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		time.Sleep(2 * time.Second)
		_, err := p[0].deliver(t.Context(), "1", "i", "a")
		require.NoError(t, err)
		requireResult(t, p[0], "1", "a")
	})
}

func TestShutdownParksRunThatWaits(t *testing.T) {
	c := &counter{}
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		_, err := r.Step(ctx, "a", c.run)
		if err != nil {
			return "", err
		}
		return echo(ctx, p, r)
	}
	inProcesses(t, 3, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		synctest.Wait()
		start := time.Now()
		p[0].shutdown()
		require.Less(t, time.Since(start), time.Second, "time of the shutdown")
		time.Sleep(time.Second) // the lease was released: no expiry is needed
		owner := p[1]
		if p[2].parkedOf("1") == 1 {
			owner = p[2]
		}
		require.Equal(t, 1, owner.parkedOf("1"))
		require.Zero(t, owner.startsOf("1"))
		for _, input := range []string{"a", "b"} {
			_, err := p[1].deliver(t.Context(), "1", input, input)
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		requireResult(t, p[1], "1", "a b")
		require.Equal(t, 1, owner.startsOf("1"))
		require.Len(t, c.calls(), 1)
	})
}

func TestSleepContinuesElsewhere(t *testing.T) {
	var start time.Time
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		err := r.Sleep(ctx, "nap", time.Hour)
		return time.Since(start).Round(time.Minute).String(), err
	}
	inProcesses(t, 3, h, func(t *testing.T, p []*process) {
		start = time.Now()
		require.NoError(t, p[0].create(t.Context(), "1"))
		time.Sleep(10 * time.Minute)
		p[0].crash()
		time.Sleep(10 * time.Minute)
		require.Zero(t, p[1].startsOf("1"))
		require.Zero(t, p[2].startsOf("1"))
		p[1].shutdown()
		time.Sleep(30 * time.Minute)
		require.Zero(t, p[2].startsOf("1"))
		require.Equal(t, 1, p[2].parkedOf("1"))
		time.Sleep(11 * time.Minute)
		requireResult(t, p[2], "1", "1h0m0s")
	})
}

func TestRunIsParkedAfterLimit(t *testing.T) {
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		var waits []bool
		p[0].o = RunOptions{ParkAfter: time.Minute, OnWait: func(isWaiting bool) { waits = append(waits, isWaiting) }}
		require.NoError(t, p[0].create(t.Context(), "1"))
		time.Sleep(2 * time.Minute)
		require.Equal(t, 1, p[0].parkedOf("1"))
		_, err := p[0].deliver(t.Context(), "1", "a", "a")
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = p[0].deliver(t.Context(), "1", "b", "b")
		require.NoError(t, err)
		requireResult(t, p[0], "1", "a b")
		require.Equal(t, 2, p[0].startsOf("1"))
		require.Equal(t, []bool{true, false, true, false}, waits)
	})
}

// concurrent runs a step for 10 s in a goroutine, and awaits an input.
func concurrent(c *counter, stepDelay, awaitDelay time.Duration) handler {
	return func(ctx context.Context, _ *process, r *Run) (string, error) {
		_, err := r.Step(ctx, "first", func(context.Context, string) ([]byte, error) { return nil, nil })
		if err != nil {
			return "", err
		}
		done := make(chan string)
		go func() {
			time.Sleep(stepDelay)
			data, _ := r.Step(ctx, "a", c.run)
			done <- string(data)
		}()
		time.Sleep(awaitDelay)
		data, err := r.Await(ctx)
		return <-done + " " + string(data), err
	}
}

// A step in progress continues elsewhere, although the run waits for an input too.
func TestStepInProgressRunsAgainDespiteWait(t *testing.T) {
	for _, delays := range [][2]time.Duration{{time.Second, 0}, {0, time.Second}} {
		c := &counter{delay: 10 * time.Second}
		inProcesses(t, 2, concurrent(c, delays[0], delays[1]), func(t *testing.T, p []*process) {
			require.NoError(t, p[0].create(t.Context(), "1"))
			time.Sleep(5 * time.Second)
			p[0].crash()
			time.Sleep(time.Minute)
			require.Len(t, c.calls(), 2, "runs of the step")
			_, err := p[1].deliver(t.Context(), "1", "i", "b")
			require.NoError(t, err)
			requireResult(t, p[1], "1", "run 2 b")
		})
	}
}

func TestShutdownParksRunAfterStepsInProgress(t *testing.T) {
	for _, delays := range [][2]time.Duration{{time.Second, 0}, {0, time.Second}, {0, 5 * time.Second}} {
		c := &counter{delay: 10 * time.Second}
		inProcesses(t, 2, concurrent(c, delays[0], delays[1]), func(t *testing.T, p []*process) {
			require.NoError(t, p[0].create(t.Context(), "1"))
			time.Sleep(3 * time.Second)
			start := time.Now()
			p[0].shutdown()
			require.Less(t, time.Since(start), 9*time.Second)
			_, err := p[1].deliver(t.Context(), "1", "i", "b")
			require.NoError(t, err)
			requireResult(t, p[1], "1", "run 1 b")
			require.Len(t, c.calls(), 1, "runs of the step")
		})
	}
}

func TestShutdownParksRunThatBeginsToWait(t *testing.T) {
	c := &counter{delay: 10 * time.Second}
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		if _, err := r.Step(ctx, "a", c.run); err != nil {
			return "", err
		}
		return echo(ctx, p, r)
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		time.Sleep(time.Second)
		start := time.Now()
		p[0].shutdown()
		require.Equal(t, 9*time.Second, time.Since(start).Round(time.Second))
		time.Sleep(time.Second)
		require.Equal(t, 1, p[1].parkedOf("1"))
	})
}

// A run that has got its input does not run again before the end of its sleep.
func TestInputOfEarlierWaitDoesNotEndSleep(t *testing.T) {
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		data, err := r.Await(ctx)
		if err == nil {
			err = r.Sleep(ctx, "nap", time.Hour)
		}
		return string(data), err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		time.Sleep(time.Second)
		_, err := p[0].deliver(t.Context(), "1", "i", "a")
		require.NoError(t, err)
		time.Sleep(time.Second)
		p[0].crash()
		time.Sleep(30 * time.Minute)
		require.Zero(t, p[1].startsOf("1"))
		time.Sleep(31 * time.Minute)
		requireResult(t, p[1], "1", "a")
	})
}

// A handler awaits an input for an hour at most. Its process fails before the hour has passed, and the next owner finds it
// passed.
func TestSleepDuringAwaitEndsWithoutOwner(t *testing.T) {
	h := func(ctx context.Context, _ *process, r *Run) (string, error) {
		awaitCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			if r.Sleep(ctx, "limit", time.Hour) == nil {
				cancel()
			}
		}()
		time.Sleep(time.Second)
		data, err := r.Await(awaitCtx)
		if ctx.Err() == nil && awaitCtx.Err() != nil {
			return "no input", nil
		}
		return string(data), err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		time.Sleep(time.Hour - time.Second)
		p[0].crash()
		time.Sleep(time.Minute)
		requireResult(t, p[1], "1", "no input")
	})
}

// A parked run that awaits an input sleeps on, although another wait of its handler has ended.
func TestEndedSleepDoesNotWakeRunAgain(t *testing.T) {
	for _, name := range []string{"sleep during await", "step during sleep"} {
		t.Run(name, func(t *testing.T) {
			h := func(ctx context.Context, _ *process, r *Run) (string, error) {
				var sleep sync.WaitGroup
				sleep.Go(func() { _ = r.Sleep(ctx, "limit", time.Minute) })
				if name == "step during sleep" {
					time.Sleep(time.Second)
					if _, err := r.Step(ctx, "step", func(context.Context, string) ([]byte, error) { return nil, nil }); err != nil {
						return "", err
					}
					sleep.Wait()
				}
				data, err := r.Await(ctx)
				sleep.Wait()
				return string(data), err
			}
			inProcesses(t, 1, h, func(t *testing.T, p []*process) {
				p[0].o = RunOptions{ParkAfter: 10 * time.Second}
				require.NoError(t, p[0].create(t.Context(), "1"))
				time.Sleep(10 * time.Hour)
				require.Less(t, p[0].startsOf("1"), 10)
				_, err := p[0].deliver(t.Context(), "1", "a", "input")
				require.NoError(t, err)
				requireResult(t, p[0], "1", "input")
			})
		})
	}
}

// A handler that runs again and is cut off before the wait leaves a run that waits.
func TestReplayKeepsRunWaiting(t *testing.T) {
	inProcesses(t, 1, nil, func(t *testing.T, p []*process) {
		ctx := p[0].lease.Context()
		play := func(isWhole bool) {
			r, err := p[0].Open(ctx, "1", RunOptions{})
			require.NoError(t, err)
			defer r.Close()
			_, err = r.Await(ctx)
			require.NoError(t, err)
			require.NoError(t, r.Sleep(ctx, "nap", time.Second))
			if isWhole {
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				_, err = r.Await(short)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
		}
		_, err := p[0].deliver(t.Context(), "1", "i", "a")
		require.ErrorIs(t, err, store.ErrNotFound, "there is no record")
		play(true)
		play(false)
		isParked, _, err := p[0].Adopt(ctx, "1", func() {})
		require.NoError(t, err)
		require.True(t, isParked)
	})
}

// A run that waits is parked, whatever it has done since the wait first began.
func TestRunThatWaitsIsParkedAfterWork(t *testing.T) {
	step := func(ctx context.Context, r *Run) {
		_, _ = r.Step(ctx, "step", func(context.Context, string) ([]byte, error) { return nil, nil })
	}
	for name, h := range map[string]handler{
		"step after an await": func(ctx context.Context, _ *process, r *Run) (string, error) {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if data, err := r.Await(short); err == nil {
				return string(data), nil
			}
			step(ctx, r)
			data, err := r.Await(ctx)
			return string(data), err
		},
		"step after a sleep": func(ctx context.Context, _ *process, r *Run) (string, error) {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if r.Sleep(short, "nap", 90*time.Minute) != nil {
				step(ctx, r)
				if err := r.Sleep(ctx, "nap", 90*time.Minute); err != nil {
					return "", err
				}
			}
			data, err := r.Await(ctx)
			return string(data), err
		},
		"step during an await": func(ctx context.Context, _ *process, r *Run) (string, error) {
			time.AfterFunc(time.Second, func() { step(ctx, r) })
			data, err := r.Await(ctx)
			return string(data), err
		},
		"failed step during an await": func(ctx context.Context, _ *process, r *Run) (string, error) {
			time.AfterFunc(time.Second, func() {
				_, _ = r.Step(ctx, "step", func(context.Context, string) ([]byte, error) { return nil, errors.New("failed") })
			})
			data, err := r.Await(ctx)
			return string(data), err
		},
		"item during an await": func(ctx context.Context, _ *process, r *Run) (string, error) {
			time.AfterFunc(time.Second, func() { _, _, _ = r.Emit(ctx, "k", "id", nil) })
			data, err := r.Await(ctx)
			return string(data), err
		},
	} {
		for _, end := range []func(p *process){(*process).crash, (*process).shutdown} {
			t.Run(name, func(t *testing.T) {
				inProcesses(t, 2, h, func(t *testing.T, p []*process) {
					require.NoError(t, p[0].create(t.Context(), "1"))
					time.Sleep(time.Minute)
					end(p[0])
					time.Sleep(time.Hour)
					require.Zero(t, p[1].startsOf("1"))
					require.Equal(t, 1, p[1].parkedOf("1"))
					_, err := p[1].deliver(t.Context(), "1", "i", "a")
					require.NoError(t, err)
					time.Sleep(30 * time.Minute)
					requireResult(t, p[1], "1", "a")
					require.Equal(t, 1, p[1].startsOf("1"))
				})
			})
		}
	}
}

func TestDeliverToFailedOwnerReachesNextOwner(t *testing.T) {
	inProcesses(t, 2, echo, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		synctest.Wait()
		p[0].crash()
		for _, input := range []string{"a", "b"} {
			first, err := p[1].deliver(t.Context(), "1", input, input)
			require.NoError(t, err)
			require.True(t, first)
		}
		requireResult(t, p[1], "1", "a b")
	})
}

func TestInputReachesOwnerAfterPause(t *testing.T) {
	for _, pause := range []time.Duration{5 * time.Second, time.Minute} {
		inProcesses(t, 2, echo, func(t *testing.T, p []*process) {
			require.NoError(t, p[0].create(t.Context(), "1"))
			synctest.Wait()
			p[0].plan.Pause()
			_, err := p[1].deliver(t.Context(), "1", "a", "a")
			require.NoError(t, err)
			time.Sleep(pause)
			p[0].plan.Resume()
			_, err = p[1].deliver(t.Context(), "1", "b", "b")
			require.NoError(t, err)
			requireResult(t, p[1], "1", "a b")
		})
	}
}

func TestDeliverIsFirstOnceWhenAnswersAreLost(t *testing.T) {
	rule := fault.Rule{Action: fault.ErrorAfter, Op: "append", Probability: 0.7}
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		for _, input := range []string{"a", "b"} {
			for n := range 5 {
				first, err := p[0].deliver(t.Context(), "1", input, input)
				require.NoError(t, err)
				require.Equal(t, n == 0, first)
			}
		}
		requireResult(t, p[0], "1", "a b")
		require.Positive(t, p[0].plan.Count(fault.ErrorAfter))
	}, rule)
}

// An input and the end of a sleep may come at once.
func TestRerunIsCalledOnce(t *testing.T) {
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		ctx := p[0].lease.Context()
		r, err := p[0].Open(ctx, "1", RunOptions{})
		require.NoError(t, err)
		go r.Await(r.Context())
		synctest.Wait()
		r.Close()
		calls := 0
		isParked, _, err := p[0].Adopt(ctx, "1", func() { calls++ })
		require.NoError(t, err)
		require.True(t, isParked)
		parked := p[0].runs[p[0].stream("1")]
		parked.fire()
		parked.fire()
		require.Equal(t, 1, calls)
	})
}

// The clock of the earlier process may be ahead.
func TestSleepIsNeverLongerThanItsLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for ahead, want := range map[time.Duration]time.Duration{
			0: time.Minute, 24 * time.Hour: time.Minute, -30 * time.Second: 30 * time.Second, -time.Hour: -59 * time.Minute,
		} {
			e := &entry{End: time.Now().Add(ahead + time.Minute), Length: time.Minute}
			require.Equal(t, want, e.left(), "ahead by %v", ahead)
		}
	})
}

func TestDeliverWithoutIDIsAlwaysFirst(t *testing.T) {
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		for _, input := range []string{"a", "b"} {
			first, err := p[0].deliver(t.Context(), "1", "", input)
			require.NoError(t, err)
			require.True(t, first)
		}
		requireResult(t, p[0], "1", "a b")
	})
}

func TestReadYieldsErrorOnceAndLast(t *testing.T) {
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		for n := range pageSize + 1 {
			_, err := p[0].Deliver(t.Context(), "1", fmt.Sprint(n), nil,
				func(context.Context) (lease.Owner, error) { return "", nil })
			require.NoError(t, err)
		}
		var errs []error
		for _, err := range p[0].Read(t.Context(), "1") {
			errs = append(errs, err)
			p[0].plan.Crash()
		}
		require.Len(t, errs, pageSize+1)
		for _, err := range errs[:pageSize] {
			require.NoError(t, err)
		}
		require.ErrorIs(t, errs[pageSize], fault.ErrCrashed)
	})
}

// A notice is not needed for an input before Open, and an owner that is unknown is no error.
func TestDeliverBeforeOpen(t *testing.T) {
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		for _, input := range []string{"a", "b"} {
			_, err := p[0].Deliver(t.Context(), "1", input, []byte(input),
				func(context.Context) (lease.Owner, error) { return "", nil })
			require.NoError(t, err)
		}
		require.NoError(t, p[0].create(t.Context(), "1"))
		requireResult(t, p[0], "1", "a b")
	})
}

func TestDeliverReturnsErrorOfOwner(t *testing.T) {
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		_, err := p[0].Deliver(t.Context(), "1", "a", nil,
			func(context.Context) (lease.Owner, error) { return "", errEnded })
		require.ErrorIs(t, err, errEnded)
		_, err = p[0].Deliver(t.Context(), "1", "a", nil,
			func(context.Context) (lease.Owner, error) { panic("no owner") })
		require.ErrorContains(t, err, "no owner")
	})
}

func TestEmitAddsEachItemOnce(t *testing.T) {
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		var text []string
		emit := func(kind, id, data string) {
			n, first, err := r.Emit(ctx, kind, id, []byte(data))
			text = append(text, fmt.Sprint(n, first, err))
		}
		emit("artifact", "a", "1")
		emit("artifact", "a", "2")
		emit("artifact", "b", "1")
		emit("message", "a", "1")
		emit("message", "", "1")
		emit("message", "", "1")
		emit("artifact", "", "1")
		_, err := r.Await(ctx)
		return strings.Join(text, ", "), err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		synctest.Wait()
		p[0].shutdown()
		_, err := p[1].deliver(t.Context(), "1", "i", "input")
		require.NoError(t, err)
		requireResult(t, p[1], "1",
			"1 false <nil>, 1 false <nil>, 2 false <nil>, 1 false <nil>, 2 false <nil>, 3 false <nil>, 3 false <nil>")
		var items []string
		for item, err := range p[1].Read(t.Context(), "1") {
			require.NoError(t, err)
			items = append(items, fmt.Sprint(item.Kind, item.ID, item.N, string(item.Data)))
		}
		require.Equal(t, []string{"artifacta11", "artifactb21", "messagea11", "message21", "message31",
			"artifact31", "i1input"}, items)
	})
}

func TestEmitFromGoroutinesGivesDistinctNumbers(t *testing.T) {
	var mu sync.Mutex
	numbers := map[string][]int{} // by run; guarded by mu
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		mu.Lock()
		numbers[r.id] = nil
		mu.Unlock()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				n, _, err := r.Emit(ctx, "artifact", "", fmt.Append(nil, i%3))
				if err == nil {
					mu.Lock()
					numbers[r.id] = append(numbers[r.id], n)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		_, err := r.Await(ctx)
		return "", err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		require.NoError(t, p[0].create(t.Context(), "1x"))
		check := func() {
			mu.Lock()
			defer mu.Unlock()
			got := slices.Clone(numbers["1"])
			slices.Sort(got)
			require.Len(t, slices.Compact(got), 100)
			require.Equal(t, 100, got[99])
		}
		time.Sleep(10 * time.Second)
		check()
		p[0].shutdown()
		_, err := p[1].deliver(t.Context(), "1", "i", "input")
		require.NoError(t, err)
		time.Sleep(time.Second)
		check()
		require.Equal(t, 100, countItems(t, p[1], "1"))
	}, fault.Rule{Action: fault.Delay, Op: "append", Match: "x/journal/", Delay: 10 * time.Millisecond})
}

func countItems(t *testing.T, p *process, id string) (n int) {
	t.Helper()
	for item, err := range p.Read(t.Context(), id) {
		require.NoError(t, err)
		if item.Kind != "" {
			n++
		}
	}
	return n
}

func TestEntryOverLimitFailsWork(t *testing.T) {
	big := bytes.Repeat([]byte("x"), maxEntry+1)
	for name, h := range map[string]handler{
		"step": func(ctx context.Context, _ *process, r *Run) (string, error) {
			_, err := r.Step(ctx, "a", func(context.Context, string) ([]byte, error) { return big, nil })
			return "", err
		},
		"emit": func(ctx context.Context, _ *process, r *Run) (string, error) {
			_, _, err := r.Emit(ctx, "k", "", big)
			return "", err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inProcesses(t, 1, h, func(t *testing.T, p []*process) {
				require.NoError(t, p[0].create(t.Context(), "1"))
				requireResult(t, p[0], "1", "error: journal: too large: entry of 1048577 bytes, want at most 1048576")
				_, err := p[0].deliver(t.Context(), "1", "i", string(big))
				require.ErrorIs(t, err, ErrTooLarge)
			})
		})
	}
}

// A run with as many entries as permitted is read again, and one more fails the work.
func TestEntriesOverCountFailWork(t *testing.T) {
	c := &counter{}
	h := func(ctx context.Context, _ *process, r *Run) (string, error) {
		for range maxEntries - 4 { // the others are the opening, a wait, the input and its end
			if _, _, err := r.Emit(ctx, "k", "", nil); err != nil {
				return "", err
			}
		}
		if _, err := r.Await(ctx); err != nil {
			return "", err
		}
		_, err := r.Step(ctx, "a", c.run)
		return "", err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		synctest.Wait()
		p[0].shutdown()
		_, err := p[1].deliver(t.Context(), "1", "i", "input")
		require.NoError(t, err)
		requireResult(t, p[1], "1",
			"error: journal: too large: entry 10001 with 640069 bytes in all, want at most 10000 and 67108864")
		require.Empty(t, c.calls(), "runs of the step")
		require.Equal(t, maxEntries-4, countItems(t, p[1], "1"))
	})
}

func TestBytesOverLimitFailWork(t *testing.T) {
	h := func(ctx context.Context, _ *process, r *Run) (string, error) {
		for n := range 100 {
			_, err := r.Step(ctx, fmt.Sprint(n), func(context.Context, string) ([]byte, error) { return make([]byte, maxEntry), nil })
			if err != nil {
				return fmt.Sprint(n, errors.Is(err, ErrTooLarge)), nil
			}
		}
		return "no error", nil
	}
	inProcesses(t, 1, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		requireResult(t, p[0], "1", "63 true")
	})
}

// Inputs over the limits fail the work that they are for.
func TestInputsOverLimitFailWork(t *testing.T) {
	inProcesses(t, 2, echo, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		synctest.Wait()
		p[0].shutdown()
		time.Sleep(time.Second)
		require.Equal(t, 1, p[1].parkedOf("1"))
		for n := range maxEntries + 1 {
			_, err := p[1].Deliver(t.Context(), "1", fmt.Sprint(n), nil,
				func(context.Context) (lease.Owner, error) { return "", nil })
			require.NoError(t, err)
		}
		_, err := p[1].deliver(t.Context(), "1", "last", "")
		require.NoError(t, err)
		require.Contains(t, awaitResult(p[1], "1", time.Minute), "too large")
	})
}

// Owners that have a run for less than half of its time to live renew it too.
func TestJournalIsRenewedAndExpiresWithRun(t *testing.T) {
	h := func(ctx context.Context, _ *process, r *Run) (string, error) {
		if _, _, err := r.Emit(ctx, "k", "a", nil); err != nil {
			return "", err
		}
		data, err := r.Await(ctx)
		return string(data), err
	}
	synctest.Test(t, func(t *testing.T) {
		db, day := store.NewMemory(), 24*time.Hour
		start := func() *process {
			p := &process{plan: &fault.Plan{}, handler: h, starts: map[string]int{}, parked: map[string]int{}}
			p.start(t, db, day/4)
			return p
		}
		p := start()
		require.NoError(t, p.create(t.Context(), "1"))
		time.Sleep(100 * day)
		require.Equal(t, 1, countItems(t, p, "1"), "items of an open run")
		for range 10 {
			p.shutdown()
			p = start()
			time.Sleep(12 * day)
			require.Equal(t, 1, p.parkedOf("1"))
			require.Equal(t, 1, countItems(t, p, "1"), "items of a parked run")
		}
		time.Sleep(100 * day)
		_, err := p.deliver(t.Context(), "1", "i", "a")
		require.NoError(t, err)
		requireResult(t, p, "1", "a")
		require.Equal(t, 1, countItems(t, p, "1"))
		time.Sleep(time.Hour)
		require.Zero(t, countItems(t, p, "1"))
		p.shutdown()
	})
}

func TestOpenOfOpenRunIsErrBusy(t *testing.T) {
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		ctx := p[0].lease.Context()
		r, err := p[0].Open(ctx, "1", RunOptions{})
		require.NoError(t, err)
		_, err = p[0].Open(ctx, "1", RunOptions{})
		require.ErrorIs(t, err, ErrBusy)
		_, _, err = p[0].Adopt(ctx, "1", func() {})
		require.ErrorIs(t, err, ErrBusy)
		r.Close()
		_, err = r.Await(ctx)
		require.ErrorIs(t, err, ErrClosed)
		isParked, hasEntries, err := p[0].Adopt(ctx, "1", func() {})
		require.NoError(t, err)
		require.False(t, isParked)
		require.False(t, hasEntries)
	})
}

func TestOpenReportsMalformedEntry(t *testing.T) {
	inProcesses(t, 1, echo, func(t *testing.T, p []*process) {
		for n, value := range []string{"", "\x02x", "\x01{", "\x01{}"} {
			id := fmt.Sprint(n)
			_, err := p[0].db.Append(t.Context(), p[0].stream(id), "key", []byte(value), time.Hour)
			require.NoError(t, err)
			_, err = p[0].Open(p[0].lease.Context(), id, RunOptions{})
			require.ErrorContains(t, err, `journal: entry "key" at position`, "value %q", value)
			isParked, hasEntries, err := p[0].Adopt(p[0].lease.Context(), id, func() {})
			require.NoError(t, err)
			require.False(t, isParked)
			require.True(t, hasEntries)
		}
	})
}

func TestRunEndsWithLease(t *testing.T) {
	var mu sync.Mutex
	var ends []error
	h := func(ctx context.Context, p *process, r *Run) (string, error) {
		result, err := echo(ctx, p, r)
		mu.Lock()
		defer mu.Unlock()
		ends = append(ends, err)
		return result, err
	}
	inProcesses(t, 2, h, func(t *testing.T, p []*process) {
		require.NoError(t, p[0].create(t.Context(), "1"))
		synctest.Wait()
		p[0].plan.Pause()
		time.Sleep(14 * time.Second)
		mu.Lock()
		require.Len(t, ends, 1)
		require.ErrorIs(t, ends[0], lease.ErrLost)
		mu.Unlock()
		time.Sleep(6 * time.Second)
		p[0].plan.Resume()
		for _, input := range []string{"a", "b"} {
			_, err := p[0].deliver(t.Context(), "1", input, input)
			require.NoError(t, err)
		}
		requireResult(t, p[1], "1", "a b")
		require.Equal(t, 1, p[1].parkedOf("1"))
	})
}
