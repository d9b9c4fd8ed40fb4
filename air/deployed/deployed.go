// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package deployed has the bodies that the public peers of the protocol exchange: text messages,
// and offers with lower-case types that name items. They belong to no specification and drive no
// thread of package air, which carries them in [air.ProfileDeployed] as [air.Raw]:
//
//	client.Send(ctx, &air.Draft{To: did, Body: deployed.Encode(&deployed.Text{Text: "hello"})},
//		&air.SendOptions{Seal: true})
//
// Messages of rooms, whose types begin with room/, stay [air.Raw]: their fields are not documented.
package deployed

import (
	"fmt"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Body is *[Text], *[Offer], *[Counter], *[Accept], *[Decline] or *[Withdraw].
type Body interface {
	bodyType() string
	fields() []field
	read(r *reader)
}

// A Text is a message for people, almost always sent sealed.
type Text struct{ Text string }

// An Offer offers something for an item.
type Offer struct {
	ItemID string
	Value  Value
	Note   string // optional
}

// A Counter answers with another value.
type Counter struct {
	ItemID string
	Value  Value
	Note   string // optional
}

// An Accept agrees.
type Accept struct {
	ItemID string
	Note   string // optional
}

// A Decline refuses.
type Decline struct {
	ItemID string
	Reason string // optional
}

// A Withdraw takes an offer back.
type Withdraw struct {
	ItemID string
	Reason string // optional
}

// A Value is money if ItemID is empty, else a number of items.
type Value struct {
	Money air.Money

	ItemID   string
	Quantity air.Amount
}

type field struct {
	name  string
	value []byte // JSON
}

func text(name, s string) field { return field{name, strictjson.AppendString(nil, s)} }

// optional is null when it is empty: a peer that writes a typed structure again
// before it verifies does the same, and would not verify anything else.
func optional(name, s string) field {
	if s == "" {
		return field{name, []byte("null")}
	}
	return text(name, s)
}

func value(name string, v Value) field {
	var b []byte
	if v.ItemID == "" {
		b = fmt.Appendf(nil, `{"type":"cash","amount_cents":%s,"currency":%s}`, v.Money.Amount, strictjson.AppendString(nil, v.Money.Currency))
	} else {
		b = fmt.Appendf(nil, `{"type":"item","item_id":%s,"quantity":%s}`, strictjson.AppendString(nil, v.ItemID), v.Quantity)
	}
	return field{name, b}
}

func (*Text) bodyType() string     { return "text" }
func (*Offer) bodyType() string    { return "offer" }
func (*Counter) bodyType() string  { return "counter" }
func (*Accept) bodyType() string   { return "accept" }
func (*Decline) bodyType() string  { return "decline" }
func (*Withdraw) bodyType() string { return "withdraw" }

func (b *Text) fields() []field { return []field{text("text", b.Text)} }
func (b *Offer) fields() []field {
	return []field{text("item_id", b.ItemID), value("offered_value", b.Value), optional("note", b.Note)}
}
func (b *Counter) fields() []field {
	return []field{text("item_id", b.ItemID), value("counter_value", b.Value), optional("note", b.Note)}
}
func (b *Accept) fields() []field {
	return []field{text("item_id", b.ItemID), optional("note", b.Note)}
}
func (b *Decline) fields() []field {
	return []field{text("item_id", b.ItemID), optional("reason", b.Reason)}
}
func (b *Withdraw) fields() []field {
	return []field{text("item_id", b.ItemID), optional("reason", b.Reason)}
}

// Encode returns the body as package air sends it.
func Encode(b Body) *air.Raw {
	out := strictjson.AppendString([]byte(`{"type":`), b.bodyType())
	for _, f := range b.fields() {
		out = strictjson.AppendString(append(out, ','), f.name)
		out = append(append(out, ':'), f.value...)
	}
	return &air.Raw{Type: b.bodyType(), JSON: append(out, '}')}
}

// Decode reads a body that was received. A type that is not one of this package's,
// and a body that has not the form of its type, is [air.ErrUnsupportedBody] or
// [air.ErrInvalidEnvelope].
func Decode(raw *air.Raw) (Body, error) {
	var b Body
	if raw == nil {
		raw = &air.Raw{}
	}
	switch raw.Type {
	case "text":
		b = &Text{}
	case "offer":
		b = &Offer{}
	case "counter":
		b = &Counter{}
	case "accept":
		b = &Accept{}
	case "decline":
		b = &Decline{}
	case "withdraw":
		b = &Withdraw{}
	default:
		return nil, &air.Error{Code: air.ErrUnsupportedBody, Message: "not a body of the deployed peers"}
	}
	v, err := strictjson.Check(raw.JSON, strictjson.Options{MaxDepth: 64})
	r := reader{v: v, bad: err != nil || !v.IsObject()}
	b.read(&r)
	if r.bad {
		return nil, &air.Error{Code: air.ErrInvalidEnvelope, Message: "body: not of the form of its type"}
	}
	return b, nil
}

type reader struct {
	v   strictjson.Value
	bad bool
}

func (r *reader) text(name string) string {
	s, ok := r.v.Get(name).Text()
	r.bad = r.bad || !ok
	return s
}

func (r *reader) optional(name string) string {
	if r.v.Get(name).Absent() {
		return ""
	}
	return r.text(name)
}

func (r *reader) amount(name string) air.Amount {
	a, ok := air.ParseAmount(string(r.v.Get(name)))
	r.bad = r.bad || !ok
	return a
}

func (r *reader) value(name string) (v Value) {
	in := reader{v: r.v.Get(name)}
	switch in.text("type") {
	case "cash":
		v.Money = air.Money{Amount: in.amount("amount_cents"), Currency: in.text("currency")}
	case "item":
		v.ItemID, v.Quantity = in.text("item_id"), in.amount("quantity")
		in.bad = in.bad || v.ItemID == ""
	default:
		in.bad = true
	}
	r.bad = r.bad || in.bad
	return v
}

func (b *Text) read(r *reader) { b.Text = r.text("text") }
func (b *Offer) read(r *reader) {
	b.ItemID, b.Value, b.Note = r.text("item_id"), r.value("offered_value"), r.optional("note")
}
func (b *Counter) read(r *reader) {
	b.ItemID, b.Value, b.Note = r.text("item_id"), r.value("counter_value"), r.optional("note")
}
func (b *Accept) read(r *reader)   { b.ItemID, b.Note = r.text("item_id"), r.optional("note") }
func (b *Decline) read(r *reader)  { b.ItemID, b.Reason = r.text("item_id"), r.optional("reason") }
func (b *Withdraw) read(r *reader) { b.ItemID, b.Reason = r.text("item_id"), r.optional("reason") }
