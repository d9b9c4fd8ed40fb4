// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A mail is an envelope as a relay knows it: a few fields and the bytes as they
// came.
type mail struct {
	id, from, to string
	head         []byte // of a stored mail: id and from, each after its length
	data         []byte
	seq          uint64
	queued       time.Time
}

// parseMail checks what a relay checks: the top-level fields as in interop, and
// the inside of the body only for what makes it JSON (section g).
func parseMail(data []byte) (*mail, error) {
	c := getCanon()
	defer putCanon(c)
	c.envelope = true
	out, ok := c.append(c.out[:0], data)
	c.out = out
	if err := c.refuse(ok); err != nil {
		return nil, err
	}
	if !c.object {
		return nil, ErrInvalidEnvelope.err("not an object")
	}
	for i, m := range c.top {
		if i != c.sigAt && string(out[m.ke+1:m.ve]) == "null" && string(out[m.ks:m.ke]) != `"in_reply_to"` {
			return nil, ErrNullForbidden.err("null is not allowed")
		}
	}
	e := Envelope{text: string(out)}
	if err := e.readFields(fields{e.text, c.top}, c, ProfileInterop); err != nil {
		return nil, err
	}
	body := fields{e.text[e.bodyAt:e.bodyEnd], c.body}
	if _, ok := body.str("type"); !ok {
		return nil, ErrInvalidEnvelope.err("the body has no type")
	}
	if e.Signature == "" {
		return nil, ErrInvalidEnvelope.err("signature is missing")
	}
	return &mail{id: e.ID, from: e.From, to: e.To, data: data}, nil
}

// record appends how a mail is stored.
func (m *mail) record(b []byte) []byte {
	for _, s := range []string{m.id, m.from} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return append(b, m.data...)
}

// records are buffers for what is being stored; a store copies it.
var records = sync.Pool{New: func() any { return new([]byte) }}

// maxRecord is the largest buffer that is kept.
const maxRecord = 2 * DefaultMaxBytes

// parseRecord reads a stored mail. Its id and from are read by open only, since a
// pull of the specification does not need them.
func parseRecord(rec store.Record) (m mail, err error) {
	b := rec.Value
	for range 2 {
		n, k := binary.Uvarint(b)
		if k <= 0 || uint64(len(b)-k) < n {
			return m, errors.New("air: a stored envelope is damaged")
		}
		b = b[k+int(n):]
	}
	m.head, m.data = rec.Value[:len(rec.Value)-len(b)], b
	m.seq, m.queued = rec.Seq, rec.Time
	return m, nil
}

// mailOf reads a record that parseRecord has read before.
func mailOf(rec store.Record) *mail {
	m, _ := parseRecord(rec)
	return &m
}

// open fills in id and from.
func (m *mail) open() {
	b := m.head
	for _, s := range []*string{&m.id, &m.from} {
		n, k := binary.Uvarint(b)
		*s = string(b[k : k+int(n)])
		b = b[k+int(n):]
	}
}

// appendMessage appends the message object of the deployed relay.
func (m *mail) appendMessage(b []byte) []byte {
	m.open()
	b = strconv.AppendUint(append(b, `{"seq":`...), m.seq, 10)
	b = strictjson.AppendString(append(b, `,"sender_did":`...), m.from)
	b = strictjson.AppendString(append(b, `,"envelope_id":`...), m.id)
	b = append(b, `,"envelope_b64":"`...)
	b = base64.StdEncoding.AppendEncode(b, m.data)
	b = strconv.AppendInt(append(b, `","queued_at":`...), m.queued.Unix(), 10)
	return append(b, '}')
}
