// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"errors"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Reason is the kind of a [Fault].
type Reason string

// The reasons.
const (
	Malformed  Reason = "malformed"    // the cursor refuses the text
	Missing    Reason = "missing"      // a required member is absent or null
	WrongType  Reason = "wrong type"   // a value of another JSON type
	NotInteger Reason = "not integer"  // a number with a fraction
	OutOfRange Reason = "out of range" // a number that the Go type cannot hold
	Invalid    Reason = "invalid"      // a value that its type or its struct refuses
	BadType    Reason = "bad type"     // the Go type cannot be mapped, see Check
)

// A Fault is a value that does not fit its Go type.
type Fault struct {
	Path    string // from the value that was read, such as parts[1].content
	Pointer string // the same as a JSON Pointer, such as /parts/1/content
	Reason  Reason
	Want    string // may be empty
	Got     string // the JSON type of the value; for an invalid string, how it begins
	Cause   error  // a *guard.PanicError if a method of the Go type panicked
}

// Unwrap returns Cause.
func (f *Fault) Unwrap() error { return f.Cause }

// Error returns path, reason, wanted and got.
func (f *Fault) Error() string {
	s := string(f.Reason)
	if f.Path != "" {
		s = f.Path + ": " + s
	}
	if f.Want != "" {
		s += ", want " + f.Want
	}
	if f.Got != "" {
		s += ", got " + f.Got
	}
	return s
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// In puts the path below a member and returns f.
func (f *Fault) In(name string) *Fault { return f.below(name, pointerEscapes.Replace(name)) }

// At puts the path below an element of an array and returns f.
func (f *Fault) At(i int) *Fault {
	n := strconv.Itoa(i)
	return f.below("["+n+"]", n)
}

func (f *Fault) below(step, token string) *Fault {
	if f.Path != "" && f.Path[0] != '[' {
		step += "."
	}
	f.Path, f.Pointer = step+f.Path, "/"+token+f.Pointer
	return f
}

// wrongType returns the fault of the value at c, which it skips.
func wrongType(c *strictjson.Cursor, want string) *Fault {
	f := &Fault{Reason: WrongType, Want: want, Got: kindNames[c.Kind()]}
	c.Skip()
	return f
}

var kindNames = map[byte]string{
	'{': "object", '[': "array", '"': "string", '0': "number", 't': "boolean", 'f': "boolean", 'n': "null",
}

// callMethod calls a method of a Go type that may be of the user, and returns its fault.
func callMethod(name string, method func() error) *Fault {
	return methodFault(guard.Call(name, method))
}

// methodFault returns the error of a method as a fault.
func methodFault(err error) *Fault {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*guard.PanicError](err); ok {
		return &Fault{Reason: Invalid, Cause: err}
	}
	return &Fault{Reason: Invalid, Want: err.Error()}
}

// maxGot bounds the part of a string that a fault repeats.
const maxGot = 64

// begin returns the begin of a text for Got.
func begin(text []byte) string { return strings.ToValidUTF8(string(text[:min(len(text), maxGot)]), "") }
