// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A validator checks parameters against a contract and brings them into the one
// form that Runtimes receive. It may be used by several goroutines.
type validator struct {
	root    object
	opts    validation
	scratch sync.Pool // of *[]byte, see normalized
}

// validation has the options of a [validator].
type validation struct{ dropUnknown, allowNonFinite bool }

// An object is one compiled level of parameters.
type object struct {
	fields []field
	index  map[string]int // by name; nil when there are few
}

type field struct {
	name     string
	key      []byte // the name as a JSON string with its colon
	base     string
	dims     int
	required bool
	sub      *object // members of the innermost object; nil: free-form
}

// fewFields is the number of names up to which linear search is faster than a map, and the number
// of values that a level keeps without allocating.
const fewFields = 8

// Bounds of the list in an answer about wrong parameters (ALT-D13): entries, and code points of an
// unknown name.
const (
	maxFaults    = 16
	maxFaultName = 128
)

// newValidator returns a validator for a contract. It fails like
// [Contract.Validate] for a contract that is not valid.
func newValidator(c *Contract, opts validation) (*validator, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &validator{root: *compile(c.Parameters), opts: opts}, nil
}

func compile(list []Parameter) *object {
	o := &object{fields: make([]field, len(list))}
	if len(list) > fewFields {
		o.index = make(map[string]int, len(list))
	}
	for i, p := range list {
		t, _ := form.ParseType(p.Type) // validated
		f := field{name: p.Name, key: append(appendString(nil, p.Name), ':'), base: t.Base, dims: t.Dims, required: p.Required}
		if len(p.Properties) > 0 {
			f.sub = compile(p.Properties)
		}
		o.fields[i] = f
		if o.index != nil {
			o.index[p.Name] = i
		}
	}
	return o
}

func (o *object) find(name []byte) int {
	if o.index != nil {
		if i, ok := o.index[string(name)]; ok {
			return i
		}
		return -1
	}
	for i := range o.fields {
		if o.fields[i].name == string(name) {
			return i
		}
	}
	return -1
}

// Append reads a JSON object of parameters and appends it in its normal form:
// members in the order of the contract, no white space, integers as plain
// digits, floats as the shortest text of the same value, binary as padded
// standard base64, optional nulls removed (ALT-D07). If the parameters do not fit,
// the error is an [*Error] that names everything that is wrong with them (ALT-D13).
func (v *validator) Append(dst, params []byte) ([]byte, error) {
	text, reason := check(params, 0)
	if reason != "" {
		return dst, formFault(reason, "", "the parameters are not a JSON object")
	}
	if v.root.normalEnd(text, 0) == len(text) {
		return append(dst, text...), nil
	}
	return v.appendChecked(dst, text)
}

// appendChecked is Append for a checked object.
func (v *validator) appendChecked(dst []byte, params strictjson.Value) ([]byte, error) {
	n := normalizer{opts: v.opts, dst: dst}
	n.object(&v.root, params)
	if len(n.faults) > 0 {
		return dst, paramsError(n.faults)
	}
	return n.dst, nil
}

// normalized returns the normal form of params. Parameters in normal form are returned unchanged,
// without an allocation.
func (v *validator) normalized(params json.RawMessage) (json.RawMessage, error) {
	if v.root.normalEnd(params, 0) == len(params) {
		return params, nil
	}
	buf, ok := v.scratch.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	out, err := v.appendChecked((*buf)[:0], strictjson.Value(params))
	normal := params
	if err == nil && !bytes.Equal(out, params) {
		normal = bytes.Clone(out)
	}
	if cap(out) <= 64<<10 {
		*buf = out
		v.scratch.Put(buf)
	}
	return normal, err
}

// normalEnd returns the index just past the checked object at b[i] if that fits and is in normal form. It returns -1
// if it is not, and where only a normalizer can tell: of free-form objects, binary values and texts with escapes.
func (o *object) normalEnd(b []byte, i int) int {
	if i >= len(b) || b[i] != '{' {
		return -1
	}
	i++
	separator := 0 // bytes in front of a member
	for k := range o.fields {
		f := &o.fields[k]
		if separator > 0 && b[i] != ',' || !bytes.HasPrefix(b[i+separator:], f.key) {
			if f.required {
				return -1
			}
			continue
		}
		if i = f.normalEnd(b, i+separator+len(f.key), f.dims); i < 0 {
			return -1
		}
		separator = 1
	}
	if b[i] != '}' {
		return -1
	}
	return i + 1
}

// normalEnd is that of an object for a value of a field.
func (f *field) normalEnd(b []byte, i, dims int) int {
	if dims > 0 {
		return f.normalArrayEnd(b, i, dims)
	}
	switch f.base {
	case form.KindString:
		if b[i] != '"' {
			return -1
		}
		size := bytes.IndexByte(b[i+1:], '"')
		if bytes.IndexByte(b[i+1:i+1+size], '\\') >= 0 {
			return -1
		}
		return i + size + 2
	case form.KindBoolean:
		switch b[i] {
		case 't':
			return i + len("true")
		case 'f':
			return i + len("false")
		}
	case form.KindInteger:
		return normalIntegerEnd(b, i)
	case form.KindFloat:
		return normalFloatEnd(b, i)
	case form.KindObject:
		if f.sub != nil {
			return f.sub.normalEnd(b, i)
		}
	}
	return -1
}

func (f *field) normalArrayEnd(b []byte, i, dims int) int {
	if b[i] != '[' {
		return -1
	}
	if i++; b[i] == ']' {
		return i + 1
	}
	for {
		if i = f.normalEnd(b, i, dims-1); i < 0 {
			return -1
		}
		switch b[i] {
		case ']':
			return i + 1
		case ',':
			i++
		default:
			return -1
		}
	}
}

// normalIntegerEnd returns the index just past the number at b[i] if it is an integer in normal form, not of many
// digits, or -1.
func normalIntegerEnd(b []byte, i int) int {
	if b[i] == '-' && b[i+1] != '0' {
		i++
	}
	start := i
	for b[i]-'0' < 10 {
		i++
	}
	if i == start || i-start > 18 || b[i] == '.' || b[i]|0x20 == 'e' {
		return -1
	}
	return i
}

// normalFloatEnd is normalIntegerEnd for a float.
func normalFloatEnd(b []byte, i int) int {
	end := i
	for c := b[end]; c-'0' < 10 || c == '.' || c|0x20 == 'e' || c == '+' || c == '-'; c = b[end] {
		end++
	}
	v, err := strconv.ParseFloat(string(b[i:end]), 64)
	var buf [32]byte
	if err != nil || string(appendFloat(buf[:0], v)) != string(b[i:end]) {
		return -1
	}
	return end
}

type normalizer struct {
	opts   validation
	dst    []byte
	faults []ParamError
	steps  [form.MaxTypeDepth + 1]step // where in the parameters the walk stands
	depth  int
}

// A step is one token of a JSON Pointer. Paths are only written out when there
// is a fault.
type step struct {
	name  string // of a member
	index int    // of an element; -1 for members
}

func (n *normalizer) enter(name string, index int) {
	n.steps[n.depth] = step{name, index}
	n.depth++
}

func (n *normalizer) exit() { n.depth-- }

func (n *normalizer) path() string {
	path := ""
	for _, s := range n.steps[:n.depth] {
		if s.index < 0 {
			path = form.Pointer(path, s.name)
		} else {
			path = form.PointerIndex(path, s.index)
		}
	}
	return path
}

func (n *normalizer) full() bool { return len(n.faults) >= maxFaults }

// mismatch notes that a value does not fit a type. A missing value is nil.
func (n *normalizer) mismatch(reason Reason, want form.Type, v strictjson.Value) {
	if !n.full() {
		n.faults = append(n.faults, ParamError{Path: n.path(), Reason: reason, Expected: want.String(), Got: typeName(v)})
	}
}

func (n *normalizer) unknown(name string) {
	if n.full() {
		return
	}
	if utf8.RuneCountInString(name) > maxFaultName {
		name = string([]rune(name)[:maxFaultName]) + "…"
	}
	n.enter(name, -1)
	n.faults = append(n.faults, ParamError{Path: n.path(), Reason: reasonUnknownParameter})
	n.exit()
}

// typeName returns the name of the JSON type of a value, "" for a missing one.
func typeName(v strictjson.Value) string {
	switch v.Kind() {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '0':
		return "number"
	case '"':
		return "string"
	case '[':
		return "array"
	case '{':
		return "object"
	}
	return ""
}

func (n *normalizer) object(o *object, v strictjson.Value) {
	var few [fewFields]strictjson.Value
	values := few[:]
	if len(o.fields) > fewFields {
		values = make([]strictjson.Value, len(o.fields))
	}
	var unknown []string
	hint := 0 // most callers keep to the order of the contract
	for m := v.Members(); m.Next(); {
		if hint < len(o.fields) && o.fields[hint].name == string(m.Name) {
			values[hint] = m.Value
			hint++
		} else if i := o.find(m.Name); i >= 0 {
			values[i] = m.Value
			hint = i + 1
		} else if !n.opts.dropUnknown {
			unknown = append(unknown, string(m.Name))
		}
	}
	n.dst = append(n.dst, '{')
	first := true
	for i := range o.fields {
		f := &o.fields[i]
		value := values[i]
		if value.Absent() {
			if f.required {
				n.enter(f.name, -1)
				n.mismatch(reasonMissingRequired, form.Type{Base: f.base, Dims: f.dims}, nil)
				n.exit()
			}
			continue
		}
		if !first {
			n.dst = append(n.dst, ',')
		}
		first = false
		n.dst = append(n.dst, f.key...)
		n.enter(f.name, -1)
		n.value(f, f.dims, value)
		n.exit()
		if n.full() {
			return
		}
	}
	n.dst = append(n.dst, '}')
	slices.Sort(unknown)
	for _, name := range unknown {
		n.unknown(name)
	}
}

func (n *normalizer) value(f *field, dims int, v strictjson.Value) {
	if dims > 0 {
		if !v.IsArray() {
			n.mismatch(reasonWrongType, form.Type{Base: f.base, Dims: dims}, v)
			return
		}
		n.array(f, dims, v)
		return
	}
	reason := Reason("")
	switch f.base {
	case form.KindString:
		if v.Kind() == '"' {
			n.dst = appendValueString(n.dst, v)
			return
		}
		reason = reasonWrongType
	case form.KindBoolean:
		if _, ok := v.Bool(); ok {
			n.dst = append(n.dst, v...)
			return
		}
		reason = reasonWrongType
	case form.KindInteger:
		reason = n.integer(v)
	case form.KindFloat:
		reason = n.float(v)
	case form.KindBinary:
		reason = n.binary(v)
	case form.KindObject:
		switch {
		case !v.IsObject():
			reason = reasonWrongType
		case f.sub == nil:
			n.dst = appendText(n.dst, v)
		default:
			n.object(f.sub, v)
		}
	}
	if reason != "" {
		n.mismatch(reason, form.Type{Base: f.base, Dims: 0}, v)
	}
}

func (n *normalizer) array(f *field, dims int, v strictjson.Value) {
	n.dst = append(n.dst, '[')
	i := 0
	for e := v.Elements(); e.Next(); i++ {
		if i > 0 {
			n.dst = append(n.dst, ',')
		}
		n.enter("", i)
		n.value(f, dims-1, e.Value)
		n.exit()
		if n.full() {
			return
		}
	}
	n.dst = append(n.dst, ']')
}

func (n *normalizer) integer(v strictjson.Value) Reason {
	if v.Kind() != '0' {
		return reasonWrongType
	}
	if i, ok := v.Int(); ok {
		n.dst = strconv.AppendInt(n.dst, i, 10)
		return ""
	}
	if integral(v) {
		return reasonOutOfRange
	}
	return reasonNotInteger
}

// integral reports whether the exact value of a nonzero number is an integer, without expanding it
// (ALT-D08).
func integral(v []byte) bool {
	var exp, fraction int64 // fraction counts digits behind the point, without trailing zeros
	zeros := int64(0)       // zeros at the end of the digits so far
	point := false
	i := 0
	for ; i < len(v); i++ {
		c := v[i]
		if c == '.' {
			point = true
			continue
		}
		if c == 'e' || c == 'E' {
			break
		}
		if c == '-' {
			continue
		}
		if c == '0' {
			zeros++
		} else {
			zeros = 0
		}
		if point {
			fraction++
		}
	}
	if i < len(v) {
		i++
		neg := v[i] == '-'
		if neg || v[i] == '+' {
			i++
		}
		for ; i < len(v); i++ {
			if exp < math.MaxInt32 {
				exp = exp*10 + int64(v[i]-'0')
			}
		}
		if neg {
			exp = -exp
		}
	}
	return exp-fraction+zeros >= 0
}

func (n *normalizer) float(v strictjson.Value) Reason {
	switch v.Kind() {
	case '0':
		f, err := strconv.ParseFloat(string(v), 64)
		if err != nil || math.IsInf(f, 0) {
			return reasonOutOfRange
		}
		n.dst = appendFloat(n.dst, f)
		return ""
	case '"':
		if n.opts.allowNonFinite {
			switch s, _ := v.TextBytes(); string(s) {
			case "NaN", "Infinity", "-Infinity":
				n.dst = appendValueString(n.dst, v)
				return ""
			}
		}
	}
	return reasonWrongType
}

// appendFloat appends a finite number in the format of ECMAScript, but -0 for
// the negative zero (section g).
func appendFloat(dst []byte, f float64) []byte {
	a := math.Abs(f)
	if a != 0 && (a < 1e-6 || a >= 1e21) {
		dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
		if l := len(dst); l >= 4 && dst[l-2] == '0' && (dst[l-3] == '-' || dst[l-3] == '+') {
			dst[l-2] = dst[l-1] // e-07 is e-7
			dst = dst[:l-1]
		}
		return dst
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

func (n *normalizer) binary(v strictjson.Value) Reason {
	s, ok := v.TextBytes()
	if !ok {
		return reasonWrongType
	}
	body := bytes.TrimRight(s, "=")
	pad := len(s) - len(body)
	want := (4 - len(body)%4) % 4
	if want == 3 || pad != 0 && pad != want {
		return reasonInvalidBase64
	}
	start := len(n.dst)
	n.dst = append(n.dst, '"')
	n.dst = append(n.dst, body...)
	isURL := false
	last := byte(0)
	for i, c := range body {
		last = sextets[c]
		if last == noSextet || isURL && (c == '+' || c == '/') {
			n.dst = n.dst[:start]
			return reasonInvalidBase64
		}
		if c == '-' || c == '_' {
			if !isURL && bytes.ContainsAny(body[:i], "+/") {
				n.dst = n.dst[:start]
				return reasonInvalidBase64
			}
			isURL = true
			n.dst[start+1+i] = standardAlphabet[last]
		}
	}
	if last&[4]byte{1: 0x03, 2: 0x0f}[want] != 0 { // bits of the last character that no byte takes
		n.dst = n.dst[:start]
		return reasonInvalidBase64
	}
	n.dst = append(n.dst, "=="[:want]...)
	n.dst = append(n.dst, '"')
	return ""
}

const (
	standardAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	noSextet         = 0xff
)

// sextets has the values of the characters of both alphabets of base64.
var sextets = func() (table [256]byte) {
	for i := range table {
		table[i] = noSextet
	}
	for i, c := range []byte(standardAlphabet) {
		table[c] = byte(i)
	}
	table['-'], table['_'] = 62, 63
	return table
}()
