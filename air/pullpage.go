// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"encoding/base64"
	"errors"
	"strconv"

	"github.com/fivewire/fivewire/air/internal/canon"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A page is the response to a pull, in either dialect.
type page struct {
	items  []pulled
	cursor string
	more   bool
}

// A pulled is one envelope of a page. Its data are nil if the item has no envelope.
type pulled struct {
	data []byte
	id   string // id to acknowledge; "" if unknown
	seq  int64  // DialectDeployed only

	env     *Envelope // nil if it cannot be read
	isFinal bool      // a copy is not needed
	isNew   bool      // the handler took it
	isOpen  bool      // it is received again, and the handler did not get it yet
}

// thread is the key of the thread of the sender. The envelope must be readable.
func (i *pulled) thread() replayKey { return hashKey('t', i.env.From, i.env.ThreadID, "") }

var errPage = errors.New("response of the relay is not a page of envelopes")

// parsePage parses a page into its outline. Envelopes come from untrusted senders and are validated
// one by one, so that an invalid one does not block the others.
func parsePage(text []byte, deployed bool) (*page, error) {
	p := &page{}
	list := "envelopes"
	if deployed {
		list = "messages"
	}
	isValid, found := true, false
	isComplete := outline(text, func(name, value []byte) {
		switch string(name) {
		case "has_more":
			p.more = string(value) == "true"
		case "cursor":
			isValid = isValid && p.readCursor(value, deployed)
		case list:
			isValid = isValid && !found && p.readItems(value, deployed)
			found = true
		}
	})
	if !isComplete || !isValid || !found || deployed && p.cursor == "" && len(p.items) > 0 {
		return nil, errPage
	}
	return p, nil
}

// readItems appends the elements of a list.
func (p *page) readItems(value []byte, deployed bool) bool {
	if value[0] != '[' {
		return false
	}
	for _, e := range listItems(value) {
		item, ok := parseItem(e, deployed)
		if !ok {
			return false
		}
		p.items = append(p.items, item)
	}
	return true
}

// readCursor sets the cursor. A null leaves it unchanged.
func (p *page) readCursor(value []byte, deployed bool) bool {
	if deployed {
		n, err := strconv.ParseInt(string(value), 10, 64)
		p.cursor = strconv.FormatInt(n, 10)
		return err == nil && n >= 0
	}
	if value[0] != '"' {
		return value[0] == 'n'
	}
	c, err := strictjson.Check(value, strictjson.Options{})
	p.cursor, _ = c.Text()
	return err == nil
}

func parseItem(text []byte, deployed bool) (p pulled, ok bool) {
	if !deployed {
		return pulled{data: text, id: outlineID(text)}, true
	}
	v, err := strictjson.Check(text, strictjson.Options{MaxDepth: canon.MaxDepth})
	if err != nil {
		return p, false
	}
	if p.seq, ok = v.Get("seq").Int(); !ok {
		return p, false
	}
	coded, _ := v.Get("envelope_b64").Text()
	if p.data, err = base64.StdEncoding.DecodeString(coded); err != nil {
		p.data = nil
	}
	// Members next to the envelope are hints (AIR-126), sufficient to acknowledge an envelope
	// without a readable id.
	if p.id = outlineID(p.data); p.id == "" {
		p.id, _ = v.Get("envelope_id").Text()
	}
	return p, true
}

// outlineID returns the top-level id of a text that may be an envelope.
func outlineID(text []byte) string { return outlineText(text, "id") }

// outlineText returns the last top-level string with a name of a text that may be an envelope.
func outlineText(text []byte, name string) (last string) {
	outline(text, func(member, value []byte) {
		if string(member) != name || value[0] != '"' {
			return
		}
		if v, err := strictjson.Check(value, strictjson.Options{}); err == nil {
			last, _ = v.Text()
		}
	})
	return last
}

// outline calls f with the members of an object, without parsing their values. It reports whether the text is complete; f
// may keep the value.
func outline(s []byte, f func(name, value []byte)) bool {
	i := canon.Space(s, 0)
	if i >= len(s) || s[i] != '{' {
		return false
	}
	i = canon.Space(s, i+1)
	if i < len(s) && s[i] == '}' {
		return canon.Space(s, i+1) == len(s)
	}
	for {
		if i = canon.Space(s, i); i >= len(s) || s[i] != '"' {
			return false
		}
		e, isEscaped, _ := canon.StringEnd(s, i+1)
		if e < 0 {
			return false
		}
		name := s[i+1 : e-1]
		if isEscaped {
			name = canon.Unescape(nil, name)
		}
		if i = canon.Space(s, e); i >= len(s) || s[i] != ':' {
			return false
		}
		start := canon.Space(s, i+1)
		if i = skipValue(s, start); i < 0 {
			return false
		}
		f(name, s[start:i])
		if i = canon.Space(s, i); i >= len(s) {
			return false
		}
		if s[i] == '}' {
			return canon.Space(s, i+1) == len(s)
		}
		if s[i] != ',' {
			return false
		}
		i++
	}
}

// listItems returns the elements of a list that skipValue has validated.
func listItems(s []byte) (items [][]byte) {
	for i := canon.Space(s, 1); i < len(s) && s[i] != ']'; i = canon.Space(s, i) {
		e := skipValue(s, i)
		if e < 0 {
			return items
		}
		items = append(items, s[i:e])
		if i = canon.Space(s, e); i < len(s) && s[i] == ',' {
			i = canon.Space(s, i+1)
		}
	}
	return items
}

// skipValue returns the end of the value at s[i] by its brackets and quotes, or -1. Nesting is not
// limited, since it needs no memory.
func skipValue(s []byte, i int) int {
	depth := 0
	for i < len(s) {
		switch s[i] {
		case '"':
			e, _, _ := canon.StringEnd(s, i+1)
			if e < 0 {
				return -1
			}
			if i = e; depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return -1
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n', ':':
			if depth == 0 {
				return -1
			}
		default:
			for i+1 < len(s) && isScalarByte(s[i+1]) {
				i++
			}
			if depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

func isScalarByte(c byte) bool {
	return isAlphanumeric(c) || c == '-' || c == '+' || c == '.'
}

func isAlphanumeric(c byte) bool { return c-'0' < 10 || c|0x20-'a' < 26 }
