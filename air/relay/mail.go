// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air/internal/hook"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A mail is an envelope in a relay: a few fields and the received bytes.
type mail struct {
	id, from, to string
	payer        string // principal of the sender in the budget; "" charges the recipient
	guest        string // address of a sender without a secret
	head         []byte // of a stored mail: id and from, each after its length
	data         []byte
	seq          uint64
	queued       time.Time

	queuedEntry             // of mail that is added to a mailbox
	place       budget.Hold // for the mailbox
}

// release returns the holds that no mailbox has taken.
func (m *mail) release() {
	m.hold.Release()
	m.place.Release()
	m.hold, m.place = budget.Hold{}, budget.Hold{}
}

// newMail returns the mail of a pushed envelope.
func newMail(data []byte) (*mail, error) {
	h, err := hook.DecodeHeader(data)
	if err != nil {
		return nil, err
	}
	return &mail{id: h.ID, from: h.From, to: h.To, data: data}, nil
}

// record appends the stored form of a mail.
func (m *mail) record(b []byte) []byte {
	for _, s := range []string{m.id, m.from} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return append(b, m.data...)
}

// records are buffers for stored records; a store copies its input.
var records = sync.Pool{New: func() any { return new([]byte) }}

// maxRecord bounds the size of a pooled buffer.
const maxRecord = 2 * server.MaxMessage

// parseRecord parses a stored mail. Only open parses id and from, which a pull of the specification
// does not need.
func parseRecord(rec store.Record) (m mail, err error) {
	b := rec.Value
	for range 2 {
		n, k := binary.Uvarint(b)
		if k <= 0 || uint64(len(b)-k) < n {
			return m, errors.New("air: reading an envelope: invalid record")
		}
		b = b[k+int(n):]
	}
	m.head, m.data = rec.Value[:len(rec.Value)-len(b)], b
	m.seq, m.queued = rec.Seq, rec.Time
	return m, nil
}

// mailOf returns the mail of a valid record.
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
