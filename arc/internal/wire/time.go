// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"strings"
	"time"
)

var errTimestamp = errors.New("arc: not an RFC 3339 time")

// ParseTime reads RFC 3339 text by ARC-D63: more than RFC 3339 in that a zone
// may be missing, less in that it knows no leap seconds.
func ParseTime(s string) (time.Time, error) {
	const layout = "2006-01-02T15:04:05"
	if len(s) < len(layout) {
		return time.Time{}, errTimestamp
	}
	head, rest := s[:len(layout)], s[len(layout):]
	if head[10] == 't' {
		head = head[:10] + "T" + head[11:]
	}
	t, err := time.Parse(layout, head) // fixed width: the layout has no optional digit
	if err != nil {
		return time.Time{}, errTimestamp
	}
	nano := 0
	if strings.HasPrefix(rest, ".") {
		n := 1
		for scale := 100_000_000; n < len(rest) && isDigit(rest[n]); n++ {
			nano += int(rest[n]-'0') * scale
			scale /= 10
		}
		if n == 1 {
			return time.Time{}, errTimestamp
		}
		rest = rest[n:]
	}
	t = t.Add(time.Duration(nano))
	switch {
	case rest == "", rest == "Z", rest == "z":
		return t, nil
	case len(rest) != 6 || rest[0] != '+' && rest[0] != '-' || rest[3] != ':' ||
		!isDigit(rest[1]) || !isDigit(rest[2]) || !isDigit(rest[4]) || !isDigit(rest[5]):
		return time.Time{}, errTimestamp
	}
	hours, minutes := int(rest[1]-'0')*10+int(rest[2]-'0'), int(rest[4]-'0')*10+int(rest[5]-'0')
	if hours > 23 || minutes > 59 {
		return time.Time{}, errTimestamp
	}
	offset := time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	if rest[0] == '-' {
		offset = -offset
	}
	if t = t.Add(-offset); t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}, errTimestamp // in UTC it has no such text
	}
	return t, nil
}

func isDigit(c byte) bool { return c-'0' < 10 }
