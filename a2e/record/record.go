// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package record reads the recordings of A2E sessions and plays them back, so that a failed session
// becomes a test. The Record members of [a2e.ClientOptions] and [a2e.HostOptions] make recordings.
//
//	recording, err := record.Read(file)
//	agent, host := a2e.Pipe()
//	go h.Serve(ctx, host)
//	err = record.Replay(ctx, agent, recording, nil) // a *Difference unless h answers as it did
//
// [Recording.Vector] makes a case of the conformance vectors of a recording.
//
// A recording holds "***" in place of tokens, headers, environments and toolkit configurations, and
// everything else as it passed: treat it as confidential.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fivewire/fivewire/internal/lines"
)

// Roles of the recorder of a session.
const (
	RoleHost  = "host"
	RoleAgent = "agent"
)

const (
	version = 1
	maxLine = 256 << 20 // bytes of a line of a recording
)

// A Recording is a session as one of its ends has seen it.
type Recording struct {
	Role    string // of the end that recorded
	Started time.Time
	Lines   []Line

	// Truncated reports that the last line is incomplete: the recorder was killed.
	Truncated bool
}

// A Line is one message.
type Line struct {
	Time time.Duration // since the start
	Sent bool          // by the end that recorded
	Text string        // without its LF
}

// Read reads a recording.
func Read(r io.Reader) (*Recording, error) {
	if r == nil {
		return nil, errors.New("record: read: no reader")
	}
	in := lines.NewReader(r, maxLine)
	var head struct {
		Version int     `json:"a2e_record"`
		Role    string  `json:"role"`
		Started float64 `json:"started"`
	}
	text, err := in.Next()
	if err != nil {
		return nil, fmt.Errorf("record: read: %w", err)
	}
	if err := json.Unmarshal(text, &head); err != nil || head.Version != version || head.Role != RoleHost && head.Role != RoleAgent {
		return nil, errors.New("record: read: not a recording of version 1")
	}
	out := &Recording{Role: head.Role, Started: time.UnixMicro(int64(head.Started * 1e6))}
	for {
		text, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case errors.Is(err, lines.ErrUnterminated):
			out.Truncated = true
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("record: read: %w", err)
		}
		var item struct {
			T    int64   `json:"t"`
			Dir  string  `json:"dir"`
			Line *string `json:"line"`
		}
		if err := json.Unmarshal(text, &item); err != nil || item.Line == nil || item.Dir != "in" && item.Dir != "out" {
			return nil, fmt.Errorf("record: read: line %d is not a message", len(out.Lines)+1)
		}
		out.Lines = append(out.Lines, Line{Time: time.Duration(item.T) * time.Microsecond, Sent: item.Dir == "out", Text: *item.Line})
	}
}
