// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
)

// A codedError is an error of a user whose Error method needs a pointer.
type codedError struct{ code string }

func (e *codedError) Error() string { return e.code }

type badText struct{}

func (badText) String() string { panic("String failed") }

// cases are the ways in which user code can leave without returning.
var cases = []struct {
	name string
	f    func() error
	text string // part of the error
}{
	{"string", func() error { panic("no place") }, "no place"},
	{"error", func() error { panic(io.ErrUnexpectedEOF) }, "unexpected EOF"},
	{"coded error", func() error { panic(&codedError{"denied"}) }, "denied"},
	{"nil", func() error { panic(nil) }, "panic called with nil argument"},
	{"nil map", func() error {
		m := map[bool]map[string]int{}
		m[true]["a"] = 1
		return nil
	}, "assignment to entry in nil map"},
	{"nil pointer", func() error {
		var p *codedError
		p.code = ""
		return nil
	}, "nil pointer dereference"},
	{"index", func() error {
		list := []int{}
		list[len(list)] = 1
		return nil
	}, "index out of range"},
	{"value whose String panics", func() error { panic(badText{}) }, "String failed"},
	{"error that holds a nil pointer", func() error { return (*codedError)(nil) }, "nil pointer dereference"},
	{"error before the panic", func() (err error) {
		err = io.EOF
		panic("late " + err.Error())
	}, "late EOF"},
	{"panic during a panic", func() error {
		defer func() { panic("second") }()
		panic("first")
	}, "second"},
	{"long text", func() error { panic(strings.Repeat("x", 1<<20)) }, strings.Repeat("x", 1<<10)},
}

func requirePanic(t *testing.T, err error, text string) {
	t.Helper()
	var p *PanicError
	require.ErrorAs(t, err, &p)
	require.Equal(t, "handler", p.What)
	require.NotNil(t, p.Value)
	require.Contains(t, p.Error(), "handler panicked: ")
	require.Contains(t, p.Error(), text)
	require.LessOrEqual(t, len(p.Error()), 2<<10, "an error text is bounded")
	require.Contains(t, string(p.Stack), "guard_test.go")
	var coded *codedError
	require.NotErrorAs(t, err, &coded, "a panic does not pass as the error of the handler")
	require.NotErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestCallReturnsPanicAsError(t *testing.T) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) { requirePanic(t, Call("handler", tt.f), tt.text) })
	}
}

func TestRunPassesPanicToDone(t *testing.T) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			var got []error
			Run("handler", tt.f, func(err error) { got = append(got, err) })
			require.Len(t, got, 1)
			requirePanic(t, got[0], tt.text)
		})
	}
}

func TestRunCountsGoexitAsPanic(t *testing.T) {
	outcome := make(chan error, 2)
	go func() {
		Run("handler", func() error {
			runtime.Goexit()
			return nil
		}, func(err error) { outcome <- err })
		outcome <- errors.New("Run returned after Goexit")
	}()
	err := <-outcome
	requirePanic(t, err, ErrGoexit.Error())
	var p *PanicError
	require.ErrorAs(t, err, &p)
	require.Equal(t, ErrGoexit, p.Value)
	require.True(t, IsGoexit(err))
	require.False(t, IsGoexit(&PanicError{Value: "boom"}))
	require.Empty(t, outcome)
}

func TestCallApartReturnsAfterGoexit(t *testing.T) {
	err := CallApart("hook", func() error {
		runtime.Goexit()
		return nil
	})
	var p *PanicError
	require.ErrorAs(t, err, &p)
	require.Equal(t, ErrGoexit, p.Value)
	require.NoError(t, CallApart("hook", func() error { return nil }))
}

func TestCallRunsDeferredCodeOfItsCallerAfterGoexit(t *testing.T) {
	released := make(chan bool)
	go func() {
		defer func() { released <- true }()
		_ = Call("handler", func() error {
			runtime.Goexit()
			return nil
		})
		panic("Call returned after Goexit")
	}()
	require.True(t, <-released)
}

func TestCallReturnsErrorOfFunction(t *testing.T) {
	require.NoError(t, Call("handler", func() error { return nil }))
	require.Equal(t, io.EOF, Call("handler", func() error { return io.EOF }))
	var got []error
	Run("handler", func() error { return nil }, func(err error) { got = append(got, err) })
	Run("handler", func() error { return io.EOF }, func(err error) { got = append(got, err) })
	require.Equal(t, []error{nil, io.EOF}, got)
}

func descend(depth int) error {
	if depth == 0 {
		panic("deep")
	}
	return errors.Join(descend(depth-1), nil)
}

func TestPanicErrorBoundsStack(t *testing.T) {
	var p *PanicError
	require.ErrorAs(t, Call("handler", func() error { return descend(10_000) }), &p)
	require.NotEmpty(t, p.Stack)
	require.LessOrEqual(t, cap(p.Stack), 64<<10+8<<10, "the stack has at most 64 KiB")
	require.ErrorAs(t, Call("handler", func() error { panic("flat") }), &p)
	require.Less(t, cap(p.Stack), 8<<10, "a short stack does not keep its buffer")
}

type badJSON struct{}

func (badJSON) MarshalJSON() ([]byte, error) { panic("MarshalJSON failed") }

type badKey struct{}

func (badKey) MarshalText() ([]byte, error) { panic("MarshalText failed") }

type failing struct{}

func (failing) MarshalJSON() ([]byte, error) { return nil, io.ErrNoProgress }

func TestEncodeCoversMethodsOfValues(t *testing.T) {
	data, err := Encode(map[string]string{"a": "<&>"})
	require.NoError(t, err)
	require.Equal(t, `{"a":"<&>"}`, string(data))

	var p *PanicError
	for text, v := range map[string]any{
		"MarshalJSON failed": []any{1, badJSON{}},
		"MarshalText failed": struct{ K badKey }{},
	} {
		data, err = Encode(v)
		require.ErrorAs(t, err, &p)
		require.Contains(t, err.Error(), text)
		require.Nil(t, data)
	}
	_, err = Encode(map[badKey]int{{}: 1})
	require.ErrorAs(t, err, &p, "a panic of a key")
	_, err = Encode(failing{})
	require.ErrorIs(t, err, io.ErrNoProgress)
	var unsupported *json.UnsupportedTypeError
	_, err = Encode(make(chan int))
	require.ErrorAs(t, err, &unsupported)
}

func TestCallAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	n, fail := 0, io.EOF
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = Call("handler", func() error {
			n++
			return fail
		})
	}))
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		Run("handler", func() error {
			n++
			return nil
		}, func(error) { n++ })
	}))
}

func BenchmarkCall(b *testing.B) {
	n := 0
	for b.Loop() {
		_ = Call("handler", func() error {
			n++
			return nil
		})
	}
}

func TestSeqReturnsPanicOnce(t *testing.T) {
	isLeft := false
	seq := Seq("store", func(yield func(int, error) bool) {
		isLeft = !yield(1, nil)
		panic("lost")
	})
	n, errs := 0, []error{}
	for v, err := range seq {
		n += v
		if err != nil {
			errs = append(errs, err)
		}
	}
	require.Equal(t, 1, n)
	require.Len(t, errs, 1)
	require.EqualError(t, errs[0], "store panicked: lost")

	for range seq {
		break
	}
	require.True(t, isLeft)
	require.PanicsWithValue(t, "loop", func() {
		for range seq {
			panic("loop")
		}
	})
}

func TestOnce(t *testing.T) {
	used := errors.New("used")
	runs := 0
	seq := Once(func(yield func(int, error) bool) {
		runs++
		_ = yield(1, nil) && yield(2, nil)
	}, used)
	for v, err := range seq {
		require.Equal(t, 1, v)
		require.NoError(t, err)
		break
	}
	n := 0
	for v, err := range seq {
		n++
		require.Zero(t, v)
		require.ErrorIs(t, err, used)
	}
	require.Equal(t, 1, n)
	require.Equal(t, 1, runs)
}
