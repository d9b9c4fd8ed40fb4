// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package transcript keeps the signed envelopes of a thread as evidence that a third party verifies
// without a network.
//
// A [Transcript] has each envelope together with the DID document of its sender, as resolved at that
// time. [Transcript.Verify] proves that the keys of these documents signed the envelopes, and replays
// the negotiation. A document is not signed: to know that a key is that of an agent, compare
// [Result.Keys] with the registry or with another source. The times of entries are claims of the writer.
// Sealed bodies stay sealed: their signatures are verified, their moves are not, and a plain answer to a sealed move is
// refused as an illegal one.
package transcript

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/hook"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Transcript has the messages of one thread, in the order in which the writer sent or received them.
type Transcript struct {
	Entries []Entry
}

// An Entry is one message.
type Entry struct {
	Time     time.Time // when it was sent or received
	Envelope []byte    // signed
	Document []byte    // DID document of the sender, as resolved at that time
}

// Add adds a sent or received envelope and the document of its sender. To get the document, call
// [air.Resolver.Resolve] with Envelope.From.
func (t *Transcript) Add(at time.Time, e *air.Envelope, sender *air.Document) {
	t.Entries = append(t.Entries, Entry{Time: at, Envelope: e.Bytes(), Document: sender.JSON()})
}

const (
	format     = "air-transcript-1"
	maxSize    = 64 << 20
	maxMembers = 1 << 20
	clockSkew  = 30 * time.Second // section 6.2
)

type record struct {
	Format  string        `json:"format"`
	Entries []entryRecord `json:"entries"`
}

type entryRecord struct {
	Time     time.Time    `json:"time"`
	Envelope jsonmap.JSON `json:"envelope"`
	Document jsonmap.JSON `json:"document"`
}

// Append appends a transcript as JSON.
func Append(dst []byte, t *Transcript) ([]byte, error) {
	r := record{Format: format, Entries: make([]entryRecord, 0, len(t.Entries))}
	for i, e := range t.Entries {
		envelope, err := jsonmap.NewJSON(e.Envelope)
		if err != nil {
			return dst, fmt.Errorf("transcript: entry %d: envelope: %w", i, err)
		}
		document, err := jsonmap.NewJSON(e.Document)
		if err != nil {
			return dst, fmt.Errorf("transcript: entry %d: document: %w", i, err)
		}
		r.Entries = append(r.Entries, entryRecord{e.Time.UTC(), envelope, document})
	}
	return jsonmap.Append(dst, &r)
}

// Decode reads a transcript of at most 64 MiB. It verifies no signature.
func Decode(data []byte) (*Transcript, error) {
	c := strictjson.NewCursor(data, strictjson.Options{MaxBytes: maxSize, MaxTotal: maxMembers})
	var r record
	f := jsonmap.Read(c, &r)
	if err := c.Err(); err != nil {
		return nil, fmt.Errorf("transcript: %w", err)
	}
	if f != nil {
		return nil, fmt.Errorf("transcript: %w", f)
	}
	if r.Format != format {
		return nil, fmt.Errorf("transcript: format %q is not %q", r.Format, format)
	}
	t := &Transcript{Entries: make([]Entry, 0, len(r.Entries))}
	for _, e := range r.Entries {
		t.Entries = append(t.Entries, Entry{e.Time, slices.Clone(e.Envelope.Value()), slices.Clone(e.Document.Value())})
	}
	return t, nil
}

// A Result is what a verified transcript proves.
type Result struct {
	ThreadID string

	// First is the sender of the first message, Other the other party.
	First, Other string

	// Keys are the keys that signed, in multibase, by the DID of the agent.
	Keys map[string][]string

	// Thread is the negotiation as First sees it. It lacks the moves in sealed bodies.
	Thread air.Thread

	// Envelopes are the messages, and Sealed is the number of those with sealed bodies.
	Envelopes []*air.Envelope
	Sealed    int
}

// Verify verifies that all messages are signed by the key in the document of their sender, belong to
// one thread of two agents, are not repeated, are not from the future of their entry, and are legal
// moves in this order. Errors name the entry; the cause is an [*air.Error] if air has a code for it. Nil
// opts read envelopes as [air.ProfileInterop], with any body.
func (t *Transcript) Verify(opts *air.DecodeOptions) (*Result, error) {
	o := air.DecodeOptions{Profile: air.ProfileInterop, BodyTypes: []string{air.AnyBodyType}}
	if opts != nil {
		o = *opts
	}
	if len(t.Entries) == 0 {
		return nil, errors.New("transcript: no entries")
	}
	r, seen := &Result{Keys: make(map[string][]string)}, make(map[message]bool, len(t.Entries))
	for i := range t.Entries {
		if i > 0 && t.Entries[i].Time.Before(t.Entries[i-1].Time) {
			return nil, fmt.Errorf("transcript: entry %d: time before that of the previous entry", i)
		}
		if err := r.add(&t.Entries[i], &o, seen); err != nil {
			return nil, fmt.Errorf("transcript: entry %d: %w", i, err)
		}
	}
	return r, nil
}

type message struct{ from, id string }

func (r *Result) add(entry *Entry, opts *air.DecodeOptions, seen map[message]bool) error {
	e, err := air.DecodeEnvelope(entry.Envelope, opts)
	if err != nil {
		return err
	}
	if err := r.checkParties(e); err != nil {
		return err
	}
	m := message{e.From, e.ID}
	if seen[m] {
		return fmt.Errorf("message %s is repeated", e.ID)
	}
	seen[m] = true
	if limit := entry.Time.Add(clockSkew); e.Time.After(limit) {
		return fmt.Errorf("timestamp %s is after the time of the entry", e.Timestamp)
	}
	if err := r.verify(e, entry.Document); err != nil {
		return err
	}
	body, err := air.DecodeBody(e.BodyJSON(), opts.Profile)
	if err != nil {
		return err
	}
	if air.BodyType(body) == "encrypted" {
		r.Sealed++
	}
	if err := hook.Apply(&r.Thread, e.From == r.First, e.ID, e.InReplyTo, body); err != nil {
		return err
	}
	r.Envelopes = append(r.Envelopes, e)
	return nil
}

// checkParties checks that a message belongs to the thread.
func (r *Result) checkParties(e *air.Envelope) error {
	if r.First == "" {
		r.ThreadID, r.First, r.Other = e.ThreadID, e.From, e.To
	}
	if e.ThreadID != r.ThreadID {
		return fmt.Errorf("thread %s is not %s", e.ThreadID, r.ThreadID)
	}
	isForward, isBackward := e.From == r.First && e.To == r.Other, e.From == r.Other && e.To == r.First
	if r.First == r.Other || !isForward && !isBackward {
		return fmt.Errorf("from %s to %s: not the parties of the thread", e.From, e.To)
	}
	return nil
}

// verify verifies the signature with the key of a document.
func (r *Result) verify(e *air.Envelope, document []byte) error {
	doc, err := air.DecodeDocument(document)
	if err != nil {
		return err
	}
	key, err := doc.SigningKey(e.From)
	if err != nil {
		return err
	}
	if _, err := e.Verify(key, ""); err != nil {
		return err
	}
	if text := key.String(); !slices.Contains(r.Keys[e.From], text) {
		r.Keys[e.From] = append(r.Keys[e.From], text)
	}
	return nil
}
