// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire reads and writes the parts of ARC messages that concern no transport: the params of the standard
// methods, times, callback URLs, trace ids and the events of streams. Messages and artifacts are JSON text.
package wire

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// The codes of the faults that this package and package engine make (section 4).
const (
	InvalidParams         = -32602
	Internal              = -32603
	AgentNotFound         = -41001
	AgentNotAvailable     = -41002
	AgentCapacityExceeded = -41011
	DuplicateAgentID      = -41010
	TaskNotFound          = -42001
	TaskAlreadyCompleted  = -42002
	TaskAlreadyCanceled   = -42003
	TaskExecutionFailed   = -42004
	TaskTimeout           = -42005
	InvalidTaskTransition = -42006
	InvalidTaskPriority   = -42010
	ChatNotFound          = -43001
	ChatAlreadyClosed     = -43002
	ChatTimeout           = -43003
	ChatBufferOverflow    = -43006
	PermissionDenied      = -44006
	RateLimitExceeded     = -44007
	MessageTooLarge       = -45004
)

// A Fault is an error for the caller of a method.
type Fault struct {
	Code    int64
	Message string // empty means that of the code
	Details []byte // JSON, or nil
	Cause   error  // for the log only
}

// Error names the code and the message.
func (f *Fault) Error() string { return fmt.Sprintf("arc: %s (%d)", f.Message, f.Code) }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

// JSON returns code, message and details (section 4).
func (f *Fault) JSON() []byte {
	o := Open(nil)
	o.Int("code", f.Code)
	o.Text("message", f.Message)
	if f.Details != nil {
		o.Raw("details", f.Details)
	}
	return o.Close()
}

// FieldFault is a fault of a member of a request (ARC-D06).
func FieldFault(code int64, field, issue string) *Fault {
	return NewFault(code, "field", field, "issue", issue)
}

// NewFault is a fault whose details have texts under names (ARC-D55).
func NewFault(code int64, members ...string) *Fault {
	o := Open(nil)
	for i := 0; i < len(members); i += 2 {
		o.Text(members[i], members[i+1])
	}
	return &Fault{Code: code, Details: o.Close()}
}

// MaxDepth is how deep a message may be nested, the envelope included (ARC-D01).
const MaxDepth = 128

// Check checks text by ARC-D01. The error is a [*strictjson.Error].
func Check(text []byte) (strictjson.Value, error) {
	return strictjson.Check(text, strictjson.Options{MaxDepth: MaxDepth, LoneSurrogates: true})
}

// Texts returns the strings of an array, and nothing for another value.
func Texts(v strictjson.Value) (list []string) {
	for e := v.Elements(); e.Next(); {
		if s, ok := e.Value.Text(); ok {
			list = append(list, s)
		}
	}
	return list
}

// A Decoder reads values by jsonmap. Its zero value is ready. It is for one goroutine.
type Decoder struct {
	cursor  strictjson.Cursor
	strings strictjson.Strings
}

// decoders are idle ones.
var decoders = sync.Pool{New: func() any { return new(Decoder) }}

// Decode reads the value of a text into dst. The error is one of [Check]; the size of a message bounds its names.
func Decode(text []byte, dst any) (*jsonmap.Fault, error) {
	d := decoders.Get().(*Decoder)
	defer decoders.Put(d)
	d.strings.Block = max(min(len(text), maxBlock), minBlock)
	return d.Decode(text, dst)
}

// A block is the memory of several short strings. Each of them keeps it allocated.
const (
	minBlock = 256
	maxBlock = 1 << 10
)

// Decode is the function [Decode].
func (d *Decoder) Decode(text []byte, dst any) (*jsonmap.Fault, error) {
	if d.strings.Block == 0 {
		d.strings.Block = maxBlock
	}
	c := &d.cursor
	c.Reset(text, strictjson.Options{MaxDepth: MaxDepth, LoneSurrogates: true, MaxNames: -1, MaxName: -1})
	c.Share(&d.strings)
	f := jsonmap.Read(c, dst)
	err := c.Err()
	c.Reset(nil, strictjson.Options{})
	return f, err
}

// An Object appends a JSON object.
type Object struct{ B []byte }

// Open begins an object behind b.
func Open(b []byte) Object { return Object{append(b, '{')} }

// Close ends the object and returns it with the bytes before it.
func (o *Object) Close() []byte {
	o.B = append(o.B, '}')
	return o.B
}

// Key begins a member. The name has no special characters.
func (o *Object) Key(name string) {
	if o.B[len(o.B)-1] != '{' {
		o.B = append(o.B, ',')
	}
	o.B = append(append(append(o.B, '"'), name...), '"', ':')
}

// Text appends a string.
func (o *Object) Text(name, s string) {
	o.Key(name)
	o.B = strictjson.AppendString(o.B, s)
}

// OptText appends a string that is not empty.
func (o *Object) OptText(name, s string) {
	if s != "" {
		o.Text(name, s)
	}
}

// Int appends an integer.
func (o *Object) Int(name string, n int64) {
	o.Key(name)
	o.B = strconv.AppendInt(o.B, n, 10)
}

// Bool appends a boolean.
func (o *Object) Bool(name string, v bool) {
	o.Key(name)
	o.B = strconv.AppendBool(o.B, v)
}

// Time appends a time (ARC-D63).
func (o *Object) Time(name string, t time.Time) {
	o.Key(name)
	o.B = append(t.UTC().AppendFormat(append(o.B, '"'), time.RFC3339Nano), '"')
}

// Raw appends checked JSON.
func (o *Object) Raw(name string, v []byte) {
	o.Key(name)
	o.B = append(o.B, v...)
}

// Texts appends a list of strings.
func (o *Object) Texts(name string, list []string) {
	o.Key(name)
	o.B = append(o.B, '[')
	for i, s := range list {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.B = strictjson.AppendString(o.B, s)
	}
	o.B = append(o.B, ']')
}

// Object begins an object as a member; its text is the rest of o until End.
func (o *Object) Object(name string) {
	o.Key(name)
	o.B = append(o.B, '{')
}

// End ends an object that is a member.
func (o *Object) End() { o.B = append(o.B, '}') }

// HasControl reports whether s contains control characters, which must not get into a header, a log line or a line of
// a stream.
func HasControl(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return true
		}
	}
	return false
}

// DecodeStored reads JSON that this package and package engine have written.
func DecodeStored(text []byte, dst any) error {
	const maxDepth = 2 * MaxDepth // a message is deeper in a record than in a request
	c := strictjson.NewCursor(text, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true, MaxNames: -1, MaxName: -1})
	if f := jsonmap.Read(c, dst); f != nil {
		return f
	}
	return c.Err()
}
