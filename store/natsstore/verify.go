// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/store"
)

// maxDamage bounds the list of a report.
const maxDamage = 1000

// A Report is the result of a verification. Its JSON form is that of the command storecheck.
type Report struct {
	Path    string    `json:"path"`    // the folder, or the prefix of the streams
	Checked time.Time `json:"checked"` // when the verification ended

	Messages int `json:"messages"` // all that was checked; offline, removed ones included
	Entries  int `json:"entries"`  // keys and their deletions, expired ones included
	Records  int `json:"records"`
	IDs      int `json:"ids"`     // of acknowledged records
	Expired  int `json:"expired"` // messages that await a sweep; online only

	Blocks  int      `json:"blocks,omitempty"`  // files with messages; offline only
	Skipped []string `json:"skipped,omitempty"` // compressed or encrypted blocks, which cannot be checked

	Last map[string]uint64 `json:"last"` // the highest number given in each JetStream stream

	Damaged int      `json:"damaged"`          // number of damages
	Damage  []Damage `json:"damage,omitempty"` // the first 1,000 of them
}

// A Damage is one finding of a verification. Empty fields are unknown.
type Damage struct {
	Area     string `json:"area"`               // the JetStream stream, or the file of a block
	Offset   int    `json:"offset,omitempty"`   // of the message in its block
	Key      string `json:"key,omitempty"`      // of an entry
	ID       string `json:"id,omitempty"`       // of a record
	Position uint64 `json:"position,omitempty"` // of the message
	Problem  string `json:"problem"`
}

// Add appends a finding.
func (r *Report) Add(d Damage) {
	r.Damaged++
	if len(r.Damage) < maxDamage {
		r.Damage = append(r.Damage, d)
	}
}

// Count counts a message by its subject and notes its number as given in its area.
func (r *Report) Count(area, subject string, seq uint64) {
	r.Messages++
	r.note(area, seq)
	_, kind, _ := strings.Cut(subject, ".") // after the prefix
	switch {
	case strings.HasPrefix(kind, "kv.k."):
		r.Entries++
	case strings.HasPrefix(kind, "log.r."):
		r.Records++
	case strings.HasPrefix(kind, "log.a."):
		r.IDs++
	}
}

func (r *Report) note(area string, seq uint64) {
	if r.Last == nil {
		r.Last = map[string]uint64{}
	}
	r.Last[area] = max(r.Last[area], seq)
}

// CompareMark compares the last numbers with those in the file of the high-water mark. A missing file
// has none.
func (r *Report) CompareMark(path, prefix string) {
	mark, err := readMark(path)
	if err != nil {
		r.Add(Damage{Area: path, Problem: err.Error()})
	}
	r.compare(prefix, mark)
}

func (r *Report) compare(prefix string, mark markFile) {
	for area, want := range map[string]uint64{prefix + "_kv": mark.Entries, prefix + "_log": mark.Records} {
		if have := r.Last[area]; have < want {
			loss := store.LossError{Path: area, Have: have, Want: want}
			r.Add(Damage{Area: area, Problem: loss.Error()})
		}
	}
}

// Err returns nil if there is no damage, else a [store.CorruptError] with the first one.
func (r *Report) Err() error {
	if r.Damaged == 0 {
		return nil
	}
	d := r.Damage[0]
	cause := errors.New(d.Problem)
	if d.Offset > 0 {
		cause = fmt.Errorf("%s at byte %d", d.Problem, d.Offset)
	}
	return &store.CorruptError{Path: d.Area, Key: d.Key, Position: d.Position, Cause: cause}
}

// Verify reads all messages and compares them with their checksums, ids with the names of subjects, and the last
// numbers with those that this process has seen. The error says that the verification could not be done; the
// findings are in the report. Calls of others continue. Verify has no deadline but that of ctx. On a cluster it reads
// the copy of one server.
func (s *Store) Verify(ctx context.Context) (*Report, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	r := &Report{Path: s.opts.StreamPrefix}
	mark := markFile{Entries: s.kv.highest.Load(), Records: s.log.highest.Load()}
	for _, a := range []*area{s.kv, s.log} {
		if err := s.verifyArea(ctx, a, r); err != nil {
			return nil, fmt.Errorf("natsstore: verify %s: %w", a.name, err)
		}
	}
	r.compare(s.opts.StreamPrefix, mark)
	r.Checked = time.Now()
	return r, nil
}

func (s *Store) verifyArea(ctx context.Context, a *area, r *Report) error {
	info, err := s.info(ctx, a, "", 0)
	if err != nil {
		return err
	}
	if info.lost > 0 {
		r.Add(Damage{Area: a.name, Problem: fmt.Sprintf("the server omitted %d damaged bytes", info.lost)})
	}
	r.note(a.name, info.lastSeq)
	return s.scan(ctx, a, true, func(m *stored) error {
		r.Count(a.name, m.subject, m.seq)
		if problem := s.problem(a, m, r); problem != "" {
			d := Damage{Area: a.name, ID: idOf(m), Position: m.seq, Problem: problem}
			if tokens, isKey := strings.CutPrefix(m.subject, s.kv.prefix+"k."); isKey {
				d.Key, _ = keyOf(tokens)
			}
			r.Add(d)
		}
		return nil
	})
}

// idOf returns the id of a record; empty if it has none.
func idOf(m *stored) string {
	id, _ := base64.StdEncoding.DecodeString(m.header.Get(idHeader))
	return string(id)
}

// problem judges a message, and counts it if it has expired.
func (s *Store) problem(a *area, m *stored, r *Report) string {
	if err := m.check(a); err != nil {
		return "checksum does not match"
	}
	rest, isRecord := strings.CutPrefix(m.subject, s.log.prefix+"r.")
	_, token, _ := strings.Cut(rest, ".")
	rest, isKey := strings.CutPrefix(m.subject, s.kv.prefix+"k.")
	now := s.clock.now()
	switch {
	case isRecord:
		if id := idOf(m); id == "" && !strings.HasPrefix(token, noID) || id != "" && token != digest(id) {
			return "id differs from that of the subject"
		}
	case isKey:
		if _, ok := keyOf(rest); !ok {
			return "subject of no key"
		}
	case strings.HasPrefix(m.subject, s.log.prefix+"a."):
		seq, err := strconv.ParseUint(m.header.Get(seqHeader), 10, 64)
		if err != nil || seq == 0 || seq >= m.seq {
			return "id of no record"
		}
		if k := s.markOf(m); !alive(k.own, now) {
			r.Expired++
		}
		return ""
	}
	if !alive(m.expires(), now) {
		r.Expired++
	}
	return ""
}
