// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package floor

import "unicode/utf8"

// A Head is what a router needs of an RPC message: the raw value of each member,
// as part of the input.
type Head struct {
	ARC, ID, Method, From, To, Trace, Params []byte
}

// Peel reads the routing members of a message in one pass and validates all of it.
func Peel(s []byte, h *Head) error {
	*h = Head{}
	i := ws(s, 0)
	if i >= len(s) || s[i] != '{' {
		return errJSON
	}
	for i++; ; i++ {
		i = ws(s, i)
		if i >= len(s) || s[i] != '"' {
			return errJSON
		}
		ke, _, wide := strEnd(s, i+1)
		if ke < 0 || wide && !utf8.Valid(s[i:ke]) {
			return errJSON
		}
		key := s[i+1 : ke-1]
		if i = ws(s, ke); i >= len(s) || s[i] != ':' {
			return errJSON
		}
		st := ws(s, i+1)
		if i = Skip(s, st, 0); i < 0 {
			return errJSON
		}
		v := s[st:i]
		switch string(key) {
		case "arc":
			h.ARC = v
		case "id":
			h.ID = v
		case "method":
			h.Method = v
		case "requestAgent":
			h.From = v
		case "targetAgent":
			h.To = v
		case "traceId":
			h.Trace = v
		case "params":
			h.Params = v
		}
		if i = ws(s, i); i >= len(s) {
			return errJSON
		}
		if s[i] == '}' {
			if ws(s, i+1) != len(s) {
				return errJSON
			}
			return nil
		}
		if s[i] != ',' {
			return errJSON
		}
	}
}

// TypeOf returns the raw text, without quotes, of the first member "type" of the object s that is a
// string, or nil if no member is. It validates the input before that member and nothing after.
func TypeOf(s []byte) []byte {
	i := ws(s, 0)
	if i >= len(s) || s[i] != '{' {
		return nil
	}
	for i++; ; i++ {
		i = ws(s, i)
		if i >= len(s) || s[i] != '"' {
			return nil
		}
		ke, _, wide := strEnd(s, i+1)
		if ke < 0 || wide && !utf8.Valid(s[i:ke]) {
			return nil
		}
		key := s[i+1 : ke-1]
		if i = ws(s, ke); i >= len(s) || s[i] != ':' {
			return nil
		}
		st := ws(s, i+1)
		if i = Skip(s, st, 0); i < 0 {
			return nil
		}
		if string(key) == "type" && s[st] == '"' {
			return s[st+1 : i-1]
		}
		if i = ws(s, i); i >= len(s) || s[i] != ',' {
			return nil
		}
	}
}
