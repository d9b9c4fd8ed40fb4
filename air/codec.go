// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/air/internal/canon"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/option"
)

// defaultMaxMessage is the default maximum size of an envelope (AIR-D09).
const defaultMaxMessage = server.MaxMessage

// AnyBodyType, as a registered body type, matches all types.
const AnyBodyType = "*"

// An Envelope is a parsed message. All its fields come from the canonical form, which the signature
// covers, so that two spellings of one message have one meaning (AIR-D03). It is immutable and safe
// for concurrent use.
//
// An Envelope is well-formed; its signature may be wrong: see [Envelope.Verify] and [Inbox].
type Envelope struct {
	ID        string
	From, To  string // DIDs
	Timestamp string // as written
	Time      time.Time
	InReplyTo string // "" if absent
	ThreadID  string
	Nonce     string
	Type      string // of the body
	Signature string // multibase; "" if absent or null

	text             string // canonical, with null for the signature if there is such a member
	bodyAt, bodyEnd  int32
	sigAt, sigEnd    int32 // the member signature; both 0 if absent
	ambiguous        bool  // implementations would sort its names differently (AIR-D01)
	sigPrev, sigNext int32 // end of the previous member and start of the next one; -1: none
}

// DecodeOptions adjusts [DecodeEnvelope]. The zero value is right for receiving.
type DecodeOptions struct {
	// Profile selects the strictness. Empty means ProfileInterop.
	Profile Profile

	// BodyTypes are the permitted body types besides those of the specification; [AnyBodyType]
	// permits all.
	BodyTypes []string

	// MaxMessage bounds the envelope. Zero means 65,536; a negative value removes the
	// bound.
	MaxMessage int
}

// DecodeEnvelope checks a received envelope without the sender's key: the first step of 6.2. The
// error is an [*Error] with the first code that applies, in the order of the declarations. The
// signature may be absent or null.
func DecodeEnvelope(data []byte, opts *DecodeOptions) (*Envelope, error) {
	var o DecodeOptions
	if opts != nil {
		o = *opts
	}
	if err := o.Profile.check(); err != nil {
		return nil, ErrInvalidEnvelope.because("", err)
	}
	o.MaxMessage = option.Or(o.MaxMessage, defaultMaxMessage, math.MaxInt32)
	if len(data) > o.MaxMessage {
		return nil, errTooLarge()
	}
	c := getScratch()
	defer putScratch(c)
	return c.decode(data, o.Profile.or(ProfileInterop), o.BodyTypes)
}

func errTooLarge() error { return ErrTooLarge.err("the envelope is too large") }

func (c *scratch) decode(data []byte, p Profile, bodies []string) (*Envelope, error) {
	out, ok := c.AppendEnvelope(c.out[:0], data)
	c.out = out
	if err := c.refuse(ok); err != nil {
		return nil, err
	}
	if p != ProfileDeployed {
		if c.Nulls > 0 || c.IsReplyNull && p == ProfileSpec {
			return nil, ErrNullForbidden.err("null is not allowed")
		}
		if c.EmptyInBody > 0 {
			return nil, ErrEmptyArray.err("an empty array in the body")
		}
	}
	if !c.IsObject {
		return nil, ErrInvalidEnvelope.err("not an object")
	}
	e := &Envelope{text: string(out), ambiguous: c.IsAmbiguous}
	top := fields{e.text, c.Top}
	if err := e.readFields(top, c, p); err != nil {
		return nil, err
	}
	body := fields{e.text[e.bodyAt:e.bodyEnd], c.Body}
	if e.Type, ok = body.str("type"); !ok {
		return nil, ErrInvalidEnvelope.err("the body has no type")
	}
	if p == ProfileDeployed {
		return e, nil // any body (AIR-D27)
	}
	if !knownBody(e.Type, bodies) {
		return nil, ErrUnsupportedBody.err("the body type is not supported here")
	}
	switch e.Type {
	case bodyTypeCounter, bodyTypeAccept, bodyTypeDecline:
		if e.InReplyTo == "" {
			return nil, ErrInvalidEnvelope.err("in_reply_to is missing")
		}
	}
	if _, err := body.typed(e.Type, p, false); err != nil {
		return nil, err
	}
	return e, nil
}

func knownBody(bodyType string, registered []string) bool {
	return isNegotiation(bodyType) || bodyType == bodyTypeEncrypted ||
		slices.Contains(registered, bodyType) || slices.Contains(registered, AnyBodyType)
}

// readFields reads the members of an envelope. The first malformed one in canonical order counts, and
// then the first missing one in the order of the table of section d.
func (e *Envelope) readFields(top fields, c *scratch, p Profile) error {
	e.sigPrev, e.sigNext = -1, -1
	for k, m := range top.ms {
		if name := top.s[m.NameAt+1 : m.NameEnd-1]; !e.readField(top, k, name, c, p) {
			return malformed(name)
		}
	}
	for _, f := range [...]struct{ name, value string }{
		{"id", e.ID}, {"from", e.From}, {"to", e.To}, {"timestamp", e.Timestamp}, {"thread_id", e.ThreadID}, {"nonce", e.Nonce},
	} {
		if f.value == "" {
			return malformed(f.name)
		}
	}
	if e.bodyEnd == 0 {
		return malformed("body")
	}
	return nil
}

func malformed(name string) error { return ErrInvalidEnvelope.err(name + " is missing or malformed") }

// readField reads the member k and reports whether it is well-formed.
func (e *Envelope) readField(top fields, k int, name string, c *scratch, p Profile) (ok bool) {
	m := top.ms[k]
	switch name {
	case "id":
		e.ID, ok = top.id(m, p)
	case "from":
		e.From, ok = top.did(m, p)
	case "to":
		e.To, ok = top.did(m, p)
	case "timestamp":
		if e.Timestamp, ok = textOf(top.value(m)); ok {
			e.Time, ok = parseTime(e.Timestamp, p)
		}
	case "in_reply_to":
		if c.IsReplyNull {
			return true // read as absent; it stays in the signing input (AIR-D20)
		}
		e.InReplyTo, ok = top.id(m, p)
	case "thread_id":
		e.ThreadID, ok = top.id(m, p)
	case "nonce":
		e.Nonce, ok = textOf(top.value(m))
		n := utf8.RuneCountInString(e.Nonce)
		ok = ok && n >= 1 && n <= 256
	case "signature":
		ok = e.readSignature(top.ms, k, c.Signature)
	case "body":
		e.bodyAt, e.bodyEnd = m.NameEnd+1, m.End
		ok = top.value(m)[0] == '{'
	default:
		ok = true
	}
	return ok
}

// readSignature reads the member k, the signature, with the positions of its neighbors.
func (e *Envelope) readSignature(ms []canon.Member, k int, sig []byte) bool {
	e.sigAt, e.sigEnd = ms[k].NameAt, ms[k].End
	if k > 0 {
		e.sigPrev = ms[k-1].End
	}
	if k < len(ms)-1 {
		e.sigNext = ms[k+1].NameAt
	}
	if sig[0] == '"' {
		e.Signature, _ = textOf(string(sig))
		return true
	}
	return sig[0] == 'n'
}

// id returns the id in a member.
func (f fields) id(m canon.Member, p Profile) (string, bool) {
	text, ok := textOf(f.value(m))
	return text, ok && validID(text, p)
}

// did returns the DID in a member.
func (f fields) did(m canon.Member, p Profile) (string, bool) {
	text, ok := textOf(f.value(m))
	if !ok {
		return "", false
	}
	_, err := parseDID(text, p)
	return text, err == nil
}

// BodyJSON returns the canonical JSON of the body.
func (e *Envelope) BodyJSON() []byte { return []byte(e.text[e.bodyAt:e.bodyEnd]) }

// Body returns the body as a typed value. In [ProfileDeployed] bodies are not validated on receipt;
// a body without the form of its type is returned as a [Raw].
func (e *Envelope) Body() Body { return e.bodyOf(e.BodyJSON()) }

// bodyOf returns the body with a text, which a Raw keeps.
func (e *Envelope) bodyOf(text []byte) Body {
	b, err := DecodeBody(text, ProfileDeployed)
	if err != nil {
		return &Raw{Type: e.Type, JSON: slices.Clone(text)}
	}
	return b
}

// appendTo appends the canonical JSON of the envelope with its signature, as it is sent.
func (e *Envelope) appendTo(dst []byte) []byte {
	if e.sigEnd == 0 || e.Signature == "" {
		return append(dst, e.text...)
	}
	dst = append(dst, e.text[:e.sigEnd-int32(len("null"))]...)
	dst = canon.AppendQuoted(dst, e.Signature)
	return append(dst, e.text[e.sigEnd:]...)
}

// Bytes returns the canonical JSON of the envelope.
func (e *Envelope) Bytes() []byte { return e.appendTo(nil) }

// DecodeBody parses a body and validates it by its type. Strings and names must satisfy
// [Canonicalize]. A type outside the specification returns an unvalidated [Raw].
func DecodeBody(body []byte, p Profile) (Body, error) {
	if err := p.check(); err != nil {
		return nil, ErrInvalidEnvelope.because("", err)
	}
	c := getScratch()
	defer putScratch(c)
	return c.parseBody(body, p, true)
}

// parseBody can omit the rules that apply to plain bodies of a negotiation only: nulls and empty
// arrays.
func (c *scratch) parseBody(body []byte, p Profile, floats bool) (Body, error) {
	out, ok := c.Append(c.out[:0], body)
	c.out = out
	if err := c.refuse(ok); err != nil && (floats || !isCode(err, ErrFloatForbidden)) {
		return nil, err
	}
	if !c.IsObject {
		return nil, ErrInvalidEnvelope.err("the body is no object")
	}
	f := fields{string(out), c.Top}
	bodyType, ok := f.str("type")
	if !ok {
		return nil, ErrInvalidEnvelope.err("the body has no type")
	}
	if isNegotiation(bodyType) {
		if c.HasFloat {
			return nil, ErrFloatForbidden.err("a number with a fraction or an exponent")
		}
		if err := c.refuseEmpty(p); err != nil {
			return nil, err
		}
	}
	return f.typed(bodyType, p, true)
}

func (c *scratch) refuseEmpty(p Profile) error {
	switch {
	case p == ProfileDeployed:
	case c.Nulls > 0:
		return ErrNullForbidden.err("null is not allowed")
	case c.EmptyArrays > 0:
		return ErrEmptyArray.err("an empty array in the body")
	}
	return nil
}

func isCode(err error, code Code) bool {
	if err == nil {
		return false
	}
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// fields are the members of one object of canonical text.
type fields struct {
	s  string
	ms []canon.Member
}

func (f fields) value(m canon.Member) string { return f.s[m.NameEnd+1 : m.End] }

func (f fields) get(name string) string {
	for _, m := range f.ms {
		if f.s[m.NameAt+1:m.NameEnd-1] == name {
			return f.value(m)
		}
	}
	return ""
}

func (f fields) str(name string) (string, bool) { return textOf(f.get(name)) }

// textOf returns the text of a canonical string and whether value is one.
func textOf(value string) (string, bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	value = value[1 : len(value)-1]
	if strings.IndexByte(value, '\\') >= 0 {
		return string(canon.Unescape(nil, []byte(value))), true
	}
	return value, true
}

// typed validates a body by its type and, if build is set, returns it.
func (f fields) typed(bodyType string, p Profile, build bool) (Body, error) {
	switch bodyType {
	case bodyTypeOffer, bodyTypeCounter:
		return f.proposal(bodyType, p, build)
	case bodyTypeAccept:
		price, ok := parseMoney(f.get("accepted_price"))
		if !ok {
			return nil, badBody("accepted_price")
		}
		if build {
			return &Accept{Price: price}, nil
		}
	case bodyTypeDecline, bodyTypeWithdraw:
		return f.retreat(bodyType, p, build)
	case bodyTypeEncrypted:
		return f.encrypted(build)
	default:
		if build {
			return &Raw{Type: bodyType, JSON: []byte(f.s)}, nil
		}
	}
	return nil, nil
}

func badBody(name string) error {
	return ErrInvalidEnvelope.err("body: " + name + " is missing or malformed")
}

// proposal is typed for an Offer and a Counter.
func (f fields) proposal(bodyType string, p Profile, build bool) (Body, error) {
	description, ok := f.str("description")
	if !ok || utf8.RuneCountInString(description) > 2048 {
		return nil, badBody("description")
	}
	price, ok := parseMoney(f.get("price"))
	if !ok {
		return nil, badBody("price")
	}
	text, ok := f.str("expires_at")
	if !ok {
		return nil, badBody("expires_at")
	}
	expires, ok := parseTime(text, p)
	switch {
	case !ok:
		return nil, badBody("expires_at")
	case !build:
		return nil, nil
	case bodyType == bodyTypeOffer:
		return &Offer{Description: description, Price: price, Expires: expires}, nil
	}
	return &Counter{Description: description, Price: price, Expires: expires}, nil
}

// retreat is typed for a Decline and a Withdraw.
func (f fields) retreat(bodyType string, p Profile, build bool) (Body, error) {
	reason, ok := f.str("reason")
	if !ok && f.get("reason") != "" || utf8.RuneCountInString(reason) > 512 {
		return nil, badBody("reason")
	}
	id := ""
	if bodyType == bodyTypeWithdraw {
		if id, ok = f.str("withdrawn_id"); !ok || !validID(id, p) {
			return nil, badBody("withdrawn_id")
		}
	}
	switch {
	case !build:
		return nil, nil
	case bodyType == bodyTypeDecline:
		return &Decline{Reason: reason}, nil
	}
	return &Withdraw{WithdrawnID: id, Reason: reason}, nil
}

// encrypted is typed for a sealed body.
func (f fields) encrypted(build bool) (Body, error) {
	if alg, ok := f.str("alg"); !ok || alg != sealSuite {
		return nil, badBody("alg")
	}
	if f.get("v") != "1" {
		return nil, badBody("v")
	}
	for _, name := range [...]string{"epk", "nonce", "ct"} {
		if _, ok := f.str(name); !ok {
			return nil, badBody(name)
		}
	}
	if !build {
		return nil, nil
	}
	return &Raw{Type: bodyTypeEncrypted, JSON: []byte(f.s)}, nil
}

// parseMoney reads a canonical money object. It ignores unknown members (AIR-D29).
func parseMoney(s string) (m Money, ok bool) {
	amount, currency := "", ""
	if s == "" || s[0] != '{' {
		return m, false
	}
	for name, value := range canonicalMembers(s) {
		switch name {
		case `"amount_cents"`:
			amount = value
		case `"currency"`:
			currency, _ = textOf(value)
		}
	}
	if len(currency) != 3 || !all(currency, func(c byte) bool { return c-'A' < 26 }) {
		return m, false
	}
	m.Amount, ok = ParseAmount(amount)
	m.Currency = currency
	return m, ok
}

// canonicalMembers ranges over the members of canonical text; names keep their quotes.
func canonicalMembers(s string) func(yield func(name, value string) bool) {
	return func(yield func(name, value string) bool) {
		for i := 1; i < len(s) && s[i] == '"'; i++ {
			ke := canonicalEnd(s, i)
			ve := canonicalEnd(s, ke+1)
			if !yield(s[i:ke], s[ke+1:ve]) {
				return
			}
			i = ve
		}
	}
}

func canonicalEnd(s string, i int) int {
	for depth := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			for i++; s[i] != '"'; i++ {
				if s[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}
