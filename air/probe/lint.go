// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// The rules of findings, besides the codes of air for an envelope that no receiver accepts.
const (
	RuleKeyOrder      = "key_order"            // implementations sort the names of an object differently
	RuleInteger       = "unsafe_integer"       // implementations with floats round it
	RuleMarkRun       = "mark_run"             // libraries insert U+034F into more than 30 combining marks
	RuleNotNFC        = "not_nfc"              // peers that do not normalize sign other bytes
	RuleUnassigned    = "unassigned_character" // normalization depends on the version of Unicode
	RuleUnknownMember = "unknown_member"       // peers with typed envelopes drop it
	RuleProfile       = "profile"              // receivers that follow the specification exactly refuse it
	RuleClock         = "clock"                // outside the window of 300 s before and 30 s after the present
)

// A Finding is a reason why an envelope may not verify or may be refused elsewhere.
type Finding struct {
	Rule   string `json:"rule"`
	Path   string `json:"path,omitempty"` // of the member, such as body.price.amount_cents
	Detail string `json:"detail"`
}

// String returns the finding as one line.
func (f Finding) String() string {
	if f.Path == "" {
		return f.Rule + ": " + f.Detail
	}
	path := strconv.Quote(f.Path)
	return f.Rule + ": " + path[1:len(path)-1] + ": " + f.Detail
}

const (
	maxSafe     = 1<<53 - 1
	maxAge      = 300 * time.Second
	maxAhead    = 30 * time.Second
	maxFindings = 100
)

// Lint reports why an envelope may not verify elsewhere, or may be refused. It verifies no signature. The
// result has at most 100 findings.
func Lint(envelope []byte, now time.Time) []Finding {
	text, err := air.Canonicalize(envelope)
	if err != nil {
		return []Finding{refusal("", err)}
	}
	l := &linter{}
	anyBody := []string{air.AnyBodyType}
	e, err := air.DecodeEnvelope(envelope, &air.DecodeOptions{Profile: air.ProfileDeployed, BodyTypes: anyBody})
	if err != nil {
		l.findings = append(l.findings, refusal("", err))
	} else if _, err := air.DecodeEnvelope(envelope, &air.DecodeOptions{Profile: air.ProfileSpec, BodyTypes: anyBody}); err != nil {
		l.findings = append(l.findings, refusal(RuleProfile, err))
	}
	if err == nil {
		l.checkTime(e.Time, now)
	}
	if !isNormal(envelope) {
		l.add(RuleNotNFC, nil, "a string is not in normalization form C")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := l.value(d, nil); err != nil && !errors.Is(err, io.EOF) {
		l.add("", nil, err.Error())
	}
	return l.findings
}

// isNormal reports whether all strings of a valid JSON text are in normalization form C.
func isNormal(text []byte) bool {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return true
		}
		if s, ok := token.(string); ok && !norm.NFC.IsNormalString(s) {
			return false
		}
	}
}

// refusal returns the finding of an error of air. An empty rule means its code.
func refusal(rule string, err error) Finding {
	var e *air.Error
	if !errors.As(err, &e) {
		return Finding{Rule: rule, Detail: err.Error()}
	}
	if rule == "" {
		return Finding{Rule: string(e.Code), Detail: e.Message}
	}
	return Finding{Rule: rule, Detail: string(e.Code) + ": " + e.Message}
}

// A linter collects findings.
type linter struct{ findings []Finding }

func (l *linter) add(rule string, path []string, detail string) {
	if len(l.findings) < maxFindings {
		l.findings = append(l.findings, Finding{Rule: rule, Path: strings.Join(path, "."), Detail: detail})
	}
}

func (l *linter) checkTime(at, now time.Time) {
	switch age := now.Sub(at); {
	case age > maxAge:
		l.add(RuleClock, []string{"timestamp"}, fmt.Sprintf("%.0f s old, 300 s allowed", math.Ceil(age.Seconds())))
	case age < -maxAhead:
		l.add(RuleClock, []string{"timestamp"}, fmt.Sprintf("%.0f s ahead, 30 s allowed", math.Ceil(-age.Seconds())))
	}
}

// value checks the next value of a canonical text.
func (l *linter) value(d *json.Decoder, path []string) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '{' {
			return l.object(d, path)
		}
		for i := 0; d.More(); i++ {
			if err := l.value(d, append(path[:len(path):len(path)], strconv.Itoa(i))); err != nil {
				return err
			}
		}
		_, err = d.Token()
	case json.Number:
		if n, parseErr := v.Int64(); parseErr != nil || n > maxSafe || n < -maxSafe {
			l.add(RuleInteger, path, "beyond 2^53-1; write it as a string")
		}
	case string:
		l.text(v, path)
	}
	return err
}

// members are the members of an envelope that every peer has.
var members = []string{"body", "from", "id", "in_reply_to", "nonce", "signature", "thread_id", "timestamp", "to"}

func (l *linter) object(d *json.Decoder, path []string) error {
	var names []string
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		at := append(path[:len(path):len(path)], name)
		if len(path) == 0 && !slices.Contains(members, name) {
			l.add(RuleUnknownMember, at, "peers with typed envelopes drop it and then compute other bytes")
		}
		names = append(names, name)
		l.text(name, at)
		if err := l.value(d, at); err != nil {
			return err
		}
	}
	// The text is in the order of UTF-16 code units (AIR-D01).
	switch {
	case !slices.IsSorted(names):
		l.add(RuleKeyOrder, path, "the orders by code points and by UTF-16 code units differ")
	case !slices.IsSortedFunc(names, func(a, b string) int { return bytes.Compare(quote(a), quote(b)) }):
		l.add(RuleKeyOrder, path, "libraries that sort escaped names with their quotes have another order")
	}
	_, err := d.Token()
	return err
}

func quote(name string) []byte { return strictjson.AppendString(nil, name) }

// joiner is what libraries insert into a long run of combining marks.
const joiner = "\u034f"

func (l *linter) text(s string, path []string) {
	if strings.Count(norm.NFC.String(s), joiner) > strings.Count(s, joiner) {
		l.add(RuleMarkRun, path, "more than 30 combining marks in a row")
	}
	for _, r := range s {
		if unicode.Is(unicode.Cn, r) {
			l.add(RuleUnassigned, path, fmt.Sprintf("%U is not assigned in Unicode %s", r, unicode.Version))
			return
		}
	}
}
