// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// memory holds the strings that $set remembered, for one case.
type memory map[string]string

// A Difference is one place where an answer is not what the case wants.
type Difference struct {
	Path string `json:"path"` // where, such as want.steps[2].json.result
	Want string `json:"want"` // JSON text, or words in parentheses
	Got  string `json:"got"`
}

// String names the place, the wanted value and the received value.
func (d Difference) String() string {
	return d.Path + ": want " + clip(d.Want) + ", got " + clip(d.Got)
}

const (
	absent  = "(absent)"
	nothing = "(nothing)"
)

// A comparison collects the differences between what is wanted and an answer.
type comparison struct {
	memory memory
	isLive bool // a timestamp matches every other one, and durations may be longer
	found  []Difference
}

func (c *comparison) differ(path, want, got string) {
	c.found = append(c.found, Difference{Path: path, Want: want, Got: got})
}

// members compares an object of want, or of wantErr, with an answer. Lax leaves
// members alone that want does not name.
func (c *comparison) members(path string, want strictjson.Value, have map[string]member, lax bool) {
	named := make(map[string]bool)
	for m := want.Members(); m.Next(); {
		name := string(m.Name)
		key := name
		if name == "jsonSubset" {
			key = "json"
		}
		named[key] = true
		g, ok := have[key]
		at := path + "." + name
		switch {
		case !ok:
			c.differ(at, string(m.Value), absent)
		case g.isUnseen():
		case key == "json":
			c.json(at, m.Value, g.text(), name == "jsonSubset")
		default:
			c.plain(at, m.Value, g.got)
		}
	}
	if lax {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		m := have[name]
		if named[name] || m.optional && m.def == nil {
			continue
		}
		at := path + "." + name
		if !m.optional {
			c.differ(at, absent, string(m.text()))
		} else if def := m.def.text(); !strictjson.Equal(def, m.text()) {
			c.differ(at, absent+", which means "+string(def), string(m.text()))
		}
	}
}

// plain compares outside of json: strings byte for byte, and no matchers.
func (c *comparison) plain(path string, want strictjson.Value, have got) {
	switch {
	case have.object != nil:
		if want.IsObject() {
			c.members(path, want, have.object, false)
			return
		}
	case have.headers != nil:
		if want.IsObject() {
			c.header(path, want, have.headers)
			return
		}
	case have.json != nil:
		if strictjson.Equal(want, have.json) || c.isLive && (sameButTimes(want, have.json) || isLater(path, want, have.json)) {
			return
		}
	case want.IsArray():
		i := 0
		for e := want.Elements(); e.Next(); i++ {
			at := path + "[" + strconv.Itoa(i) + "]"
			if i >= len(have.list) {
				c.differ(at, string(e.Value), nothing)
				continue
			}
			c.plain(at, e.Value, have.list[i])
		}
		for ; i < len(have.list); i++ {
			c.differ(path+"["+strconv.Itoa(i)+"]", nothing, string(have.list[i].text()))
		}
		return
	}
	wanted := string(want)
	if text, ok := want.Text(); ok && matcher.MatchString(text) {
		wanted += " (there are matchers in json and jsonSubset only)"
	}
	c.differ(path, wanted, string(have.text()))
}

func (c *comparison) header(path string, want strictjson.Value, have Headers) {
	for m := want.Members(); m.Next(); {
		name := string(m.Name)
		values, there := have[http.CanonicalHeaderKey(name)]
		if !there {
			for other, v := range have {
				if strings.EqualFold(other, name) {
					values, there = v, true
				}
			}
		}
		text, isText := m.Value.Text()
		joined := strings.Join(values, ", ")
		switch {
		case m.Value.Kind() == 'n':
			if there {
				c.differ(path+"."+name, absent, strconv.Quote(joined))
			}
		case !there:
			c.differ(path+"."+name, string(m.Value), absent)
		case !isText || text != joined:
			c.differ(path+"."+name, string(m.Value), strconv.Quote(joined))
		}
	}
}

// json compares by value, with matchers. In a subset, objects may have further
// members at every depth.
func (c *comparison) json(path string, want, have strictjson.Value, subset bool) {
	if text, ok := want.Text(); ok {
		c.match(path, text, want, have)
		return
	}
	switch {
	case want.IsObject() && have.IsObject():
		left := make(map[string]strictjson.Value)
		for m := have.Members(); m.Next(); {
			left[string(m.Name)] = m.Value
		}
		for m := want.Members(); m.Next(); {
			name := string(m.Name)
			at := path + "." + name
			v, ok := left[name]
			if !ok {
				c.differ(at, string(m.Value), absent)
				continue
			}
			delete(left, name)
			c.json(at, m.Value, v, subset)
		}
		if subset {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(left)) {
			c.differ(path+"."+name, absent, string(left[name]))
		}
	case want.IsArray() && have.IsArray():
		more := have.Elements()
		i := 0
		for e := want.Elements(); e.Next(); i++ {
			at := path + "[" + strconv.Itoa(i) + "]"
			if !more.Next() {
				c.differ(at, string(e.Value), nothing)
				continue
			}
			c.json(at, e.Value, more.Value, subset)
		}
		for ; more.Next(); i++ {
			c.differ(path+"["+strconv.Itoa(i)+"]", nothing, string(more.Value))
		}
	default:
		if !strictjson.Equal(want, have) && !(c.isLive && (isDuration(path, want, have) || isMoment(path, want, have))) {
			c.differ(path, string(want), string(have))
		}
	}
}

// isDuration reports whether a member is a duration in milliseconds, and is at most a
// second above the wanted one.
func isDuration(path string, want, have strictjson.Value) bool {
	w, ok1 := want.Int()
	h, ok2 := have.Int()
	return ok1 && ok2 && (strings.HasSuffix(path, "uration") || strings.HasSuffix(path, "duration_ms") || strings.HasSuffix(path, "execution_time_ms")) && w <= h && h <= w+1000
}

// isLater reports whether a member is the time until a request, and is at least half of the
// wanted one, as retries with jitter are.
func isLater(path string, want, have strictjson.Value) bool {
	w, ok1 := want.Int()
	h, ok2 := have.Int()
	return ok1 && ok2 && (strings.HasSuffix(path, ".at") || strings.HasSuffix(path, ".nextInMs")) && h >= w/2
}

// clockValue is the time that an ACCP frame was sent at.
var clockValue = regexp.MustCompile(`\bts:\d{10}\b`)

// sameButTimes reports whether two texts differ in nothing but the times of frames.
func sameButTimes(want, have strictjson.Value) bool {
	return bytes.Equal(clockValue.ReplaceAll(want, []byte("ts:")), clockValue.ReplaceAll(have, []byte("ts:")))
}

// isMoment reports whether a member is a time in seconds.
func isMoment(path string, want, have strictjson.Value) bool {
	w, ok1 := want.Int()
	h, ok2 := have.Int()
	const first = 1e9 // in the year 2001
	return ok1 && ok2 && strings.HasSuffix(path, "_at") && w > first && h > first
}

var (
	// matcher is what stands for a value that is not fixed.
	matcher = regexp.MustCompile(`^\$(?:any|string|number|time|(set|get):(.+))$`)

	// misspelt is text that was most likely meant to be a matcher.
	misspelt = regexp.MustCompile(`^\$[A-Za-z]+(?::|$)`)
)

// match compares a string of json, which may be a matcher. Anything else is text,
// whatever it looks like.
func (c *comparison) match(path, want string, raw, have strictjson.Value) {
	text, isText := have.Text()
	ok := false
	wanted := string(raw)
	verb, name := "", ""
	if m := matcher.FindStringSubmatch(want); m != nil {
		verb, name = m[1], m[2]
	}
	switch {
	case want == "$any":
		return
	case want == "$string":
		ok = isText && text != ""
	case want == "$number":
		ok = have.Kind() == '0'
	case want == "$time":
		ok = isText && isTimestamp(text)
	case verb == "set":
		if ok = isText && text != ""; ok {
			c.memory[name] = text
		}
	case verb == "get":
		value, remembered := c.memory[name]
		ok = isText && remembered && text == value
		if remembered {
			wanted += " = " + strconv.Quote(value)
		} else {
			wanted += " (nothing is remembered under this name)"
		}
	default:
		ok = isText && (text == want || c.isLive && isTimestamp(want) && isTimestamp(text))
		if misspelt.MatchString(want) {
			wanted += " (not a matcher)"
		}
	}
	if !ok {
		c.differ(path, wanted, string(have))
	}
}

var timestamp = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$`)

// isTimestamp follows RFC 3339, lower case and leap seconds included.
func isTimestamp(s string) bool {
	if !timestamp.MatchString(s) {
		return false
	}
	s = strings.ToUpper(s)
	if s[17:19] == "60" {
		s = s[:17] + "59" + s[19:]
	}
	var t time.Time
	return t.UnmarshalText([]byte(s)) == nil
}

var (
	reference = regexp.MustCompile(`\$\{([^{}]+)\}`)

	// usual matches the common form of a name. A reference of another form may
	// be plain text, such as the ${user.name} of a template.
	usual = regexp.MustCompile(`^[A-Za-z0-9_]+$`)
)

// fill replaces what a step takes from the answers before it: strings that are
// exactly $get:NAME, and ${NAME} in any string. Names in own are left to the
// operation.
func (m memory) fill(path string, v strictjson.Value, own []string) (strictjson.Value, error) {
	if !bytes.Contains(v, []byte{'$'}) && !bytes.Contains(v, []byte("u0024")) {
		return v, nil
	}
	out, err := m.appendFilled(nil, path, v, own)
	if err != nil {
		return nil, err
	}
	return strictjson.Check(out, strictjson.Options{MaxDepth: maxDepth})
}

func (m memory) appendFilled(dst []byte, path string, v strictjson.Value, own []string) ([]byte, error) {
	var err error
	switch v.Kind() {
	case '"':
		text, _ := v.Text()
		filled, err := m.fillText(text, own)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if filled == text {
			return append(dst, v...), nil
		}
		return strictjson.AppendString(dst, filled), nil
	case '[':
		dst = append(dst, '[')
		i := 0
		for e := v.Elements(); e.Next(); i++ {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = m.appendFilled(dst, path+"["+strconv.Itoa(i)+"]", e.Value, own); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case '{':
		dst = append(dst, '{')
		i := 0
		for e := v.Members(); e.Next(); i++ {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(append(dst, e.Key...), ':')
			if dst, err = m.appendFilled(dst, path+"."+string(e.Name), e.Value, own); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), nil
	}
	return append(dst, v...), nil
}

func (m memory) fillText(text string, own []string) (string, error) {
	if name, ok := strings.CutPrefix(text, "$get:"); ok {
		value, ok := m[name]
		if !ok {
			return "", fmt.Errorf("nothing is remembered under %q", name)
		}
		return value, nil
	}
	var missing error
	filled := reference.ReplaceAllStringFunc(text, func(ref string) string {
		name := ref[2 : len(ref)-1]
		value, ok := m[name]
		if !ok && usual.MatchString(name) && !slices.Contains(own, name) && missing == nil {
			missing = fmt.Errorf("nothing is remembered under %q", name)
		}
		if !ok {
			return ref
		}
		return value
	})
	return filled, missing
}
