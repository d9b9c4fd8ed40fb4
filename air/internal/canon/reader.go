// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package canon

// A Reader makes the canonical text of envelopes. It takes the signature out, and finds the body.
type Reader struct {
	Writer
	Body        []Member // of the member body, with offsets from its beginning
	EmptyInBody int      // empty arrays in the body
	IsReplyNull bool     // in_reply_to is null
	Signature   []byte   // canonical text; empty if absent
	SignatureAt int      // its place in Top; -1 if absent

	inBody bool
}

// AppendEnvelope is like [Writer.Append] for an envelope: null replaces its signature, which is the signed form
// (5.3).
func (r *Reader) AppendEnvelope(dst, text []byte) ([]byte, bool) {
	r.Body, r.Signature, r.SignatureAt = r.Body[:0], r.Signature[:0], -1
	r.EmptyInBody, r.IsReplyNull, r.inBody = 0, false, false
	r.reader = r
	out, ok := r.Append(dst, text)
	r.reader = nil
	for k, m := range r.Top {
		if ok && string(out[len(dst):][m.NameAt:m.NameEnd]) == `"signature"` {
			r.SignatureAt = k
		}
	}
	return out, ok
}

// member reads the value of a top-level member.
func (r *Reader) member(out, s []byte, i int, name string) ([]byte, int) {
	at, nulls, empty := len(out), r.Nulls, r.EmptyArrays
	r.inBody = name == "body"
	out, i = r.value(out, s, i, 1)
	r.inBody = false
	if i < 0 {
		return out, -1
	}
	isNull := string(out[at:]) == "null"
	switch name {
	case "signature":
		r.Signature = append(r.Signature[:0], out[at:]...)
		if isNull {
			r.Nulls = nulls
		}
		return append(out[:at], "null"...), i
	case "in_reply_to":
		if isNull {
			r.Nulls, r.IsReplyNull = nulls, true
		}
	case "body":
		r.EmptyInBody += r.EmptyArrays - empty
	}
	return out, i
}

func (r *Reader) keepBody(ms []Member, base int) {
	r.Body = append(r.Body[:0], ms...)
	for k := range r.Body {
		r.Body[k].shift(base)
	}
}

// AppendSigned appends the canonical text s of the last envelope, with or without its member signature, which is
// null.
func (r *Reader) AppendSigned(dst, s []byte, hasMember bool) []byte {
	k := r.SignatureAt
	switch {
	case hasMember == (k >= 0):
		return append(dst, s...)
	case hasMember:
		return r.InsertSignature(dst, s, "null")
	}
	previous, next := int32(-1), int32(-1)
	if k > 0 {
		previous = r.Top[k-1].End
	}
	if k < len(r.Top)-1 {
		next = r.Top[k+1].NameAt
	}
	return AppendWithout(dst, s, previous, next, r.Top[k].NameAt, r.Top[k].End)
}

// AppendWithout appends s without the member from start to end and without one of its adjacent commas. The
// previous member ends at previous and the next one begins at next; -1 means none.
func AppendWithout[T string | []byte](dst []byte, s T, previous, next, start, end int32) []byte {
	switch {
	case next >= 0:
		dst = append(dst, s[:start]...)
		return append(dst, s[next:]...)
	case previous >= 0:
		dst = append(dst, s[:previous]...)
	default:
		dst = append(dst, s[:start]...)
	}
	return append(dst, s[end:]...)
}

// InsertSignature appends s with a member signature at its sorted position.
func (r *Reader) InsertSignature(dst, s []byte, value string) []byte {
	k := 0
	for k < len(r.Top) && compareUTF16(r.name(s, &r.Top[k]), []byte("signature")) < 0 {
		k++
	}
	at := int32(len(s) - 1)
	if k < len(r.Top) {
		at = r.Top[k].NameAt
	}
	dst = append(dst, s[:at]...)
	if k > 0 && k == len(r.Top) {
		dst = append(dst, ',')
	}
	dst = append(dst, `"signature":`...)
	dst = append(dst, value...)
	if k < len(r.Top) {
		dst = append(dst, ',')
	}
	return append(dst, s[at:]...)
}
