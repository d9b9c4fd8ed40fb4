// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/internal/randid"
)

// A Profile selects how strictly envelopes are validated and how they are written (AIR-D27).
type Profile string

// The profiles. By default a client sends with ProfileSpec and an inbox receives with
// ProfileInterop.
const (
	ProfileSpec     Profile = "spec"     // the specification, strictly
	ProfileInterop  Profile = "interop"  // default for received envelopes
	ProfileDeployed Profile = "deployed" // the messages of the public peers
)

// or returns the profile, or def for the empty one.
func (p Profile) or(def Profile) Profile {
	if p == "" {
		return def
	}
	return p
}

// checkWord refuses a value outside the words of an option, which would otherwise select the laxest
// one.
func checkWord[T ~string](what string, word T, words ...T) error {
	if word == "" || slices.Contains(words, word) {
		return nil
	}
	return fmt.Errorf("air: unknown %s %q", what, string(word))
}

func (p Profile) check() error {
	return checkWord("profile", p, ProfileSpec, ProfileInterop, ProfileDeployed)
}

// validateAIRID returns [ErrBadAIRID] for anything but AIR-XXXX-XXXX-XXXX with
// groups of digits and upper-case letters (AIR-D30).
func validateAIRID(id string) error {
	if !isAIRID(id) {
		return ErrBadAIRID.err("want AIR-XXXX-XXXX-XXXX")
	}
	return nil
}

func isAIRID(s string) bool { return name.IsAIRID(s) }

// parseDID parses the name of an agent, did:wba:host:...:AIR-ID (AIR-D32). In [ProfileDeployed] any text
// that begins with did: is valid, and missing parts are empty (AIR-D27). The error is [ErrBadDID].
func parseDID(text string, p Profile) (d name.DID, err error) {
	d, ok := name.ParseDID(text)
	if p == ProfileDeployed && len(text) <= name.MaxDID && strings.HasPrefix(text, "did:") && strings.IndexByte(text, 0) < 0 {
		d.AIRID, ok = airIDOf(text), true
		if rest, isWBA := strings.CutPrefix(text, "did:wba:"); isWBA {
			d.Host, _, _ = strings.Cut(rest, ":")
		}
	}
	if !ok {
		return name.DID{}, ErrBadDID.err("not the DID of an agent")
	}
	return d, nil
}

func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func airIDOf(did string) string { return name.AIRIDOf(did) }

// NewID returns a random UUID of version 4, for envelopes and threads.
func NewID() string { return randid.UUID4() }

// newNonce returns 128 random bits as 22 characters (AIR-041).
func newNonce() string {
	var b [16]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// validID checks an id by the profile (AIR-D21). An id has one spelling only.
func validID(s string, p Profile) bool {
	if p == ProfileDeployed {
		n := utf8.RuneCountInString(s)
		return n >= 1 && n <= 256 && strings.IndexByte(s, 0) < 0
	}
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if c-'0' >= 10 && c-'a' >= 6 {
				return false
			}
		}
	}
	return p != ProfileSpec || s[14] == '4' && (s[19] == '8' || s[19] == '9' || s[19] == 'a' || s[19] == 'b')
}

// timeLayout is the format of written timestamps (AIR-D22).
const timeLayout = "2006-01-02T15:04:05.000Z"

// formatTime returns t in the format of the protocol, in UTC with milliseconds.
func formatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// parseTime parses a timestamp of an existing day and time: with exactly three fraction digits, or
// up to nine in [ProfileDeployed].
func parseTime(s string, p Profile) (t time.Time, ok bool) {
	const shape = "0000-00-00T00:00:00"
	if len(s) < len(shape)+1 || s[len(s)-1] != 'Z' {
		return t, false
	}
	for i := range len(shape) {
		if shape[i] == '0' && s[i]-'0' >= 10 || shape[i] != '0' && s[i] != shape[i] {
			return t, false
		}
	}
	nanos, ok := parseFraction(s[len(shape):len(s)-1], p)
	if !ok {
		return t, false
	}
	two := func(i int) int { return int(s[i]-'0')*10 + int(s[i+1]-'0') }
	year, month, day := two(0)*100+two(2), two(5), two(8)
	hour, minute, second := two(11), two(14), two(17)
	if month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59 {
		return t, false
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC)
	return t, t.Day() == day // otherwise the month is shorter
}

// parseFraction parses the fraction of a second with its point: three digits, or up to nine as deployed.
func parseFraction(s string, p Profile) (nanos int, ok bool) {
	if s == "" {
		return 0, p == ProfileDeployed
	}
	digits := s[1:]
	if s[0] != '.' || len(digits) < 1 || len(digits) > 9 || p != ProfileDeployed && len(digits) != 3 {
		return 0, false
	}
	for i := range 9 {
		nanos *= 10
		if i < len(digits) {
			if digits[i]-'0' >= 10 {
				return 0, false
			}
			nanos += int(digits[i] - '0')
		}
	}
	return nanos, true
}
