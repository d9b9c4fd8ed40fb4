// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A thing is something held, or a caller that waits for a place.
type thing struct {
	principal, session string
	resource           Resource
	n                  int64
	hold               Hold
}

// A model is a budget as a list of holds.
type model struct {
	limits map[Resource]Limit
	holds  []*thing
	queue  []*thing // waiting callers
	turns  []string // principals in queue, the next one first
}

func isAnonymous(principal string) bool { return principal[0] == 0 }

// used adds up what the things like t hold that a filter lets pass.
func (m *model) used(t *thing, pass func(o *thing) bool) (n int64) {
	for _, o := range m.holds {
		if o.resource == t.resource && pass(o) {
			n += o.n
		}
	}
	return n
}

// fits is the rule of a reservation.
func (m *model) fits(t *thing) bool {
	limit := m.limits[t.resource]
	session := m.used(t, func(o *thing) bool { return o.principal == t.principal && o.session == t.session })
	own := m.used(t, func(o *thing) bool { return o.principal == t.principal })
	free := limit.All - m.used(t, func(*thing) bool { return true })
	if isAnonymous(t.principal) {
		free = min(free, (limit.All+1)/2-m.used(t, func(o *thing) bool { return isAnonymous(o.principal) }))
	}
	return (t.session == "" || session+t.n <= limit.Session) && own+t.n <= limit.Principal && t.n <= free &&
		(own+t.n <= free-t.n || own == 0 && t.n == 1)
}

// admit moves waiting callers to places, principals in turn.
func (m *model) admit() {
	for i := 0; i < len(m.turns); i++ {
		p := m.turns[i]
		j := slices.IndexFunc(m.queue, func(t *thing) bool { return t.principal == p && m.fits(t) })
		if j < 0 {
			continue
		}
		m.holds = append(m.holds, m.queue[j])
		m.drop(m.queue[j])
		if k := slices.Index(m.turns, p); k >= 0 {
			m.turns = append(slices.Delete(m.turns, k, k+1), p)
		}
		i = -1
	}
}

// drop removes a waiting caller.
func (m *model) drop(t *thing) {
	m.queue = slices.DeleteFunc(m.queue, func(o *thing) bool { return o == t })
	if !slices.ContainsFunc(m.queue, func(o *thing) bool { return o.principal == t.principal }) {
		m.turns = slices.DeleteFunc(m.turns, func(p string) bool { return p == t.principal })
	}
}

var (
	modelPrincipals = rapid.SampledFrom([]string{"alice", "bob", Anonymous("192.0.2.1"), Anonymous("192.0.2.2")})
	modelSessions   = rapid.SampledFrom([]string{"", "s1", "s2"})
	modelLimits     = rapid.Custom(func(t *rapid.T) Limit {
		return Limit{rapid.Int64Range(1, 6).Draw(t, "session"), rapid.Int64Range(1, 8).Draw(t, "principal"),
			rapid.Int64Range(1, 20).Draw(t, "all")}
	})
)

func drawThing(t *rapid.T, resources ...Resource) *thing {
	return &thing{principal: modelPrincipals.Draw(t, "principal"), session: modelSessions.Draw(t, "session"),
		resource: rapid.SampledFrom(resources).Draw(t, "resource"), n: 1}
}

// requireUsage compares the budget with the model, which B1 and B2 hold for.
func (m *model) requireUsage(t *rapid.T, b *Budget) {
	for r, limit := range m.limits {
		used := b.usage()[r].used
		require.Equal(t, m.used(&thing{resource: r}, func(*thing) bool { return true }), used.All)
		require.LessOrEqual(t, used.Session, limit.Session, "B1: a session")
		require.LessOrEqual(t, used.Principal, limit.Principal, "B1: a principal")
		require.LessOrEqual(t, used.All, limit.All, "B1: all")
	}
}

// B1: the sums stay in their bounds. B2: after all releases they are zero. B3: a
// principal that holds less than the free rest is not refused because of another one.
func TestBudgetFollowsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{limits: map[Resource]Limit{Memory: modelLimits.Draw(t, "memory"), Items: modelLimits.Draw(t, "items")}}
		b := New(Limits{Memory: m.limits[Memory], Items: m.limits[Items], Logger: discard}, nil)
		var released []Hold
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				x := drawThing(t, Memory, Items)
				x.n = rapid.Int64Range(1, 4).Draw(t, "n")
				fits := m.fits(x)
				var err error
				x.hold, err = b.Scope(x.principal, x.session).Reserve(x.resource, x.n)
				require.Equal(t, fits, err == nil, "Reserve(%v, %d) of %q: %v", x.resource, x.n, x.principal, err)
				if fits {
					m.holds = append(m.holds, x)
				}
			},
			"release": func(t *rapid.T) {
				if len(m.holds) == 0 {
					t.Skip("nothing held")
				}
				i := rapid.IntRange(0, len(m.holds)-1).Draw(t, "i")
				m.holds[i].hold.Release()
				released = append(released, m.holds[i].hold)
				m.holds = slices.Delete(m.holds, i, i+1)
			},
			"resize": func(t *rapid.T) {
				if len(m.holds) == 0 {
					t.Skip("nothing held")
				}
				x := m.holds[rapid.IntRange(0, len(m.holds)-1).Draw(t, "i")]
				n := rapid.Int64Range(-1, 6).Draw(t, "n")
				more := *x
				more.n = n - x.n
				fits := more.n <= 0 || m.fits(&more)
				err := x.hold.Resize(n)
				require.Equal(t, fits, err == nil, "Resize(%d) of %d of %v: %v", n, x.n, x.resource, err)
				if fits {
					x.n = max(n, 0)
				}
			},
			"release again": func(t *rapid.T) {
				if len(released) > 0 {
					h := released[rapid.IntRange(0, len(released)-1).Draw(t, "i")]
					h.Release()
					require.NoError(t, h.Resize(100))
				}
			},
			"room": func(t *rapid.T) {
				x := drawThing(t, Memory, Items)
				free, _ := b.Scope(x.principal, x.session).Room(x.resource)
				x.n = free
				require.True(t, free == 0 || m.fits(x), "%d fit", free)
				x.n = max(free+1, 2) // a first unit has a separate rule
				require.False(t, m.fits(x), "more than %d fit", free)
			},
			"": func(t *rapid.T) { m.requireUsage(t, b) },
		})
		for _, x := range m.holds {
			x.hold.Release()
		}
		m.holds = nil
		m.requireUsage(t, b)
	})
}

// A caller is one call of Acquire in a goroutine.
type caller struct {
	thing
	cancel context.CancelFunc
	err    chan error
}

func TestAcquireFollowsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failure any
		synctest.Test(t, func(*testing.T) {
			defer func() { failure = recover() }()
			checkAcquire(rt)
		})
		if failure != nil {
			panic(failure)
		}
	})
}

func checkAcquire(t *rapid.T) {
	m := &model{limits: map[Resource]Limit{Work: {rapid.Int64Range(1, 3).Draw(t, "session"),
		rapid.Int64Range(1, 4).Draw(t, "principal"), rapid.Int64Range(1, 10).Draw(t, "all")}}}
	b := New(Limits{Work: m.limits[Work], Logger: discard}, nil)
	callers := map[*thing]*caller{}
	defer func() {
		for _, c := range callers {
			c.cancel()
		}
		synctest.Wait()
	}()
	t.Repeat(map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) {
			ctx, cancel := context.WithCancel(context.Background())
			c := &caller{thing: *drawThing(t, Work), cancel: cancel, err: make(chan error, 1)}
			callers[&c.thing] = c
			go func() {
				hold, err := b.Scope(c.principal, c.session).Acquire(ctx)
				c.hold = hold
				c.err <- err
			}()
			if m.fits(&c.thing) {
				m.holds = append(m.holds, &c.thing)
				return
			}
			m.queue = append(m.queue, &c.thing)
			if !slices.Contains(m.turns, c.principal) {
				m.turns = append(m.turns, c.principal)
			}
		},
		"release": func(t *rapid.T) {
			if len(m.holds) == 0 {
				t.Skip("nothing held")
			}
			i := rapid.IntRange(0, len(m.holds)-1).Draw(t, "i")
			x := m.holds[i]
			m.holds = slices.Delete(m.holds, i, i+1)
			x.hold.Release()
			delete(callers, x)
			m.admit()
		},
		"cancel": func(t *rapid.T) {
			if len(m.queue) == 0 {
				t.Skip("no waiting caller")
			}
			x := m.queue[rapid.IntRange(0, len(m.queue)-1).Draw(t, "i")]
			callers[x].cancel()
			require.ErrorIs(t, <-callers[x].err, context.Canceled)
			m.drop(x)
			delete(callers, x)
		},
		"": func(t *rapid.T) {
			synctest.Wait()
			for _, x := range m.holds {
				require.NotEqual(t, Hold{}, x.hold, "not admitted in turn: %q %q", x.principal, x.session)
			}
			for _, x := range m.queue {
				require.Equal(t, Hold{}, x.hold, "admitted out of turn: %q %q", x.principal, x.session)
			}
			m.requireUsage(t, b)
			require.EqualValues(t, len(m.queue), b.usage()[Waiting].used.All)
		},
	})
}
