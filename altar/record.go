// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strconv"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A record in the store is one line of JSON, followed by messages in wire form, one a line.

// A callRecord is the record of a call: first the intent to run it, later its outcome (ALT-D22).
type callRecord struct {
	Host     string `json:"host"`     // that runs it, or did
	Instance string `json:"instance"` // of that Host, see state.instance
	Tool     string `json:"tool"`     // tool_name as received
	Digest   string `json:"digest"`   // of the parameters as received, see digest
	Attempt  int    `json:"attempt"`  // 1 after a failover
	Ended    bool   `json:"ended"`
	Claim    int64  `json:"claim"` // tells claims of one instance apart

	result *ToolResult    // the outcome, or
	chunks []*StreamChunk // those that are retained
}

// A sessionRecord is what is kept of a session. It outlives it, so that its id is
// not used again too soon (ALT-D18).
type sessionRecord struct {
	Name     string            `json:"name"` // of the principal
	Tenant   string            `json:"tenant"`
	TTL      int64             `json:"ttl"`     // in nanoseconds
	Expires  int64             `json:"expires"` // likewise, since 1970
	Over     bool              `json:"over"`
	Security *SecurityContext  `json:"security"`
	Metadata map[string]string `json:"metadata"`
}

// An ownerRecord names the owner of a runtime id (ALT-D16).
type ownerRecord struct {
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
}

var errBadRecord = errors.New("altar: store: malformed record")

func readRecord(line []byte, into any) error {
	v, err := strictjson.Check(line, strictjson.Options{MaxDepth: maxDepth})
	if err == nil {
		err = strictjson.Decode(v, into)
	}
	if err != nil {
		return errors.Join(errBadRecord, err)
	}
	return nil
}

func (r *callRecord) encode() ([]byte, error) {
	out := append(make([]byte, 0, 256), `{"host":`...)
	out = appendString(out, r.Host)
	out = appendString(append(out, `,"instance":`...), r.Instance)
	out = appendString(append(out, `,"tool":`...), r.Tool)
	out = appendString(append(out, `,"digest":`...), r.Digest)
	out = strconv.AppendInt(append(out, `,"attempt":`...), int64(r.Attempt), 10)
	out = strconv.AppendBool(append(out, `,"ended":`...), r.Ended)
	out = strconv.AppendInt(append(out, `,"claim":`...), r.Claim, 10)
	out = append(out, '}')
	var err error
	if r.result != nil {
		if out, err = appendMessage(append(out, '\n'), r.result, true); err != nil {
			return nil, err
		}
	}
	for _, c := range r.chunks {
		if out, err = appendMessage(append(out, '\n'), c, true); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func readCallRecord(data []byte) (*callRecord, error) {
	line, rest, _ := bytes.Cut(data, []byte{'\n'})
	r := &callRecord{}
	if err := readRecord(line, r); err != nil {
		return nil, err
	}
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		m, err := DecodeMessage(line, &DecodeOptions{MaxMessage: len(line)})
		if err != nil {
			return nil, errors.Join(errBadRecord, err)
		}
		switch m := m.(type) {
		case *ToolResult:
			r.result = m
		case *StreamChunk:
			r.chunks = append(r.chunks, m)
		}
	}
	if n := len(r.chunks); r.Ended && r.result == nil && (n == 0 || !r.chunks[n-1].IsFinal) {
		return nil, errBadRecord
	}
	return r, nil
}

// digest identifies parameters: two that are equal JSON, numbers compared exactly
// and members in any order, have the same one (ALT-D22).
func digest(params json.RawMessage) string {
	sum := sha256.Sum256(appendIdentity(make([]byte, 0, 2*len(params)+16), strictjson.Value(params)))
	var text [2 * sha256.Size]byte
	return string(hex.AppendEncode(text[:0], sum[:]))
}

// appendIdentity appends a text that is the same for equal values only.
func appendIdentity(dst []byte, v strictjson.Value) []byte {
	switch v.Kind() {
	case '"':
		text, _ := v.TextBytes()
		return strictjson.AppendString(dst, text)
	case '0':
		return appendNumberIdentity(dst, v)
	case '[':
		dst = append(dst, '[')
		for e := v.Elements(); e.Next(); {
			dst = append(appendIdentity(dst, e.Value), ',')
		}
		return append(dst, ']')
	case '{':
		type member struct {
			name  string
			value strictjson.Value
		}
		var members []member
		for m := v.Members(); m.Next(); {
			members = append(members, member{string(m.Name), m.Value})
		}
		slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
		dst = append(dst, '{')
		for _, m := range members {
			dst = append(strictjson.AppendString(dst, m.name), ':')
			dst = append(appendIdentity(dst, m.value), ',')
		}
		return append(dst, '}')
	}
	return append(dst, bytes.TrimSpace(v)...) // true, false, null
}

// appendNumberIdentity appends a number as its significant digits and a power of
// ten.
func appendNumberIdentity(dst []byte, v strictjson.Value) []byte {
	text := bytes.TrimSpace(v)
	mantissa, power := text, []byte(nil)
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		mantissa, power = text[:i], text[i+1:]
	}
	if len(power) > 1024 {
		return append(dst, text...) // as for EqualNumbers
	}
	mantissa, negative := bytes.CutPrefix(mantissa, []byte{'-'})
	whole, fraction, _ := bytes.Cut(mantissa, []byte{'.'})
	digits := whole
	if len(fraction) > 0 {
		digits = append(bytes.Clone(whole), fraction...)
	}
	digits = bytes.TrimLeft(digits, "0")
	trimmed := bytes.TrimRight(digits, "0")
	if len(trimmed) == 0 {
		return append(dst, '0')
	}
	if negative {
		dst = append(dst, '-')
	}
	dst = append(append(dst, trimmed...), 'e')
	if len(power) == 0 {
		return appendInt(dst, int64(len(digits)-len(trimmed)-len(fraction)))
	}
	exponent := new(big.Int)
	exponent.SetString(string(bytes.TrimPrefix(power, []byte{'+'})), 10)
	exponent.Add(exponent, big.NewInt(int64(len(digits)-len(trimmed)-len(fraction))))
	return exponent.Append(dst, 10)
}
