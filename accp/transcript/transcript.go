// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package transcript keeps the frames of a session as evidence that others verify without the session.
//
// A [Transcript] has the checkpoints of one side with their frames, the frames after the last checkpoint, and the
// versions of the shared state. [Transcript.Verify] proves that the hashes, the ids and the digests are those of
// the frames. [Diff] names the first frame in which two sides differ. Frames are not signed: a transcript
// proves that its parts belong together, not who wrote them.
package transcript

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Transcript is the history of one side of a session.
type Transcript struct {
	Format      string       `json:"format"`
	SessionID   string       `json:"session"`
	Checkpoints []Checkpoint `json:"checkpoints"`
	Frames      []string     `json:"frames"` // after the last checkpoint
	States      []State      `json:"states"` // in the order of their frames
}

// A Checkpoint has the frames of a checkpoint, and the addresses of its summaries.
type Checkpoint struct {
	Hash    string    `json:"hash"` // of the frames
	Frames  []string  `json:"frames"`
	Summary Summary   `json:"summary"`
	Refined []Summary `json:"refined"` // at most one
}

// A Summary is a text and its address.
type Summary struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}

// A State is a version of the shared state.
type State struct {
	Version int64  `json:"version"`
	Digest  string `json:"digest"`
}

const (
	format     = "accp-transcript-1"
	maxSize    = 64 << 20
	maxMembers = 1 << 20
)

// Of returns the transcript of a session. The session must not change during the call. A session that has removed
// checkpoints (see [accp.SessionOptions]) has a transcript of the others.
func Of(ctx context.Context, s *accp.Session) (*Transcript, error) {
	t := &Transcript{Format: format, SessionID: s.ID(), Frames: hook.Hot(s)}
	for _, c := range s.Checkpoints() {
		v, err := s.Resolve(ctx, "cold."+c.ID)
		if err != nil {
			return nil, fmt.Errorf("transcript: checkpoint %s: %w", c.ID, err)
		}
		out := Checkpoint{Hash: c.Hash, Summary: Summary{c.ID, c.Summary}}
		for _, frame := range v.Elements() {
			text, _ := frame.Text()
			out.Frames = append(out.Frames, text)
		}
		if c.Refined != nil {
			out.Refined = []Summary{{c.Refined.ID, c.Refined.Summary}}
		}
		t.Checkpoints = append(t.Checkpoints, out)
	}
	reached, err := t.replay()
	if err != nil {
		return nil, err
	}
	t.States = reached.list
	version, state := s.State()
	digest, err := hook.Digest(accp.Map(state...))
	if err != nil {
		return nil, fmt.Errorf("transcript: state: %w", err)
	}
	if current := (State{version, digest}); version > 0 && !slices.Contains(t.States, current) {
		t.States = append(t.States, current)
	}
	return t, nil
}

// all returns the frames in order.
func (t *Transcript) all() (frames []string) {
	for _, c := range t.Checkpoints {
		frames = append(frames, c.Frames...)
	}
	return append(frames, t.Frames...)
}

// Append appends a transcript as JSON. One of more than 64 MiB, the limit of [Decode], is an error. After an error dst is
// returned unchanged.
func Append(dst []byte, t *Transcript) ([]byte, error) {
	out, err := jsonmap.Append(dst, t)
	if n := len(out) - len(dst); n > maxSize {
		return dst, fmt.Errorf("transcript: %d bytes are too long", n)
	}
	return out, err
}

// Decode reads a transcript of at most 64 MiB. It verifies nothing.
func Decode(data []byte) (*Transcript, error) {
	c := strictjson.NewCursor(data, strictjson.Options{MaxBytes: maxSize, MaxTotal: maxMembers})
	t := &Transcript{}
	f := jsonmap.Read(c, t)
	if err := c.Err(); err != nil {
		return nil, fmt.Errorf("transcript: %w", err)
	}
	if f != nil {
		return nil, fmt.Errorf("transcript: %w", f)
	}
	if t.Format != format {
		return nil, fmt.Errorf("transcript: format %q is not %q", t.Format, format)
	}
	return t, nil
}

// Verify verifies that every frame is a frame of the session, that the hashes and ids of the checkpoints are those of
// their frames and summaries (ACCP-D40), and that the versions of the state follow from the frames (ACCP-D45,
// ACCP-D46). Without the frames of removed checkpoints, a later version may not follow, which is an error.
func (t *Transcript) Verify() error {
	for i, c := range t.Checkpoints {
		for _, s := range append([]Summary{c.Summary}, c.Refined...) {
			hash, digits := hook.Address(c.Frames, s.Text)
			id, isAddress := strings.CutPrefix(s.ID, "cp")
			switch {
			case hash != c.Hash:
				return fmt.Errorf("transcript: checkpoint %d: hash %s, the frames have %s", i, c.Hash, hash)
			case !isAddress || len(id) < 8 || !strings.HasPrefix(digits, id):
				return fmt.Errorf("transcript: checkpoint %d: id %s is not the address of the summary", i, s.ID)
			}
		}
	}
	reached, err := t.replay()
	if err != nil {
		return err
	}
	for _, s := range t.States {
		if !reached.found[s] {
			return fmt.Errorf("transcript: version %d of the state does not follow from the frames", s.Version)
		}
	}
	return nil
}

// A Difference is the first frame in which two transcripts differ. A missing frame is empty.
type Difference struct {
	Index int // in the order of the frames
	A, B  string
}

// Diff returns the first difference of the frames of two transcripts, or nil. The sides of a session may divide the
// same frames into other checkpoints.
func Diff(a, b *Transcript) *Difference {
	x, y := a.all(), b.all()
	for i := range max(len(x), len(y)) {
		d := Difference{Index: i}
		if i < len(x) {
			d.A = x[i]
		}
		if i < len(y) {
			d.B = y[i]
		}
		if d.A != d.B {
			return &d
		}
	}
	return nil
}

// A replay has the versions of the state that the frames contain. A refused change is one of them, since
// frames do not show which of two changes the sides have agreed on. So a delta may follow from several states.
type replay struct {
	list   []State
	found  map[State]bool // the same
	recent []accp.Params  // of the last ones of list
	limit  int            // of list
}

// maxRecent is the number of states that a delta may follow from.
const maxRecent = 1024

func (t *Transcript) replay() (*replay, error) {
	frames := t.all()
	r := &replay{found: map[State]bool{}, limit: 4*len(frames) + maxRecent}
	for i, text := range frames {
		err := r.read(t, text)
		if err != nil {
			return nil, fmt.Errorf("transcript: frame %d: %w", i, err)
		}
	}
	return r, nil
}

// read adds the state of a message, as strict and as lenient sessions read it.
func (r *replay) read(t *Transcript, text string) error {
	params, isState, err := t.stateOf(text, accp.Codec{FrameLimits: limits})
	other, isOtherState, otherErr := t.stateOf(text, accp.Codec{FrameLimits: limits, Lenient: true})
	if err != nil && otherErr != nil {
		return err
	}
	err = nil
	if isState {
		err = r.add(params)
	}
	if isOtherState {
		err = errors.Join(err, r.add(other))
	}
	return err
}

// limits are those of no session.
var limits = accp.FrameLimits{MaxFrame: maxSize, MaxDepth: 100, MaxParams: maxMembers, MaxMeta: maxMembers, MaxValues: maxMembers,
	MaxName: maxSize, MaxNumber: maxSize}

// stateOf returns the params of a sync:state message, which may have several parts. Other messages are read, too.
func (t *Transcript) stateOf(text string, codec accp.Codec) (params accp.Params, isState bool, err error) {
	for frame := range strings.SplitSeq(text, "\n") {
		m, err := codec.DecodeRaw([]byte(frame))
		if err == nil && (m.Meta == nil || m.Meta.SID != "" && m.Meta.SID != t.SessionID) {
			err = errors.New("not of this session")
		}
		if err != nil {
			return nil, false, err
		}
		if isState = m.Intent == accp.IntentSync && m.Op == profile.OpState; isState {
			if m, err = codec.Decode([]byte(frame)); err != nil {
				return nil, false, err
			}
			params = append(params, m.Params...)
		}
	}
	return params, isState, nil
}

// add adds the state of a sync:state message, which follows from each state of its base.
func (r *replay) add(params accp.Params) error {
	value, _ := params.Get("version")
	version, _ := value.Int()
	if state, ok := params.Get("state"); ok {
		return r.put(version, applied(nil, state.Entries()))
	}
	delta, _ := params.Get("delta")
	base := params.Text("base")
	if version == 1 {
		return r.put(version, applied(nil, delta.Entries()))
	}
	first := len(r.list) - len(r.recent)
	for i, before := range slices.Clone(r.recent) {
		if s := r.list[first+i]; s.Version == version-1 && strings.HasPrefix(s.Digest, strings.ToLower(base)) {
			if err := r.put(version, applied(before, delta.Entries())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *replay) put(version int64, state accp.Params) error {
	digest, err := hook.Digest(accp.Map(state...))
	s := State{version, digest}
	switch {
	case err != nil || r.found[s]:
		return err
	case len(r.list) == r.limit:
		return errors.New("too many versions of the state")
	}
	r.list, r.found[s] = append(r.list, s), true
	r.recent = append(r.recent[max(0, len(r.recent)+1-maxRecent):], state)
	return nil
}

// applied returns the state after a delta.
func applied(state, delta accp.Params) accp.Params { return hook.Apply(state, delta).(accp.Params) }
