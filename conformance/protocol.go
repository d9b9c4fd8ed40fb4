// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Protocol binds the operations that vectors name to an implementation.
//
// The runner has all its knowledge of a protocol from here, so another
// implementation is tested by filling in another Protocol. To replace a few
// operations only, take one of [Builtin] and change its Ops.
type Protocol struct {
	// Name is the protocol as vectors spell it, such as "arc".
	Name string

	// Ops are the operations by their name. A vector with an operation that
	// is not here fails.
	Ops map[string]Op
}

// An Op runs one operation against the implementation. It returns one of:
//
//   - an [Answer], which is compared with want;
//   - a [*Failure], wrapped or not: the implementation refused the input in the
//     protocol's own terms, which is compared with wantErr;
//   - any other error: the adapter or the implementation is broken, and the
//     case fails whatever it wanted.
//
// An Op reads every member of in, before it does the work; a member that no
// one asked for fails the case, so that no input is ignored by accident. It
// need not check what it reads: a missing member or one of the wrong type fails
// the case by itself.
//
// An error that wraps [errors.ErrUnsupported] means that the implementation does
// not have the operation: the case has neither passed nor failed.
//
// The t is for [Script], for temporary folders and for cleaning up. An Op does not
// report through it, because a failure reported to t cannot be a known one.
type Op func(t T, in *Input) (Answer, error)

// A T is what a run and its operations need from their surroundings. A [testing.T]
// is one, and then each case is a subtest. The log of a case is part of
// its [Result] in every other T. Its methods are called from several goroutines.
type T interface {
	Name() string
	Logf(format string, args ...any)
	TempDir() string
	Cleanup(func())
}

// A Failure says that an implementation refused an operation in the terms of
// its protocol. It is what wantErr is compared with.
type Failure struct {
	// Code is the protocol's word for the fault. If it is empty, the field
	// "code" of Fields is the code, as for protocols whose codes are numbers.
	Code string

	// Fields are the other things that wantErr may ask for, such as "field" or
	// "status". Fields that wantErr does not name are not compared. Values are
	// those that an [Answer] may have.
	Fields Answer

	// Err is the implementation's own error, shown when the case fails.
	Err error
}

// NewFailure returns a [Failure] with a code only.
func NewFailure(code string, err error) *Failure { return &Failure{Code: code, Err: err} }

// Error names the code, the fields, and the cause.
func (f *Failure) Error() string {
	var b strings.Builder
	b.WriteString("refused")
	if f.Code != "" {
		b.WriteString(" as " + f.Code)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Fields)) {
		v := f.Fields[name]
		if text, ok := v.(json.RawMessage); ok { // of another process
			v = string(text)
		}
		fmt.Fprintf(&b, " %s=%v", name, v)
	}
	if f.Err != nil {
		b.WriteString(": " + f.Err.Error())
	}
	return b.String()
}

// Unwrap returns the implementation's own error.
func (f *Failure) Unwrap() error { return f.Err }

// fields returns everything that wantErr may name.
func (f *Failure) fields() Answer {
	all := Answer{}
	maps.Copy(all, f.Fields)
	if f.Code != "" {
		all["code"] = f.Code
	}
	return all
}
