// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air/internal/canon"
)

// Types of the bodies of the specification.
const (
	bodyTypeOffer     = "Offer"
	bodyTypeCounter   = "Counter"
	bodyTypeAccept    = "Accept"
	bodyTypeDecline   = "Decline"
	bodyTypeWithdraw  = "Withdraw"
	bodyTypeEncrypted = "encrypted"
)

func isNegotiation(bodyType string) bool {
	switch bodyType {
	case bodyTypeOffer, bodyTypeCounter, bodyTypeAccept, bodyTypeDecline, bodyTypeWithdraw:
		return true
	}
	return false
}

// A Body is the body of an envelope: *[Offer], *[Counter], *[Accept], *[Decline], *[Withdraw],
// or *[Raw].
type Body interface {
	bodyType() string
	appendJSON(dst []byte) []byte
}

// An Offer opens a negotiation.
type Offer struct {
	Description string // at most 2048 characters
	Price       Money
	Expires     time.Time // sent with milliseconds
}

// A Counter answers an [Offer] or another Counter with a new price.
type Counter struct {
	Description string // at most 2048 characters
	Price       Money
	Expires     time.Time
}

// An Accept agrees to the outstanding price and ends the negotiation.
type Accept struct {
	Price Money // accepted_price: exactly the outstanding one
}

// A Decline ends the negotiation without agreement.
type Decline struct {
	Reason string // at most 512 characters; empty is omitted
}

// A Withdraw retracts the sender's own outstanding Offer or Counter and ends the negotiation.
type Withdraw struct {
	WithdrawnID string
	Reason      string // at most 512 characters; empty is omitted
}

// A Raw is any other body, as canonical JSON.
type Raw struct {
	Type string // the member type of JSON
	JSON []byte // an object
}

func (*Offer) bodyType() string { return bodyTypeOffer }

func (*Counter) bodyType() string { return bodyTypeCounter }

func (*Accept) bodyType() string { return bodyTypeAccept }

func (*Decline) bodyType() string { return bodyTypeDecline }

func (*Withdraw) bodyType() string { return bodyTypeWithdraw }

func (b *Raw) bodyType() string { return b.Type }

// isMissing reports whether there is no body, or a nil pointer as one.
func isMissing(b Body) bool {
	v := reflect.ValueOf(b)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// BodyType returns the member type of a body: "Offer" for an [Offer], and "" for none.
func BodyType(b Body) string {
	if isMissing(b) {
		return ""
	}
	return b.bodyType()
}

func (b *Offer) appendJSON(dst []byte) []byte {
	return appendOffer(dst, bodyTypeOffer, b.Description, b.Price, b.Expires)
}

func (b *Counter) appendJSON(dst []byte) []byte {
	return appendOffer(dst, bodyTypeCounter, b.Description, b.Price, b.Expires)
}

func appendOffer(dst []byte, bodyType, description string, price Money, expires time.Time) []byte {
	dst = append(dst, `{"description":`...)
	dst = canon.AppendQuoted(dst, description)
	dst = append(dst, `,"expires_at":"`...)
	dst = expires.UTC().AppendFormat(dst, timeLayout)
	dst = append(dst, `","price":`...)
	dst = price.appendJSON(dst)
	dst = append(dst, `,"type":"`...)
	dst = append(dst, bodyType...)
	return append(dst, `"}`...)
}

func (b *Accept) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"accepted_price":`...)
	dst = b.Price.appendJSON(dst)
	return append(dst, `,"type":"Accept"}`...)
}

func (b *Decline) appendJSON(dst []byte) []byte {
	return append(appendReason(append(dst, '{'), b.Reason), `"type":"Decline"}`...)
}

func (b *Withdraw) appendJSON(dst []byte) []byte {
	dst = append(appendReason(append(dst, '{'), b.Reason), `"type":"Withdraw","withdrawn_id":`...)
	return append(canon.AppendQuoted(dst, b.WithdrawnID), '}')
}

func appendReason(dst []byte, reason string) []byte {
	if reason == "" {
		return dst
	}
	return append(canon.AppendQuoted(append(dst, `"reason":`...), reason), ',')
}

func (b *Raw) appendJSON(dst []byte) []byte { return append(dst, b.JSON...) }

// Money is an amount in minor units of a currency, or in full units if the currency has no minor
// ones (4.3.1).
type Money struct {
	Amount   Amount
	Currency string // three upper-case letters of ISO 4217
}

// MinorUnits returns an amount in minor units of a currency.
func MinorUnits(amount uint64, currency string) Money {
	return Money{Amount: newAmount(amount), Currency: currency}
}

// String returns, for example, "500 USD".
func (m Money) String() string { return m.Amount.String() + " " + m.Currency }

func (m Money) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"amount_cents":`...)
	dst = append(dst, m.Amount.String()...)
	dst = append(dst, `,"currency":`...)
	return append(canon.AppendQuoted(dst, m.Currency), '}')
}

// An Amount is an exact non-negative integer of any size. The zero value is 0. Two Amounts are
// equal if and only if they compare equal with ==.
type Amount struct{ digits string } // "" is 0

// newAmount returns n as an Amount.
func newAmount(n uint64) Amount {
	a, _ := ParseAmount(strconv.FormatUint(n, 10))
	return a
}

// ParseAmount parses decimal digits without leading zeros, and reports whether text is valid.
func ParseAmount(text string) (Amount, bool) {
	if text == "0" {
		return Amount{}, true
	}
	if text == "" || text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		return Amount{}, false
	}
	return Amount{digits: text}, true
}

// String returns the decimal digits.
func (a Amount) String() string {
	if a.digits == "" {
		return "0"
	}
	return a.digits
}

// Uint64 returns the amount and whether it fits into 64 bits.
func (a Amount) Uint64() (uint64, bool) {
	n, err := strconv.ParseUint(a.String(), 10, 64)
	return n, err == nil
}
